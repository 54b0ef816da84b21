"""The rules of the capture protocol (003.*), each by a test that fails without it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.errors import InvalidShapeError, NegativeCountError, UnheldCapabilityError
from spark_timely.protocol.event import Messages, Progress, StreamEvents
from spark_timely.protocol.rules import (
    StreamCounts,
    check_messages,
    check_progress,
    verify_events,
)
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.faults.harness import long_lane
from tests.oracles import protocol_model as model
from tests.oracles.folding import batches_of, fold_events, frontier_steps
from tests.oracles.golden import vectors
from tests.property.streams import (
    CAPTURES,
    DOMAINS,
    any_events,
    as_columns,
    as_events,
    captured,
    legal_events,
    time_of,
    times_near,
)

ARITIES = st.sampled_from([1, 2, 3])


def domain_of(arity: int) -> TimeDomain:
    return TimeDomain(("long",) * arity, (0,) * arity)


def start_of(domain: TimeDomain) -> dict[model.Time, int]:
    return {domain.minimum: 1}


def plain_counts(counts: StreamCounts) -> dict[model.Time, int]:
    return dict(zip(map(tuple, counts.times.tolist()), counts.counts.tolist(), strict=True))


def verdict(events: list[model.Event], domain: TimeDomain) -> object:
    """Return the counts at the end, or the kind of what is wrong, by the vectorised checker."""
    try:
        return plain_counts(verify_events(domain, as_columns(events, domain.arity)))
    except UnheldCapabilityError:
        return "unheld"
    except NegativeCountError:
        return "negative"


def plain_verdict(events: list[model.Event], start: dict[model.Time, int]) -> object:
    """Return the same by the oracle; both name the first offence."""
    try:
        return model.judge(events, start)
    except model.UnheldError:
        return "unheld"
    except model.NegativeError:
        return "negative"


def one_by_one(events: list[model.Event], domain: TimeDomain) -> object:
    """Return the same by the checks that an append makes, commit by commit."""
    counts = StreamCounts.initial(domain.minimum)
    try:
        for event in as_events(events, domain.arity):
            if isinstance(event, Messages):
                check_messages(counts, event.times)
            else:
                counts = check_progress(counts, event.times, event.deltas)
    except UnheldCapabilityError:
        return "unheld"
    except NegativeCountError:
        return "negative"
    return plain_counts(counts)


@given(st.data())
def test_rule_003_01_any_iterator_of_one_type_can_be_replayed(data: st.DataObject) -> None:
    arity = data.draw(ARITIES)
    events = data.draw(legal_events(arity))
    domain = domain_of(arity)
    end = model.judge(events, start_of(domain))
    # A generator, a list, columns, columns made from commits: all the same stream.
    assert plain_counts(verify_events(domain, (event for event in as_events(events, arity)))) == end
    assert plain_counts(verify_events(domain, as_events(events, arity))) == end
    assert plain_counts(verify_events(domain, as_columns(events, arity))) == end


@pytest.mark.golden
@pytest.mark.parametrize("name", CAPTURES)
def test_rule_003_01_streams_captured_by_timely_are_accepted(name: str) -> None:
    stream = captured(name)
    counts = verify_events(stream.domain, as_columns(stream.events, stream.domain.arity))
    assert plain_counts(counts) == stream.end["counts"]
    assert list(counts.frontier.elements) == stream.end["frontier"]
    assert counts.closed == stream.end["closed"]
    assert one_by_one(stream.events, stream.domain) == stream.end["counts"]


@pytest.mark.golden
@pytest.mark.parametrize("name", [name for name in CAPTURES if name not in ("f3_zero_bytes", "f1_empty")])
def test_damaged_streams_of_timely_are_judged_as_by_the_oracle(name: str) -> None:
    stream = captured(name)
    start, refused = start_of(stream.domain), 0
    rng = np.random.default_rng(3)
    for _ in range(1000 if long_lane() else 60):
        events = _damaged(stream.events, rng)
        expected = plain_verdict(events, start)
        assert verdict(events, stream.domain) == expected, events
        assert one_by_one(events, stream.domain) == expected, events
        refused += isinstance(expected, str)
    assert refused > 0


def _damaged(events: list[model.Event], rng: np.random.Generator) -> list[model.Event]:
    """Return a stream with one event moved, doubled, left out, or changed."""
    events = list(events)
    at = int(rng.integers(len(events)))
    kind, content = events[at]
    match int(rng.integers(5)):
        case 0:
            events.insert(int(rng.integers(len(events))), events.pop(at))
        case 1:
            events.insert(int(rng.integers(len(events))), events[at])
        case 2:
            del events[at]
        case 3 if content and kind == "progress":
            i = int(rng.integers(len(content)))
            time, delta = content[i]
            events[at] = (kind, [*content[:i], (time, delta + int(rng.integers(-2, 3))), *content[i + 1 :]])
        case _ if content and kind == "messages":
            moved = [tuple(max(0, x - int(rng.integers(1, 40))) for x in time) for time in content]
            events[at] = (kind, moved)
        case _:
            events.insert(0, ("progress", [(next(iter(_times(events))), -1)]))
    return events


def _times(events: list[model.Event]) -> list[model.Time]:
    return [entry[0] for kind, content in events if kind == "progress" for entry in content] or [(0,)]


@pytest.mark.parametrize("arity", [1, 2])
def test_rule_003_02_a_stream_starts_at_the_minimum_with_count_1(arity: int) -> None:
    low = (0,) * arity
    domain = domain_of(arity)
    # One capability at the minimum: usable at once, given up once, and not twice.
    assert verdict([("messages", [low]), ("progress", [(low, -1)])], domain) == {}
    assert verdict([("progress", [(low, -2)])], domain) == "negative"
    assert verdict([("progress", [(low, -1)]), ("progress", [(low, -1)])], domain) == "negative"
    # Not at another time: a declared minimum is meant.
    high = TimeDomain(("long",) * arity, (5,) * arity)
    assert verdict([("messages", [low])], high) == "unheld"
    assert verdict([("messages", [(5,) * arity])], high) == {(5,) * arity: 1}
    least = TimeDomain(("long",))
    assert verify_events(least, []).to_json() == [[-(2**63), 1]]


@given(st.data())
def test_rule_003_03_progress_raises_only_beyond_a_held_time(data: st.DataObject) -> None:
    arity = data.draw(ARITIES)
    domain = domain_of(arity)
    held = data.draw(st.dictionaries(times_near(arity), st.integers(1, 2), max_size=4))
    counts = StreamCounts.from_arrays(list(held), list(held.values()), arity)
    time, delta = data.draw(times_near(arity)), data.draw(st.integers(1, 3))
    legal = model.held_below(Counter(held), time)
    events = as_columns([("progress", [(time, delta)])], arity)
    if legal:
        assert check_progress(counts, [time], [delta]) == verify_events(domain, events, start=counts)
        return
    for attempt in (
        lambda: check_progress(counts, [time], [delta], stream="s", seq=4),
        lambda: verify_events(domain, events, start=counts, stream="s", seqs=[4]),
    ):
        with pytest.raises(UnheldCapabilityError) as caught:
            attempt()
        assert caught.value.time == time
        assert caught.value.held == tuple(model.minima(held))
        assert caught.value.context["stream"] == "s"
        assert caught.value.context["seq"] == 4


@given(st.data())
def test_rule_003_04_messages_use_only_times_beyond_a_held_one(data: st.DataObject) -> None:
    arity = data.draw(ARITIES)
    domain = domain_of(arity)
    held = data.draw(st.dictionaries(times_near(arity), st.integers(1, 2), max_size=4))
    counts = StreamCounts.from_arrays(list(held), list(held.values()), arity)
    times = data.draw(st.lists(times_near(arity), min_size=1, max_size=5))
    bad = [row for row, time in enumerate(times) if not model.held_below(Counter(held), time)]
    events = as_columns([("messages", times)], arity)
    # Minima are as good as all of them.
    lowest = model.minima(times)
    if not bad:
        check_messages(counts, times)
        check_messages(counts, lowest)
        verify_events(domain, events, start=counts)
        return
    with pytest.raises(UnheldCapabilityError):
        check_messages(counts, lowest)
    for attempt in (
        lambda: check_messages(counts, times, stream="s", seq=4),
        lambda: verify_events(domain, events, start=counts, stream="s", seqs=[4]),
    ):
        with pytest.raises(UnheldCapabilityError) as caught:
            attempt()
        assert caught.value.context["row"] == bad[0]
        assert caught.value.time == times[bad[0]]


def test_rule_003_05_a_batch_is_judged_by_the_counts_before_it() -> None:
    domain = domain_of(1)
    new_before_old = [("progress", [((5,), 1), ((0,), -1)])]
    old_before_new = [("progress", [((0,), -1), ((5,), 1)])]
    for judge in (verdict, one_by_one):
        # What a batch drops vouches for what it raises, wherever it stands in the batch.
        assert judge(new_before_old, domain) == judge(old_before_new, domain) == {(5,): 1}
    # What a batch raises vouches for nothing else in the same batch …
    two = domain_of(2)
    assert verdict([("progress", [((0, 0), -1), ((3, 3), 1)])], two) == {(3, 3): 1}
    held = StreamCounts.from_arrays([[3, 3]], [1])
    with pytest.raises(UnheldCapabilityError):
        check_progress(held, [[0, 5], [0, 6]], [1, 1])
    with pytest.raises(UnheldCapabilityError):
        check_progress(held, [[3, 3], [3, 2]], [-1, 1])
    # … and what a batch drops does: the counts before it are meant, also at the same time.
    assert check_progress(held, [[3, 3], [3, 3]], [-1, 1]) == held
    # Changes of one time are summed before anybody judges them.
    assert check_progress(held, [[0, 0], [0, 0]], [1, -1]) == held
    assert check_progress(held, [[3, 3], [3, 3]], [-2, 1]).closed


@given(st.data())
def test_rule_003_05_the_order_inside_a_batch_means_nothing(data: st.DataObject) -> None:
    arity = data.draw(ARITIES)
    domain = domain_of(arity)
    events = data.draw(any_events(arity))
    shuffled = [(kind, data.draw(st.permutations(content)) if content else content) for kind, content in events]
    assert verdict(events, domain) == verdict(shuffled, domain)
    assert one_by_one(events, domain) == one_by_one(shuffled, domain)


def test_rule_003_06_no_count_falls_below_zero() -> None:
    held = StreamCounts.from_arrays([0, 7], [1, 2])
    with pytest.raises(NegativeCountError) as caught:
        check_progress(held, [7], [-3], stream="s", seq=2)
    assert caught.value.time == (7,)
    assert caught.value.count == -1
    assert caught.value.location == "s"
    with pytest.raises(NegativeCountError):
        check_progress(held, [3], [-1])
    # Borrowing and giving back later is refused as well: never, not only at the end.
    borrowed = [("progress", [((5,), -1)]), ("progress", [((5,), 1)])]
    assert verdict(borrowed, domain_of(1)) == "negative"


@given(st.data())
def test_rule_003_07_changes_beyond_held_times_are_legal(
    data: st.DataObject,
) -> None:
    arity = data.draw(ARITIES)
    domain = domain_of(arity)
    events = data.draw(legal_events(arity))
    end = model.judge(events, start_of(domain))
    assert verdict(events, domain) == one_by_one(events, domain) == end


@given(st.data())
def test_rule_003_07_whatever_comes_is_judged_as_by_the_oracle(data: st.DataObject) -> None:
    arity = data.draw(ARITIES)
    domain = domain_of(arity)
    events = data.draw(any_events(arity))
    expected = plain_verdict(events, start_of(domain))
    assert one_by_one(events, domain) == expected
    assert verdict(events, domain) == expected


@given(st.data())
def test_rule_003_08_earlier_messages_later_progress_are_legal(data: st.DataObject) -> None:
    arity = data.draw(ARITIES)
    domain = domain_of(arity)
    events = data.draw(legal_events(arity))
    moved = list(events)
    for _ in range(data.draw(st.integers(0, 12))):
        pairs = [i for i in range(len(moved) - 1) if (moved[i][0], moved[i + 1][0]) == ("progress", "messages")]
        if not pairs:
            break
        at = data.draw(st.sampled_from(pairs))
        moved[at], moved[at + 1] = moved[at + 1], moved[at]
    assert verdict(moved, domain) == verdict(events, domain) == model.judge(events, start_of(domain))
    assert _contents(moved) == _contents(events)
    # The frontier takes the same steps: only messages changed their place.
    steps = [frontier_steps(as_columns(each, arity), domain.minimum) for each in (moved, events)]
    assert steps[0] == steps[1]


def _contents(events: list[model.Event]) -> Counter[model.Time]:
    return Counter(time for kind, content in events if kind == "messages" for time in content)


@given(st.data())
def test_rule_003_08_any_message_may_move_earlier(data: st.DataObject) -> None:
    arity = data.draw(ARITIES)
    events = data.draw(legal_events(arity))
    at = [i for i, event in enumerate(events) if event[0] == "messages"]
    if not at:
        return
    # To any earlier place, the first included: what vouches for a message came from the minimum.
    message = events[data.draw(st.sampled_from(at))]
    rest = list(events)
    rest.remove(message)
    place = data.draw(st.integers(0, events.index(message)))
    moved = [*rest[:place], message, *rest[place:]]
    domain = domain_of(arity)
    assert verdict(moved, domain) == verdict(events, domain) == model.judge(events, start_of(domain))


@given(st.data())
def test_rule_003_08_progress_may_move_past_all_messages(
    data: st.DataObject,
) -> None:
    arity = data.draw(ARITIES)
    domain = domain_of(arity)
    events = data.draw(legal_events(arity))
    # All progress, in its order, after all messages.
    late = [e for e in events if e[0] == "messages"] + [e for e in events if e[0] == "progress"]
    assert verdict(late, domain) == verdict(events, domain) == model.judge(events, start_of(domain))


@given(st.data())
def test_rule_003_08_a_last_drop_before_its_message_is_refused(
    data: st.DataObject,
) -> None:
    arity = data.draw(ARITIES)
    domain = domain_of(arity)
    events = data.draw(legal_events(arity, close=True))
    messages = [i for i, event in enumerate(events) if event[0] == "messages"]
    if not messages:
        return
    # The closing batch drops what is left; moved before a message, nothing vouches for that one.
    at = data.draw(st.sampled_from(messages))
    progress = [event for event in events if event[0] == "progress"]
    moved = [*progress, events[at]]
    assert verdict(moved, domain) == "unheld"
    assert one_by_one(moved, domain) == "unheld"


def test_rule_003_08_example_of_one_stream() -> None:
    domain = domain_of(1)
    send, drop = ("messages", [(3,)]), ("progress", [((0,), -1)])
    assert verdict([send, drop], domain) == {}
    assert verdict([drop, send], domain) == "unheld"
    # Not the last one: the other capability vouches for the message.
    split = ("progress", [((3,), 1)])
    assert verdict([split, drop, send], domain) == {(3,): 1}


@given(st.data())
def test_rule_003_09_columns_hold_exactly_what_was_given(data: st.DataObject) -> None:
    arity = data.draw(ARITIES)
    events = data.draw(any_events(arity))
    columns = as_columns(events, arity)
    given_progress = [content for kind, content in events if kind == "progress"]
    found = [
        list(zip(map(tuple, times.tolist()), deltas.tolist(), strict=True)) for times, deltas in batches_of(columns)
    ]
    assert found == given_progress
    step, expected = 0, []
    for kind, content in events:
        if kind == "progress":
            step += 1
        else:
            expected += [(time, step) for time in content]
    times = map(tuple, columns.message_times.tolist())
    assert list(zip(times, columns.message_steps.tolist(), strict=True)) == expected


@given(st.data())
def test_rule_003_10_interleaved_streams_with_more_counts_fit(
    data: st.DataObject,
) -> None:
    arity = data.draw(ARITIES)
    domain = domain_of(arity)
    streams = data.draw(st.lists(legal_events(arity, max_events=6), min_size=1, max_size=4))
    columns = [as_columns(events, arity) for events in streams]
    turns = [i for i, stream in enumerate(columns) for _ in range(stream.n_steps)]
    order = data.draw(st.permutations(turns))
    folded = fold_events(columns, order, minimum=domain.minimum)
    end = sum((Counter(model.judge(events, start_of(domain))) for events in streams), Counter())
    # One stream again: it starts with one capability, and its first batch adds k - 1.
    assert plain_counts(verify_events(domain, folded)) == dict(end)
    batches = [
        list(zip(map(tuple, times.tolist()), deltas.tolist(), strict=True)) for times, deltas in batches_of(folded)
    ]
    rest = [iter([content for kind, content in events if kind == "progress"]) for events in streams]
    expected = [next(rest[i]) for i in order]
    assert batches == ([[(domain.minimum, len(streams) - 1)]] if len(streams) > 1 else []) + expected
    assert Counter(map(tuple, folded.message_times.tolist())) == sum(map(_contents, streams), Counter())
    # Without the further counts the same interleaving would be refused as soon as all have closed.
    if len(streams) > 1 and not end:
        start = StreamCounts.initial(domain.minimum, 1)
        short = StreamEvents.from_events([Progress(t.copy(), d.copy()) for t, d in batches_of(folded)[1:]], arity)
        with pytest.raises((NegativeCountError, UnheldCapabilityError)):
            verify_events(domain, short, start=start)


@given(st.data())
def test_rule_003_10_events_interleaved_one_by_one_stay_legal(data: st.DataObject) -> None:
    arity = data.draw(ARITIES)
    domain = domain_of(arity)
    streams = data.draw(st.lists(legal_events(arity, max_events=6), min_size=2, max_size=4))
    turns = [i for i, events in enumerate(streams) for _ in events]
    order = data.draw(st.permutations(turns))
    rest = [iter(events) for events in streams]
    merged: list[model.Event] = [("progress", [(domain.minimum, len(streams) - 1)])]
    merged += [next(rest[i]) for i in order]
    assert not isinstance(verdict(merged, domain), str)
    assert verdict(merged, domain) == plain_verdict(merged, start_of(domain))


@pytest.mark.golden
@pytest.mark.parametrize(("name", "n_streams"), [("c_4workers", 4), ("c2_3workers", 3), ("d2_product_2workers", 2)])
def test_rule_003_10_interleaved_captures_move_as_in_timely(name: str, n_streams: int) -> None:
    streams = [captured(f"{name}_w{i}") for i in range(n_streams)]
    domain = streams[0].domain
    kind = "product" if domain.arity == 2 else "u64"
    columns = [as_columns(stream.events, domain.arity) for stream in streams]
    n_interleavings = 0
    for line in vectors(f"capture_{name}.merged.jsonl"):
        if "interleaving" not in line:
            continue
        n_interleavings += 1
        # Steps there count every event; here they count progress batches, the first one adds k - 1.
        rest = [iter(stream.events) for stream in streams]
        kinds = [next(rest[i])[0] for i in line["order"]]
        order = [i for i, event in zip(line["order"], kinds, strict=True) if event == "progress"]
        steps = [step for step, event in enumerate(kinds) if event == "progress"]
        folded = fold_events(columns, order, minimum=domain.minimum)
        assert verify_events(domain, folded).closed
        trace = frontier_steps(folded, domain.minimum)
        found = [[steps[step - 2] if step else -1, frontier] for step, frontier in trace]
        expected = [
            [step, Antichain.from_times([time_of(kind, t) for t in frontier], domain.arity)]
            for step, frontier in line["frontiers"]
        ]
        assert found == expected
    assert n_interleavings == 3


def test_rule_003_11_events_of_another_type_of_time_are_refused() -> None:
    pair = as_columns([("messages", [(1, 2)])], 2)
    with pytest.raises(InvalidShapeError):
        verify_events(DOMAINS["u64"], pair)
    with pytest.raises(InvalidShapeError):
        verify_events(DOMAINS["u64"], as_events([("messages", [(1, 2)])], 2))
    with pytest.raises(InvalidShapeError):
        fold_events([pair, as_columns([], 1)], minimum=(0, 0))
    with pytest.raises(InvalidShapeError):
        check_progress(StreamCounts.initial(0), [[1, 2]], [1])
    with pytest.raises(InvalidShapeError):
        check_messages(StreamCounts.initial(0), [[1, 2]])
