"""Logs that a dataflow keeps for itself: state of operators, and streams that are looked into but not captured.

Operators over all history (`latest`, `distinct`) keep state, and joins as of a time look into their collection. `Scope`
(`dataflow.stream`) asks `KeptLogs` in which logs, and where these are; `dataflow.logs` opens them like any output's.

Each has a folder inside of the log of an output that is made from it. The folder is named by a fingerprint of what the
log is made by, so that another plan begins with nothing. A fingerprint has no code of functions, and neither names
nor `inspect`. So where two operators differ in nothing else, one would continue what the other has kept: if one output
is made from both, each needs a name of its own, which becomes part of the folder's name.

Invariants
----------
1. Two logs have two folders.
2. Which folder a log has is a function of the outputs, not of the order in which they were captured: else an operator
   would continue another one's log after the program was put into another order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spark_timely.dataflow.fingerprint import plans_of, spool_hash
from spark_timely.dataflow.logs import Sink
from spark_timely.dataflow.views import Replay, View, least_time, leaves_of
from spark_timely.errors import InvalidUsageError

__all__ = ["KEPT", "KeptLogs"]

KEPT: Final = "_spark_timely"
"""Folder inside of an output's log in which a dataflow keeps what its operators remember."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A log that is kept.

    Attributes
    ----------
    home : Sink
        The output in whose log it is.
    fingerprint : str
        Of what it is made by.
    captured : Sink or None
        An output that has the same, and is read instead.
    sink : Sink or None
        What writes it; None where an output is read.
    """

    home: Sink
    fingerprint: str
    captured: Sink | None
    sink: Sink | None = None


class KeptLogs:
    """The logs that a dataflow keeps for itself.

    Parameters
    ----------
    owner : str
        Of its outputs.
    next_name : callable
        Gives the name of a new operator.
    ids : mapping of str to str
        Ids of the logs that the dataflow reads, by path.
    """

    def __init__(self, owner: str, next_name: Callable[[str], str], ids: Mapping[str, str]) -> None:
        self._owner, self._next_name, self._ids = owner, next_name, ids
        self._leaves: dict[View, Replay] = {}
        self._sources: dict[Replay, View] = {}
        self._names: dict[View, str] = {}
        self._kept: dict[View, _Kept] = {}
        self._below: dict[Sink, list[View]] = {}

    def leaf_of(self, view: View) -> Replay:
        """Return how a view is read from a log of its own, which has its place once anything of it is captured."""
        if view not in self._leaves:
            domain = replace(view.domain, minimum=least_time(view))
            leaf = self._leaves[view] = Replay(view.name, domain, view.schema, (), "", view.rows_kind)
            self._sources[leaf] = view
        return self._leaves[view]

    def source_of(self, leaf: Replay) -> View | None:
        """Return what is read from a log that is kept; None for any other log."""
        return self._sources.get(leaf)

    def name(self, view: View, name: str) -> None:
        """Name what is kept of a view. The first name counts: what several operators look into is kept once."""
        self._names.setdefault(view, name)

    def sources_below(self, view: View) -> list[View]:
        """Return what is kept of all that a view is made from, each after what it is made from."""
        found: set[View] = set()
        waiting = [view]
        while waiting:
            for leaf in leaves_of(waiting.pop()):
                source = self._sources.get(leaf)
                if source is not None and source not in found:
                    found.add(source)
                    waiting.append(source)
        return [source for source in self._leaves if source in found]

    def home_of(self, sink: Sink) -> str:
        """Return the path of the output in whose log a log is kept."""
        return self._kept[sink.view].home.path

    def place(self, captures: Sequence[Sink]) -> list[Sink]:
        """Give each log its place; return the outputs, each after what is kept for it.

        Parameters
        ----------
        captures : sequence of Sink
            Outputs of the user.

        Raises
        ------
        InvalidUsageError
            If an output is made from two operators that would keep in one folder.
        """
        users: dict[View, list[Sink]] = {}
        for sink in captures:
            if sink not in self._below:
                self._below[sink] = self.sources_below(sink.view)
            for source in self._below[sink]:
                users.setdefault(source, []).append(sink)
        order = [source for source in self._leaves if source in users]  # each after those that it is made from
        kept = self._with_new(order, users, captures)
        folders = self._folders([source for source in order if not _is_read(kept[source], captures)], kept, users)
        self._kept = {source: self._settled(source, kept[source], folders.get(source)) for source in order}
        found: dict[Sink, None] = {}
        for sink in captures:
            own = (self._kept[source].sink for source in self._below[sink])
            found.update(dict.fromkeys([*(each for each in own if each is not None), sink]))
        return list(found)

    def _with_new(
        self, order: Sequence[View], users: Mapping[View, Sequence[Sink]], captures: Sequence[Sink]
    ) -> dict[View, _Kept]:
        """Return all logs that are kept, with those that were not before."""
        kept: dict[View, _Kept] = {}
        known: dict[View, str] = {}
        for source in order:
            before = self._kept.get(source)
            if before is None:
                # What is captured by then is read there, and not kept once more.
                captured = next((sink for sink in captures if sink.view is source), None)
                # Its place is named by what is asked for here: until then it has none that anything else has.
                sink = Sink(source.name, source, "?", "main", self._owner, kept=True)
                spooled = {sink.path for sink in captures}.intersection(leaf.path for leaf in leaves_of(source))
                found = plans_of([*(captures if spooled else ()), sink], self._ids, known)[sink]
                before = _Kept(users[source][0], found.fingerprint, captured)
            kept[source] = before
            stream = "main" if before.captured is None else before.captured.stream
            known[self._leaves[source]] = spool_hash([(stream, before.fingerprint)])
        return kept

    def _folders(
        self, order: Sequence[View], kept: Mapping[View, _Kept], users: Mapping[View, Sequence[Sink]]
    ) -> dict[View, str]:
        """Return the folder of each log (invariants 1 and 2)."""
        groups: dict[tuple[str, str], list[View]] = {}
        for source in order:
            groups.setdefault((kept[source].home.path, kept[source].fingerprint), []).append(source)
        found: dict[View, str] = {}
        for (home, fingerprint), group in groups.items():
            self._check_named(group, users)
            folder = f"{home.rstrip('/')}/{KEPT}/{fingerprint.partition(':')[2]}"
            named = {x: f"{folder}-{self._names[x]}" if x in self._names else folder for x in group}
            places = list(named.values())
            for source, place in named.items():
                # Of several outputs into one log: `main` has the folder that it would have alone.
                streams = {sink.stream for sink in users[source] if sink.path == home}
                own = "main" if "main" in streams else min(streams)
                found[source] = f"{place}.{own}" if places.count(place) > 1 and own != "main" else place
        return found

    def _check_named(self, group: Sequence[View], users: Mapping[View, Sequence[Sink]]) -> None:
        """Refuse operators of one output that would keep in one folder."""
        for one, other in itertools.combinations(group, 2):
            shared = next((sink for sink in users[one] if sink in users[other]), None)
            names = [self._names.get(source) for source in (one, other)]
            if shared is not None and (None in names or names[0] == names[1]):
                said = " and ".join(
                    f"{source.name!r} with name={name!r}" for source, name in zip((one, other), names, strict=True)
                )
                msg = f"could not add operator {shared.name!r}: found {said}, which would keep in one folder"
                raise InvalidUsageError(
                    msg,
                    hint="give each of the operators that keep them, or look into them, a name of its own: "
                    'distinct(name="first"); they differ in nothing but functions or inspect, of which a folder '
                    "says nothing",
                    context={"operators": ", ".join(source.name for source in (one, other))},
                )

    def _settled(self, source: View, kept: _Kept, folder: str | None) -> _Kept:
        """Return a log at its place, and let all that read it see where it is."""
        sink = kept.sink if folder is not None else None
        if folder is not None and (sink is None or sink.path != folder):
            name = self._next_name("keep") if sink is None else sink.name
            sink = Sink(name, source, folder, "main", self._owner, kept=True)
        read = kept.captured if sink is None else sink
        assert read is not None
        # Not before: nobody reads a log that has no place.
        object.__setattr__(self._leaves[source], "path", read.path)
        return replace(kept, sink=sink)


def _is_read(kept: _Kept, captures: Sequence[Sink]) -> bool:
    """Return whether an output is read instead: as long as its log has nothing else."""
    return kept.captured is not None and sum(sink.path == kept.captured.path for sink in captures) == 1
