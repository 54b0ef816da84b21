"""The reader of CDCv2 messages: parses them, and gives out updates once their times are complete.

`CdcImport` (`conversion`) commits what a `CdcReader` gives out. `read_message` parses a line, `message_lines` writes
lines for an export. The binary captures of timely have another reader (`interop.reader`).

There are two kinds of messages. *Updates*: these (data, time, diff) are in the collection. *Progress*: of the times
beyond `lower` and not beyond `upper`, exactly those in `counts` have updates, and exactly as many as stated. A reader
of both knows when a time is complete, whatever was sent twice, late, or in another order.

Invariants
----------
1. Updates are consolidated: for a record and a time there is one diff. Two that differ are refused, and
   so is a time with more updates than were stated; copies of the same update count once.
2. A time is given out once, as soon as it and all before it are complete.
3. The reader keeps what is not complete, and nothing else: an update for a complete time is a copy, and skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.errors import CaptureFormatError, InvalidUsageError, ProtocolError, shown
from spark_timely.interop.cdcv2.statements import Ledger, Statement, Time
from spark_timely.interop.jsonl import found_by, loads
from spark_timely.interop.records import integer, records_to_rows, rows_to_records
from spark_timely.interop.schema import Type, arrow_schema, parse_type
from spark_timely.interop.time_layout import TimeLayout, time_layout
from spark_timely.interop.writer import CaptureEncoder
from spark_timely.time.antichain import Antichain, IntArray, beyond, unique_times
from spark_timely.trace.updates import Updates


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Updates that became complete.

    Parameters
    ----------
    updates : Updates
        In the order of their times.
    frontier : Antichain
        All times not beyond it are complete.
    """

    updates: Updates
    frontier: Antichain


def keys_of(encoder: CaptureEncoder, records: pa.RecordBatch | pa.Table, times: IntArray) -> dict[str, pa.Array]:
    """Return columns that are equal exactly where records and times are: the bytes of a record, and coordinates."""
    data, bounds = encoder.encode_records(records)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    keys = {"key": pa.Array.from_buffers(pa.large_binary(), records.num_rows, buffers)}
    return keys | {f"t{i}": pa.array(times[:, i]) for i in range(times.shape[1])}


