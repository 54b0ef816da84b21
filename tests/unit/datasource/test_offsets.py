"""Offsets: canonical text, what a fresh checkpoint begins with, what a restart may change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.datasource.bounds import continue_with, first_offset
from spark_timely.errors import InvalidBoundsError, InvalidOptionError, InvalidUsageError, LogFormatError
from spark_timely.spark.base.offsets import Begin, Bound, Offset, Selection, read_offset
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.unit.datasource.support import make_options

LONG = TimeDomain(("long",))
PAIR = TimeDomain(("long", "date"))


def times(arity: int) -> st.SearchStrategy[Antichain]:
    one = st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * arity)
    return st.lists(one, max_size=4).map(lambda found: Antichain.from_times(found, arity))


@st.composite
def offsets(draw: st.DrawFn) -> tuple[Offset, int]:
    arity = draw(st.sampled_from([1, 2]))
    delivery = draw(st.sampled_from(["complete", "arrival"]))
    bounds = st.one_of(
        st.builds(Bound, st.just("up_to"), times(arity)),
        st.builds(Bound, st.sampled_from(["version", "timestamp"]), st.integers(0, 2**60)),
    )
    selection = Selection(
        delivery=delivery,
        as_of=draw(st.none() | times(arity)),
        until=draw(st.none() | bounds),
        streams=draw(
            st.none() | st.lists(st.sampled_from("abc"), unique=True, min_size=1).map(lambda s: tuple(sorted(s)))
        ),
        start=draw(
            st.none() | st.builds(Begin, st.sampled_from(["version", "timestamp"]), st.integers(0, 2**60))
            if delivery == "arrival"
            else st.none()
        ),
        content=draw(st.sampled_from([None, "rows", "events"])),
        times=draw(st.sampled_from([None, ("long", "date")[:arity]])),
        since=draw(st.none() | times(arity)),
    )
    if draw(st.booleans()):
        begin = draw(
            st.one_of(
                st.just(Begin("latest")),
                st.builds(Begin, st.sampled_from(["frontier", "as_of"]), times(arity)),
                st.builds(Begin, st.sampled_from(["version", "timestamp"]), st.integers(0, 2**60)),
            )
        )
        return Offset(selection, begin=begin), arity
    seqs = st.dictionaries(st.sampled_from(["#open", "a", "b", "main"]), st.integers(1, 9))
    position = times(arity) if delivery == "complete" else seqs
    commits = draw(st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 9), st.text(max_size=3))))
    return Offset(selection, position=draw(position), origin=draw(position), log_id="x", commits=commits), arity


@given(offsets())
def test_offset_through_text_is_the_same_text(drawn: tuple[Offset, int]) -> None:
    offset, arity = drawn
    text = json.dumps(offset.to_json())
    again = read_offset(json.loads(text), arity)
    assert again.to_json() == offset.to_json()
    assert json.dumps(again.to_json()) == text


def test_offset_of_seqs_does_not_depend_on_their_order() -> None:
    one = Offset(Selection("arrival"), position={"b": 2, "a": 1}, origin={}, commits={"b": (1, "y"), "a": (0, "x")})
    other = Offset(Selection("arrival"), position={"a": 1, "b": 2}, origin={}, commits={"a": (0, "x"), "b": (1, "y")})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


DATED: dict[str, tuple[Offset, dict[str, object]]] = {
    "a position": (
        Offset(Selection(times=("timestamp",)), position=Antichain.of(1_371_139_200_000_000), origin=Antichain.of(0)),
        {"origin": ["1970-01-01T00:00Z"], "frontier": ["2013-06-13T16:00Z"]},
    ),
    "the end": (
        Offset(Selection(times=("date",)), position=Antichain.empty(), origin=Antichain.of(15706)),
        {"origin": ["2013-01-01"], "frontier": []},
    ),
    "a product time": (
        Offset(
            Selection(times=("long", "date"), until=Bound("up_to", Antichain.of((7, 1)))),
            position=Antichain.of((1, 1), (2, 0)),
            origin=Antichain.of((0, 0)),
        ),
        {
            "upTo": [[7, "1970-01-02"]],
            "origin": [[0, "1970-01-01"]],
            "frontier": [[1, "1970-01-02"], [2, "1970-01-01"]],
        },
    ),
    "what is no date": (
        Offset(Selection(times=("timestamp",)), position=Antichain.of(2**62), origin=Antichain.of(-(2**63))),
        {"origin": ["us:-9223372036854775808"], "frontier": ["us:4611686018427387904"]},
    ),
    "a beginning": (
        Offset(Selection(times=("date",), as_of=Antichain.of(1)), begin=Begin("as_of", Antichain.of(1))),
        {"asOf": ["1970-01-02"], "begin": ["1970-01-02"]},
    ),
    "moments of the wall clock": (
        Offset(
            Selection("arrival", times=("long",), start=Begin("timestamp", 0), until=Bound("timestamp", 60_000_000)),
            position={"main": 3},
            origin={},
        ),
        {"from": "1970-01-01T00:00Z", "until": "1970-01-01T00:01Z"},
    ),
}


@pytest.mark.parametrize("what", DATED)
def test_offset_has_a_text_beside_its_numbers_for_people(what: str) -> None:
    offset, text = DATED[what]
    found = offset.to_json()
    assert found["iso"] == text
    arity = len(offset.selection.times or ())
    without = {name: value for name, value in found.items() if name != "iso"}
    edited = {**found, "iso": {"frontier": ["2099-01-01"], "origin": "?"}}
    # What an earlier version wrote is the same offset, and the text is never believed.
    assert read_offset(found, arity) == read_offset(without, arity) == read_offset(edited, arity) == offset


@pytest.mark.parametrize("times", [None, ("long",), ("of another version",)])
def test_offset_of_numbers_has_no_text_beside_them(times: tuple[str, ...] | None) -> None:
    offset = Offset(Selection(times=times), position=Antichain.of(5), origin=Antichain.of(0))
    assert "iso" not in offset.to_json()


def test_offset_of_a_newer_version_is_refused() -> None:
    with pytest.raises(
        LogFormatError, match=r"version=2, known is 1 — hint: upgrade spark-timely, .*: a newer version wrote it"
    ):
        read_offset({"version": 2, "frontier": []}, 1)


@pytest.mark.parametrize(
    "found",
    [None, 5, {}, {"version": "1"}, {"version": 1}, {"version": 1, "delivery": "complete", "origin": [1]},
     {"version": 1, "delivery": "complete", "origin": [1], "frontier": [[1, 2]]},
     {"version": 1, "delivery": "arrival", "origin": [1], "seqs": [3]},
     *({"version": 1, "delivery": "complete", "origin": [1], "frontier": [1], "commits": commits}
       for commits in ([], {"a": 1}, {"a": [1]}, {"a": [1, 2]}, {"a": ["1", "x"]}, {"a": [True, "x"]}, {"a": "1x"})),
     {"version": 1, "delivery": "complete", "begin": {"somewhere": 1}},
     {"version": 1, "delivery": "complete", "begin": {"version": "one"}},
     *({"version": 1, "delivery": "complete", "begin": {"frontier": [1]}, "until": until}
       for until in ({"never": 1}, {}, [], 7, "up", {"upTo": [1], "version": 2}, {"version": "two"})),
     *({"version": 1, "delivery": "complete", "begin": begin} for begin in ({}, [], 7, {"version": 1, "latest": 2}))],
)  # fmt: skip
def test_offset_of_something_else_is_refused(found: Any) -> None:
    with pytest.raises(
        InvalidUsageError, match="which is no offset of this log — hint: use a new checkpoint: this one belongs to"
    ):
        read_offset(found, 1)


@pytest.mark.parametrize(
    ("options", "begin"),
    [
        ({}, {"frontier": [LONG.minimum[0]]}),
        ({"startingFrontier": "earliest"}, {"frontier": [LONG.minimum[0]]}),
        ({"startingVersion": "earliest"}, {"frontier": [LONG.minimum[0]]}),
        ({"startingTimestamp": "earliest"}, {"frontier": [LONG.minimum[0]]}),
        ({"startingFrontier": "[5]"}, {"frontier": [5]}),
        ({"startingFrontier": 5}, {"frontier": [5]}),
        ({"startingFrontier": "[]"}, {"frontier": []}),
        ({"startingFrontier": "latest"}, "latest"),
        ({"startingVersion": "latest"}, "latest"),
        ({"startingTimestamp": "latest"}, "latest"),
        ({"startingVersion": "3"}, {"version": 3}),
        ({"startingTimestamp": "1970-01-01T00:00:01Z"}, {"timestamp": 1_000_000}),
    ],
)
def test_first_offset_depends_on_the_options_alone(options: dict[str, Any], begin: object) -> None:
    first = first_offset(make_options(**options), LONG, "stream")
    assert first.to_json()["begin"] == begin
    assert first == first_offset(make_options(**options), LONG, "stream")


def test_as_of_takes_one_time_of_a_collection() -> None:
    options = make_options(asOf='[3, "1970-01-02"]', snapshot="false")
    found = first_offset(options, PAIR, "collection").to_json()
    assert found["asOf"] == [[3, 1]]
    assert found["snapshot"] is False
    assert first_offset(make_options(asOf="[3]"), LONG, "collection").to_json()["asOf"] == [3]
    with pytest.raises(
        InvalidOptionError,
        match="asOf=3 for a log of kind 'stream' — hint: use startingFrontier for a stream log: only a collection log",
    ):
        first_offset(make_options(asOf="3"), LONG, "stream")
    with pytest.raises(InvalidUsageError, match="could not read a time"):
        first_offset(make_options(asOf="[3, 4]"), LONG, "collection")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"asOf": "9", "upTo": "[8]"}, "found asOf=[9], upTo=[8] — hint: give a upTo that is not before asOf"),
        ({"startingFrontier": "[9]", "upTo": "[8]"}, "found startingFrontier=[9], upTo=[8]"),
        ({"startingVersion": "9", "endingVersion": "8"}, "found startingVersion=9, endingVersion=8"),
        (
            {"startingTimestamp": "2020-01-02", "endingTimestamp": "2020-01-01"},
            "found startingTimestamp=2020-01-02T00:00Z, endingTimestamp=2020-01-01T00:00Z",
        ),
    ],
)
def test_range_that_ends_before_it_begins_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidBoundsError) as caught:
        first_offset(make_options(**options), LONG, "collection")
    assert text in str(caught.value)
    assert caught.value.message.startswith("could not read a range that ends before it begins")


@pytest.mark.parametrize(
    "options",
    [
        {"asOf": "9", "upTo": "[9]"},
        {"startingFrontier": "[9]", "upTo": "[9]"},
        {"startingVersion": "9", "endingVersion": "9"},
        {"startingFrontier": "[9]", "upTo": "[]"},
        {"startingFrontier": "latest", "upTo": "[1]"},
        {"startingVersion": "9", "upTo": "[1]"},
    ],
)
def test_range_that_is_empty_or_cannot_be_told_is_taken(options: dict[str, Any]) -> None:
    first_offset(make_options(**options), LONG, "collection")


@pytest.mark.parametrize(
    "options",
    [
        {"asOf": "1"},
        {"startingFrontier": "[1]"},
        {"upTo": "[1]"},
        {"maxTimesPerTrigger": "1"},
        {"splitBy": "time"},
    ],
)
def test_arrival_refuses_options_that_speak_of_times(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        first_offset(make_options(delivery="arrival", **options), LONG, "collection")
    assert next(iter(options)) in str(caught.value)
    assert "under delivery=arrival positions are commits" in str(caught.value)


def test_restart_may_move_the_end_but_not_what_is_read() -> None:
    begun = Offset(
        Selection(until=Bound("up_to", Antichain.of(9)), streams=("a",)),
        position=Antichain.of(5),
        origin=Antichain.of(0),
    )

    def under(**options: Any) -> Offset:
        parsed = make_options(**options)
        return continue_with(begun, first_offset(parsed, LONG, "stream"), parsed)

    assert under(upTo="[9]").selection == replace(begun.selection, content="rows", times=("long",))
    assert under(upTo="[9]", startingFrontier="latest") == under(upTo="[9]")
    assert under().selection.until is None
    assert under(streamFilter="a", upTo="[12]").selection.until == Bound("up_to", Antichain.of(12))
    with pytest.raises(InvalidOptionError, match="begun with streamFilter=a, found streamFilter=a,b — hint: give the"):
        under(streamFilter="b,a")
    with pytest.raises(InvalidOptionError, match="begun with delivery=complete, found delivery=arrival"):
        under(delivery="arrival")
    # An earlier version did not write the content down: it is taken for what it is now.
    assert under(content="events").selection.content == "events"
    begun = replace(begun, selection=replace(begun.selection, content="rows"))
    assert under(content="splits").selection.content == "rows"
    with pytest.raises(InvalidOptionError, match="begun with content=rows, found content=events"):
        under(content="events")
