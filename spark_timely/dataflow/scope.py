"""A dataflow as it is written down: which logs it reads, which it owns, what lies between.

Invariants
----------
1. All times of a dataflow are of the same types.
2. A stream of a log is owned by one dataflow, and captured into at one place of it.
3. No log is made from itself: loops are not built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_timely.dataflow.fingerprint import FINGERPRINT
from spark_timely.dataflow.logs import open_logs
from spark_timely.dataflow.stream import Stream
from spark_timely.dataflow.view import Replay, View, leaves_of, ordered
from spark_timely.errors import (
    CyclicSummaryError,
    InvalidUsageError,
    LogMissingError,
    shown,
)
from spark_timely.log import Log
from spark_timely.log.delta import open_log
from spark_timely.log.files.format import LogFormat, check_stream_name
from spark_timely.log.store.storage import normal_path
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    import os

__all__ = ["Probe", "Scope", "Sink"]


@dataclass(frozen=True, eq=False)
class Sink:
    """A stream of a log that a dataflow owns, and what is captured into it.

    Attributes
    ----------
    name : str
        Of the operator, for errors.
    view : View
    path : str
        Of the log.
    stream : str
    owner : str
        The same for all copies and restarts of the dataflow.
    replaces : str or None
        Fingerprint of the plan that the output may have been made by up to now, or of the state that it may be in: see
        `Stream.capture`.
    """

    name: str
    view: View
    path: str
    stream: str
    owner: str
    replaces: str | None = None


class Scope:
    """A dataflow before it runs.

    Parameters
    ----------
    name : str
        Owns the outputs: the same over restarts, another one for each dataflow.
    evaluation : {"arrow", "sql"}
        What runs it: see `Dataflow`.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> from spark_timely.log.delta import create_log
    >>> log = create_log(tempfile.mkdtemp() + "/log", pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> Scope("example").replay(log)
    Stream('replay_1', ['v'])
    """

    def __init__(self, name: str, *, evaluation: str = "arrow") -> None:
        if not isinstance(name, str) or not name.strip():
            msg = f"could not begin a dataflow: found name={shown(name)}"
            raise InvalidUsageError(msg, hint="give it a name, the same whenever it is started")
        if evaluation not in ("arrow", "sql"):
            msg = f"could not begin dataflow {name!r}: found evaluation={shown(evaluation)}"
            raise InvalidUsageError(msg, hint="use 'arrow' or 'sql'")
        self.name = name
        self.evaluation = evaluation
        self.sinks: list[Sink] = []
        self.storage: dict[str, dict[str, str]] = {}
        self._leaves: dict[str, Replay] = {}
        self._operators = 0

    def next_name(self, kind: str) -> str:
        """Return the name of a new operator."""
        self._operators += 1
        return f"{kind}_{self._operators}"

    def replay(self, log: str | os.PathLike[str] | Log, /) -> Stream:
        """Read a log: its messages, and its frontier.

        Parameters
        ----------
        log : path or Log

        Returns
        -------
        Stream

        Raises
        ------
        LogMissingError
            If there is no log.
        InvalidUsageError
            If its times are of other types than those of another log of the dataflow, or it is a
            collection.
        """
        name = self.next_name("replay")
        opened = log if isinstance(log, Log) else open_log(log)
        if opened.kind != "stream":
            msg = f"could not add operator {name!r}: found log {opened.path!r} of kind={opened.kind!r}"
            raise InvalidUsageError(msg, hint="dataflows read streams; updates of collections cannot be aggregated yet")
        for other in self._leaves.values():
            if other.domain.types != opened.domain.types:
                here, there = ([kind.value for kind in each.domain.types] for each in (opened, other))
                msg = f"could not add operator {name!r}: found times of types {here!r}, {there!r} in log {other.path!r}"
                raise InvalidUsageError(msg, hint="all logs of one dataflow have times of the same types")
        if opened.path not in self._leaves:
            self._leaves[opened.path] = Replay(name, opened.domain, opened.schema, (), opened.path)
            self.storage[opened.path] = dict(opened.storage_options)
        return Stream(self, self._leaves[opened.path])

    def add_sink(self, view: View, log: str | os.PathLike[str] | Log, stream: str, replaces: str | None = None) -> None:
        """Capture a view into a stream of a log. See `Stream.capture`."""
        name = self.next_name("capture")
        path = log.path if isinstance(log, Log) else normal_path(log)
        check_stream_name(stream)
        LogFormat.build(view.schema, times=[kind.value for kind in view.domain.types])
        if replaces is not None and not (isinstance(replaces, str) and FINGERPRINT.fullmatch(replaces)):
            msg = f"could not add operator {name!r}: found replaces={shown(replaces)}"
            raise InvalidUsageError(msg, hint="give the fingerprint as the error or explain() shows it: '1:…'")
        if any((sink.path, sink.stream) == (path, stream) for sink in self.sinks):
            msg = f"could not add operator {name!r}: found stream {stream!r} of log {path!r} captured into already"
            raise InvalidUsageError(msg, hint="concat the two streams, or capture into another one")
        below = self._below(view)
        if path in below:
            route = [*below[path], path]
            msg_0 = f"could not add operator {name!r}: found log {path!r} made from itself, by {shown(route)}"
            raise CyclicSummaryError(
                msg_0,
                hint="capture into another log; loops are not built",
                path=route,
            )
        self.sinks.append(Sink(name, view, path, stream, f"dataflow {self.name}", replaces))
        self.storage.setdefault(path, dict(log.storage_options) if isinstance(log, Log) else {})

    def spool(self, view: View, log: str | os.PathLike[str] | Log, stream: str, replaces: str | None = None) -> Stream:
        """Capture a view, and replay the log that it is captured into. See `Stream.spool`."""
        self.add_sink(view, log, stream, replaces)
        sink = self.sinks[-1]
        return self.replay(open_logs([sink], self.storage)[sink.path])

    def _below(self, view: View) -> dict[str, list[str]]:
        """Return the logs that a view is made from, through other outputs too, each with how."""
        found: dict[str, list[str]] = {}
        waiting = [(leaf.path, [leaf.path]) for leaf in leaves_of(view)]
        while waiting:  # one turn per log
            path, route = waiting.pop()
            if path in found:
                continue
            found[path] = route
            for sink in self.sinks:
                if sink.path == path:
                    waiting += [(leaf.path, [leaf.path, *route]) for leaf in leaves_of(sink.view)]
        return found

    def probe_of(self, view: View) -> Probe:
        """Return what tells how far the outputs made from a view are."""
        return Probe(self, view)


class Probe:
    """How far the outputs made from a stream are: read from their logs, from any process.

    Parameters
    ----------
    scope : Scope
    view : View
    """

    def __init__(self, scope: Scope, view: View) -> None:
        self._scope = scope
        self._view = view
        self._opened: dict[str, Log] = {}

    @property
    def frontier(self) -> Antichain:
        """Frontier in the times of the stream: everything not beyond it is in all outputs made from it.

        The meet of the uppers of the captures downstream, each as the stream's own times say it; not of those that
        read one of these logs again.

        Raises
        ------
        InvalidUsageError
            If nothing is captured downstream.
        """
        found: list[Antichain] = []
        for sink in self._scope.sinks:  # one turn per output
            if self._view not in ordered(sink.view):
                continue
            seen: set[tuple[View, Antichain]] = set()
            waiting: list[tuple[View, Antichain]] = [(sink.view, self._upper(sink))]
            while waiting:  # one turn per operator and frontier
                at, frontier = waiting.pop()
                if (at, frontier) in seen:
                    continue
                seen.add((at, frontier))
                if at is self._view:
                    found.append(frontier)
                else:
                    waiting += [(source, at.back_of(frontier)) for source in at.inputs]
        if not found:
            msg = f"could not probe {self._view.name!r}: found nothing that is captured downstream of it"
            raise InvalidUsageError(msg, hint="capture a stream that is made from it")
        meet = found[0]
        for other in found[1:]:
            meet = meet.meet(other)
        return meet

    def _upper(self, sink: Sink) -> Antichain:
        domain = self._view.domain
        log = self._opened.get(sink.path)
        try:
            if log is None:
                log = open_log(sink.path, storage_options=self._scope.storage[sink.path] or None)
                self._opened[sink.path] = log
            log.refresh()
        except LogMissingError:
            return domain.minimum_frontier
        state = log.stream(sink.stream)
        return log.domain.minimum_frontier if state is None else state.frontier
