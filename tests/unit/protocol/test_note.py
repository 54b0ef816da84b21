"""Notes: what programs read back, whatever people write into the reason."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.errors import InvalidUsageError, LogFormatError, OperatorError
from spark_timely.log import MemoryLog
from spark_timely.protocol.note import ImportMark, InputNote, MicroBatch, Note, Opening, OutputFailure, OutputNote

TEXT = st.text(max_size=20)
MAYBE = st.none() | TEXT
NUMBER = st.integers(-(2**63), 2**63 - 1)
FAILURES = st.builds(OutputFailure, TEXT, TEXT, st.none() | TEXT, st.none() | TEXT, TEXT, TEXT, st.none() | TEXT, TEXT)
INPUTS = st.builds(InputNote, TEXT, st.dictionaries(TEXT, st.tuples(NUMBER, TEXT), max_size=2))
NOTES = st.builds(
    Note,
    opening=st.none() | st.builds(Opening, TEXT, NUMBER),
    claimed=st.none() | TEXT,
    attempt=st.none() | TEXT,
    batch=st.none()
    | st.builds(MicroBatch, NUMBER, st.none() | TEXT, st.none() | TEXT, TEXT, st.none() | TEXT, st.none() | NUMBER),
    greatest=st.none() | NUMBER,
    former=st.lists(TEXT, max_size=3, unique=True).map(tuple),
    gaps=st.lists(st.tuples(NUMBER, NUMBER), max_size=2).map(tuple),
    lost=st.lists(st.tuples(TEXT, NUMBER, NUMBER), max_size=2).map(tuple),
    differing=st.integers(0, 9),
    mark=st.none() | st.builds(ImportMark, TEXT, NUMBER, NUMBER, NUMBER),
    output=st.none()
    | st.builds(
        OutputNote,
        st.dictionaries(TEXT, INPUTS, max_size=2),
        st.none() | st.dictionaries(TEXT, NUMBER, max_size=2),
        st.lists(FAILURES, max_size=2).map(tuple),
        st.lists(TEXT, max_size=2).map(tuple),
        MAYBE,
        MAYBE,
        st.none() | st.lists(st.tuples(NUMBER, NUMBER), max_size=2).map(tuple),
        NUMBER,
    ),
    statements=st.none() | TEXT,
)


@given(NOTES)
def test_note_is_read_as_it_was_written(note: Note) -> None:
    assert Note.parse(note.text()) == note


def test_notes_of_other_releases_are_read() -> None:
    # Before appends had a key of their own; and with a part that came later.
    assert Note.parse('{"greatest":7,"v":1}') == Note(greatest=7)
    assert Note.parse('{"attempt":"0f","later":{"a":1},"v":1}') == Note(attempt="0f")


@given(NOTES, NOTES)
def test_what_lasts_is_restated_and_what_passes_is_not(first: Note, second: Note) -> None:
    after = Note().following(second.following(first))
    assert (after.opening, after.claimed, after.attempt) == (None, None, None)
    assert after.batch == (second.batch or first.batch)
    assert after.mark == (second.mark or first.mark)
    assert after.differing == first.differing + second.differing
    assert after.gaps == first.gaps + second.gaps
    assert after.lost == first.lost
    assert after.greatest == max((x for x in (first.greatest, second.greatest) if x is not None), default=None)
    made = second.output or first.output
    assert after.output is None if made is None else (after.output.inputs, after.output.step) == (made.inputs, None)


@given(NOTES)
def test_takeover_keeps_no_micro_batch_of_the_former_owner(note: Note) -> None:
    after = Note().following(note, owner="before")
    assert (after.batch, after.mark, after.gaps, after.differing) == (None, None, (), 0)
    assert after.former[-1] == "before"
    assert after.lost == (*note.lost, *(("before", first, last) for first, last in note.gaps))
    assert set(after.former) == {*note.former, "before"}


@pytest.mark.parametrize(
    "text", [None, "", "7", "[]", "{}", '{"v": "x"}', '{"v": 1, "batch": {"hat": 1}}', '{"v": 1, "gaps": [1]}']
)
def test_note_that_makes_no_sense_is_refused(text: str | None) -> None:
    with pytest.raises(LogFormatError, match="could not read the note of a commit: found"):
        Note.parse(text)


def test_note_of_another_version_is_refused() -> None:
    with pytest.raises(LogFormatError, match="found version=2, this library reads 1"):
        Note.parse('{"v": 2}')


def test_note_of_at_most_64_kb_drops_the_numbers_of_a_step_first() -> None:
    step = {f"operator {i}": i for i in range(10_000)}
    kept = Note(output=OutputNote({"in": InputNote("7d", {"main": (3, "e1")})}, step))
    inputs = {"in": {"id": "7d", "commits": {"main": [3, "e1"]}}}
    assert json.loads(kept.text())["output"] == {"inputs": inputs, "failures": [], "dropped": [], "others": 0}
    with pytest.raises(InvalidUsageError, match=r"found \d+ bytes, \d+ of them in 'output'"):
        Note(output=OutputNote({"x" * 70_000: InputNote("7d")})).text()


def test_failures_are_kept_by_run() -> None:
    failures = [OutputFailure.of("out", OperatorError("could not", operator="map_1"), run) for run in "abcdea"]
    note = OutputNote()
    for failure in failures:
        note = note.failed(failure)
    assert [each.run for each in note.failures] == ["c", "d", "e", "a"]
    assert isinstance(note.failures[0].error, OperatorError)


@pytest.mark.parametrize("ends", [(None, None), ("[0]", "[]")])
def test_failure_has_the_times_of_its_error_if_it_has_any(ends: tuple[str | None, str | None]) -> None:
    error = OperatorError("could not", operator="map_1", lower=ends[0], upper=ends[1])
    failure = OutputFailure.of("out", error, "run")
    (noted,) = (Note.parse(Note(output=OutputNote().failed(failure)).text()).output or OutputNote()).failures
    again = noted.error
    assert isinstance(again, OperatorError)
    assert (noted.lower, noted.upper) == (again.lower, again.upper) == ends


def test_runs_that_were_dropped_are_kept_each_once() -> None:
    note = OutputNote()
    for run in ("a", "b", "a", "c", "c"):
        note = note.without(run)
    assert note.dropped == ("b", "a", "c")


def test_advance_and_takeover_restate_what_lasts() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    log.writer(owner="me").append(pa.table({"_time": [3], "v": [1]}), reason='{"v": 1, "greatest": 99}')
    log.advance("main", 5, reason="claim of #open at 7")
    assert log.core.stream("main").note.greatest == 3
    log.writer("main", owner="other", takeover=True)
    assert (log.core.stream("main").note.greatest, log.core.stream("main").note.former) == (3, ("me",))
    rows = log.core.progress()
    assert rows["_note"].null_count == rows.num_rows - len(rows.group_by(["_stream", "_seq"]).aggregate([]))
