"""Rows of `dialect=cdcv2`: what a statement is, which columns it needs, and which options go with it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.conf.options import SINK_OPTIONS, parse_options
from spark_timely.errors import InvalidOptionError, InvalidUsageError, ProtocolError, SchemaMismatchError
from spark_timely.interop.cdcv2.statements import Statement, statements_of
from spark_timely.sink.columns import roles_of
from spark_timely.sink.writer import make_stream_writer
from spark_timely.spark.base.schema import spark_schema
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

LONG = TimeDomain(("long",), (0,))
FIELDS = {
    "_time": pa.int64(),
    "_diff": pa.int64(),
    "word": pa.string(),
    "_lower": pa.list_(pa.int64()),
    "_upper": pa.list_(pa.int64()),
    "_counts": pa.list_(pa.struct([("time", pa.int64()), ("n", pa.int32())])),
}


def schema(**changes: pa.DataType | None) -> Any:
    fields = {name: kind for name, kind in {**FIELDS, **changes}.items() if kind is not None}
    return spark_schema(pa.schema(list(fields.items())))


def options(**given: object) -> Any:
    return parse_options(SINK_OPTIONS, {"path": "log", "dialect": "cdcv2", **given})


def table(lower: Any, upper: Any, counts: Any, kind: pa.DataType | None = None) -> pa.Table:
    time = kind or pa.int64()
    pairs = pa.list_(pa.struct([("time", time), ("n", pa.int64())]))
    columns = [pa.array([lower], pa.list_(time)), pa.array([upper], pa.list_(time)), pa.array([counts], pairs)]
    return pa.table(columns, names=["_lower", "_upper", "_counts"])


def test_statements_of_times_of_every_type_are_read() -> None:
    found = statements_of(table([0], [], [(3, 2), (4, 1)]), LONG)
    assert found == [Statement(Antichain.of(0), Antichain.empty(), {(3,): 2, (4,): 1})]
    day = dt.date(1970, 1, 3)
    found = statements_of(table([day], [day], [], pa.date32()), TimeDomain(("date",), (0,)))
    assert found == [Statement(Antichain.of(2), Antichain.of(2), {})]
    pair = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    found = statements_of(table([(0, 0)], [(0, 3), (2, 0)], [((1, 1), 5)], pair), TimeDomain(("long", "long"), (0, 0)))
    assert found == [Statement(Antichain.of((0, 0)), Antichain.of((0, 3), (2, 0)), {(1, 1): 5})]
    assert statements_of(table([0], [1], []).slice(0, 0), LONG) == []


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([(3, -1)], "a count of -1 at time=3"),
        ([(3, 1), (3, 1)], "two counts at time=3"),
        ([(9, 1)], "a count outside of its bounds at time=9"),
        ([(1, 1)], "a count outside of its bounds at time=1"),
        ([(3, None)], "a count that is null"),
    ],
)
def test_statement_that_contradicts_itself_is_refused(counts: Any, said: str) -> None:
    with pytest.raises(ProtocolError, match=said) as caught:
        statements_of(table([2], [9], counts), LONG)
    assert caught.value.hint


def test_times_that_are_null_or_before_the_log_are_refused() -> None:
    with pytest.raises(InvalidUsageError, match="found null"):
        statements_of(table([None], [9], []), LONG)
    with pytest.raises(ProtocolError, match="a count before the log's least time at time=-2") as caught:
        statements_of(table([-5], [9], [(-2, 1)]), LONG)
    assert "create_log" in caught.value.hint
    assert statements_of(table([-5], [9], [(-2, 0)]), LONG)[0].counts == {(-2,): 0}


def test_log_is_a_collection_from_zero_of_the_payload_columns() -> None:
    roles = roles_of(schema(), options(), form=None)
    assert (roles.form.kind, roles.form.domain.minimum) == ("collection", (0,))
    assert (roles.payload, roles.times, roles.diff) == (("word",), ("_time",), "_diff")
    product = schema(
        _time=None,
        _time_0=pa.int64(),
        _time_1=pa.date32(),
        _lower=(time := pa.list_(pa.struct([("x", pa.int32()), ("y", pa.date32())]))),
        _upper=time,
        _counts=pa.list_(pa.struct([("t", time.value_type), ("n", pa.int64())])),
    )
    assert roles_of(product, options(), form=None).form.domain.minimum == (0, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"_upper": None}, "found no column '_upper'"),
        ({"_time": None}, "found no column '_time' — hint: name the time's column with timeColumn"),
        ({"_lower": pa.int64()}, "statements of column '_lower': found type 'int64'"),
        ({"_lower": pa.list_(pa.string())}, "statements of column '_lower': found type 'list<element: string>'"),
        ({"_lower": pa.list_(pa.date32())}, "statements of column '_lower': found type 'list<element: date32[day]>'"),
        (
            {"_time": pa.int32()},
            "statements of column '_lower': found type 'list<element: int64>', times of the log are int",
        ),
        ({"_counts": pa.list_(pa.int64())}, "statements of column '_counts'"),
    ],
)
def test_columns_of_other_types_are_refused(changes: Any, said: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        roles_of(schema(**changes), options(), form=None)
    assert said in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "given",
    [{"frontier": "bounded"}, {"lateness": 1}, {"maxFutureSkew": 1}, {"lateData": "deadLetter"}, {"mergeSchema": True}],
)
def test_options_that_say_otherwise_are_refused(given: Any) -> None:
    with pytest.raises(InvalidOptionError, match="together with dialect='cdcv2'"):
        roles_of(schema(), options(**given), form=None)


def test_sink_refuses_the_dialect_and_names_what_does_it() -> None:
    with pytest.raises(InvalidOptionError, match="dialect='cdcv2' with format") as caught:
        make_stream_writer({"path": "log", "dialect": "cdcv2", "checkpointLocation": "c"}, schema(), overwrite=False)
    assert "through='foreachBatch'" in caught.value.hint