class CdcReader:
    """Puts messages right: what comes out is complete, in order, and each update once.

    Parameters
    ----------
    time, record : str or Type
        Declared types; see `spark_timely.interop.schema`.
    frontier : Antichain, optional
        What is complete already; the least time unless given. A reader whose output up to a frontier was
        kept begins there, and may read all messages once more.

    Examples
    --------
    >>> reader = CdcReader(time="u64", record="string")
    >>> lines = ['{"progress": {"lower": [0], "upper": [2], "counts": [[1, 1]]}}', '{"updates": [["a", 1, 1]]}']
    >>> for line in lines * 2:
    ...     output = reader.extend([read_message(line, time="u64", record="string")])
    ...     print(None if output is None else (output.frontier, output.updates.rows.to_pylist()))
    (Antichain.of(1), [])
    (Antichain.of(2), [{'value': 'a'}])
    None
    None
    """

    def __init__(self, *, time: str | Type, record: str | Type, frontier: Antichain | None = None) -> None:
        self._encoder = CaptureEncoder(time=time, record=record)
        self.times = self._encoder.times
        minimum = Antichain.of(self.times.domain.minimum)
        self._ledger = Ledger(minimum if frontier is None else frontier, shown=self.times.to_json)
        self._kept = self._table(empty_updates(self._encoder.record, self.times.arity))
        self._new: list[pa.Table] = []

    @property
    def frontier(self) -> Antichain:
        """All times not beyond it are complete."""
        return self._ledger.frontier

    @property
    def pending(self) -> int:
        """Number of updates that are kept because their times are not complete."""
        return self._kept.num_rows + sum(table.num_rows for table in self._new)

    def extend(self, messages: Iterable[Updates | Statement]) -> Output | None:
        """Take messages, and return what became complete by them; None where the frontier did not move.

        Raises
        ------
        ProtocolError
            If messages contradict one another. The reader is of no use then.

        Notes
        -----
        Cost: O(n log n) for n updates kept and new. Many messages at once cost less than one by one.
        """
        statements = []
        for message in messages:
            if isinstance(message, Statement):
                statements.append(message)
            else:
                self._new.append(self._table(message))
        self._ledger.take(statements)
        return self._advance()

    def _table(self, updates: Updates) -> pa.Table:
        """Return updates that are still open as columns, with the record's bytes to compare it by."""
        if len(updates.diffs) and not updates.diffs.all():
            msg = "could not read CDCv2 updates: found a diff of 0"
            raise ProtocolError(msg, hint="consolidate the updates, and leave out what adds up to nothing")
        columns = {**keys_of(self._encoder, updates.rows, updates.times), "diff": pa.array(updates.diffs)}
        records = zip(self._encoder.schema.names, updates.rows.columns, strict=True)
        table = pa.table({**columns, **{f"_{name}": values for name, values in records}})
        open_ = self.frontier.beyond(updates.times)
        return table if open_.all() else table.filter(pa.array(open_))

    def _distinct(self) -> IntArray:
        """Put what is new to what is kept, each update once, and return the times of all of it."""
        columns = [f"t{i}" for i in range(self.times.arity)]
        if self._new:
            table = pa.concat_tables([self._kept, *self._new]).combine_chunks()
            self._new = []
            numbered = table.select(["key", *columns, "diff"]).append_column("row", pa.array(np.arange(table.num_rows)))
            groups = numbered.group_by(["key", *columns], use_threads=False).aggregate(
                [("row", "min"), ("diff", "min"), ("diff", "max")]
            )
            low, high = groups.column("diff_min").to_numpy(), groups.column("diff_max").to_numpy()
            if (low != high).any():
                i = int(np.flatnonzero(low != high)[0])
                time = tuple(groups.column(name)[i].as_py() for name in columns)
                raise self._ledger.wrong(time, f"diffs {low[i]} and {high[i]} of one record, which is not consolidated")
            self._kept = table.take(pa.array(np.sort(groups.column("row_min").to_numpy())))
        return np.stack([self._kept.column(name).to_numpy() for name in columns], axis=1)

    def _advance(self) -> Output | None:
        """Find how far everything is complete, and give out what is."""
        times = self._distinct()
        unique, counts = unique_times(times)
        stated = ~self._ledger.known.beyond(unique)
        present = dict(zip(map(tuple, unique[stated].tolist()), counts[stated].tolist(), strict=True))
        before = self.frontier
        frontier = self._ledger.advance(present)
        if frontier == before:
            return None
        done = ~beyond(times, frontier.times.reshape(-1, self.times.arity))
        output = self._updates(self._kept.filter(pa.array(done)), times[done])
        self._kept = self._kept.filter(pa.array(~done))
        return Output(output, frontier)

    def _updates(self, table: pa.Table, times: IntArray) -> Updates:
        order = np.lexsort(times.T[::-1])
        table = table.take(pa.array(order))
        columns = [table.column(f"_{name}") for name in self._encoder.schema.names]
        rows = pa.Table.from_arrays(columns, schema=self._encoder.schema)
        return Updates(rows, times[order], table.column("diff").to_numpy())


def read_message(line: str | bytes, *, time: str | Type, record: str | Type) -> Updates | Statement:
    """Read a message that is written as a line of JSON.

    It is ``{"updates": [[record, time, diff], …]}``, or
    ``{"progress": {"lower": [time, …], "upper": [time, …], "counts": [[time, n], …]}}``.

    Raises
    ------
    CaptureFormatError
        If it is no message of these types.

    Examples
    --------
    >>> read_message('{"updates": [[["a", 1], 3, -1]]}', time="u64", record="(string, u64)").diffs.tolist()
    [-1]
    """
    layout = time_layout(time)
    type_ = parse_type(record) if isinstance(record, str) else record
    try:
        found = loads(line)
        if not isinstance(found, dict):
            msg = f"found {shown(found)}"
            raise ValueError(msg)
        return _message(found, layout, type_)
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError) as error:
        msg = f"could not read a CDCv2 message: {found_by(error)}"
        hint = 'write lines as {"updates": [[record, time, diff], …]} or {"progress": {"lower", "upper", "counts"}}'
        raise CaptureFormatError(msg, hint=hint) from error


