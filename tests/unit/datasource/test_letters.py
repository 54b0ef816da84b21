"""Dead letters are read by their commits: each once, whatever is merged, appended or restarted in between."""

from __future__ import annotations

import pickle
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely import errors
from spark_timely.conf.options import SOURCE_OPTIONS, parse_options
from spark_timely.datasource.letters import LOG_ID, Letters, check_letter_options, letter_schema
from spark_timely.log import Log, MemoryLog
from tests.support import examples

VALUES = pa.schema([("v", pa.int64())])


def append(log: Log, stream: str, times: list[int | None], first: int) -> None:
    table = pa.table(
        {"_time": pa.array(times, pa.int64()), "v": pa.array(range(first, first + len(times)), pa.int64())}
    )
    log.writer(stream, owner=stream, bad_time="deadLetter", late_data="deadLetter").append(table)


def between(letters: Letters, start: dict[str, object], end: dict[str, object]) -> list[tuple[str, int, int]]:
    found = []
    for split in pickle.loads(pickle.dumps(letters.plan(start, end))):
        for batch in split.read(letters._log.core.storage):
            assert batch.schema.names == letter_schema(letters._log.core.format).names
            assert set(batch["_log_id"].to_pylist()) == {letters._log.core.log_id}
            found += zip(*(batch[name].to_pylist() for name in ("_stream", "_seq", "v")), strict=True)
    return found


STEPS = st.tuples(st.sampled_from(["one", "two", "merge", "read", "read again", "restart"]), st.integers(0, 3))


@examples(40, long=2000)
@given(steps=st.lists(STEPS, min_size=1, max_size=15))
def test_each_letter_comes_once_for_any_cut(steps: list[tuple[str, int]]) -> None:
    log = MemoryLog.create(VALUES, minimum=(0,), streams=2)
    letters = Letters(log.another())
    at = letters.initial()
    read: Counter[tuple[str, int, int]] = Counter()
    number = 0
    for what, n in [*steps, ("read", 0)]:
        if what in ("one", "two"):
            append(log, what, [*[None] * n, 5], number)
            number += n + 1
        elif what == "merge":
            log.compact()
        elif what == "restart":
            letters = Letters(log.another())
        else:
            end = letters.latest(at)
            found = between(letters, at, end)
            assert (end == at) == (not found)
            if what == "read again":  # Spark plans a micro-batch again after a crash
                assert Counter(between(Letters(log.another()), at, end)) == Counter(found)
            read.update(found)
            at = end
    log.refresh()
    dead = log.dead()
    assert read == Counter(zip(*(dead[name].to_pylist() for name in ("_stream", "_seq", "v")), strict=True))
    assert letters.report()["letters"] == dead.num_rows


def test_only_chosen_streams_are_read() -> None:
    log = MemoryLog.create(VALUES, minimum=(0,), streams=2)
    append(log, "one", [None], 1)
    append(log, "two", [None], 2)
    letters = Letters(log, ("two",))
    assert [value for _, _, value in between(letters, letters.initial(), letters.latest(letters.initial()))] == [2]


def test_a_query_of_what_is_there_ends_there() -> None:
    log = MemoryLog.create(VALUES, minimum=(0,))
    append(log, "main", [None], 1)
    letters = Letters(log.another())
    letters.prepare_available_now()
    append(log, "main", [None], 2)
    letters._log.refresh()
    end = letters.latest(letters.initial())
    assert [value for _, _, value in between(letters, letters.initial(), end)] == [1]
    assert letters.latest(end) == end


def test_offset_of_another_log_is_refused() -> None:
    one, two = (Letters(MemoryLog.create(VALUES)) for _ in range(2))
    with pytest.raises(errors.RolledBackError, match="in its place"):
        two.latest(one.initial())
    with pytest.raises(errors.InvalidUsageError, match="no offset of dead letters"):
        two.latest({"version": 1, "content": "clock"})
    later = {**one.initial(), "version": 99}
    for start, end in ((later, one.initial()), (one.initial(), later)):
        with pytest.raises(errors.InvalidUsageError, match="no offset of dead letters"):
            one.plan(start, end)


def test_options_about_messages_are_refused() -> None:
    options = parse_options(SOURCE_OPTIONS, {"path": "log", "content": "dead", "where": "v > 1"})
    with pytest.raises(errors.InvalidOptionError, match="where"):
        check_letter_options(options)


def test_payload_with_the_name_of_ours_is_refused() -> None:
    log = MemoryLog.create(pa.schema([(LOG_ID, pa.int64())]))
    with pytest.raises(errors.InvalidUsageError, match="'_log_id'"):
        letter_schema(log.core.format)
