"""Relations of the introspection as collections: those that a dataflow imports are kept as logs of the instance.

The rows are those of `spark_timely.compute.introspection`; the driver has them written here in its turns. A relation
that no dataflow imports costs nothing. The others are brought up to date together, at most once a second, and only if
one has changed: all at one time, so that what joins them sees one moment. Times are of the clock, in the domain of the
instance's introspection; no time is given twice.

Invariants
----------
1. The contents at a time are the rows that the relations had at one moment, all of them.
2. What an earlier start has written is corrected by the first write of this one. An earlier start cannot write any
   more.
"""

from __future__ import annotations

import time as clock
import uuid
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Executor, Future, wait
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_timely.compute.observation import INTROSPECTION_RUN, Upper
from spark_timely.errors import InvalidUsageError, MissingError, OwnershipError, shown
from spark_timely.log.log import Log, create_log
from spark_timely.masking import masked_logger
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeType
from spark_timely.work import Backoff

if TYPE_CHECKING:
    from spark_timely.compute.drive.state import State
    from spark_timely.log.writer import StreamWriter
    from spark_timely.time.domain import TimeDomain

__all__ = ["Relations"]

_log = masked_logger("spark_timely.compute")

_EVERY_S: Final = 1.0
_WRITES_BETWEEN: Final = 60
_PER_SECOND: Final = {TimeType.TIMESTAMP: 1e6, TimeType.LONG: 1e3, TimeType.DATE: 1 / 86_400}

_Rows = Counter[tuple[Any, ...]]


class _Relation(NamedTuple):
    """A relation: the path of its log, and the rows that it has."""

    path: str
    rows: pa.Table


class _Kept:
    """A relation with a log, as it was written last."""

    def __init__(self, log: Log, writer: StreamWriter) -> None:
        self.log, self.writer, self.writes = log, writer, 0
        self.rows = _rows_of(log)

    def bring(self, table: pa.Table, at: int) -> None:
        """Bring the log to hold some rows and no others, from a time on."""
        wanted: _Rows = Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
        changes = {row: wanted[row] - self.rows[row] for row in wanted | self.rows if wanted[row] != self.rows[row]}
        columns = list(zip(*changes, strict=True)) or [()] * table.num_columns
        arrays = [pa.array(column, field.type) for column, field in zip(columns, table.schema, strict=True)]
        written = pa.Table.from_arrays(arrays, schema=table.schema)
        for name, column in self.log.domain.to_columns(np.full((len(changes), 1), at, np.int64)).items():
            written = written.append_column(name, column)
        written = written.append_column("_diff", pa.array(list(changes.values()), pa.int64()))
        self.writer.compare_and_append(
            written, expected=self.log.frontier(), upper=Antichain.of(at + 1), reason="introspection"
        )
        self.rows = wanted
        self.writes += 1
        if self.writes % _WRITES_BETWEEN == 0:
            self.log.allow_compaction(Antichain.of(at), by="introspection")