def _message(found: Mapping[str, object], layout: TimeLayout, type_: Type) -> Updates | Statement:
    if not isinstance(found, dict) or len(found) != 1:
        msg = f"found {shown(found)}"
        raise ValueError(msg)
    if "updates" in found:
        rows = found["updates"]
        if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 3 for row in rows):
            msg = f"found {shown(rows)}"
            raise ValueError(msg)
        times = np.array([layout.from_json(row[1]) for row in rows], np.int64).reshape(-1, layout.arity)
        diffs = np.array([integer(row[2]) for row in rows], np.int64)
        records = rows_to_records([row[0] for row in rows], type_)
        return Updates(pa.Table.from_batches([records]), times, diffs)
    facts = found["progress"]
    if not isinstance(facts, dict) or set(facts) != {"lower", "upper", "counts"}:
        msg = f"found {shown(facts)}"
        raise ValueError(msg)
    lower, upper = (_antichain(facts[name], layout) for name in ("lower", "upper"))
    counts: dict[Time, int] = {}
    for pair in facts["counts"]:
        at, count = layout.from_json(pair[0]), integer(pair[1])
        if count < 0 or at in counts or not lower.less_equal(at) or upper.less_equal(at):
            msg = f"found count {shown(pair)}, which is negative, a second one, or not within lower and upper"
            raise ValueError(msg)
        counts[at] = count
    return Statement(lower, upper, counts)


def _antichain(value: object, layout: TimeLayout) -> Antichain:
    if not isinstance(value, list):
        msg = f"found {shown(value)} in place of a list of times"
        raise InvalidUsageError(msg, hint="give lower and upper as lists of times")
    return Antichain.from_times(
        np.array([layout.from_json(time) for time in value], np.int64).reshape(-1, layout.arity), layout.arity
    )


def message_lines(messages: Iterable[Updates | Statement], *, time: str | Type, record: str | Type) -> Iterator[str]:
    """Yield a line of JSON per message.

    Examples
    --------
    >>> message = Statement(Antichain.of(0), Antichain.of(2), {(1,): 3})
    >>> next(message_lines([message], time="u64", record="u64"))
    '{"progress": {"lower": [0], "upper": [2], "counts": [[1, 3]]}}'
    """
    layout = time_layout(time)
    type_ = parse_type(record) if isinstance(record, str) else record
    for message in messages:
        if isinstance(message, Statement):
            facts = {
                "lower": [layout.to_json(at) for at in message.lower],
                "upper": [layout.to_json(at) for at in message.upper],
                "counts": [[layout.to_json(at), count] for at, count in sorted(message.counts.items())],
            }
            line: dict[str, object] = {"progress": facts}
        else:
            rows = records_to_rows(message.rows, type_)
            times = [layout.to_json(at) for at in message.times.tolist()]
            line = {"updates": [list(row) for row in zip(rows, times, message.diffs.tolist(), strict=True)]}
        yield json.dumps(line, ensure_ascii=False, allow_nan=False)


def statement_of(lower: Antichain, upper: Antichain, times: IntArray) -> Statement:
    """Return the statement about consolidated updates at given times, which are all there are in the range.

    Examples
    --------
    >>> statement_of(Antichain.of(0), Antichain.of(9), np.array([[3], [3], [4]])).counts
    {(3,): 2, (4,): 1}
    """
    unique, counts = unique_times(times)
    return Statement(lower, upper, dict(zip(map(tuple, unique.tolist()), counts.tolist(), strict=True)))


def empty_updates(type_: Type, arity: int) -> Updates:
    """Return no updates of a type.

    Examples
    --------
    >>> empty_updates(parse_type("u64"), 2).times.shape
    (0, 2)
    """
    nothing: npt.NDArray[np.int64] = np.empty(0, np.int64)
    return Updates(arrow_schema(type_).empty_table(), np.empty((0, arity), np.int64), nothing)
