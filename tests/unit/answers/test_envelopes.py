"""The forms of updates: columns, words of what happened, order within a time, progress rows, refusals."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.answers.envelopes import RowForm, row_form
from spark_timely.errors import InvalidUsageError, SchemaMismatchError
from spark_timely.log import MemoryLog
from spark_timely.log.files.format import LogFormat
from spark_timely.time.antichain import Antichain

PAYLOAD = pa.schema([("v", pa.float64()), ("k", pa.string()), ("w", pa.int64())])
ATTEMPT = "could not subscribe to log 'l'"


def form_of(payload: pa.Schema = PAYLOAD, **options: Any) -> LogFormat:
    return MemoryLog.create(payload, kind="collection", minimum=options.pop("minimum", 0), **options).core.format


def updates(*rows: tuple[int, int, Any, Any, Any]) -> pa.Table:
    """Rows of time, diff, k, v, w."""
    schema = pa.schema([("_time", pa.int64()), ("_diff", pa.int64()), *PAYLOAD])
    names = ["_time", "_diff", "k", "v", "w"]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=schema)


def given(form: RowForm, *rows: tuple[int, int, Any, Any, Any]) -> list[tuple[Any, ...]]:
    found = form.rows(updates(*rows), form_of())
    assert found.schema == form.schema(form_of())
    return [tuple(row.values()) for row in found.to_pylist()]


def test_plain_rows_are_times_diff_and_payload() -> None:
    assert given(RowForm(), (1, 2, "a", 0.5, None)) == [(1, 2, 0.5, "a", None)]


def test_upsert_has_the_key_first_and_nulls_where_it_is_gone() -> None:
    form = RowForm(envelope="upsert", key=("k",))
    assert form.schema(form_of()).names == ["_time", "_state", "k", "v", "w"]
    rows = [(1, 1, "a", 1.0, 1), (2, -1, "a", 1.0, 1), (2, 1, "a", 2.0, 1), (3, -1, "a", 2.0, 1)]
    assert given(form, *rows) == [
        (1, "upsert", "a", 1.0, 1),
        (2, "upsert", "a", 2.0, 1),
        (3, "delete", "a", None, None),
    ]


def test_debezium_has_before_and_after() -> None:
    form = RowForm(envelope="debezium", key=("w", "k"))
    assert form.schema(form_of()).names == ["_time", "_state", "w", "k", "before_v", "after_v"]
    rows = [(1, 1, "a", 1.0, 1), (2, 1, "a", 2.0, 1), (2, -1, "a", 1.0, 1), (3, -1, "a", 2.0, 1)]
    assert given(form, *rows) == [
        (1, "insert", 1, "a", None, 1.0),
        (2, "upsert", 1, "a", 1.0, 2.0),
        (3, "delete", 1, "a", 2.0, None),
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [(1, 2, "a", 1.0, 1)],
        [(1, -2, "a", 1.0, 1)],
        [(1, 1, "a", 1.0, 1), (1, 1, "a", 2.0, 1)],
        [(1, -1, "a", 1.0, 1), (1, -1, "a", 2.0, 1)],
        [(1, -1, "a", 1.0, 1), (1, 2, "a", 2.0, 1)],
        [(1, -1, "a", 1.0, 1), (1, 1, "a", 2.0, 1), (1, 1, "a", 3.0, 1)],
    ],
)
def test_key_with_several_rows_is_a_violation_without_values(rows: list[Any]) -> None:
    assert given(RowForm(envelope="upsert", key=("k",)), *rows) == [(1, "key_violation", "a", None, None)]
    assert given(RowForm(envelope="debezium", key=("k",)), *rows) == [(1, "key_violation", "a", None, None, None, None)]


def test_violation_leaves_other_keys_and_the_next_time() -> None:
    form = RowForm(envelope="upsert", key=("k",))
    rows = [(1, 2, "a", 1.0, 1), (1, 1, "b", 1.0, 1), (1, 1, None, 1.0, 1), (2, -1, "a", 1.0, 1)]
    found = given(form, *rows)
    assert sorted(found, key=str) == sorted(
        [
            (1, "key_violation", "a", None, None),
            (1, "upsert", "b", 1.0, 1),
            (1, "upsert", None, 1.0, 1),
            (2, "delete", "a", None, None),
        ],
        key=str,
    )


def test_envelope_of_no_rows_is_no_rows() -> None:
    for envelope in ("upsert", "debezium"):
        assert given(RowForm(envelope=envelope, key=("k",), progress=True)) == []


def test_order_has_nulls_and_nan_where_spark_has_them() -> None:
    rows = [(1, 1, "a", None, 1), (1, 1, "b", math.nan, 1), (1, 1, "c", -1.0, 1), (0, 1, "d", 9.0, 1)]

    def keys(order: Any) -> str:
        form = row_form(ATTEMPT, form_of(), order_by=order)
        return "".join(row[3] for row in given(form, *rows))

    assert keys("v") == "dacb"
    assert keys([("v", "asc", "last")]) == "dcba"
    assert keys([("v", "desc")]) == "dbca"
    assert keys([("v", "desc", "first")]) == "dabc"


def test_order_may_use_the_diff_and_several_columns() -> None:
    form = row_form(ATTEMPT, form_of(), order_by=[("_diff", "desc"), "k"])
    rows = [(1, -1, "a", 0.0, 1), (1, 1, "c", 0.0, 1), (1, 1, "b", 0.0, 1)]
    assert [row[3] for row in given(form, *rows)] == ["b", "c", "a"]


def test_progress_rows_are_null_but_for_the_time() -> None:
    log_form = form_of()
    for form in (RowForm(progress=True), RowForm(progress=True, envelope="upsert", key=("k",))):
        found = form.progress_rows(Antichain.of(7), log_form)
        assert found.schema == form.schema(log_form)
        (row,) = found.to_pylist()
        assert (row.pop("_time"), row.pop("_progressed")) == (7, True)
        assert set(row.values()) == {None}
    assert [row[1] for row in given(RowForm(progress=True), (1, 1, "a", 0.0, 1))] == [False]


def test_progress_of_product_times_is_a_row_for_each_time() -> None:
    log_form = form_of(times=("long", "date"), minimum=(0, "2013-01-01"))
    frontier = Antichain.of((0, 15710), (3, 15706))
    found = RowForm(progress=True).progress_rows(frontier, log_form)
    assert [(row["_time_0"], row["_time_1"].isoformat()) for row in found.to_pylist()] == [
        (0, "2013-01-05"),
        (3, "2013-01-01"),
    ]
    assert RowForm(progress=True).progress_rows(Antichain.empty(2), log_form).num_rows == 0


def test_key_of_the_log_is_that_of_the_envelope_unless_given() -> None:
    assert row_form(ATTEMPT, form_of(key=["w", "k"]), envelope="upsert").key == ("w", "k")
    assert row_form(ATTEMPT, form_of(key=["w", "k"]), envelope="upsert", key="k").key == ("k",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"envelope": "none"}, "envelope='none'"),
        ({"envelope": "upsert"}, "key=None"),
        ({"envelope": "upsert", "key": []}, "key"),
        ({"envelope": "upsert", "key": ["k", "k"]}, "k"),
        ({"key": "k"}, "without an envelope"),
        ({"envelope": "upsert", "key": "k", "order_by": "w"}, "order_by='w' and envelope='upsert'"),
        ({"progress": "yes"}, "progress='yes'"),
        ({"order_by": 7}, "order_by=7"),
        ({"order_by": [("k", "up")]}, "up"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidUsageError, match=said):
        row_form(ATTEMPT, form_of(), **options)


@pytest.mark.parametrize(
    ("payload", "options", "said"),
    [
        (PAYLOAD, {"envelope": "upsert", "key": "no"}, "no column 'no'"),
        (PAYLOAD, {"order_by": "no"}, "no column 'no'"),
        (pa.schema([("_state", pa.string())]), {"envelope": "upsert", "key": "_state"}, "a column '_state'"),
        (pa.schema([("_progressed", pa.string())]), {"progress": True}, "a column '_progressed'"),
        (
            pa.schema([("after_v", pa.string()), ("v", pa.string())]),
            {"envelope": "debezium", "key": "after_v"},
            "after_v",
        ),
    ],
)
def test_column_that_is_missing_or_taken_is_refused(payload: pa.Schema, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaMismatchError, match=said):
        row_form(ATTEMPT, form_of(payload), **options)


def test_order_by_a_nested_column_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="list"):
        row_form(ATTEMPT, form_of(pa.schema([("l", pa.list_(pa.int64()))])), order_by="l")
