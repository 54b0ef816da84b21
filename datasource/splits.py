"""Partitions of a replay, here called splits: the work of one task, the layout of its rows, and its progress rows.

Plain picklable values. A split says which pieces of which files and which range of times or commits; the layout, the
same for all splits of a query, says which columns come out. `planner` and `arrivals` make them on the driver, and
`reader` reads them in executors, as do tasks of dataflows and continual tasks.

Progress rows of ``content=events`` are one stream of statements, summed up over all streams that are replayed; the
driver makes them, and a split carries them. A reader of the rows starts with one capability at the minimum. So the very
first rows state how what the streams hold where the query begins differs from that: of k streams that all hold the
minimum, k − 1 further counts there. What raises a count comes before what lowers another: each row by itself is a
statement that the rows before it allow.

Invariants
----------
1. The splits of a micro-batch hold each of its rows once; how many there are changes nothing else.
2. A split in text form (`Split.to_json`) holds no credentials: it travels as data.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import InvalidOptionError, InvalidUsageError, SchemaMismatchError, shown
from spark_timely.predicate import Predicate, parse_predicate
from spark_timely.protocol.replay import WHOLE
from spark_timely.time.antichain import consolidate_rows
from spark_timely.time.domain import TimeDomain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from spark_timely.time.antichain import Antichain, IntArray

_SPLIT_FORMAT: Final = 2

SPLIT_SCHEMA: Final = pa.schema(
    [
        pa.field("_split", pa.int32(), nullable=False),
        pa.field("_splits", pa.int32(), nullable=False),
        pa.field("_lower", pa.string()),
        pa.field("_upper", pa.string()),
        pa.field("_bytes", pa.int64(), nullable=False),
        pa.field("_plan", pa.string(), nullable=False),
    ]
)
"""Columns of ``content=splits``: number, how many, range of times as JSON, bytes, and the split itself."""

LAYOUT_KEY: Final = "spark_timely.layout"
"""Metadata of the column ``_plan``: the layout of the rows, for a micro-batch that has no split."""

Times = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A share of one file of the log.

    Attributes
    ----------
    path : str
        Relative to the log.
    start, stop : int
        Shares of `capture.replay.WHOLE`.
    commit : tuple of (str, int) or None
        Stream and commit number, where all rows are of that one commit.
    """

    path: str
    start: int = 0
    stop: int = WHOLE
    commit: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """A split: the files, the range and the progress rows that one task reads.

    Attributes
    ----------
    number, n_splits : int
        Which of how many in its micro-batch.
    root : str
        Where the log is.
    pieces : tuple of FilePiece
        Where to look.
    lower, upper : tuple of times, or None
        Frontiers: rows at times beyond `lower` and not beyond `upper`; None under ``arrival``.
    as_of : tuple of int or None
        Times are moved up to this one before they are compared, and so are the times given out.
    first, last : tuple of int or None
        Lexicographic bounds of whole times, inclusive and exclusive.
    streams : tuple of str or None
        Streams to read.
    commits : tuple of (stream, first, last), or None
        Commit numbers to read per stream, inclusive and exclusive; sorted rows are wanted.
    consolidate : bool
        Sum the diffs of equal rows.
    progress : bytes
        Progress rows of the split, as an Arrow stream in the layout's schema; under ``arrival`` with
        the columns that rows are sorted by. Empty for none.
    size_bytes : int
        Bytes of its pieces.
    """

    number: int
    n_splits: int
    root: str
    pieces: tuple[FilePiece, ...] = ()
    lower: Times | None = None
    upper: Times | None = None
    as_of: tuple[int, ...] | None = None
    first: tuple[int, ...] | None = None
    last: tuple[int, ...] | None = None
    streams: tuple[str, ...] | None = None
    commits: tuple[tuple[str, int, int], ...] | None = None
    consolidate: bool = False
    progress: bytes = b""
    size_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        # Without progress rows: content=splits has none.
        found = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "progress"}
        return found | {"pieces": [[p.path, p.start, p.stop, *(p.commit or ())] for p in self.pieces]}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Split:
        """Read what `to_json` gave."""
        values = dict(found)
        values["pieces"] = tuple(
            FilePiece(path, start, stop, tuple(commit) or None) for path, start, stop, *commit in found["pieces"]
        )
        for name in ("lower", "upper", "commits"):
            if found[name] is not None:
                values[name] = tuple(tuple(element) for element in found[name])
        for name in ("as_of", "first", "last", "streams"):
            if found[name] is not None:
                values[name] = tuple(found[name])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Where:
    """The condition on the rows that come out.

    It travels as text, which every executor parses for itself: what Arrow makes of it would have to be unpickled.

    Attributes
    ----------
    text : str
        The condition.
    schema : pyarrow.Schema
        The columns that it needs.
    """

    text: str
    schema: pa.Schema

    def predicate(self) -> Predicate:
        """Return the condition; read once per process."""
        return _predicate(self.text, self.schema)


