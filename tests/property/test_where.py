"""Rows left out by the option `where`, against a plain filter of the rows that a query without it gets."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spark_timely.errors import InvalidOptionError, InvalidUsageError, SchemaMismatchError
from spark_timely.log import MemoryLog
from spark_timely.testing.driver import Checkpoint
from spark_timely.testing.strategies import PAYLOAD_SCHEMA, History, histories
from tests.property.test_replay_same_answer import append, as_written, draw_options, make_log, many
from tests.support import write_commit
from tests.unit.datasource.support import drive, read_all

Row = dict[str, Any]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def is_large(x: float | None) -> bool:
    """As SQL has it: NaN is greater than all other numbers."""
    return x is not None and (math.isnan(x) or x > 0.5)


CONDITIONS: dict[str, Callable[[Row], bool]] = {
    "n > 0": lambda row: row["n"] is not None and row["n"] > 0,
    "N IS NULL or word LIKE '%a%'": lambda row: row["n"] is None or "a" in (row["word"] or ""),
    "x > 0.5": lambda row: is_large(row["x"]),
    "NOT (at < TIMESTAMP '1970-01-01T00:00:00Z')": lambda row: row["at"] is not None and row["at"] >= EPOCH,
    "word = 'there is no such word'": lambda _: False,
    "word IS NULL OR word IS NOT NULL": lambda _: True,
}


def kept(rows: pa.Table, holds: Callable[[Row], bool]) -> pa.Table:
    """Filter row by row; progress rows stay."""
    whole = rows.to_pylist()
    return rows.filter(pa.array([row.get("_event", "message") != "message" or holds(row) for row in whole], pa.bool_()))


def shown(rows: pa.Table) -> str:
    return repr(rows.to_pylist())  # NaN is not equal to itself, its text is


@many
@given(histories(), st.sampled_from(sorted(CONDITIONS)), st.randoms(use_true_random=False))
def test_micro_batches_are_those_without_it_row_for_row(history: History, text: str, rng: random.Random) -> None:
    log, model = make_log(history, rng.choice(["stream", "collection"]) if rng.random() < 0.3 else "stream")
    mode = {"content": rng.choice(["messages", "events"]), "delivery": rng.choice(["complete", "arrival"])}
    plain, chosen = Checkpoint(), Checkpoint()
    for position in range(len(history.commits)):
        append(log, model, history, position)
        if rng.random() < 0.15:
            log.compact(target_file_size=1 << 20)
        if rng.random() < 0.4 or position == len(history.commits) - 1:
            options = {**draw_options(rng), **mode, "includeMetadata": "true", "includeTime": "true"}
            if mode["delivery"] == "arrival":  # positions are commits there
                options = {
                    name: value for name, value in options.items() if name not in ("maxTimesPerTrigger", "splitBy")
                }
            # It is no part of the offset: every run may have another.
            text = rng.choice(sorted(CONDITIONS)) if rng.random() < 0.5 else text
            fail = rng.choice([None, None, 0])
            expected = drive(log, checkpoint=plain, **options).available_now(fail_after=fail)
            found = drive(log, checkpoint=chosen, where=text, **options).available_now(fail_after=fail)
            for one, other in zip(expected, found, strict=True):
                assert (one.number, one.end) == (other.number, other.end)
                for task, filtered in zip(one.tasks, other.tasks, strict=True):
                    assert shown(filtered) == shown(kept(task, CONDITIONS[text]))


@many
@given(histories(arity=1), st.sampled_from(sorted(CONDITIONS)), st.sampled_from(["n", "word,at", None]))
def test_contents_and_chosen_columns(history: History, text: str, columns: str | None) -> None:
    """The condition may need columns that do not come out; equal rows are summed after it."""
    log = MemoryLog.create(
        PAYLOAD_SCHEMA, times=history.kinds, kind="collection", streams=len(history.streams), merge_every=None
    )
    for commit in history.commits:
        write_commit(log, commit.stream, commit.messages, commit.progress, history.kinds)
    frontier = log.frontier().to_json()
    closed = [time[0] for c in history.commits for time, _ in c.messages if not frontier or time[0] < frontier[0]]
    options: dict[str, Any] = {"columns": columns}
    if columns is None:
        assume(closed)
        options = {"asOf": json.dumps(as_written((max(closed),), history.kinds))}
    whole = read_all(log, **({} if columns else options))
    found = read_all(log, where=text, **options)
    wanted = kept(whole, CONDITIONS[text]).select(found.column_names)
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist()))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"where": "m = 1"}, SchemaMismatchError, "could not read the log: found no column 'm' in condition 'm = 1'"),
        ({"where": "_time > 1"}, SchemaMismatchError, "found no column '_time'"),
        ({"where": "1 = 1"}, InvalidUsageError, "found no column in condition '1 = 1' — hint: leave `where` out"),
        ({"where": " "}, InvalidOptionError, "expected a text that is not empty"),
        ({"where": "n >"}, InvalidUsageError, "at line 1, col 3 in condition 'n >'"),
    ],
)
def test_conditions_that_do_not_fit_are_refused_at_the_start(
    options: dict[str, str], error: type[Exception], text: str
) -> None:
    log = MemoryLog.create(PAYLOAD_SCHEMA)
    with pytest.raises(error, match=text.replace("(", r"\(")):
        drive(log, **options)


def test_overflowing_integers_fail_the_read_as_no_corruption() -> None:
    log = MemoryLog.create(pa.schema([("n", pa.int64())]), minimum=(0,))
    table = pa.table({"_time": [0], "n": [(1 << 63) - 1]})
    log.writer(owner="o").append(table, advance_to=1)
    with pytest.raises(InvalidUsageError, match=r"could not compute condition 'n \+ 1 > 0': overflow"):
        read_all(log, where="n + 1 > 0")
    assert read_all(log, where="n > 0").num_rows == 1
