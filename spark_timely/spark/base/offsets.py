"""Offsets of the source: positions in a log as Spark keeps them, as canonical JSON.

The planner of replays makes and reads them (`spark_timely.datasource.planner`), and `source_frontier` reads them in the
checkpoints of queries. Spark compares offsets as text and logs them; a micro-batch is planned again after a crash from
its two logged offsets alone. So an offset says everything that a plan needs, always in the same words. A *symbolic*
offset is the start of a fresh checkpoint, such as "the log's newest commit"; *resolved*, it names a position.

Invariants
----------
1. Equal offsets have equal JSON text, through any number of round trips.
2. An offset that was resolved says where the query began and what it reads: the start offset of the
   first micro-batch is logged nowhere, its end offset is.
3. A symbolic offset depends on the options alone.
4. An offset that was resolved names commits that the log had when its position was reached, by identity: positions are
   numbers, which a log that was put back to an earlier state reaches again by other commits. While the position stays,
   they stay.
5. Beside numbers that are dates or timestamps stands their text (`iso`), for people who read ``lastProgress`` or a
   checkpoint. It is never read: what an earlier version wrote does not have it, and an edited text changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from spark_timely.errors import (
    InvalidShapeError,
    InvalidUsageError,
    LogFormatError,
    shown,
)
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain, TimeType
from spark_timely.time.text import moment_text

if TYPE_CHECKING:
    from spark_timely.log.machine.lost_commits import Commits


OFFSET_VERSION: Final = 1

Seqs = dict[str, int]


_DATED: Final = frozenset({TimeType.DATE, TimeType.TIMESTAMP})


def iso_of(frontiers: Mapping[str, Antichain | None], domain: TimeDomain | None, /) -> dict[str, object]:
    """Return the texts of frontiers for people, by name; nothing where the times are numbers anyway.

    Parameters
    ----------
    frontiers : mapping
        Those that are None are left out.
    domain : TimeDomain or None
        Types of the times; None where they are not known.

    Examples
    --------
    >>> iso_of({"frontier": Antichain.of(0)}, TimeDomain(("date",))), iso_of({"frontier": Antichain.of(0)}, None)
    ({'frontier': ['1970-01-01']}, {})
    """
    if domain is None or not _DATED & set(domain.types):
        return {}
    return {
        name: [domain.render_time(time) for time in frontier]
        for name, frontier in frontiers.items()
        if frontier is not None
    }


@dataclass(frozen=True, slots=True)
class Begin:
    """The beginning of a query with a fresh checkpoint.

    Attributes
    ----------
    kind : {"frontier", "latest", "version", "timestamp", "as_of"}
        What `value` is. All but ``latest``, ``version`` and ``timestamp`` are the same whenever
        they are looked at; those three must be pinned by an offset of their own.
    value : Antichain, int or None
        The frontier; the commit number; microseconds since the epoch; the frontier of the one time.
    """

    kind: str
    value: Antichain | int | None = None

    @property
    def constant(self) -> bool:
        """Whether it means the same whenever it is resolved."""
        return self.kind in ("frontier", "as_of")

    def to_json(self) -> object:
        """Return plain JSON values."""
        if self.kind == "latest":
            return "latest"
        return _end_to_json(self.kind, self.value)

    @classmethod
    def from_json(cls, found: object, arity: int) -> Begin:
        """Read what `to_json` gave."""
        if found == "latest":
            return cls("latest")
        return cls(*_end_from_json(found, arity, ("frontier", "as_of")))


def _end_to_json(kind: str, value: Antichain | int | None) -> dict[str, object]:
    return {_WORDS.get(kind, kind): value.to_json() if isinstance(value, Antichain) else value}


def _end_from_json(found: object, arity: int, antichains: Sequence[str]) -> tuple[str, Antichain | int]:
    """Read the kind and the value of a beginning or an end, which is a commit number or a moment unless named here."""
    if isinstance(found, Mapping) and len(found) == 1:
        word, value = next(iter(found.items()))
        for kind in antichains:
            if word == _WORDS.get(kind, kind):
                return kind, Antichain.from_json(value, arity)
        if word in ("version", "timestamp") and isinstance(value, int):
            return word, value
    raise _unreadable(found)


# Kinds that are called otherwise in an offset.
_WORDS: Final = {"as_of": "asOf", "up_to": "upTo"}


@dataclass(frozen=True, slots=True)
class Bound:
    """The end of a query: before a frontier, or after a commit number or a moment.

    Attributes
    ----------
    kind : {"up_to", "version", "timestamp"}
        What `value` is; the frontier is exclusive, the others are inclusive.
    value : Antichain or int
        The frontier; the commit number; microseconds since the epoch.
    """

    kind: str
    value: Antichain | int

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        return _end_to_json(self.kind, self.value)

    @classmethod
    def from_json(cls, found: object, arity: int) -> Bound:
        """Read what `to_json` gave."""
        return cls(*_end_from_json(found, arity, ("up_to",)))


@dataclass(frozen=True, slots=True)
class Selection:
    """The selection of a query: the constants that its offsets carry.

    Attributes
    ----------
    delivery : {"complete", "arrival"}
        In frontier order, or in the order captured.
    as_of : Antichain or None
        The one time up to which contents come first.
    snapshot : bool
        With `as_of`: whether they come at all.
    until : Bound or None
        Where it stops.
    streams : tuple of str or None
        The streams that it reads, sorted; None is all.
    start : Begin or None
        Under ``arrival``, once resolved: the commit number or the moment from which on messages are
        given out, also of streams that open later.
    content : {"rows", "events"} or None
        Whether progress rows are given out too; None where an earlier version did not write it down.
    since : Antichain or None
        Under ``arrival``, of a query that began in a log that had forgotten its beginning: from where it could be read.
    begins : Antichain or None
        Of a query that began with the earliest that there was, in a log that did not have all from its least time on:
        from when on it had. None also where an option said where to begin: then nothing is missing that was asked for.
    times : tuple of str or None
        Types of the times' coordinates, so that a frontier can be read without the log; None where an
        earlier version did not write them down.
    """

    delivery: str = "complete"
    as_of: Antichain | None = None
    snapshot: bool = True
    until: Bound | None = None
    streams: tuple[str, ...] | None = None
    start: Begin | None = None
    content: str | None = None
    times: tuple[str, ...] | None = None
    since: Antichain | None = None
    begins: Antichain | None = None

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values; what is not set is left out."""
        found: dict[str, object] = {"delivery": self.delivery}
        if self.times is not None:
            found["times"] = list(self.times)
        if self.content is not None:
            found["content"] = self.content
        if self.as_of is not None:
            found["asOf"] = self.as_of.to_json()
            found["snapshot"] = self.snapshot
        if self.until is not None:
            found["until"] = self.until.to_json()
        if self.streams is not None:
            found["streams"] = list(self.streams)
        if self.start is not None:
            found["from"] = self.start.to_json()
        if self.since is not None:
            found["since"] = self.since.to_json()
        if self.begins is not None:
            found["begins"] = self.begins.to_json()
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any], arity: int) -> Selection:
        """Read what `to_json` gave; other keys are left alone."""
        streams, times = found.get("streams"), found.get("times")
        return cls(
            delivery=found["delivery"],
            as_of=Antichain.from_json(found["asOf"], arity) if "asOf" in found else None,
            snapshot=bool(found.get("snapshot", True)),
            until=Bound.from_json(found["until"], arity) if "until" in found else None,
            streams=None if streams is None else tuple(streams),
            start=Begin.from_json(found["from"], arity) if "from" in found else None,
            content=found.get("content"),
            times=None if times is None else tuple(times),
            since=Antichain.from_json(found["since"], arity) if "since" in found else None,
            begins=Antichain.from_json(found["begins"], arity) if "begins" in found else None,
        )