@lru_cache(maxsize=16)
def _predicate(text: str, schema: pa.Schema) -> Predicate:
    return parse_predicate(text, {field.name: field.type for field in schema}, what="read the log")


@dataclass(frozen=True, slots=True)
class ReplayLayout:
    """The layout of a replay: the columns that come out, and what is needed to make them.

    Attributes
    ----------
    schema : pyarrow.Schema
        Exactly the columns of each record batch.
    domain : TimeDomain
        Of the log.
    collection : bool
        Whether rows have a diff.
    content : str
        The option of that name.
    delivery : str
        The option of that name.
    fail_on_data_loss : bool
        Whether a missing file is an error.
    where : Where or None
        Which rows come out at all.
    """

    schema: pa.Schema
    domain: TimeDomain
    collection: bool = False
    content: str = "messages"
    delivery: str = "complete"
    fail_on_data_loss: bool = True
    where: Where | None = None

    def with_schema(self, schema: pa.Schema) -> ReplayLayout:
        """Return this layout with other columns."""
        return replace(self, schema=schema)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "format": _SPLIT_FORMAT,
            "schema": _packed(self.schema),
            "domain": self.domain.to_json(),
            "collection": self.collection,
            "delivery": self.delivery,
            "fail_on_data_loss": self.fail_on_data_loss,
            "where": None if self.where is None else [self.where.text, _packed(self.where.schema)],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ReplayLayout:
        """Read what `to_json` gave: the layout of the rows, not of the splits."""
        if found.get("format") != _SPLIT_FORMAT:
            msg = f"could not read a split: found format={found.get('format')!r}, known is {_SPLIT_FORMAT}"
            raise InvalidUsageError(
                msg,
                hint="install the same version of spark-timely on driver and executors",
            )
        return cls(
            schema=_unpacked(found["schema"]),
            domain=TimeDomain.from_json(found["domain"]),
            collection=found["collection"],
            delivery=found["delivery"],
            fail_on_data_loss=found["fail_on_data_loss"],
            where=None if found["where"] is None else Where(found["where"][0], _unpacked(found["where"][1])),
        )


