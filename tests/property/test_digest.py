"""The digest of input rows: equal to the oracle's, blind to order and cuts, and to nothing else."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spark_timely.canonical.row_hash import RowsDigest, comparable, digest_of
from spark_timely.errors import InvalidUsageError
from tests.oracles import canonical_model as model
from tests.property.test_canonical import plain, tables, types, values

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("_diff", pa.int64()), ("s", pa.string())])
# Few values, so that rows are equal, and values stand in each other's columns.
SMALL = st.none() | st.integers(0, 2)
ROWS = st.lists(st.tuples(SMALL, SMALL, st.integers(-2, 2), st.sampled_from([None, "", "ä", "𝄞"])), max_size=6)


def names(table: pa.Table) -> list[tuple[str, str]]:
    return [(name, name) for name in table.column_names]


def digest(table: pa.Table) -> RowsDigest:
    """Return the digest over all columns."""
    return digest_of(table, names(table))


def table_of(rows: list[Any], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


@given(tables())
def test_digest_of_any_types_is_the_sum_of_the_oracles_hashes(drawn: tuple[pa.Table, list[dict[str, Any]]]) -> None:
    table, rows = drawn
    hashes = [model.row_hash(row) for row in rows]
    hi, lo = (sum(row[lane] for row in hashes) % 2**64 for lane in (0, 1))
    assert digest(table) == RowsDigest(lo, hi, len(rows))


@given(tables(), st.data())
def test_order_cuts_and_columns_of_nulls_make_no_difference(
    drawn: tuple[pa.Table, list[dict[str, Any]]], data: st.DataObject
) -> None:
    table, _ = drawn
    n = table.num_rows
    moved = table.take(pa.array(data.draw(st.permutations(range(n))), pa.int64()))
    cut = data.draw(st.integers(0, n))
    wider = moved.append_column("z", pa.nulls(n, data.draw(types())))
    wider = wider.select(data.draw(st.permutations(wider.column_names)))
    assert digest(wider.slice(0, cut)) + digest(wider.slice(cut)) == digest(table)


@given(ROWS, ROWS)
def test_digests_are_equal_exactly_where_the_rows_are(left: list[Any], right: list[Any]) -> None:
    assert (digest(table_of(left)) == digest(table_of(right))) == (Counter(left) == Counter(right))


@given(ROWS.filter(bool), st.data())
def test_one_value_more_or_less_makes_a_difference(rows: list[Any], data: st.DataObject) -> None:
    i, j = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, 3))
    new = data.draw(st.none() | st.text(max_size=9) if j == 3 else st.none() | st.integers(-(2**63), 2**63 - 1))
    assume(new != rows[i][j])
    other = [*rows[:i], (*rows[i][:j], new, *rows[i][j + 1 :]), *rows[i + 1 :]]
    assert digest(table_of(rows)) != digest(table_of(other))


@given(types(), st.data())
def test_nested_values_that_differ_make_a_difference(type_: pa.DataType, data: st.DataObject) -> None:
    one, other = (pa.table({"v": pa.array([data.draw(values(type_))], type_)}) for _ in range(2))
    (left,), (right,) = ([model.row_hash({"v": v}) for v in oracle_values(t)] for t in (one, other))
    assert (digest(one) == digest(other)) == (left == right)


def oracle_values(table: pa.Table) -> list[Any]:
    return [plain(v, table.schema.field("v").type) for v in table.column("v").to_pylist()]


def test_equal_rows_do_not_cancel_each_other() -> None:
    """An exclusive or of hashes would forget every pair."""
    row = (1, 2, 1, "x")
    found = {digest(table_of([row] * n)) for n in range(5)}
    assert len(found) == 5
    pairs = [digest(table_of(rows)) for rows in ([row, row], [(5, 6, 1, "y")] * 2)]
    assert pairs[0].lo != pairs[1].lo
    assert pairs[0].hi != pairs[1].hi


def test_values_in_each_others_columns_rows_or_diffs_differ() -> None:
    rows = [
        [(1, 2, 1, "x")],
        [(2, 1, 1, "x")],
        [(1, None, 1, "x")],
        [(None, 1, 1, "x")],
        [(1, 2, -1, "x")],
        [(1, 2, 2, "x")],
        [(1, 2, 1, "x"), (1, 2, 1, "x")],
        [(1, 4, 1, "x"), (3, 2, 1, "x")],
        [(1, 2, 1, "x"), (3, 4, 1, "x")],
    ]
    assert len({digest(table_of(part)) for part in rows}) == len(rows)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [(pa.int16(), pa.int64()), (pa.int32(), pa.int64()), (pa.float32(), pa.float64()), (pa.string(), pa.string_view())],
    ids=str,
)
def test_a_narrower_type_hashes_as_the_logs(narrow: pa.DataType, wide: pa.DataType) -> None:
    column = pa.array(["a", None] if narrow == pa.string() else [7, None], narrow)
    assert digest(pa.table({"v": column})) == digest(pa.table({"v": column.cast(wide)}))


def test_digest_depends_on_the_instant_and_not_on_the_zone() -> None:
    instants = pa.array([dt.datetime(2013, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))
    here, elsewhere = (digest(pa.table({"t": instants.cast(pa.timestamp("us", z))})) for z in ("UTC", "Asia/Kathmandu"))
    later = pa.array([dt.datetime(2013, 1, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))
    assert here == elsewhere != digest(pa.table({"t": later}))


def test_columns_count_by_their_names_in_the_log() -> None:
    rows = pa.table({"ID": [1], "x": [2]})
    assert digest_of(rows, [("id", "ID")]) == digest(pa.table({"id": [1]})) != digest(pa.table({"ID": [1]}))
    assert digest_of(rows, []).n_rows == 1


@given(
    st.builds(RowsDigest, *[st.integers(0, 2**64 - 1)] * 2, st.integers(0, 2**40), st.sampled_from(["arrow1", "b7"]))
)
def test_text_gives_the_digest_back(found: RowsDigest) -> None:
    assert RowsDigest.parse(found.text) == found


@pytest.mark.parametrize("text", ["", "arrow1:1:0", "arrow1:-1:" + "0" * 32, "arrow1:1:" + "G" * 32, "1:1:" + "0" * 32])
def test_a_text_that_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError, match="could not read a digest of rows"):
        RowsDigest.parse(text)


def test_digests_of_two_schemes_are_not_compared_or_added() -> None:
    one, other = RowsDigest(1, 2, 1), RowsDigest(1, 2, 1, "spark1")
    assert comparable(one, one)
    assert not comparable(one, other)
    with pytest.raises(InvalidUsageError, match="'arrow1' and 'spark1'"):
        one + other


def test_digest_of_known_rows_never_changes() -> None:
    """Written down: digests in a log are compared by later versions of the library."""
    table = pa.table({"k": [1, None], "s": ["flight", ""], "d": [0.5, float("nan")]})
    assert digest(table).text == "arrow1:2:75733a3690709380e363d08fad41dbc8"
