"""The canonical hash: equal to the oracle's, and equal for all ways to say the same."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.canonical.state import CanonicalState
from spark_timely.errors import InvalidShapeError, InvalidUsageError
from spark_timely.time.antichain import Antichain
from tests.oracles import canonical_model as model

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20) | st.sampled_from(["", "a", "a\0", "x" * 7, "x" * 8, "x" * 63, "x" * 64, "y" * 200, "ä€𝄞"])
MOMENTS = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(9999, 12, 31))
SIMPLE: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): INT64,
    pa.uint8(): st.integers(0, 255),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1) | st.sampled_from([2**63, 2**63 - 1, 2**64 - 1]),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0, float("nan"), float("inf")]),
    pa.bool_(): st.booleans(),
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.binary(): st.binary(max_size=80),
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.date32(): st.dates(dt.date(1700, 1, 1)),
    pa.timestamp("us", "UTC"): MOMENTS.map(lambda t: t.replace(tzinfo=dt.UTC)),
    pa.timestamp("ms", "Asia/Kolkata"): MOMENTS.map(lambda t: t.replace(microsecond=0, tzinfo=dt.UTC)),
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("s"): MOMENTS.map(lambda t: t.replace(microsecond=0)),
    pa.time64("us"): st.times(),
    pa.duration("us"): st.timedeltas(dt.timedelta(-100_000), dt.timedelta(100_000)),
    pa.decimal128(20, 0): st.decimals(-(10**19), 10**19, places=0),
    pa.decimal128(38, 9): st.decimals(-(10**20), 10**20, places=9)
    | st.sampled_from([Decimal(0), Decimal(5), Decimal("-0.5"), Decimal("100.000000000"), Decimal("1e19")]),
    pa.decimal128(38, 38): st.decimals(Decimal("-0.99"), Decimal("0.99"), places=38),
    pa.decimal256(70, 20): st.integers(-(10**69), 10**69).map(lambda n: Decimal(n).scaleb(-20)),
    pa.null(): st.none(),
}


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> pa.DataType:
    """Draw a type; nested ones up to a depth."""
    shape = draw(st.sampled_from(["simple"] * 3 + ["list", "struct", "map", "fixed"])) if depth else "simple"
    inner = types(depth - 1)
    match shape:
        case "list":
            return pa.list_(draw(inner))
        case "fixed":
            return pa.list_(draw(inner), draw(st.integers(1, 3)))
        case "struct":
            return pa.struct([(f"f{i}", draw(inner)) for i in range(draw(st.integers(1, 3)))])
        case "map":
            keys = draw(st.sampled_from([pa.string(), pa.int32(), pa.date32()]))
            return pa.map_(keys, draw(inner))
    return draw(st.sampled_from(list(SIMPLE)))


def values(type_: pa.DataType, *, null: bool = True) -> st.SearchStrategy[Any]:
    """Draw values of a type as Python has them, nulls among them."""
    if pa.types.is_map(type_):
        found = st.dictionaries(values(type_.key_type, null=False), values(type_.item_type), max_size=3).map(
            lambda d: list(d.items())
        )
    elif pa.types.is_fixed_size_list(type_):
        found = st.lists(values(type_.value_type), min_size=type_.list_size, max_size=type_.list_size)
    elif pa.types.is_list(type_):
        found = st.lists(values(type_.value_type), max_size=3)
    elif pa.types.is_struct(type_):
        found = st.fixed_dictionaries({field.name: values(field.type) for field in type_})
    else:
        found = SIMPLE[type_]
    return st.none() | found if null else found


def plain(value: Any, type_: pa.DataType) -> Any:
    """Say which lists are maps, and read floats as wide as the oracle does."""
    if value is None:
        return None
    if pa.types.is_map(type_):
        return model.MapValue((plain(k, type_.key_type), plain(v, type_.item_type)) for k, v in value)
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        return [plain(v, type_.value_type) for v in value]
    if pa.types.is_struct(type_):
        return {field.name: plain(value[field.name], field.type) for field in type_}
    return value


def as_pairs(hashes: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    return [(int(high), int(low)) for high, low in hashes.tolist()]


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 6) -> tuple[pa.Table, list[dict[str, Any]]]:
    """Draw a table, possibly cut into chunks and offset, and its rows for the oracle."""
    schema = pa.schema([(f"c{i}", draw(types())) for i in range(draw(st.integers(1, 4)))])
    n = draw(st.integers(0, max_rows))
    columns = {f.name: draw(st.lists(values(f.type), min_size=n, max_size=n)) for f in schema}
    table = pa.table({f.name: pa.array(columns[f.name], f.type) for f in schema}, schema=schema)
    rows = [{f.name: plain(columns[f.name][i], f.type) for f in schema} for i in range(n)]
    low = draw(st.integers(0, n))
    if draw(st.booleans()):
        table, rows = table.slice(low), rows[low:]
    elif draw(st.booleans()):
        table = pa.concat_tables([table.slice(0, low), table.slice(low)])
    return table, rows


@given(tables())
def test_row_hash_any_types_equal_to_oracle(drawn: tuple[pa.Table, list[dict[str, Any]]]) -> None:
    table, rows = drawn
    assert as_pairs(RowHasher(table.schema).hash(table)) == [model.row_hash(row) for row in rows]


@pytest.mark.parametrize("type_", list(SIMPLE), ids=str)
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_row_hash_simple_type_equal_to_oracle(type_: pa.DataType, data: st.DataObject) -> None:
    column = data.draw(st.lists(values(type_), max_size=8))
    table = pa.table({"v": pa.array(column, type_)})
    assert as_pairs(RowHasher(["v"]).hash(table)) == [model.row_hash({"v": v}) for v in column]


def test_row_hash_known_rows_never_change() -> None:
    # Written down: hashes are compared across versions of this library.
    table = pa.table({"k": [1, None], "s": ["flight", ""], "d": [0.5, float("nan")]})
    assert [f"{high:016x}{low:016x}" for high, low in as_pairs(RowHasher(["k", "s", "d"]).hash(table))] == KNOWN


KNOWN = ["7a490502e937c4d63240f0d2230d5c70", "fb2a3533a738ceaab122dfbd8a347f58"]


def _equal(left: pa.Array, right: pa.Array) -> bool:
    hasher = RowHasher(["v"])
    return bool((hasher.hash(pa.table({"v": left})) == hasher.hash(pa.table({"v": right}))).all())


INSTANTS = [dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC), None, dt.datetime(1700, 1, 1, tzinfo=dt.UTC)]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array([1, -2, None], pa.int8()), pa.array([1, -2, None], pa.int64())),
        (pa.array([1, 2**63 - 1], pa.uint64()), pa.array([1, 2**63 - 1], pa.int64())),
        (pa.array([2**64 - 1], pa.uint64()), pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0))),
        (pa.array([7, -9]), pa.array([Decimal("7.00"), Decimal("-9.00")], pa.decimal128(10, 2))),
        (
            pa.array([Decimal("1.50"), Decimal("-0.001")], pa.decimal128(30, 10)),
            pa.array([Decimal("1.5"), Decimal("-0.001")], pa.decimal256(60, 3)),
        ),
        (pa.array([0.5, -0.0, float("nan")], pa.float32()), pa.array([0.5, 0.0, float("nan")], pa.float64())),
        (
            pa.array(np.array([0x7FF8000000000001, 0xFFF8000000000000], dtype=np.uint64).view(np.float64)),
            pa.array([float("nan"), float("nan")]),
        ),
        (pa.array(["a", None, ""]), pa.array(["a", None, ""]).dictionary_encode()),
        (pa.array(["a", None, "x" * 30]), pa.array(["a", None, "x" * 30], pa.string_view())),
        (pa.array(["a", None]), pa.array(["a", None], pa.large_string())),
        (pa.array(["a", "a", None]), pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["a", None]))),
        (pa.array([b"abc"], pa.binary()), pa.array([b"abc"], pa.binary(3))),
        (pa.array(INSTANTS, pa.timestamp("us", "UTC")), pa.array(INSTANTS, pa.timestamp("s", "America/New_York"))),
        (
            pa.array([5_000], pa.int64()).view(pa.timestamp("ns", "UTC")),
            pa.array([5], pa.int64()).view(pa.timestamp("us", "UTC")),
        ),
        (pa.array([dt.date(2013, 1, 1)], pa.date32()), pa.array([dt.date(2013, 1, 1)], pa.date64())),
        (pa.array([[1, None], []], pa.list_(pa.int32())), pa.array([[1, None], []], pa.large_list(pa.int64()))),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), pa.array([[1, 2]], pa.list_view(pa.int32()))),
        (pa.array([[1], None, [2]]), pa.array([[1], None, [2]], pa.large_list_view(pa.int32()))),
        (
            pa.array([[1], None, [2, 3], []])[1:],
            pa.ListViewArray.from_arrays(
                [0, 9, 1, 0], [1, 0, 2, 0], pa.array([1, 2, 3]), mask=pa.array([False, True, False, False])
            )[1:],
        ),
        (
            pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int32())),
            pa.array([[("b", None), ("a", 1)]], pa.map_(pa.string(), pa.int32())),
        ),
        (pa.array([{"x": 1}]), pa.array([{"y": None, "x": 1}], pa.struct([("y", pa.string()), ("x", pa.int64())]))),
        (pa.array([None, None], pa.null()), pa.array([None, None], pa.list_(pa.string()))),
    ],
)
def test_row_hash_two_ways_to_say_the_same_are_equal(left: pa.Array, right: pa.Array) -> None:
    assert _equal(left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array([1]), pa.array([1.0])),
        (pa.array([1]), pa.array([True])),
        (pa.array(["1"]), pa.array([1])),
        (pa.array(["a"]), pa.array([b"a"])),
        (pa.array(["a"]), pa.array(["a\0"])),
        (pa.array([""]), pa.array([None], pa.string())),
        (pa.array([-1]), pa.array([2**64 - 1], pa.uint64())),
        (pa.array([Decimal("0.1")]), pa.array([Decimal("0.01")])),
        (pa.array([dt.datetime(2013, 1, 1)]), pa.array([dt.datetime(2013, 1, 1, tzinfo=dt.UTC)])),
        (pa.array([5_001], pa.int64()).view(pa.timestamp("ns")), pa.array([5], pa.int64()).view(pa.timestamp("us"))),
        (pa.array([[1, 2]]), pa.array([[2, 1]])),
        (pa.array([[None]], pa.list_(pa.int64())), pa.array([[]], pa.list_(pa.int64()))),
        (pa.array([[None, 1]]), pa.array([[1, None]])),
        (pa.array([[[1], []]]), pa.array([[[], [1]]])),
        (pa.array([[]], pa.list_(pa.int64())), pa.array([None], pa.list_(pa.int64()))),
        (pa.array([{"x": None}], pa.struct([("x", pa.int64())])), pa.array([None], pa.struct([("x", pa.int64())]))),
        (pa.array([{"x": 1, "y": 2}]), pa.array([{"x": 2, "y": 1}])),
        (
            pa.array([[("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64())),
            pa.array([[("a", 2), ("b", 1)]], pa.map_(pa.string(), pa.int64())),
        ),
    ],
)
def test_row_hash_different_values_differ(left: pa.Array, right: pa.Array) -> None:
    assert not _equal(left, right)


def test_row_hash_nanoseconds_and_intervals_equal_to_oracle() -> None:
    hasher = RowHasher(["v"])
    nanos = pa.array([-1, 1_000, 1_001, None], pa.int64())
    for type_, kind in (
        (pa.timestamp("ns", "UTC"), "timestamp"),
        (pa.timestamp("ns"), "timestamp_ntz"),
        (pa.duration("ns"), "duration"),
    ):
        expected = [model.row_hash({"v": None if n is None else model.Nanoseconds(kind, n)}) for n in nanos.to_pylist()]
        assert as_pairs(hasher.hash(pa.table({"v": nanos.view(type_)}))) == expected
    seconds = pa.array([59, None], pa.int32()).view(pa.time32("s"))
    assert as_pairs(hasher.hash(pa.table({"v": seconds})))[0] == model.row_hash({"v": dt.time(0, 0, 59)})
    interval = pa.array([pa.MonthDayNano([1, -2, 3]), None], pa.month_day_nano_interval())
    expected = [model.row_hash({"v": model.Interval(1, -2, 3)}), model.row_hash({})]
    assert as_pairs(hasher.hash(pa.table({"v": interval}))) == expected
    assert as_pairs(hasher.hash(pa.table({"v": interval}).slice(1))) == expected[1:]


def test_row_hash_column_order_and_missing_columns_mean_nothing() -> None:
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    hashes = RowHasher(["a", "b"]).hash(table)
    assert np.array_equal(hashes, RowHasher(["b", "a", "added"]).hash(table.select(["b", "a"])))
    added = table.append_column("added", pa.nulls(2, pa.string()))
    assert np.array_equal(hashes, RowHasher(added.schema).hash(added))
    # Columns that were not named do not count; the name of one that was does.
    assert np.array_equal(hashes, RowHasher(["a", "b"]).hash(table.append_column("_seq", pa.array([7, 8]))))
    renamed = table.rename_columns(["a", "c"])
    assert not np.array_equal(hashes, RowHasher(["a", "c"]).hash(renamed))


def test_row_hash_long_and_many_strings_equal_to_oracle() -> None:
    rng = np.random.default_rng(5)
    strings = ["z" * int(n) for n in rng.integers(0, 300, 400)] + ["q" * 100_000, "", None]
    table = pa.table({"v": strings})
    assert as_pairs(RowHasher(["v"]).hash(table)) == [model.row_hash({"v": s}) for s in strings]


def test_row_hash_more_rows_than_a_chunk_equal_in_any_cut() -> None:
    n = 100_000
    rng = np.random.default_rng(6)
    table = pa.table({"k": rng.integers(0, 9, n), "s": pa.array(rng.integers(0, 99, n)).cast(pa.string())})
    hasher = RowHasher(table.schema)
    whole = hasher.hash(table)
    parts = [hasher.hash(table.slice(at, 7_001)) for at in range(0, n, 7_001)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert np.array_equal(whole, hasher.hash(table.combine_chunks().to_batches()[0]))
    assert np.array_equal(whole, pickle.loads(pickle.dumps(hasher)).hash(table))
    assert len(set(as_pairs(whole))) == 9 * 99


def test_row_hash_refuses_what_has_no_place_in_a_log() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(InvalidUsageError, match="could not hash column 'v': found type=sparse_union"):
        RowHasher(["v"]).hash(pa.table({"v": union}))
    with pytest.raises(InvalidUsageError, match="a column name twice"):
        RowHasher(["v", "v"])
    with pytest.raises(InvalidUsageError, match="found column 'v' 2 times"):
        RowHasher(["v"]).hash(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["v", "v"]))


ROWS = st.lists(
    st.tuples(st.tuples(st.integers(0, 4), st.integers(0, 4)), st.integers(0, 3), st.sampled_from([-1, 1, 1, 2])),
    max_size=12,
)


@given(rows=ROWS, arity=st.sampled_from([1, 2]), data=st.data())
def test_digest_parts_in_any_order_equal_to_oracle(rows: list[Any], arity: int, data: st.DataObject) -> None:
    rows = [(time[:arity], {"v": v}, diff) for time, v, diff in rows]
    frontier = data.draw(st.lists(st.tuples(*[st.integers(0, 4)] * arity), max_size=3))
    weighted = data.draw(st.booleans())
    if not weighted:
        rows = [(time, row, 1) for time, row, _ in rows]
    closing = Antichain.from_times(frontier, arity)
    expected = model.digest(rows, closing.elements, arity)

    def state_of(part: list[tuple[Any, Mapping[str, int], int]]) -> CanonicalState:
        state = CanonicalState(["v"], arity)
        table = pa.table({"v": pa.array([row["v"] for _, row, _ in part], pa.int64())})
        times = np.array([time for time, _, _ in part], dtype=np.int64).reshape(-1, arity)
        state.add(table, times, [diff for _, _, diff in part] if weighted else None)
        return state

    assert state_of(rows).digest(closing) == expected
    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    left, right = state_of(shuffled[:cut]), state_of(shuffled[cut:])
    assert CanonicalState.from_arrow([left.to_arrow(), right.to_arrow()]).digest(closing) == expected
    left = pickle.loads(pickle.dumps(left))
    left.merge(right)
    assert left.digest(closing) == expected
    assert left == state_of(rows)


def test_state_of_many_parts_and_times_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_timely.canonical.state._LAZY", 100)
    rng = np.random.default_rng(8)
    times, values_ = rng.integers(0, 10**12, 5_000), rng.integers(0, 9, 5_000)
    times[::2] = times[1::2]
    whole = CanonicalState(["v"])
    whole.add(pa.table({"v": values_}), times)
    parts = CanonicalState(["v"])
    for low in range(0, 5_000, 37):
        parts.add(pa.table({"v": values_[low : low + 37]}), times[low : low + 37])
    assert parts == whole
    frontier = Antichain.of(10**11)
    assert parts.digest(frontier) == whole.digest(frontier)


def test_digest_known_value_never_changes() -> None:
    state = CanonicalState(["v"])
    state.add(pa.table({"v": ["a", "b"]}), [3, 5])
    assert state.digest(Antichain.of(4)) == KNOWN_DIGEST
    assert state.digest(Antichain.of(4)) == model.digest([((3,), {"v": "a"})], [(4,)])


KNOWN_DIGEST = "d369cd2b06261fb4e7558da067e47b8ec2492c8105a5441e25c559b24f4cd676"


def test_digest_open_times_do_not_count_and_the_frontier_does() -> None:
    state = CanonicalState(["v"])
    state.add(pa.table({"v": [1, 2]}), [3, 5])
    closed = CanonicalState(["v"])
    closed.add(pa.table({"v": [1]}), [3])
    assert state.digest(Antichain.of(5)) == closed.digest(Antichain.of(5))
    assert state.digest(Antichain.of(6)) != closed.digest(Antichain.of(6))
    assert closed.digest(Antichain.of(5)) != closed.digest(Antichain.of(6))
    assert closed.digest(Antichain.of(6)) != closed.digest(Antichain.empty())


def test_digest_unconsolidated_equals_consolidated() -> None:
    state = CanonicalState(["v"])
    state.add(pa.table({"v": [1, 1, 2]}), [3, 3, 3], [2, -2, 1])
    other = CanonicalState(["v"])
    other.add(pa.table({"v": [2]}), [3], [1])
    assert state.digest(Antichain.empty()) == other.digest(Antichain.empty())


def test_digest_swapped_values_between_rows_differ() -> None:
    def digest_of(a: list[int], b: list[int]) -> str:
        state = CanonicalState(["a", "b"])
        state.add(pa.table({"a": a, "b": b}), [0, 0])
        return state.digest(Antichain.empty())

    assert digest_of([1, 2], [1, 2]) != digest_of([1, 2], [2, 1])
    assert digest_of([1, 2], [3, 4]) == digest_of([2, 1], [4, 3])


def test_state_refuses_shapes_that_do_not_fit() -> None:
    state = CanonicalState(["v"])
    with pytest.raises(InvalidShapeError, match="found 1 times for hashes"):
        state.add(pa.table({"v": [1, 2]}), [0])
    with pytest.raises(InvalidUsageError, match="found no columns"):
        CanonicalState().add(pa.table({"v": [1]}), [0])
    with pytest.raises(InvalidShapeError, match="could not read hash states"):
        CanonicalState.from_arrow([])
    with pytest.raises(InvalidShapeError, match="expected shape"):
        state.add(pa.table({"v": [1]}), [[0, 0]])
    with pytest.raises(InvalidShapeError, match="expected shape"):
        state.merge(CanonicalState(arity=2))
