"""Splits and layouts: plain values that travel."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest

from spark_timely.datasource.splits import (
    SPLIT_SCHEMA,
    FilePiece,
    ReplayLayout,
    Split,
    make_layout,
    restrict_layout,
    split_batch,
)
from spark_timely.errors import InvalidOptionError, InvalidUsageError, SchemaMismatchError
from spark_timely.time.domain import TimeDomain

PAYLOAD = pa.schema([pa.field("n", pa.int64(), nullable=False), ("Text", pa.string()), ("list", pa.list_(pa.int8()))])
LONG = TimeDomain(("long",), (0,))
PAIR = TimeDomain(("long", "timestamp"))

FULL = Split(
    2,
    3,
    "/a log",
    pieces=(FilePiece("x.parquet", 0, 5), FilePiece("y.parquet", commit=("main", 7))),
    lower=((1, 2), (2, 1)),
    upper=(),
    as_of=(4, 4),
    first=(0, 0),
    last=(9, 9),
    streams=("a", "b"),
    commits=(("a", 0, 3),),
    consolidate=True,
    size_bytes=99,
)


@pytest.mark.parametrize("split", [Split(0, 1, "p"), FULL])
def test_split_through_text_and_pickle_is_the_same(split: Split) -> None:
    assert Split.from_json(json.loads(json.dumps(split.to_json()))) == split
    assert pickle.loads(pickle.dumps(split)) == split


def test_layout_through_text_is_the_same() -> None:
    layout = make_layout(PAYLOAD, PAIR, collection=True, content="splits", fail_on_data_loss=False)
    again = ReplayLayout.from_json(json.loads(json.dumps(layout.to_json())))
    assert again.schema.equals(layout.schema)
    assert (again.domain, again.collection, again.fail_on_data_loss) == (PAIR, True, False)


def test_split_row_has_exactly_the_schema_and_no_secrets() -> None:
    row = split_batch(FULL, make_layout(PAYLOAD, PAIR, content="splits"))
    assert row.schema.equals(SPLIT_SCHEMA)
    assert row.to_pylist()[0]["_lower"] == "[[1, 2], [2, 1]]"
    assert "storage" not in row.to_pylist()[0]["_plan"]


def test_split_of_another_version_is_refused() -> None:
    found = {**make_layout(PAYLOAD, LONG).to_json(), "format": 99}
    with pytest.raises(InvalidUsageError, match="format=99, known is 2 — hint: install the same version"):
        ReplayLayout.from_json(found)


def test_layout_of_messages_is_the_payload_by_default() -> None:
    assert make_layout(PAYLOAD, LONG).schema.equals(PAYLOAD)
    assert make_layout(PAYLOAD, LONG, include_time=True, include_metadata=True).schema.names == [
        "_stream", "_seq", "_time", "n", "Text", "list",
    ]  # fmt: skip
    assert make_layout(PAYLOAD, PAIR, collection=True).schema.names == ["_diff", "n", "Text", "list"]
    assert make_layout(PAYLOAD, PAIR, content="splits").schema.names[:2] == ["_time_0", "_time_1"]


def test_layout_of_events_lets_every_payload_column_be_null() -> None:
    schema = make_layout(PAYLOAD, PAIR, collection=True, content="events").schema
    assert schema.names == ["_event", "_stream", "_time_0", "_time_1", "_delta", "_diff", "n", "Text", "list"]
    assert schema.field("n").nullable
    assert schema.field("_diff").nullable
    assert not schema.field("_event").nullable


def test_columns_are_found_in_any_case_in_the_order_asked_for() -> None:
    assert make_layout(PAYLOAD, LONG, columns=["TEXT", "n"]).schema.names == ["Text", "n"]
    with pytest.raises(InvalidOptionError, match="found no column 'm' in the log — hint: name some of"):
        make_layout(PAYLOAD, LONG, columns=["m"])


def test_given_schema_may_choose_columns_but_not_change_them() -> None:
    layout = make_layout(PAYLOAD, LONG, include_time=True)
    wanted = pa.schema([("Text", pa.string()), pa.field("n", pa.int64())])
    assert restrict_layout(layout, wanted).schema.equals(wanted)
    for field in (
        pa.field("n", pa.int32()),
        pa.field("m", pa.int64()),
        pa.field("Text", pa.string(), nullable=False),
    ):
        with pytest.raises(SchemaMismatchError, match=f"column '{field.name}' is "):
            restrict_layout(layout, pa.schema([field]))
