"""Rows in the forms that programs have them: all come to the same messages, or to an error that says why."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from spark_timely.errors import (
    InvalidShapeError,
    InvalidUsageError,
    SchemaMismatchError,
    TimelyError,
    UnheldCapabilityError,
)
from spark_timely.log import MemoryLog
from spark_timely.log.writer import StreamWriter

SCHEMA = pa.schema([("v", pa.int32()), ("w", pa.string())])
TABLE = pa.table({"_time": [3, 4], "v": [1, 2], "w": ["a", None]})
WRITTEN = [{"_time": 3, "v": 1, "w": "a"}, {"_time": 4, "v": 2, "w": None}]


class Stream:
    """What polars and others offer: the C stream interface and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class Batch:
    """The C data interface and nothing else."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


class Column:
    """A column by the C stream interface, such as a Series of polars."""

    def __init__(self, values: list[Any]) -> None:
        self._column = pa.chunked_array([values])

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._column.__arrow_c_stream__(requested_schema)


def polars_types() -> pa.Table:
    """Return the rows with the types of Arrow that polars exports."""
    # Not cast: what pyarrow 24 makes by a cast of short texts crashes when it is exported.
    views = pa.array(TABLE.column("w").to_pylist(), pa.string_view())
    return TABLE.set_column(2, "w", views)


def categories() -> pa.Table:
    """Return the rows with the text as a category, as polars exports one: Arrow has no values of views to look up."""
    column = TABLE.column("w").combine_chunks().dictionary_encode()
    words = pa.array(column.dictionary.to_pylist(), pa.string_view())
    views = pa.DictionaryArray.from_arrays(column.indices.cast(pa.uint32()), words)
    return TABLE.set_column(2, "w", views)


FORMS: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "batch": lambda: TABLE.to_batches()[0],
    "reader": lambda: TABLE.to_reader(),
    "C stream": lambda: Stream(polars_types()),
    "C stream, categories": lambda: Stream(categories()),
    "C array": lambda: Batch(),
    "pandas": lambda: TABLE.to_pandas(),
    "pandas, filtered": lambda: pd.concat([TABLE.to_pandas(), TABLE.to_pandas()]).iloc[2:],
    "pandas, by its index": lambda: TABLE.to_pandas().set_index("_time"),
    "columns of lists": lambda: {"_time": [3, 4], "v": [1, 2], "w": ["a", None]},
    "columns of several kinds": lambda: {
        "_time": np.array([3, 4]),
        "v": range(1, 3),
        "w": pd.Series(["a", None], dtype=object),
    },
    "columns of Arrow": lambda: {"_time": TABLE["_time"], "v": pa.array([1, 2]), "w": Column(["a", None])},
    "rows": lambda: WRITTEN,
    "rows with keys left out": lambda: ({"_time": 3, "v": 1, "w": "a"}, {"v": 2, "_time": 4}),
}


if find_spec("polars") is not None:
    FORMS["polars"] = lambda: import_module("polars").from_arrow(TABLE)


def writer(schema: pa.Schema = SCHEMA, **more: Any) -> StreamWriter:
    return MemoryLog.create(schema, **{"minimum": (0,), **more}).writer(owner="me")


def messages(into: StreamWriter, *columns: str) -> list[dict[str, Any]]:
    """Return what the log has, ordered by time."""
    return list(MemoryLog(into.core.store).messages(columns=columns).to_pylist())


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_every_form_are_the_same_messages(form: str) -> None:
    into = writer()
    assert into.append(FORMS[form](), advance_to=4, batch=1).committed
    assert messages(into, "_time", "v", "w") == WRITTEN
    # The digest of a repeated append is that of the table, whatever it came as.
    assert not into.append(TABLE, advance_to=4, batch=1).committed


@pytest.mark.parametrize("form", ["pandas", "C stream", "rows"])
def test_compare_and_append_takes_the_same_forms(form: str) -> None:
    into = writer()
    assert into.compare_and_append(FORMS[form](), expected=0, upper=5).committed
    assert messages(into, "_time", "v", "w") == WRITTEN


def test_times_come_from_a_payload_column_by_its_name() -> None:
    moment = dt.datetime(2013, 6, 13, 16, tzinfo=dt.UTC)
    into = writer(pa.schema([("hour", pa.timestamp("us", "UTC"))]), times="timestamp", minimum="2013-01-01")
    into.append([{"hour": moment}], time_column="hour")
    into.append(pd.DataFrame({"hour": [pd.Timestamp(moment)]}), time_column=["hour"])
    assert messages(into, "hour") == [{"hour": moment}] * 2


def test_time_column_beside_the_one_that_is_named_is_refused() -> None:
    into = writer(pa.schema([("t", pa.int64())]))
    with pytest.raises(SchemaMismatchError, match="unknown column '_time'"):
        into.append({"t": [1], "_time": [2]}, time_column="t")


def test_reader_that_was_read_before_is_refused() -> None:
    into = writer()
    into.append([], advance_to=4)
    reader = TABLE.to_reader()
    with pytest.raises(UnheldCapabilityError):
        into.append(reader, advance_to=9, batch=1)
    with pytest.raises(InvalidUsageError, match="found a reader whose rows were taken before"):
        into.append(reader, advance_to=9, batch=1)
    assert into.frontier.to_json() == [4]


def test_no_rows_are_rows_too() -> None:
    into = writer()
    outcome = into.append([], advance_to=7)
    assert (outcome.state.rows, outcome.state.frontier.to_json()) == (0, [7])


def test_whole_numbers_stand_for_fractions_and_narrow_ones() -> None:
    lists = pa.list_(pa.struct([("x", pa.float64())]))
    into = writer(pa.schema([("f", pa.float64()), ("s", pa.int16()), ("d", pa.decimal128(9, 2)), ("l", lists)]))
    into.append([{"_time": 1, "f": 1, "s": 2, "d": 3, "l": [{"x": 1}, {"x": None}]}])
    into.append({"_time": [1], "f": [1.5], "s": [2], "d": [3], "l": [[{"x": 1.5}]]})
    assert messages(into, "l") == [{"l": [{"x": 1.0}, {"x": None}]}, {"l": [{"x": 1.5}]}]
    assert messages(into, "f") == [{"f": 1.0}, {"f": 1.5}]


def test_maps_and_structs_come_from_python_values() -> None:
    into = writer(pa.schema([("m", pa.map_(pa.string(), pa.int64())), ("s", pa.struct([("x", pa.int64())]))]))
    rows = [{"_time": 1, "m": [("a", 1)], "s": {"x": 2}}]
    into.append(rows)
    assert messages(into, "m", "s") == [{"m": [("a", 1)], "s": {"x": 2}}]


def test_maps_in_any_place_come_from_python_values() -> None:
    numbers = pa.map_(pa.string(), pa.int64())
    kinds = {
        "inner": pa.struct([("m", numbers), ("x", pa.float64())]),
        "lists": pa.list_(numbers),
        "maps": pa.map_(pa.string(), pa.struct([("a", pa.list_(pa.float64()))])),
    }
    into = writer(pa.schema(list(kinds.items())))
    rows = [
        {
            "_time": 1,
            "inner": {"m": {"a": 1}, "x": 2},
            "lists": [{"b": None}, None, {}],
            "maps": {"k": {"a": [1, None]}},
        },
        {"_time": 2, "inner": None, "lists": None, "maps": None},
        {"_time": 3, "inner": {"m": None, "x": None}, "lists": [], "maps": [("k", None)]},
    ]
    into.append(rows)
    assert messages(into, *kinds) == [
        {"inner": {"m": [("a", 1)], "x": 2.0}, "lists": [[("b", None)], None, []], "maps": [("k", {"a": [1.0, None]})]},
        {"inner": None, "lists": None, "maps": None},
        {"inner": {"m": None, "x": None}, "lists": [], "maps": [("k", None)]},
    ]


DAY, MOMENT, ZONED = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 23, 59), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
TEXT_TO = {name: pa.map_(pa.string(), kind) for name, kind in {"int": pa.int64(), "day": pa.date32()}.items()}
CHANGED: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "truth among numbers": (pa.float64(), [0.5, True], "numbers and truth values together"),
    "truth in a list": (pa.list_(pa.int64()), [[1], [True]], "numbers and truth values together in []"),
    "truth in a struct": (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": True}], "truth values together in a"),
    "a moment among days": (pa.date32(), [DAY, MOMENT], "days and moments together"),
    "zones": (pa.timestamp("us", "UTC"), [ZONED, None, MOMENT], "moments with a zone and without"),
    "nanoseconds": (pa.timestamp("us", "UTC"), [pd.Timestamp(1, tz="UTC")], "moments with nanoseconds"),
    "a fraction in a map": (TEXT_TO["int"], [{"a": 1.5}], "column 'v' of type=map<string, double>"),
    "a moment in a map": (TEXT_TO["day"], [{"a": MOMENT}], "column 'v' of type=map<string, timestamp"),
    "a field that a struct lacks": (
        pa.struct([("m", TEXT_TO["int"])]), [{"m": {"a": 1}, "x": 1}], "column 'v' of type=struct<m",
    ),
    "more than a pair": (TEXT_TO["int"], [[("a", 1, 2)]], "('a', 1, 2) for a key and its value"),
    "a number for a map": (TEXT_TO["int"], [5], "'5'"),
    "a text for pairs": (TEXT_TO["int"], [["ab"]], "'ab'"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
@pytest.mark.parametrize("form", [list, lambda values: pd.Series(values, dtype=object)], ids=["list", "pandas"])
def test_value_that_would_be_changed_is_refused(what: str, form: Callable[[Any], Any]) -> None:
    kind, values, text = CHANGED[what]
    into = writer(pa.schema([("v", kind)]))
    with pytest.raises(SchemaMismatchError) as caught:
        into.append({"_time": [1] * len(values), "v": form(values)})
    if form is list:
        assert text in str(caught.value)
    assert messages(into, "v") == []


def test_damaged_texts_and_categories_are_refused() -> None:
    text = pa.array([b"\xff"]).view(pa.string())
    category = pa.DictionaryArray.from_arrays(pa.array([7]), pa.array(["a"]), safe=False)
    for column in (text, category):
        for rows in (pa.table({"_time": [1], "v": column}), {"_time": [1], "v": column}):
            into = writer(pa.schema([("v", pa.string())]))
            with pytest.raises(SchemaMismatchError, match=r"that Arrow cannot read: .*(UTF8|out of bounds)"):
                into.append(rows)
            assert messages(into, "v") == []


def test_rows_whose_owner_fails_are_a_schema_mismatch() -> None:
    class Broken:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            raise RuntimeError(requested_schema or "no connection")

    def batches() -> Any:
        yield TABLE.to_batches()[0]
        raise OSError("gone")

    _refused(Broken(), "no connection", SchemaMismatchError)
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, batches())
    _refused(reader, "gone", SchemaMismatchError)
    with pytest.raises(SchemaMismatchError, match=r"^(?!.*Traceback)"):
        writer().append(pa.RecordBatchReader.from_batches(TABLE.schema, batches()))


MISMATCHED: dict[str, tuple[Any, str]] = {
    "a text for a number": ({"_time": [1], "v": ["x"], "w": ["a"]}, "column 'v' of type=string"),
    "a number that is too large": ([{"_time": 1, "v": 2**40, "w": "a"}], "do not fit int32"),
    "a number that no column holds": ({"_time": [1], "v": [2**80], "w": ["a"]}, "column 'v'"),
    "a fraction for a number": ([{"_time": 1, "v": 1.5, "w": "a"}], "column 'v' of type=double"),
    "values of several types": ({"_time": [1, 2], "v": [1, 2], "w": ["a", 5]}, "column 'w' that Arrow cannot read"),
    "an unknown key": ([{"_time": 1, "v": 1, "w": "a", "z": 0}], "unknown column 'z'"),
    "a missing column": ({"_time": [1], "v": [1]}, "found no column 'w', which the log was made with"),
    "no time": ([{"v": 1, "w": "a"}], "found no time column '_time'"),
    "pandas of several types": (
        pd.DataFrame({"_time": [1, 2], "v": [1, 2], "w": ["a", 5]}, dtype=object),
        "rows that Arrow cannot read",
    ),
    "pandas with an index of others": (
        pd.DataFrame({"_time": [1], "v": [1], "w": ["a"]}).set_index(pd.Index([9], name="number")),
        "unknown column 'number'",
    ),
    "a column of a table": (pa.chunked_array([[1]]), "rows that Arrow cannot read"),
}


@pytest.mark.parametrize("what", MISMATCHED)
def test_rows_that_do_not_fit_are_a_schema_mismatch(what: str) -> None:
    _refused(*MISMATCHED[what], SchemaMismatchError)


NO_ROWS: dict[str, tuple[Any, str]] = {
    "nothing": (None, "found rows=None — hint: give a table of Arrow, pandas, polars or DuckDB, a dict of columns"),
    "a number": (5, "found rows=5 — hint: give a table"),
    "a text": ("rows", "found rows='rows' — hint: give a table"),
    "a list of numbers": ([1, 2], "found rows=[1, 2] — hint: give a table"),
    "a list of lists": ([[1, 2]], "found rows=[[1, 2]] — hint: give a table"),
    "a list of texts": (["ab"], "found rows=['ab'] — hint: give a table"),
    "a row and a number": ([{"_time": 1, "v": 1, "w": "a"}, 5], "hint: give a table"),
    "one row": ({"_time": 1, "v": 1, "w": "a"}, "found _time=1, which is no column — hint: give each column a list"),
    "a column of text": ({"_time": [1], "v": [1], "w": "a"}, "found w='a', which is no column"),
    "a set": ({"_time": {1}, "v": [1], "w": ["a"]}, "found _time={1}, which is no column"),
    "a table of numbers": ({"_time": np.zeros((1, 1)), "v": [1], "w": ["a"]}, "which is no column"),
    "a number for a name": ({5: [1]}, "found a column named 5"),
    "a generator": ((row for row in WRITTEN), "hint: give a table"),
}


@pytest.mark.parametrize("what", NO_ROWS)
def test_what_is_no_rows_is_refused(what: str) -> None:
    _refused(*NO_ROWS[what], InvalidUsageError)


def test_columns_of_different_lengths_are_refused() -> None:
    rows = {"_time": [1, 2], "v": [1], "w": ["a"]}
    _refused(rows, "found columns of different lengths: {'_time': 2, 'v': 1, 'w': 1}", InvalidShapeError)


def test_moments_without_a_zone_are_refused_in_any_form() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    naive = dt.datetime(2013, 6, 13, 16)
    for rows in (
        {"_time": [1], "at": [naive]},
        [{"_time": 1, "at": naive}],
        pd.DataFrame({"_time": [1], "at": [naive]}),
    ):
        with pytest.raises(SchemaMismatchError, match=r"column 'at' of type=timestamp\[.s\]"):
            writer(schema).append(rows)


def _refused(rows: Any, text: str, kind: type[TimelyError]) -> None:
    into = writer()
    before = into.core.version
    with pytest.raises(kind) as caught:
        into.append(rows, advance_to=5)
    assert text in str(caught.value)
    assert caught.value.message.startswith("could not ")
    assert caught.value.hint
    assert type(caught.value) is kind
    assert into.core.version == before
    assert into.frontier.to_json() == [0]


def test_append_loads_no_pandas() -> None:
    code = (
        "import sys\n"
        "from spark_timely.log import rows\n"
        "assert 'pandas' not in sys.modules\n"
        "assert not rows._is_pandas({'v': [1]})\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