@dataclass(frozen=True, slots=True)
class Offset:
    """One position of one query in one log.

    Symbolic while `begin` is set; else resolved, with the query's own beginning in `origin`.

    Attributes
    ----------
    selection : Selection
        What the query reads.
    begin : Begin or None
        Where it begins, not resolved yet.
    position : Antichain, dict of str to int, or None
        Under ``complete`` a frontier: everything not beyond it was delivered. Under ``arrival`` per
        stream the number of the next commit; a stream that is not named has delivered none.
    origin : Antichain, dict of str to int, or None
        The position at which the query began.
    log_id : str or None
        Which log: a path may be given to another one.
    commits : mapping of str to (int, str)
        Under ``complete`` the newest commits of the log when the position was reached, under ``arrival`` the last ones
        before the position; of very many streams those that were made last. Empty in what an earlier version wrote.
    consumer : str or None
        Identity of the query as a consumer of the log: drawn once, and carried on by its checkpoint. None without a
        ``consumerId``.

    Examples
    --------
    >>> commits = {"main": (3, "9f3b")}
    >>> offset = Offset(Selection(), position=Antichain.of(5), origin=Antichain.of(0), log_id="a1", commits=commits)
    >>> offset.to_json()
    {'version': 1, 'delivery': 'complete', 'log': 'a1', 'origin': [0], 'frontier': [5], \
'commits': {'main': [3, '9f3b']}}
    >>> read_offset(offset.to_json(), 1) == offset
    True
    """

    selection: Selection
    begin: Begin | None = None
    position: Antichain | Seqs | None = None
    origin: Antichain | Seqs | None = None
    log_id: str | None = None
    commits: Commits = field(default_factory=dict)
    consumer: str | None = None

    @property
    def frontier(self) -> Antichain:
        """The position under ``complete``."""
        return _frontier(self.position)

    @property
    def seqs(self) -> Seqs:
        """The position under ``arrival``."""
        return _seqs(self.position)

    @property
    def origin_frontier(self) -> Antichain:
        """The origin under ``complete``."""
        return _frontier(self.origin)

    @property
    def origin_seqs(self) -> Seqs:
        """The origin under ``arrival``."""
        return _seqs(self.origin)

    def moved(self, position: Antichain | Seqs, commits: Commits | None = None) -> Offset:
        """Return this offset at another position, reached with some commits."""
        return replace(self, position=position, commits=commits or {})

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values, always in the same order."""
        found: dict[str, object] = {"version": OFFSET_VERSION, **self.selection.to_json()}
        if self.begin is not None:
            found["begin"] = self.begin.to_json()
            return {**found, **self._iso()}
        if self.log_id is not None:
            found["log"] = self.log_id
        found["origin"] = _position_to_json(self.origin)
        word = "frontier" if self.selection.delivery == "complete" else "seqs"
        found[word] = _position_to_json(self.position)
        found.update(self._iso())
        if self.consumer is not None:
            found["consumer"] = self.consumer
        if self.commits:
            found["commits"] = {name: list(self.commits[name]) for name in sorted(self.commits)}
        return found

    def _iso(self) -> dict[str, object]:
        """Return what stands beside the numbers, for people."""
        times, until = self.selection.times, self.selection.until
        frontiers = {
            "asOf": self.selection.as_of,
            "upTo": None if until is None else until.value,
            "begin": None if self.begin is None else self.begin.value,
            "origin": self.origin,
            "frontier": self.position,
        }
        antichains = {name: value if isinstance(value, Antichain) else None for name, value in frontiers.items()}
        try:
            found = iso_of(antichains, None if times is None else TimeDomain(tuple(TimeType(name) for name in times)))
        except ValueError:  # types of another version: the numbers say it all
            return {}
        for name, bound in (("begin", self.begin), ("from", self.selection.start), ("until", until)):
            if bound is not None and bound.kind == "timestamp" and isinstance(bound.value, int):
                found[name] = moment_text(bound.value)
        return {"iso": found} if found else {}


def read_offset(found: object, arity: int, /) -> Offset:
    """Read an offset from what `Offset.to_json` gave, through JSON text or not.

    Parameters
    ----------
    found : object
        Plain JSON values.
    arity : int
        Number of coordinates of the log's times.

    Returns
    -------
    Offset

    Raises
    ------
    LogFormatError
        If a newer version of the library wrote it.
    InvalidUsageError
        If it is no offset of this source, or of a log with another kind of time.

    Examples
    --------
    >>> read_offset({"version": 1, "delivery": "complete", "begin": {"frontier": [3]}}, 1).begin
    Begin(kind='frontier', value=Antichain.of(3))
    """
    if not isinstance(found, Mapping) or not isinstance(found.get("version"), int):
        raise _unreadable(found)
    if found["version"] > OFFSET_VERSION:
        msg = (
            f"could not read the checkpoint: found an offset of version={found['version']!r}, known is {OFFSET_VERSION}"
        )
        raise LogFormatError(msg, hint="upgrade spark-timely, or begin with a new checkpoint: a newer version wrote it")
    try:
        selection = Selection.from_json(found, arity)
        if "begin" in found:
            return Offset(selection, begin=Begin.from_json(found["begin"], arity))
        word = "frontier" if selection.delivery == "complete" else "seqs"
        return Offset(
            selection,
            position=_position_from_json(found[word], selection, arity),
            origin=_position_from_json(found["origin"], selection, arity),
            log_id=found.get("log"),
            commits=_commits_from_json(found.get("commits", {})),
            consumer=None if found.get("consumer") is None else str(found["consumer"]),
        )
    except (KeyError, TypeError, InvalidShapeError) as error:
        raise _unreadable(found) from error


def _position_to_json(position: Antichain | Seqs | None) -> object:
    if isinstance(position, Antichain):
        return position.to_json()
    return {name: (position or {})[name] for name in sorted(position or {})}


def _position_from_json(found: object, selection: Selection, arity: int) -> Antichain | Seqs:
    if selection.delivery == "complete":
        return Antichain.from_json(found, arity)
    if not isinstance(found, Mapping):
        raise TypeError(found)
    return {str(name): int(seq) for name, seq in found.items()}


def _commits_from_json(found: object) -> Commits:
    if not isinstance(found, Mapping):
        raise TypeError(found)
    commits: dict[str, tuple[int, str]] = {}
    for name, commit in found.items():
        if not isinstance(commit, (list, tuple)) or [type(each) for each in commit] != [int, str]:
            raise TypeError(found)
        commits[str(name)] = commit[0], commit[1]
    return commits


def _frontier(position: Antichain | Seqs | None) -> Antichain:
    if not isinstance(position, Antichain):
        msg = f"could not take a position as a frontier: found {shown(position)}"
        raise InvalidUsageError(msg)
    return position


def _seqs(position: Antichain | Seqs | None) -> Seqs:
    if not isinstance(position, dict):
        msg = f"could not take a position as commit numbers: found {shown(position)}"
        raise InvalidUsageError(msg)
    return position


def _unreadable(found: object) -> InvalidUsageError:
    return InvalidUsageError(
        f"could not read the checkpoint: found {shown(found)}, which is no offset of this log",
        hint="use a new checkpoint: this one belongs to another query or log",
    )