def _packed(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def _unpacked(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def split_batch(split: Split, layout: ReplayLayout, /) -> pa.RecordBatch:
    """Return a split as the one row that ``content=splits`` gives.

    Examples
    --------
    >>> import pyarrow as pa
    >>> layout = ReplayLayout(pa.schema([("n", pa.int64())]), TimeDomain(("long",)))
    >>> row = split_batch(Split(0, 2, "log", lower=((1,),), upper=()), layout)
    >>> row.column("_lower").to_pylist(), row.column("_upper").to_pylist()
    (['[[1]]'], ['[]'])
    """
    plan = json.dumps({"split": split.to_json(), "layout": layout.to_json()})
    rows = {
        "_split": split.number,
        "_splits": split.n_splits,
        "_lower": None if split.lower is None else json.dumps(split.lower),
        "_upper": None if split.upper is None else json.dumps(split.upper),
        "_bytes": split.size_bytes,
        "_plan": plan,
    }
    return pa.RecordBatch.from_pylist([rows], schema=SPLIT_SCHEMA)


def split_from(plan: str, /) -> tuple[Split, ReplayLayout]:
    """Return what a row of ``content=splits`` stands for, from its column ``_plan``.

    Raises
    ------
    InvalidUsageError
        If another version of the library made it.
    """
    found = json.loads(plan)
    return Split.from_json(found["split"]), ReplayLayout.from_json(found["layout"])


def make_layout(
    payload: pa.Schema,
    domain: TimeDomain,
    *,
    collection: bool = False,
    content: str = "messages",
    delivery: str = "complete",
    columns: Sequence[str] | None = None,
    where: str | None = None,
    include_time: bool = False,
    include_metadata: bool = False,
    fail_on_data_loss: bool = True,
) -> ReplayLayout:
    """Choose the columns that a query gets.

    Ours come first: for ``content=events`` the kind of event and, of a progress row, the change of the
    count, always with stream and time; then the payload, where progress rows have nothing.

    Parameters
    ----------
    payload : pyarrow.Schema
        Columns of the log's rows.
    domain : TimeDomain
        Of the log.
    collection : bool
        Whether the log has diffs; they are always given out.
    content, delivery, columns, where, include_time, include_metadata, fail_on_data_loss
        The options of these names.

    Returns
    -------
    ReplayLayout
        For ``content=splits`` of the rows that the splits stand for.

    Raises
    ------
    InvalidOptionError
        If a column is wanted that the log does not have.
    InvalidUsageError
        If `where` is no condition on payload columns, or names none.

    Examples
    --------
    >>> import pyarrow as pa
    >>> payload = pa.schema([("n", pa.int64()), ("text", pa.string())])
    >>> make_layout(payload, TimeDomain(("long",)), columns=["n"], include_time=True).schema.names
    ['_time', 'n']
    """
    events = content == "events"
    chosen = payload if columns is None else pa.schema([_field(payload, name) for name in columns])
    ours: list[pa.Field] = []
    if events:
        ours.append(pa.field("_event", pa.string(), nullable=False))
    if events or include_metadata:
        ours.append(pa.field("_stream", pa.string()))
    if include_metadata:
        ours.append(pa.field("_seq", pa.int64()))
    # The rows of a split are for kernels, which group by the time.
    if events or include_time or content == "splits":
        ours += [
            pa.field(name, kind.arrow, nullable=False) for name, kind in zip(domain.columns, domain.types, strict=True)
        ]
    if events:
        ours.append(pa.field("_delta", pa.int64()))
    if collection:
        ours.append(pa.field("_diff", pa.int64(), nullable=events))
    rest = [pa.field(field.name, field.type) if events else field for field in chosen]
    return ReplayLayout(
        pa.schema([*ours, *rest]),
        domain,
        collection=collection,
        content=content,
        delivery=delivery,
        fail_on_data_loss=fail_on_data_loss,
        where=None if where is None else _where(where, payload),
    )


def _where(text: str, payload: pa.Schema) -> Where:
    found = _predicate(text, payload)
    if not found.columns:
        msg = f"could not read the log: found no column in condition {shown(text)}"
        raise InvalidUsageError(msg, hint="leave `where` out to read all rows", context={"option": "where"})
    return Where(text, pa.schema([pa.field(name, payload.field(name).type) for name in found.columns]))


def _field(payload: pa.Schema, name: str) -> pa.Field:
    # Spark resolves column names without regard to case.
    exact = payload.get_field_index(name)
    if exact >= 0:
        return payload.field(exact)
    folded = [field for field in payload if field.name.lower() == name.lower()]
    if len(folded) == 1:
        return folded[0]
    msg = f"could not read columns: found no column {name!r} in the log"
    raise InvalidOptionError(
        msg,
        hint=f"name some of {shown(payload.names)}",
        context={"option": "columns", "column": name},
    )


def restrict_layout(layout: ReplayLayout, wanted: pa.Schema, /) -> ReplayLayout:
    """Return the layout for a schema that the user gave: some of the columns, in any order.

    Parameters
    ----------
    layout : ReplayLayout
    wanted : pyarrow.Schema
        Names and types asked for.

    Returns
    -------
    ReplayLayout

    Raises
    ------
    SchemaMismatchError
        If a column is none of the layout's, has another type, or is said to have no nulls where it
        may have some.

    Examples
    --------
    >>> import pyarrow as pa
    >>> layout = ReplayLayout(pa.schema([("a", pa.int64()), ("b", pa.string())]), TimeDomain(("long",)))
    >>> restrict_layout(layout, pa.schema([("b", pa.string())])).schema.names
    ['b']
    """
    if wanted.equals(layout.schema):
        return layout
    for field in wanted:
        place = layout.schema.get_field_index(field.name)
        found = layout.schema.field(place) if place >= 0 else None
        if found is None or found.type != field.type or (found.nullable and not field.nullable):
            msg = (
                f"could not read the log with the schema that was given: column {field.name!r} is "
                f"{str(field)!r}, found {None if found is None else str(found)!r}"
            )
            raise SchemaMismatchError(
                msg,
                hint="leave the schema out, or give some of the log's columns with their types",
                context={"column": field.name},
            )
    return layout.with_schema(wanted)


def frontier_changes(layout: ReplayLayout, lower: Antichain, upper: Antichain, /, *, opening: bool) -> bytes:
    """Return the progress rows of a micro-batch under ``complete``: how its frontier moved.

    Parameters
    ----------
    layout : ReplayLayout
    lower, upper : Antichain
        Frontiers before and after.
    opening : bool
        Whether this is the beginning of the query: then the reader is still at the minimum.

    Returns
    -------
    bytes
        An Arrow stream; empty where nothing moved.
    """
    before = layout.domain.minimum_frontier if opening else lower
    times, deltas = changes_between(before, upper.times, np.ones(len(upper), np.int64))
    return to_bytes(progress_table(layout.schema, layout, times, deltas)) if times.shape[0] else b""


def changes_between(
    before: Antichain, times: IntArray, counts: npt.NDArray[np.int64], /
) -> tuple[IntArray, npt.NDArray[np.int64]]:
    """Return what to state so that a stream that holds a frontier, each of its times once, holds these counts."""
    given_up = np.full(len(before), -1, np.int64)
    changed, deltas = consolidate_rows(np.concatenate([before.times, times]), np.concatenate([given_up, counts]))
    raised_first = np.argsort(deltas < 0, kind="stable")
    return changed[raised_first], deltas[raised_first]


def progress_table(
    schema: pa.Schema,
    layout: ReplayLayout,
    times: IntArray,
    deltas: npt.NDArray[np.int64],
    *,
    streams: Sequence[str | None] | None = None,
    seqs: npt.NDArray[np.int64] | None = None,
) -> pa.Table:
    """Return progress rows with the columns of `schema`; what they do not have is null.

    Rows of no stream (None) and of no commit (below zero) are sorted before all others.
    """
    n = times.shape[0]
    names: pa.Array = pa.nulls(n, pa.string()) if streams is None else pa.array(streams, pa.string())
    numbers: pa.Array = pa.array(np.full(n, -1) if seqs is None else seqs, pa.int64())
    columns = {
        "_event": pa.repeat(pa.scalar("progress", pa.string()), n),
        "_delta": pa.array(deltas, pa.int64()),
        "_stream": names,
        "_seq": pc.replace_with_mask(numbers, pc.less(numbers, 0), pa.scalar(None, pa.int64())),
        "_sort_stream": names.fill_null(""),
        "_sort_seq": numbers,
        **layout.domain.to_columns(times),
    }
    arrays = [columns.get(field.name, pa.nulls(n, field.type)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def to_bytes(table: pa.Table, /) -> bytes:
    """Return a table as an Arrow stream, to travel in a split."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content
