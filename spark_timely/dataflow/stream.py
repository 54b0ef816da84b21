"""The API of dataflows: a `Scope` reads logs, a `Stream` has the operators, a `Probe` shows progress.

A `Scope` begins streams and knows the outputs; each operator of a `Stream` makes another stream around a view of its
rows; a `Probe` says how far the outputs made from one are. Users have it as a `Dataflow` of
`spark_timely.spark.dataflows`, a scope that runs as a streaming query; `compute.drive.plans` builds streams from plans.
Everything that can be refused is refused here, naming the operator: before a query is started.

Invariants
----------
1. All times of a dataflow are of the same types.
2. A stream of a log is owned by one dataflow, and captured into at one place of it.
3. No log is made from itself: loops are not built.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.aggregates import Aggregation
from spark_timely.dataflow.equality import equality_key
from spark_timely.dataflow.fingerprint import FINGERPRINT
from spark_timely.dataflow.history.reduce import Function
from spark_timely.dataflow.kept_logs import KeptLogs
from spark_timely.dataflow.logs import Sink, check_writers, open_logs
from spark_timely.dataflow.operators.checks import named
from spark_timely.dataflow.operators.collections import AsUpdates, Consolidate, Negate
from spark_timely.dataflow.operators.grouped import Aggregate, BinaryNotify, UnaryNotify
from spark_timely.dataflow.operators.history import Distinct, DropDuplicates, Latest, Reduce, Top, Upsert
from spark_timely.dataflow.operators.joins import Join
from spark_timely.dataflow.operators.rows import Branch, Concat, Filter, FlatMap, Inspect, Map, Select
from spark_timely.dataflow.operators.times import DelayBy, StepForward, TimesExtract, TimesReduce
from spark_timely.dataflow.remembered import Remembered, remembers
from spark_timely.dataflow.views import Operator, Replay, View, least_time, leaves_of, ordered
from spark_timely.errors import (
    CyclicSummaryError,
    InvalidUsageError,
    LogMissingError,
    SchemaMismatchError,
    shown,
)
from spark_timely.log import Log
from spark_timely.log.files.format import LogFormat, check_stream_name
from spark_timely.log.log import open_log
from spark_timely.log.store.storage import checked_options, normal_path
from spark_timely.log.store.urls import endpoint_of, parse_url, same_place
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    import datetime as dt
    import os

    from spark_timely.dataflow.delays import Delay, Delays

__all__ = ["Probe", "Scope", "Stream"]


class Scope:
    """A dataflow before it runs.

    Parameters
    ----------
    name : str
        Owns the outputs: the same over restarts, another one for each dataflow.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> from spark_timely.log.log import create_log
    >>> log = create_log(tempfile.mkdtemp() + "/log", pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> Scope("example").replay(log)
    Stream('replay_1', ['v'])
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.strip():
            msg = f"could not begin a dataflow: found name={shown(name)}"
            raise InvalidUsageError(msg, hint="give it a name, the same whenever it is started")
        self.name = name
        self.sinks: list[Sink] = []
        self.storage: dict[str, dict[str, str]] = {}
        self._named: dict[str, tuple[str, dict[str, str]]] = {}  # by log: the credential, and the options beside it
        self._leaves: dict[str, Replay] = {}
        self._ids: dict[str, str] = {}  # of the logs that are read, by path
        self._nodes: dict[Hashable, View] = {}  # operators, by what makes two of them one
        self._kept = KeptLogs(f"dataflow {name}", self.next_name, self._ids)
        self._captures: list[Sink] = []
        self._operators = 0

    def __repr__(self) -> str:
        """Return the name, and how many logs are read and written."""
        return f"{type(self).__name__}({self.name!r}, inputs={len(self._leaves)}, outputs={len(self.sinks)})"

    def next_name(self, kind: str) -> str:
        """Return the name of a new operator."""
        self._operators += 1
        return f"{kind}_{self._operators}"

    def replay(
        self,
        log: str | os.PathLike[str] | Log,
        /,
        *,
        credential: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Stream:
        """Read a log: its messages, and its frontier.

        The messages of a collection are updates, each with how often its row is added. Of a collection that has
        forgotten its beginning they are the contents as of since, at that time, then what changes.

        Parameters
        ----------
        log : path or Log
        credential : str, optional
            Which credential to use for a cloud URL: a name that `spark_timely.credential` gave in this process, or
            ``module:function``. Looked up here, and again when the dataflow is started.
        storage_options : mapping of str to str, optional
            Credentials and settings for a cloud URL. They win over those of the credential. Each log has its own.

        Returns
        -------
        Stream

        Raises
        ------
        LogMissingError
            If there is no log.
        InvalidUsageError
            If its times are of other types than those of another log of the dataflow, or a log that is open is given
            with options.
        InvalidOptionError
            If there is no credential of that name, or the log's store does not know an option.
        """
        name = self.next_name("replay")
        options = self._options(name, log, credential, storage_options)
        opened = log if isinstance(log, Log) else open_log(log, storage_options=options)
        for other in self._leaves.values():
            if other.domain.types != opened.domain.types:
                here, there = ([kind.value for kind in each.domain.types] for each in (opened, other))
                msg = f"could not add operator {name!r}: found times of types {here!r}, {there!r} in log {other.path!r}"
                raise InvalidUsageError(
                    msg, hint="give logs with times of the same types: all logs of one dataflow have them"
                )
        path = self._path_of(name, opened.path, opened.core.storage_options)
        if path not in self._leaves:
            self._leaves[path] = Replay(name, opened.domain, opened.schema, (), path, opened.kind)
            self._ids[path] = opened.core.log_id
            self.storage[path] = dict(opened.core.storage_options)
            self._keep_name(path, credential, storage_options)
        return Stream(self, self._leaves[path])

    def _options(
        self,
        name: str,
        log: str | os.PathLike[str] | Log,
        credential: str | None,
        storage_options: Mapping[str, str] | None,
    ) -> dict[str, str]:
        """Return the storage options of a log, as far as they are given: by name or by value."""
        if not isinstance(log, Log):
            return checked_options(self._joined_options(credential, storage_options), normal_path(log))
        if credential is not None or storage_options is not None:
            msg = f"could not add operator {name!r}: found storage options beside log {log.path!r}, which is open"
            raise InvalidUsageError(msg, hint="leave them out, or give the path of the log")
        return dict(log.core.storage_options)

    def _joined_options(self, credential: str | None, storage_options: Mapping[str, str] | None) -> dict[str, str]:
        """Return storage options with those of a credential, for which a scope that knows no session has no names."""
        if credential is not None:
            msg = f"could not use credential {shown(credential)}: found a scope that belongs to no session"
            raise InvalidUsageError(msg, hint="use spark_timely.Dataflow, or give storage_options")
        return checked_options(storage_options)

    def _keep_name(self, path: str, credential: str | None, storage_options: Mapping[str, str] | None) -> None:
        if credential is not None:
            self._named[path] = credential, dict(storage_options or {})

    def _path_of(self, name: str, path: str, storage_options: Mapping[str, str]) -> str:
        """Return the path that a log has in the dataflow: that of the first use, however the place is written now."""
        if parse_url(path) is None:
            return path
        found = path
        if path not in self.storage:
            same = (other for other, given in self.storage.items() if same_place(other, path, given, storage_options))
            found = next(same, path)
        endpoints = endpoint_of(self.storage.get(found)), endpoint_of(storage_options)
        if all(endpoints) and endpoints[0] != endpoints[1]:
            msg = f"could not add operator {name!r}: found log {path!r} at endpoints {shown(endpoints)}"
            raise InvalidUsageError(
                msg, hint="use buckets of different names: a dataflow knows a log by its URL", context={"path": path}
            )
        return found

    def _add_sink(
        self,
        view: View,
        log: str | os.PathLike[str] | Log,
        stream: str,
        replaces: str | None = None,
        credential: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Capture a view into a stream of a log. See `Stream.capture`."""
        name = self.next_name("capture")
        options = self._options(name, log, credential, storage_options)
        path = self._path_of(name, log.path if isinstance(log, Log) else normal_path(log), options)
        check_stream_name(stream)
        if remembers(view) is not None and stream != "main":
            msg = f"could not add operator {name!r}: found stream={stream!r} for {view.name!r}, whose state the log is"
            raise InvalidUsageError(msg, hint="capture it into a log of its own")
        LogFormat.build(view.schema, times=[kind.value for kind in view.domain.types], kind=view.rows_kind)
        if replaces is not None and not (isinstance(replaces, str) and FINGERPRINT.fullmatch(replaces)):
            msg = f"could not add operator {name!r}: found replaces={shown(replaces)}"
            raise InvalidUsageError(msg, hint="give the fingerprint as the error or explain() shows it: '1:…'")
        if replaces is not None and not Sink(name, view, path, stream, "").can_be_taken_over:
            msg = f"could not add operator {name!r}: found replaces={shown(replaces)} for a collection"
            raise InvalidUsageError(
                msg,
                hint="capture into another log, or remove the output to make it again: another plan would take back "
                "from it what was never added",
            )
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
        shared = self._state_beside(view, path)
        if shared is not None:
            msg = f"could not add operator {name!r}: found log {path!r} shared with {shared!r}, whose state it is"
            raise InvalidUsageError(msg, hint="capture an operator over all history into a log of its own")
        if path not in self.storage or not self.storage[path]:
            self.storage[path] = options
            self._keep_name(path, credential, storage_options)
        captures = [*self._captures, Sink(name, view, path, stream, f"dataflow {self.name}", replaces)]
        sinks = self._kept.place(captures)
        check_writers(sinks)
        self._captures, self.sinks = captures, sinks
        for sink in sinks:
            if sink.kept and sink.path not in self.storage:
                home = self._kept.home_of(sink)
                self.storage[sink.path] = dict(self.storage[home])
                if home in self._named:
                    self._named[sink.path] = self._named[home]

    def _state_beside(self, view: View, path: str) -> str | None:
        """Return the operator whose state a log is, where it would have anything else in it."""
        there = [sink.view for sink in self.sinks if sink.path == path]
        return next((each.name for each in (*there, view) if there and remembers(each) is not None), None)

    def apply(self, operator: Operator, *streams: Stream) -> Stream:
        """Return the stream of an operator over others."""
        name = self.next_name(operator.method)
        for stream in streams:
            if not isinstance(stream, Stream) or stream._scope is not self:
                msg = f"could not add operator {name!r}: found {shown(stream)}"
                raise InvalidUsageError(msg, hint="give streams of the same dataflow")
        inputs = [stream.view for stream in streams]
        return Stream(self, self.add(operator.bind(name, inputs), inputs, operator.keeps))

    def add(self, made: View, inputs: Sequence[View], keep: str | None = None) -> View:
        """Make nodes of the dataflow's graph of what an operator was bound to; return the last one.

        Of operators that are equal there is one node. What reads the state of an operator over all history, or looks
        rows up, reads a log.

        Parameters
        ----------
        made : View
            What `Operator.bind` gave.
        inputs : sequence of View
            Nodes, for which it was bound.
        keep : str, optional
            Names what it keeps, and the log that it looks into.
        """
        nodes = {view: view for view in inputs}
        waiting = [(made, False)]
        while waiting:  # twice per view of the chain
            view, ready = waiting.pop()
            if view in nodes:
                continue
            if ready:
                nodes[view] = self._node_of(view, nodes, keep)
            else:
                waiting.append((view, True))
                waiting += [(source, False) for source in reversed(view.inputs)]
        return nodes[made]

    def _node_of(self, view: View, nodes: Mapping[View, View], keep: str | None) -> View:
        """Return the node of one view, whose inputs have theirs."""
        below = [nodes[source] for source in view.inputs]
        looks = view.operator.looks_into(below)
        for place, source in enumerate(below):
            if place in looks and not isinstance(source, Replay):
                below[place] = self.kept(source, keep)
            elif isinstance(source.operator, Remembered):
                # Its state is a log: what is made from it reads that.
                below[place] = self.kept(source)
        view = replace(view, name=view.name or self.next_name(view.operator.method), inputs=tuple(below))
        for source in below:
            if source.operator.later:
                msg = (
                    f"could not add operator {view.name!r}: found its input {source.name!r} to give rows at later times"
                )
                raise InvalidUsageError(
                    msg, hint="capture the stream, and replay the log: only a log can keep rows until their time"
                )
        names = view.schema.names
        doubled = [name for name in names if names.count(name) > 1 or name in view.carried]
        if doubled:
            msg = f"could not add operator {view.name!r}: found columns {shown(names)} beside {view.carried!r}"
            raise SchemaMismatchError(msg, hint="give each column a name of its own", context={"column": doubled[0]})
        node = self._nodes.setdefault(equality_key(view), view)
        if keep is not None and isinstance(node.operator, Remembered):
            self.kept(node, keep)
        return node

    def kept(self, view: View, name: str | None = None) -> Replay:
        """Return how a view is read from a log of its own, which has its place once anything of it is captured."""
        if name is not None:
            self._kept.name(view, name)
        return self._kept.leaf_of(view)

    def _spool(
        self,
        view: View,
        log: str | os.PathLike[str] | Log,
        stream: str,
        replaces: str | None = None,
        credential: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Stream:
        """Capture a view, and replay the log that it is captured into. See `Stream.spool`."""
        self._add_sink(view, log, stream, replaces, credential, storage_options)
        sink, below = self.sinks[-1], self._below(view)
        # What operators below it remember is in logs of their own, made with it.
        made = [each for each in self.sinks if each is sink or (each.kept and each.path in below)]
        return self.replay(open_logs(made, self.storage)[sink.path])  # has its options by now

    def _below(self, view: View) -> dict[str, list[str]]:
        """Return the logs that a view is made from, through other outputs too, each with how."""
        found: dict[str, list[str]] = {}
        # Of a log that has no place yet, what it is made from.
        views = [view, *self._kept.sources_below(view)]
        waiting = [(leaf.path, [leaf.path]) for each in views for leaf in leaves_of(each) if leaf.path]
        while waiting:
            path, route = waiting.pop()
            if path in found:
                continue
            found[path] = route
            for sink in self.sinks:
                if sink.path == path:
                    waiting += [(leaf.path, [leaf.path, *route]) for leaf in leaves_of(sink.view)]
        return found

    def _probe_of(self, view: View) -> Probe:
        """Return what tells how far the outputs made from a view are."""
        return Probe(self, view)


class Stream:
    """A stream of a dataflow: rows, each at a time, and a frontier. Made by `Dataflow.replay` and by operators.

    Parameters
    ----------
    scope : Scope
        The dataflow.
    view : View
        What it is.

    Examples
    --------
    >>> from spark_timely.dataflow.aggregates import count
    >>> from spark_timely.testing import rows_of, stream_of
    >>> rows_of(stream_of({"_time": [1, 1, 2], "n": [5, 20, 30]}).filter("n > 15").aggregate(n=count()))
    [{'_time': 1, 'n': 1}, {'_time': 2, 'n': 1}]
    """

    def __init__(self, scope: Scope, view: View) -> None:
        self._scope = scope
        self.view = view

    @property
    def schema(self) -> pa.Schema:
        """Columns of the payload."""
        return self.view.schema

    def __repr__(self) -> str:
        """Return the operator's name and the columns."""
        return f"Stream({self.view.name!r}, {shown(self.schema.names)})"

    def filter(self, condition: str | pc.Expression, /) -> Stream:
        """Keep the rows for which a condition holds; not those for which it is null.

        Parameters
        ----------
        condition : str or pyarrow.compute.Expression
            Over payload and time columns: SQL text as Spark's ``where`` takes it, such as
            ``"delay > 15 AND origin IN ('JFK', 'LGA')"``, or ``pc.field("delay") > 15``. Of SQL there are
            comparisons, ``AND``, ``OR``, ``NOT``, ``IS [NOT] NULL``, ``[NOT] IN``, ``[NOT] BETWEEN``,
            ``[NOT] LIKE``, ``+``, ``-``, ``*``, and literals.

        Raises
        ------
        InvalidUsageError
            If it is no condition, or none of these columns and types.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows_of(stream_of({"_time": [1, 1, 2], "n": [5, 20, None]}).filter("n > 15"))
        [{'_time': 1, 'n': 20}]
        """
        return self._scope.apply(Filter(condition), self)

    def branch(self, condition: str | pc.Expression, /) -> tuple[Stream, Stream]:
        """Part a stream in two: the rows for which a condition holds, and all others.

        Parameters
        ----------
        condition : str or pyarrow.compute.Expression
            As in `filter`. Rows for which it is null are among the others.

        Returns
        -------
        holds, others : Stream

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> late, others = stream_of({"_time": [1, 1, 2], "n": [5, 20, None]}).branch("n > 15")
        >>> [row["n"] for row in rows_of(late)], [row["n"] for row in rows_of(others)]
        ([20], [5, None])
        """
        name = self._scope.next_name("branch")
        parts = (Branch(condition, holds=holds).bind(name, (self.view,)) for holds in (True, False))
        holds, others = (Stream(self._scope, self._scope.add(part, (self.view,))) for part in parts)
        return holds, others

    def select(self, /, *columns: str, **expressions: pc.Expression) -> Stream:
        """Choose columns, and compute others row by row.

        Parameters
        ----------
        *columns : str
            Payload columns to keep.
        **expressions : pyarrow.compute.Expression
            What is computed, by the name of the column that comes out.

        Raises
        ------
        InvalidUsageError
            If a column is missing or named twice, or an expression does not fit.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows = stream_of({"_time": [1], "k": ["a"], "n": [5]})
        >>> rows_of(rows.select("k", twice=pc.field("n") * 2))
        [{'_time': 1, 'k': 'a', 'twice': 10}]
        """
        return self._scope.apply(Select((*((column, column) for column in columns), *expressions.items())), self)

    def map(self, function: Callable[[pa.Table], pa.Table], /, *, columns: Sequence[str] | None = None) -> Stream:
        """Make one row of each row, by a function of Arrow tables.

        Parameters
        ----------
        function : callable
            Takes a pyarrow Table with the time columns and payload columns of some rows; gives one with
            as many rows in the same order. What it gives may depend on the row alone: which rows come
            together is nothing to rely on. It is called once at once, without rows, for its columns.
        columns : sequence of str, optional
            Payload columns that it gets; all unless given. Naming them spares reading the others.

        Raises
        ------
        InvalidUsageError
            If a column is missing, or the function fails without rows.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows = stream_of({"_time": [1, 2], "word": ["to", "be"]})
        >>> rows_of(rows.map(lambda t: pa.table({"loud": pc.utf8_upper(t["word"])})))
        [{'_time': 1, 'loud': 'TO'}, {'_time': 2, 'loud': 'BE'}]
        """
        return self._scope.apply(Map(function, None if columns is None else tuple(columns)), self)

    def flat_map(self, function: Callable[[pa.Table], pa.Table], /, *, columns: Sequence[str] | None = None) -> Stream:
        """Make any number of rows of each row, by a function of Arrow tables; they have its time.

        Parameters
        ----------
        function : callable
            Takes a pyarrow Table as in `map`; gives one with a column ``_row`` besides its own: the number,
            counted from 0, of the row from which each is made. What it makes of a row may depend on this
            row alone.
        columns : sequence of str, optional
            Payload columns that it gets; all unless given.

        Raises
        ------
        InvalidUsageError
            If a column is missing, or the function fails without rows.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> def words(rows):
        ...     parts = pc.utf8_split_whitespace(rows["text"]).combine_chunks()
        ...     return pa.table({"_row": pc.list_parent_indices(parts), "word": pc.list_flatten(parts)})
        >>> rows_of(stream_of({"_time": [1, 2], "text": ["to be", "or"]}).flat_map(words))
        [{'_time': 1, 'word': 'be'}, {'_time': 1, 'word': 'to'}, {'_time': 2, 'word': 'or'}]
        """
        return self._scope.apply(FlatMap(function, None if columns is None else tuple(columns)), self)

    def inspect(self, function: Callable[[pa.Table, Antichain, Antichain], object], /) -> Stream:
        """Show the rows to a function, and hand them on.

        Parameters
        ----------
        function : callable
            Takes a pyarrow Table with time and payload columns of some rows, of updates also ``_diff``, and the range
            that is being computed: lower and upper frontier. What it gives back means nothing. It runs where the rows
            are, in Spark's workers, before they are written: at least once, and again when a task is repeated. Not at
            all where nothing downstream is captured.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> seen = []
        >>> rows = stream_of({"_time": [1, 2]}).inspect(lambda rows, lower, upper: seen.append((rows.num_rows, upper)))
        >>> _ = rows_of(rows, upper=[2])
        >>> seen
        [(1, Antichain.of(2))]
        """
        return self._scope.apply(Inspect(function), self)

    def concat(self, *others: Stream) -> Stream:
        """Put streams of the same columns together; the frontier waits for all of them.

        Raises
        ------
        SchemaMismatchError
            If columns or types differ.
        InvalidUsageError
            If some of them are updates of a collection, and others are not.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> one = stream_of({"_time": [1], "n": [5]})
        >>> rows_of(one.concat(stream_of({"_time": [2], "n": [6]}, beside=one)))
        [{'_time': 1, 'n': 5}, {'_time': 2, 'n': 6}]
        """
        return self._scope.apply(Concat(), self, *others)

    # Updates -----------------------------------------------------------------------------------------

    def as_updates(self, diff: str | None = None) -> Stream:
        """Take the rows as updates of a collection: each is added once, or as often as a column says.

        Parameters
        ----------
        diff : str, optional
            A column of integers: how often each row is added, or taken away where negative. It is no longer part of
            the payload.

        Raises
        ------
        InvalidUsageError
            If they are updates already.
        SchemaMismatchError
            If there is no such column, or its values are no integers.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows_of(stream_of({"_time": [1, 2], "k": ["a", "a"], "n": [1, -1]}).as_updates("n"))
        [{'_time': 1, '_diff': 1, 'k': 'a'}, {'_time': 2, '_diff': -1, 'k': 'a'}]
        """
        return self._scope.apply(AsUpdates(diff), self)

    def negate(self) -> Stream:
        """Take away what the updates add, and add what they take away: with `concat` the difference of two collections.

        Raises
        ------
        InvalidUsageError
            If the rows are no updates.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows_of(stream_of({"_time": [1], "_diff": [2], "k": ["a"]}).negate())
        [{'_time': 1, '_diff': -2, 'k': 'a'}]
        """
        return self._scope.apply(Negate(), self)

    def consolidate(self) -> Stream:
        """Give one update for each row that changes at a complete time: the sum of all; none where it is 0.

        Raises
        ------
        InvalidUsageError
            If the rows are no updates.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows = stream_of({"_time": [1, 1, 1, 2], "_diff": [1, -1, 1, 1], "k": ["a", "a", "b", "a"]})
        >>> rows_of(rows.consolidate())
        [{'_time': 1, '_diff': 1, 'k': 'b'}, {'_time': 2, '_diff': 1, 'k': 'a'}]
        """
        return self._scope.apply(Consolidate(), self)

    # Times -------------------------------------------------------------------------------------------

    def delay(self, *by: Delay | Delays) -> Stream:
        """Move rows to later times.

        Parameters
        ----------
        *by : Delay
            `plus`, `ceil_to` or `windows`. With several of them a row goes all ways.

        Raises
        ------
        InvalidUsageError
            If one does not fit the times.

        Examples
        --------
        >>> from spark_timely.dataflow.delays import ceil_to
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows_of(stream_of({"_time": [3, 10, 11]}).delay(ceil_to(10)))
        [{'_time': 10}, {'_time': 10}, {'_time': 20}]
        """
        return self._scope.apply(DelayBy(by), self)

    def step_forward(self) -> Stream:
        """Move rows to the next time each: what is said at a time is known at the next one.

        For times of one coordinate. A row at the greatest time of the type is an error.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows_of(stream_of({"_time": [3, 10]}).step_forward())
        [{'_time': 4}, {'_time': 11}]
        """
        return self._scope.apply(StepForward(), self)

    def times_extract(self, *, diff: str | None = None) -> tuple[Stream, Stream]:
        """Return the stream itself, and a stream of the times of its rows.

        Parameters
        ----------
        diff : str, optional
            A column of integers: how often each row counts. Once unless given.

        Returns
        -------
        rows, times : Stream
            The second has a row for each row that counts, with column ``diff``: none where ``diff`` is 0 or null.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> _, times = stream_of({"_time": [1, 1], "v": ["a", "b"]}).times_extract()
        >>> rows_of(times)
        [{'_time': 1, 'diff': 1}, {'_time': 1, 'diff': 1}]
        """
        return self, self._scope.apply(TimesExtract(diff), self)

    def times_reduce(self) -> Stream:
        """Give one row for each complete time: the sum of column ``diff``; none where it is 0.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> _, times = stream_of({"_time": [1, 1, 4, 4], "n": [1, 1, 1, -1]}).times_extract(diff="n")
        >>> rows_of(times.times_reduce())
        [{'_time': 1, 'diff': 2}]
        """
        return self._scope.apply(TimesReduce(), self)

    # Time by time ------------------------------------------------------------------------------------

    @overload
    def aggregate(
        self, /, *, by: str | Sequence[str] = (), over: Literal["time", "history"] = "time", **values: Aggregation
    ) -> Stream: ...

    @overload
    def aggregate(
        self, /, *, by: str | Sequence[str] = (), over: Literal["history"], name: str, **values: Aggregation
    ) -> Stream: ...

    # No parameter `name`: it may be that of a column, whose place among the others says where that comes.
    def aggregate(
        self, /, *, by: str | Sequence[str] = (), over: Literal["time", "history"] = "time", **values: Aggregation | str
    ) -> Stream:
        """Compute values of the groups of each complete time, or of all rows up to each time.

        Parameters
        ----------
        by : str or sequence of str
            Columns to group by, besides the time; null is a group of its own.
        over : {"time", "history"}
            ``history``: of all rows up to a time, and of updates of those that are there. What comes out is a
            collection: where the values of a group change, the row before goes and the new one comes, at that time. A
            group of which no row is left has none.
        **values : Aggregation
            What to compute, by the name of the column that comes out: ``n=count()``. With ``over="history"`` a text as
            `name` names what is kept, as in `distinct`.

        Raises
        ------
        InvalidUsageError
            If a column is missing or named twice, or of a type that does not fit.

        Notes
        -----
        Averages, decimals and bytes are aggregated over all history alone. There too sums are exact, and rounded once,
        whatever the cut: what is rounded is shown, and what is exact is kept beside it. Of a collection floats are not
        summed. A sum of integers has 64 bits, one of decimals ten digits more than the column, 38 at most; an average
        of decimals has four more places behind the point. What does not fit stops the dataflow, and names the key.

        Examples
        --------
        >>> from spark_timely.dataflow.aggregates import count, sum_of
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows = stream_of({"_time": [1, 1, 2], "k": ["a", "a", "a"], "n": [5, 6, 7]})
        >>> rows_of(rows.aggregate(by="k", n=count(), total=sum_of("n")), upper=[2])
        [{'_time': 1, 'k': 'a', 'n': 2, 'total': 11}]
        """
        given = values.get("name")
        name = given if over == "history" and isinstance(given, str) else None
        wanted: dict[str, Any] = {column: each for column, each in values.items() if column != "name" or name is None}
        return self._scope.apply(Aggregate(named(by), wanted, over, name), self)

    def join(
        self,
        other: Stream,
        /,
        *,
        on: str | Sequence[str],
        how: Literal["inner", "left"] = "inner",
        as_of: bool = False,
        strict: bool = False,
        name: str | None = None,
    ) -> Stream:
        """Pair the rows of two streams that have the same time and agree in some columns.

        A time is joined when it is complete on both sides.

        With `as_of` the other side is a collection, and a row is paired with what is there at its time: that of the
        newest change up to it. Later changes rewrite nothing. A row waits until its time is complete on both sides: a
        collection that changes nightly should be advanced in between too, with ``writer.advance`` or
        ``spark-timely advance``.

        Parameters
        ----------
        other : Stream
        on : str or sequence of str
            Columns of both; a null agrees with nothing.
        how : {"inner", "left"}
            ``left`` keeps rows of this stream without a partner, with nulls.
        as_of : bool
            Whether the other side is a collection, of which all rows are paired that are there at the time of a row.
        strict : bool
            With `as_of`: whether changes at the time of a row come too late for it.
        name : str, optional
            With `as_of`: of the log that is kept of the other side, where that is none itself. As in `distinct`.

        Raises
        ------
        InvalidUsageError
            If a column is missing, on both sides without being joined on, or cannot be joined.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> left = stream_of({"_time": [1, 2], "k": ["a", "a"], "n": [5, 6]})
        >>> right = stream_of({"_time": [1], "k": ["a"], "m": [7]}, beside=left)
        >>> rows_of(left.join(right, on="k"))
        [{'_time': 1, 'k': 'a', 'n': 5, 'm': 7}]
        """
        return self._scope.apply(
            Join(named(on) if isinstance(on, str) else tuple(dict.fromkeys(on)), how, as_of, strict, name), self, other
        )

    # Over all history --------------------------------------------------------------------------------

    def distinct(self, *, name: str | None = None) -> Stream:
        """Give each row once, however often it comes: of events the first by time, of updates while it is there.

        Parameters
        ----------
        name : str, optional
            Of what the operator keeps: it extends the name of the folder. Needed where one output is made from two
            operators that would keep in one folder: they differ in nothing but functions, `inspect` or hints.

        Raises
        ------
        InvalidUsageError
            For times of several coordinates.
        SchemaMismatchError
            If a column is a float, a list, a map or a struct, which tell no rows apart.

        Examples
        --------
        ::

            flow.replay("/data/visits").select("page").distinct().capture("/data/pages")
        """
        return self._scope.apply(Distinct(name=name), self)

    def drop_duplicates(
        self, *columns: str, within: str | int | dt.timedelta | None = None, name: str | None = None
    ) -> Stream:
        """Give the first row of each key: by time, and of several at one time the least by all columns.

        What comes out are events: nothing that comes later takes them back. Nothing is kept but them.

        Parameters
        ----------
        *columns : str
            The key; null is one. All columns unless given.
        within : duration or int, optional
            How far back it looks: a row passes if none of its key passed at a time less than this before. Its log may
            then forget what is older. For ever unless given, and the log must not forget anything.
        name : str, optional
            As in `distinct`.

        Raises
        ------
        InvalidUsageError
            Of updates of a collection: use `distinct`, `latest` or `top`. If `within` is 0. For times of several
            coordinates.
        SchemaMismatchError
            If there is no such column, or it is a float, list, map or struct.

        Examples
        --------
        ::

            flow.replay("/data/orders").drop_duplicates("order_id", within="30 days").capture("/data/first")
        """
        return self._scope.apply(DropDuplicates(columns, within, name=name), self)

    def latest(
        self,
        *by: str,
        order_by: str | Sequence[str],
        deleted: str | pc.Expression | None = None,
        tombstones: str | int | dt.timedelta | None = None,
        name: str | None = None,
    ) -> Stream:
        """Keep the newest row of each key, by what the rows say themselves: a table that is current, with its history.

        Which of two rows of a key is newer is decided by `order_by`, then by all other columns, the greater one; never
        by which came first. What comes out is a collection.

        Parameters
        ----------
        *by : str
            The key; null is one.
        order_by : str or sequence of str
            Columns: the greatest value is the newest; null is older than any.
        deleted : str or pyarrow.compute.Expression, optional
            For which rows their key is gone from then on: ``"op = 'D'"``. These are remembered, so that an older row
            that comes later changes nothing.
        tombstones : duration or int, optional
            How long deletions are remembered, by their `order_by`; for ever unless given. A row that comes at a time
            further than this past its own `order_by`, while nothing is known of its key, may be one that was deleted:
            it goes to the dead letters of the operator's log, with the reason. Give rows of a first load a time in the
            log that is near their own.
        name : str, optional
            As in `distinct`.

        Raises
        ------
        InvalidUsageError
            For times of several coordinates; with `tombstones`, of a collection, without `deleted`, or if they are not
            kept for at least one unit of time.
        SchemaMismatchError
            If there is no such column, or a key is a float, list, map or struct; with `tombstones`, if the first column
            of `order_by` does not ascend to the newest or is not of the type of the log's times.

        Examples
        --------
        ::

            current = flow.replay("/data/changes").latest("order_id", order_by="changed_at", deleted="op = 'D'")
            current.capture("/data/orders")
        """
        order = (order_by,) if isinstance(order_by, str) else order_by
        return self._scope.apply(Latest(by, order, deleted, tombstones, name=name), self)

    def top(
        self,
        n: int,
        /,
        *,
        by: str | Sequence[str] = (),
        order_by: str | Sequence[str],
        name: str | None = None,
    ) -> Stream:
        """Keep the n rows of each key that are greatest in some columns.

        Rows that are equal in these are in the order of all other columns. What comes out is a collection.

        Parameters
        ----------
        n : int
        by : str or sequence of str
            The key; null is one.
        order_by : str or sequence of str
            Columns, the greatest first; ``"price asc"`` the least first. Null is less than any value.
        name : str, optional
            As in `distinct`.

        Raises
        ------
        InvalidUsageError
            If n is no positive number; for times of several coordinates.
        SchemaMismatchError
            If there is no such column, or a key is a float, list, map or struct.

        Examples
        --------
        ::

            flow.replay("/data/scores").top(10, by="game", order_by="points").capture("/data/best")
        """
        order = (order_by,) if isinstance(order_by, str) else order_by
        return self._scope.apply(Top(n, named(by), order, name=name), self)

    def reduce(
        self,
        function: Function,
        /,
        *,
        by: str | Sequence[str] = (),
        columns: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Give what a function makes of all rows of a key, whenever they change. What comes out is a collection.

        The rows of all keys are kept, once more than in their log unless they are a collection's, and are looked up by
        key. `aggregate`, `latest` and `top` need less.

        Parameters
        ----------
        function : callable
            Takes the key as a dict, and a pyarrow Table with the distinct rows of the key, in the order of their
            columns, and a column ``_count``: how often each is there. Where it gets no other column that is one row,
            with the number of rows. Gives a table of any number of rows, without the key. It may depend on these alone.
            Not called for a key without rows; once at once without any, for its columns.
        by : str or sequence of str
            The key; null is one.
        columns : sequence of str, optional
            That it gets; all but the key unless given.
        name : str, optional
            As in `distinct`.

        Raises
        ------
        InvalidUsageError
            If the function fails without rows, or gives columns of the key; if it would get another column ``_count``,
            or no column of no key; for times of several coordinates.
        SchemaMismatchError
            If a column is missing, or a key is a float, list, map or struct.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> def spread(key, rows):
        ...     found = pc.min_max(rows["n"])
        ...     return pa.table({"spread": pa.array([found["max"].as_py() or 0], pa.int64())})
        >>> rows_of(stream_of({"_time": [1, 2], "k": ["a", "a"], "n": [3, 8]}).reduce(spread, by="k"), upper=[2])
        [{'_time': 1, '_diff': 1, 'k': 'a', 'spread': 3}]
        """
        given = None if columns is None else tuple(columns)
        return self._scope.apply(Reduce(function, named(by), given, name=name), self)

    def upsert(
        self,
        *,
        keys: str | Sequence[str],
        sequence_by: str | Sequence[str],
        delete_when: str | pc.Expression | None = None,
        truncate_when: str | pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        except_columns: Sequence[str] = (),
        ignore_null_updates: bool = False,
        history: bool = False,
        tombstones: str | int | dt.timedelta | None = None,
        name: str | None = None,
    ) -> Stream:
        """Apply a log of changes to a table: its current rows, or with `history` all versions of them.

        The words are those of Lakeflow's AUTO CDC, SCD types 1 and 2. The changes of a key are applied in the order of
        `sequence_by`, whenever they come. Of equal sequences a delete is the last, else the greatest in the other
        columns of the result. What comes out is a collection. A change without a sequence goes to the dead letters of
        the operator's log, with the reason.

        Parameters
        ----------
        keys : str or sequence of str
            Null is a key.
        sequence_by : str or sequence of str
            Columns, the first one first.
        delete_when : str or pyarrow.compute.Expression, optional
            For which changes their key is gone: ``"op = 'D'"``. These are remembered, so that an older change that
            comes later does not bring the key back.
        truncate_when : str or pyarrow.compute.Expression, optional
            For which changes all keys are gone whose sequence is lower. Each step reads all rows then, in one task.
        columns, except_columns : sequence of str
            Columns of the result, or those that it has not. All unless given; the keys are among them.
        ignore_null_updates : bool
            Whether a null leaves a column as it was: each has its last value since the last delete.
        history : bool
            Whether to keep all versions, with columns ``__START_AT`` and ``__END_AT``: from which sequence on a version
            is valid, and before which; null as long as it is. A struct where `sequence_by` names several columns. Each
            sequence of a key makes a version, though nothing else may have changed.
        tombstones : duration or int, optional
            How long deletes are remembered, by their `sequence_by`; for ever unless given. A change that comes at a
            time further than this past its own sequence, while nothing is known of its key, may be of one that was
            deleted: it goes to the dead letters, too.
        name : str, optional
            As in `distinct`.

        Raises
        ------
        InvalidUsageError
            For updates of a collection, times of several coordinates, and parameters that do not
            go together.
        SchemaMismatchError
            If there is no such column; if a key is a float, list, map or struct; with `tombstones`, if the first column
            of `sequence_by` is not of the type of the log's times.

        Notes
        -----
        Cost: a key that changes is looked up; with `history` all its versions. With `history` and
        `ignore_null_updates`, O(r t) of t times of a key that has r changes.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> changes = stream_of({"_time": [1, 2, 3], "id": [7, 7, 7], "at": [10, 30, 20], "v": ["a", "c", "b"]})
        >>> rows_of(changes.upsert(keys="id", sequence_by="at", columns=["id", "v"]), lower=[2])
        [{'_time': 2, '_diff': -1, 'id': 7, 'v': 'a'}, {'_time': 2, '_diff': 1, 'id': 7, 'v': 'c'}]
        """
        made = Upsert(
            named(keys),
            named(sequence_by),
            delete_when,
            truncate_when,
            columns,
            except_columns,
            ignore_null_updates,
            history,
            tombstones,
            name=name,
        )
        return self._scope.apply(made, self)

    def unary_notify(
        self,
        function: Callable[[object, pa.Table], pa.Table | None],
        /,
        *,
        columns: Sequence[str] | None = None,
        later: bool = False,
    ) -> Stream:
        """Make rows from the rows of each complete time, by a function that is called once for each.

        Parameters
        ----------
        function : callable
            Takes the time, as Python has it (int, date or datetime; a tuple for product times), and a pyarrow
            Table with the payload of all rows of that time, in no particular order. Gives a table of payload
            columns, or None for no rows. Called in ascending order of the times that a task has, for times
            with rows only; it keeps nothing from one time to the next. It is called once at once, with the
            least time and without rows, for its columns.
        columns : sequence of str, optional
            Payload columns that it gets; all unless given.
        later : bool
            Whether it may give rows at later times, by giving time columns too. Such a stream can
            only be captured: the log keeps the rows until their times are complete.

        Raises
        ------
        InvalidUsageError
            If a column is missing, or the function fails without rows.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> def widest(time, rows):
        ...     return pa.table({"hour": pa.array([time % 24] * bool(rows), pa.int64()),
        ...                      "span": pa.array([pc.max(rows["n"]).as_py()] * bool(rows), pa.int64())})
        >>> rows_of(stream_of({"_time": [25, 25, 26], "n": [5, 6, 7]}).unary_notify(widest))
        [{'_time': 25, 'hour': 1, 'span': 6}, {'_time': 26, 'hour': 2, 'span': 7}]
        """
        given = None if columns is None else tuple(columns)
        return self._scope.apply(UnaryNotify(function, (given,), later), self)

    def binary_notify(
        self,
        other: Stream,
        function: Callable[[object, pa.Table, pa.Table], pa.Table | None],
        /,
        *,
        columns: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None),
        later: bool = False,
    ) -> Stream:
        """Make rows from the rows of two streams at each time that is complete on both sides.

        Parameters
        ----------
        other : Stream
        function : callable
            As in `unary_notify`, with a table for each side; one of them may be without rows.
        columns : pair of sequences of str, optional
            Payload columns that it gets of each side; all unless given.
        later : bool
            As in `unary_notify`.

        Raises
        ------
        InvalidUsageError
            If a column is missing, or the function fails without rows.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> def missing(time, planned, seen):
        ...     return planned.filter(pc.invert(pc.is_in(planned["id"], seen["id"].combine_chunks())))
        >>> planned = stream_of({"_time": [1, 1], "id": [7, 8]})
        >>> rows_of(planned.binary_notify(stream_of({"_time": [1], "id": [8]}, beside=planned), missing))
        [{'_time': 1, 'id': 7}]
        """
        given = tuple(None if names is None else tuple(names) for names in columns)
        return self._scope.apply(BinaryNotify(function, given, later), self, other)

    def capture(
        self,
        log: str | os.PathLike[str] | Log,
        /,
        *,
        stream: str = "main",
        replaces: str | None = None,
        credential: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Append the rows of complete times to a log, exactly once, and move its frontier along.

        The log keeps a fingerprint of the plan that its rows are made by: operators, how they are connected, the ids of
        the logs that are read, columns, keys, SQL, parameters, and the names of functions. A dataflow of the same name
        with another plan is refused, so that no output is made by two plans. `Dataflow.explain` shows fingerprints.

        From its first step on the dataflow alone moves the output. Where somebody else advances it, closes it or
        appends to it, or an input is put back to an earlier state, the output stops with `DataLossError`: else times
        would be complete without their rows. An output of events that is advanced before its first step begins there;
        one that is a collection, or that an operator over all history remembers, is refused.

        Parameters
        ----------
        log : path or Log
            Made when the dataflow is started, unless it is there.
        stream : str
            Which stream of the log the dataflow owns.
        replaces : str, optional
            Where the plan was changed on purpose: the fingerprint of the plan before. The rows in the log stay as they
            are, later times are computed by the new plan, and copies of the dataflow with the old one are refused from
            the first micro-batch on. Of no effect where the log has no plan, or this one, already.
            It consents to the other code alone.
            Where an output was moved, or an input put back or another log made in its place, on purpose: what the error
            names. The rows in the log stay as they are, and the dataflow continues at the output's frontier with the
            inputs as they are. This holds for what that error named and nothing else; a step later it has no effect.
            Not for a collection, unless it is what an operator over all history remembers: what comes later would take
            back what was never added.
        credential : str, optional
        storage_options : mapping of str to str, optional
            As in `Dataflow.replay`: for this log.

        Raises
        ------
        InvalidOptionError
            If there is no credential of that name, or the log's store does not know an option.
        InvalidUsageError
            If the dataflow captures into this stream already, a column cannot be kept, or `replaces` is no fingerprint.
        CyclicSummaryError
            If the log is one that this stream is made from.

        Examples
        --------
        ::

            flow.replay("/data/flights").filter("delay > 15").capture("/data/late")
        """
        self._scope._add_sink(self.view, log, stream, replaces, credential, storage_options)

    def spool(
        self,
        log: str | os.PathLike[str] | Log,
        /,
        *,
        stream: str = "main",
        replaces: str | None = None,
        credential: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Stream:
        """Capture into a log of its own, and continue with what is replayed from it, in the same dataflow.

        What was computed is read again, not computed again, by all that is made from it; and rows that a function gives
        at later times wait in the log until their times are complete.

        Parameters
        ----------
        log : path or Log
            Made at once, unless it is there.
        stream : str
            Which stream of the log the dataflow owns.
        replaces : str, optional
            As in `capture`. Outputs that are made from a spool have its plan in theirs.
        credential : str, optional
        storage_options : mapping of str to str, optional
            As in `Dataflow.replay`: for this log.

        Examples
        --------
        ::

            hours = flow.replay("/data/flights").aggregate(by="origin", n=tf.count()).spool("/data/hours")
            hours.filter("n > 100").capture("/data/busy")
            hours.delay(tf.windows("1 day")).aggregate(by="origin", n=tf.sum("n")).capture("/data/days")
        """
        return self._scope._spool(self.view, log, stream, replaces, credential, storage_options)

    def probe(self) -> Probe:
        """Return what tells how far the outputs made from this stream are.

        Examples
        --------
        ::

            probe = flow.replay("/data/flights").probe()
            probe.frontier
        """
        return self._scope._probe_of(self.view)


class Probe:
    """The progress of the outputs made from a stream: read from their logs, from any process.

    Parameters
    ----------
    scope : Scope
    view : View
    """

    def __init__(self, scope: Scope, view: View) -> None:
        self._scope = scope
        self._view = view
        self._opened: dict[str, Log] = {}

    def __repr__(self) -> str:
        """Return the operator's name."""
        return f"Probe({self._view.name!r})"

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
        for sink in self._scope.sinks:
            if self._view not in ordered(sink.view):
                continue
            seen: set[tuple[View, Antichain]] = set()
            waiting: list[tuple[View, Antichain]] = [(sink.view, self._upper(sink))]
            while waiting:
                at, frontier = waiting.pop()
                if (at, frontier) in seen:
                    continue
                seen.add((at, frontier))
                if at is self._view:
                    found.append(frontier)
                else:
                    waiting += [(source, at.operator.back_of(frontier)) for source in at.inputs]
        if not found:
            msg = f"could not probe {self._view.name!r}: found nothing that is captured downstream of it"
            raise InvalidUsageError(msg, hint="capture a stream that is made from it")
        meet = found[0]
        for other in found[1:]:
            meet = meet.meet(other)
        return meet

    def _upper(self, sink: Sink) -> Antichain:
        log = self._opened.get(sink.path)
        try:
            if log is None:
                log = open_log(sink.path, storage_options=self._scope.storage[sink.path] or None)
                self._opened[sink.path] = log
            log.refresh()
        except LogMissingError:
            return Antichain.of(least_time(sink.view))
        state = log.core.stream(sink.stream)
        return log.domain.minimum_frontier if state is None else state.frontier