class Relations:
    """The relations of an instance that are kept as logs.

    Parameters
    ----------
    state : State
    workers : concurrent.futures.Executor
        Where logs are written.
    """

    def __init__(self, state: State, workers: Executor) -> None:
        self._state, self._workers = state, workers
        # Takes a stream from whichever start had it. An owner that has lost one cannot take it back.
        self._owner = f"introspection-{uuid.uuid4().hex}"
        self._kept: dict[str, _Kept] = {}
        self._future: Future[Antichain] | None = None
        self._backoff, self._again_at = Backoff(state.now), state.now()

    def open(self, id_: str) -> Log:
        """Return the log of a relation, by the id of its collection, which has the rows that there are now.

        Raises
        ------
        MissingError
            If there is no such relation.
        OwnershipError
            If this start writes nothing.
        InvalidUsageError
            If the instance's introspection has times that no clock gives.
        """
        state = self._state
        relations = state.relations()
        if id_ not in relations:
            msg = f"could not read {id_!r} as a collection: found no relation of the introspection of this id"
            raise MissingError(msg, hint=f"choose among {shown(sorted(relations))}")
        if state.follows:
            msg = f"could not read relation {relations[id_]!r} as a collection: found an instance that only follows"
            raise OwnershipError(msg, hint="peek it, or ask the instance that writes")
        domain = state.created().domain
        _per_second(domain)
        if self._future is not None:
            wait([self._future])
            self._collect()
        if id_ not in self._kept:
            # With all others that are read: what joins them sees this moment too.
            try:
                self._tell(self._write(*self._present(id_)))
            except Exception:
                self._kept.clear()
                raise
        return self._kept[id_].log

    def keep(self) -> bool:
        """State what was written, and write what has changed; return whether anything was stated."""
        state, now = self._state, self._state.now()
        done = self._collect()
        if state.follows or self._future is not None or now < self._again_at:
            return done
        self._again_at = now + _EVERY_S
        wanted = self._wanted()
        for id_ in self._kept.keys() - wanted.keys():
            del self._kept[id_]
        shows = state.instance.introspection
        changed = [id_ for id_, name in wanted.items() if shows.take_changes(name).num_rows or id_ not in self._kept]
        if not changed:
            return done
        self._future = self._workers.submit(self._write, *self._present())
        self._future.add_done_callback(lambda _: state.wake.set())
        return done

    def _wanted(self) -> dict[str, str]:
        """Return the relations that dataflows import, by the ids of their collections."""
        relations = self._state.relations()
        return {
            each.export: relations[each.export]
            for running in self._state.runs()
            for each in running.dataflow.imports
            if each.export in relations
        }

    def _present(self, *more: str) -> tuple[dict[str, _Relation], TimeDomain]:
        """Return the rows of the relations that are read, and of some more, with the domain of their times."""
        state = self._state
        relations, shows = state.relations(), state.instance.introspection
        names = self._wanted() | {id_: relations[id_] for id_ in more}
        found = {}
        for id_, name in names.items():
            path = state.directory.path_of(state.directory.export_of(id_, name))
            assert path is not None
            found[id_] = _Relation(path, shows.table(name))
        return found, state.created().domain

    def _collect(self) -> bool:
        if self._future is None or not self._future.done():
            return False
        future, self._future = self._future, None
        error = future.exception()
        if error is not None:
            # What is there by now is looked at again: a write may have happened.
            self._kept.clear()
            if isinstance(error, OwnershipError):
                self._state.check_held()
                self._owner = f"introspection-{uuid.uuid4().hex}"
            self._again_at = self._backoff.failed()
            if self._backoff.n_failed == 1:
                _log.warning("the introspection is not written, which is tried again: %s", error)
            return False
        self._backoff.passed()
        self._tell(future.result())
        return True

    def _tell(self, upper: Antichain) -> None:
        for id_ in self._kept:
            if self._state.instance.has(id_):
                self._state.instance.tell(Upper(id_, INTROSPECTION_RUN, upper))

    def _write(self, present: Mapping[str, _Relation], domain: TimeDomain) -> Antichain:
        """Bring logs to hold rows, all at one time; return their frontier."""
        for id_, relation in present.items():
            if id_ not in self._kept:
                self._kept[id_] = self._opened(relation, domain)
        at = int(clock.time() * _per_second(domain))
        at = max([at, *(self._kept[id_].log.frontier().elements[0][0] for id_ in present)])
        for id_, relation in present.items():
            self._kept[id_].bring(relation.rows, at)
        return Antichain.of(at + 1)

    def _opened(self, relation: _Relation, domain: TimeDomain) -> _Kept:
        log = create_log(
            relation.path,
            relation.rows.schema,
            times=[kind.value for kind in domain.types],
            minimum=domain.time_to_json(domain.minimum),
            kind="collection",
            exist_ok=True,
            storage_options=self._state.directory.options(relation.path) or None,
        )
        return _Kept(log, log.writer(owner=self._owner, takeover=True))


def _per_second(domain: TimeDomain) -> float:
    """Return how many times of a domain a second has."""
    if domain.arity > 1 or domain.types[0] not in _PER_SECOND:
        msg = f"could not keep the introspection as collections: found times of types {domain.types}"
        raise InvalidUsageError(msg, hint="create the instance with times of type timestamp or long for it")
    return _PER_SECOND[domain.types[0]]


def _rows_of(log: Log) -> _Rows:
    """Return the rows that a log holds at its newest time."""
    frontier = log.frontier()
    if frontier == log.domain.minimum_frontier:
        return Counter()
    newest = log.domain.time_to_json((frontier.elements[0][0] - 1,))
    found = log.snapshot(newest)
    diffs = found["_diff"].to_pylist()
    rows = zip(*(found[name].to_pylist() for name in log.schema.names), strict=True)
    return Counter(dict(zip(rows, diffs, strict=True)))
