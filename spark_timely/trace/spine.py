"""The spine of an arrangement: its list of runs, its `since` and its `upper`, as a value.

`dataflow.engine.arrangements` makes each next one, with runs added (`extended`) or some merged (`merged`); `due_merge`
chooses which. `folder` reads and writes it as JSON, `arrangement` opens its runs.

Runs are a bag: what a key holds is the sum of what all runs have of it. So a run may be added while others are merged.
A spine is a value; each one that follows has the next number, and of two that follow the same one only one is written.

Invariants
----------
1. A spine is of one state of a log: its id, its columns, and the newest commit of each stream that it has seen. A log
   that has others there is another one, whatever its name and its frontier say.
2. `since` is before `upper`, and neither ever goes back.
3. Runs leave out no time: the first begins at the least time, each next one where the ones before it end or where
   another one begins, and they end at `upper`. A file that breaks this, or invariant 2, is no spine, whatever its
   checksum says.
4. Runs at least halve in size from the oldest to the newest, as with 8, 4 and 2 rows, once no merge is due: there are
   few of them, and each row is merged a few times only.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_timely.errors import TimelyInternalError

__all__ = ["RunFile", "Spine", "due_merge"]


@dataclass(frozen=True, slots=True)
class RunFile:
    """A run's file.

    Attributes
    ----------
    name : str
        In the folder of the arrangement.
    rows, size_bytes, checksum : int
    lower, upper : int or None
        It is of updates at times from `lower` on (None: from the least) and before `upper` (None: to the last), as
        they were when it was made. A spine says so of its runs; those of one extension have the same.
    """

    name: str
    rows: int
    size_bytes: int
    checksum: int = 0
    lower: int | None = None
    upper: int | None = None


@dataclass(frozen=True, slots=True)
class Spine:
    """An arrangement, as a value.

    Attributes
    ----------
    number : int
        One more than that of the spine which it follows.
    log_id : str
    columns : str
        The key, and the columns of the rows, as text.
    commits : dict of str to (int, str)
        Number and identity of the newest commit of each stream that it has seen.
    since : int
        Contents are known as of each time from it on.
    upper : int or None
        It has all updates at times before; None: all.
    runs : tuple of RunFile
        The oldest first.
    gone : tuple of (str, float)
        Names of files that were replaced, and when, in seconds since 1970.
    lineage : str
        The same of all that follow each other from the one that was begun with nothing.
    """

    number: int
    log_id: str
    columns: str
    commits: Mapping[str, tuple[int, str]]
    since: int
    upper: int | None
    runs: tuple[RunFile, ...] = ()
    gone: tuple[tuple[str, float], ...] = ()
    lineage: str = ""

    @property
    def rows(self) -> int:
        """Of all runs together."""
        return sum(run.rows for run in self.runs)

    @property
    def size_bytes(self) -> int:
        """Of all runs together."""
        return sum(run.size_bytes for run in self.runs)

    def extended(self, runs: Sequence[RunFile], upper: int | None, commits: Mapping[str, tuple[int, str]]) -> Spine:
        """Return the spine with runs that have what was between its upper and another one.

        Examples
        --------
        >>> begun = Spine(0, "id", "k", {}, 0, 5)
        >>> begun.extended([RunFile("a", 7, 280)], 9, {"main": (3, "x")}).upper
        9
        """
        if self.upper is None or (upper is not None and upper < self.upper):
            msg = f"an arrangement with upper={self.upper} was extended to {upper}"
            raise TimelyInternalError(msg)
        lower = self.upper if self.runs else None
        more = tuple(replace(run, lower=lower, upper=upper) for run in runs if run.rows)
        before = self.runs if more or not self.runs else (*self.runs[:-1], replace(self.runs[-1], upper=upper))
        return replace(self, number=self.number + 1, upper=upper, commits=dict(commits), runs=(*before, *more))

    def merged(self, before: Sequence[RunFile], after: RunFile | None, since: int, at: float) -> Spine | None:
        """Return the spine with some runs replaced by one; None if they are not all part of it any more.

        Parameters
        ----------
        before : sequence of RunFile
        after : RunFile or None
            None where nothing is left of them.
        since : int
            To which times were moved.
        at : float
            Now, in seconds since 1970.

        Examples
        --------
        >>> a, b, ab = (RunFile(name, 1, 40) for name in ("a", "b", "ab"))
        >>> spine = Spine(3, "id", "k", {}, 0, 5, (a, b))
        >>> spine.merged([a, b], ab, 2, 0.0).runs == (ab,), spine.merged([ab], None, 2, 0.0)
        (True, None)
        """
        names = {run.name for run in before}
        places = [place for place, run in enumerate(self.runs) if run.name in names]
        if len(places) < len(names):
            return None
        if self.upper is not None and since >= self.upper and since > self.since:
            msg = f"an arrangement with upper={self.upper} was moved to since={since}"
            raise TimelyInternalError(msg)
        kept = [run for run in self.runs if run.name not in names]
        lower, upper = self.runs[places[0]].lower, max((self.runs[place].upper for place in places), key=_end)
        if after is not None:
            kept.insert(places[0], replace(after, lower=lower, upper=upper))
        elif places[0]:
            last = kept[places[0] - 1]
            kept[places[0] - 1] = replace(last, upper=max(last.upper, upper, key=_end))
        else:
            begin = kept[0].lower if kept else None
            kept = [replace(run, lower=None) if run.lower == begin else run for run in kept]
        gone = (*self.gone, *((name, at) for name in sorted(names)))
        return replace(self, number=self.number + 1, since=max(self.since, since), runs=tuple(kept), gone=gone)

    def check(self) -> None:
        """Refuse a spine that nothing here makes.

        Raises
        ------
        ValueError
            If its since is not before its upper, or if its runs leave out times, or have some twice.

        Examples
        --------
        >>> spine = Spine(3, "id", "k", {}, 0, 9, (RunFile("a", 1, 40, 0, None, 5), RunFile("b", 1, 40, 0, 6, 9)))
        >>> spine.check()
        Traceback (most recent call last):
        ValueError: found no spine: run 'b' begins at 6, those before it end at 5
        """
        if self.upper is not None and self.since >= self.upper:
            msg = f"found no spine: since={self.since} is not before upper={self.upper}"
            raise ValueError(msg)
        if len({run.name for run in self.runs}) < len(self.runs):
            msg = "found no spine: it has a run twice"
            raise ValueError(msg)
        begin, end = None, None if not self.runs else self.runs[0].upper
        for number, run in enumerate(self.runs):
            if run.lower != begin and (not number or end is None or run.lower != end):
                msg = f"found no spine: run {run.name!r} begins at {run.lower}, those before it end at {end}"
                raise ValueError(msg)
            if run.rows < 1 or (run.lower is not None and _end(run.upper) <= run.lower):
                msg = f"found no spine: run {run.name!r} has nothing"
                raise ValueError(msg)
            begin, end = run.lower, max(end, run.upper, key=_end)
        if self.runs and end != self.upper:
            msg = f"found no spine: its runs end at {end}, not at {self.upper}"
            raise ValueError(msg)

    def tidied(self, before: float) -> tuple[Spine, list[str]]:
        """Return the spine without files that were replaced before a moment, and their names."""
        old = [name for name, at in self.gone if at < before]
        return replace(self, gone=tuple(each for each in self.gone if each[1] >= before)), old

    def to_json(self) -> str:
        """Return it as text, with a checksum of it."""
        text = json.dumps(
            {
                "number": self.number,
                "log_id": self.log_id,
                "columns": self.columns,
                "commits": {name: list(commit) for name, commit in self.commits.items()},
                "since": self.since,
                "upper": self.upper,
                "runs": [[run.name, run.rows, run.size_bytes, run.checksum, run.lower, run.upper] for run in self.runs],
                "gone": [list(each) for each in self.gone],
                "lineage": self.lineage,
            }
        )
        return json.dumps({"crc32": zlib.crc32(text.encode()), "spine": text})

    @classmethod
    def from_json(cls, text: str | bytes) -> Spine:
        """Return what `to_json` wrote.

        Raises
        ------
        ValueError
            If it is anything else: a digit that somebody changed is an answer that is wrong; or if it is none by
            `check`.

        Examples
        --------
        >>> spine = Spine(3, "id", "k", {"main": (4, "x")}, 0, None, (RunFile("a", 1, 40, 7),), (("b", 1.5),))
        >>> Spine.from_json(spine.to_json()) == spine
        True
        """
        try:
            outer = json.loads(text)
            inner: str = outer["spine"]
            if zlib.crc32(inner.encode()) != outer["crc32"]:
                msg = "found no spine: its checksum is another one"
                raise ValueError(msg)
            found: dict[str, Any] = json.loads(inner)
            spine = cls(
                int(found["number"]),
                str(found["log_id"]),
                str(found["columns"]),
                {str(name): (int(seq), str(identity)) for name, (seq, identity) in found["commits"].items()},
                int(found["since"]),
                None if found["upper"] is None else int(found["upper"]),
                tuple(
                    RunFile(str(name), int(rows), int(size), int(sum_), _time(lower), _time(upper))
                    for name, rows, size, sum_, lower, upper in found["runs"]
                ),
                tuple((str(name), float(at)) for name, at in found["gone"]),
                str(found["lineage"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            msg = f"found no spine: {error!r}"
            raise ValueError(msg) from error
        spine.check()
        return spine


def _time(found: int | str | None) -> int | None:
    return None if found is None else int(found)


def _end(upper: int | None) -> float:
    """Return an upper as something to compare: none is after all."""
    return math.inf if upper is None else upper


def due_merge(runs: Sequence[RunFile]) -> tuple[RunFile, ...]:
    """Return the runs to merge next: the newest ones, with all that are not twice as large; none if all are.

    Examples
    --------
    >>> sizes = [(8, 2), (8, 4, 3), (8, 3, 2), (8,)]
    >>> [[run.rows for run in due_merge([RunFile(str(n), n, 0) for n in each])] for each in sizes]
    [[], [8, 4, 3], [8, 3, 2], []]
    """
    first, total = len(runs) - 1, runs[-1].rows if runs else 0
    while first > 0 and runs[first - 1].rows < 2 * total:
        first -= 1
        total += runs[first].rows
    return tuple(runs[first:]) if len(runs) - first > 1 else ()
