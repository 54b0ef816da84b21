"""Streams for tests of the protocol: drawn legal ones, and those captured by the real timely."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from spark_timely.protocol.event import Event, Messages, Progress, StreamEvents
from spark_timely.time.domain import TimeDomain
from tests.oracles.golden import as_row, vectors
from tests.oracles.protocol_model import Event as PlainEvent
from tests.oracles.protocol_model import Time

# name: (type of time, kinds of the coordinates, minimum)
CAPTURES = {
    **dict.fromkeys(["a_inorder", "b_unordered", "e1_crashed"], "u64"),
    **dict.fromkeys(["e2_cut_boundary", "e3_cut_midbody", "e4_cut_midheader", "e5_cut_after_header"], "u64"),
    **dict.fromkeys(["f1_empty", "f2_empty_late", "f3_zero_bytes", "f4_odd_events", "g1_rich"], "u64"),
    **dict.fromkeys([f"c_4workers_w{i}" for i in range(4)], "u64"),
    **dict.fromkeys([f"c2_3workers_w{i}" for i in range(3)], "u64"),
    **dict.fromkeys(["d1_product", "d3_iterate", "d2_product_2workers_w0", "d2_product_2workers_w1"], "product"),
    "g2_duration": "duration",
    "g3_unit": "unit",
    "g4_i64": "i64",
}
DOMAINS = {
    "u64": TimeDomain(("long",), (0,)),
    "i64": TimeDomain(("long",)),
    "duration": TimeDomain(("long",), (0,)),
    "unit": TimeDomain(("long",), (0,)),
    "product": TimeDomain(("long", "long"), (0, 0)),
}


@dataclass(frozen=True)
class Captured:
    """A stream as the real timely wrote it, and what it says at its end."""

    name: str
    domain: TimeDomain
    events: list[PlainEvent]
    end: dict[str, Any]
    n_times: int


def time_of(kind: str, time: Any) -> Time:
    """Turn a time of a golden file into one of ours: spans of time count nanoseconds."""
    if kind == "duration":
        return (time[0] * 1_000_000_000 + time[1],)
    if kind == "unit":
        return (0,)
    return as_row(time)


def captured(name: str) -> Captured:
    """Read one captured stream."""
    kind = CAPTURES[name]
    events: list[PlainEvent] = []
    end: dict[str, Any] = {}
    n_times = 0
    for line in vectors(f"capture_{name}.expected.jsonl"):
        if "messages" in line:
            time, rows = line["messages"]
            # An event without rows uses its time all the same.
            events.append(("messages", [time_of(kind, time)] * max(1, len(rows))))
            n_times += 1
        elif "progress" in line:
            events.append(("progress", [(time_of(kind, t), d) for t, d in line["progress"]]))
        else:
            end = line["end"]
    end["frontier"] = sorted(time_of(kind, t) for t in end["frontier"])
    end["counts"] = {time_of(kind, t): count for t, count in end["counts"]}
    return Captured(name, DOMAINS[kind], events, end, n_times)


def as_events(events: list[PlainEvent], arity: int) -> list[Event]:
    """Turn plain events into the library's."""
    found: list[Event] = []
    for kind, content in events:
        if kind == "messages":
            found.append(Messages(np.array(content, dtype=np.int64).reshape(-1, arity)))
        else:
            times = np.array([t for t, _ in content], dtype=np.int64).reshape(-1, arity)
            found.append(Progress(times, np.array([d for _, d in content], dtype=np.int64)))
    return found


def as_columns(events: list[PlainEvent], arity: int) -> StreamEvents:
    """Turn plain events into columns."""
    return StreamEvents.from_events(as_events(events, arity), arity)


def times_near(arity: int, low: int = 0, high: int = 6) -> st.SearchStrategy[Time]:
    """Draw times close together, so that they are often comparable, equal, or neither."""
    return st.tuples(*[st.integers(low, high)] * arity)


@st.composite
def any_events(draw: st.DrawFn, arity: int, max_events: int = 8) -> list[PlainEvent]:
    """Draw events that need not be legal, but often are for a while."""
    time = times_near(arity)
    message = st.tuples(st.just("messages"), st.lists(time, max_size=3))
    change = st.tuples(time, st.integers(-2, 2))
    progress = st.tuples(st.just("progress"), st.lists(change, max_size=3))
    events = draw(st.lists(message | progress | st.deferred(lambda: _downgrade(arity)), max_size=max_events))
    if draw(st.booleans()):
        # Away from the minimum, which vouches for everything: what follows can be illegal by itself.
        events[:1] = [("progress", [((0,) * arity, -1), (draw(time), 1)])]
    return events


def _downgrade(arity: int) -> st.SearchStrategy[PlainEvent]:
    time = times_near(arity, high=3)
    return st.tuples(time, time).map(
        lambda pair: ("progress", [(pair[0], -1), (tuple(map(max, *pair)), 1)])  # type: ignore[arg-type]
    )


@st.composite
def legal_events(draw: st.DrawFn, arity: int, max_events: int = 10, *, close: bool | None = None) -> list[PlainEvent]:
    """Draw a legal stream by what its holder does with capabilities: send, split, downgrade, drop."""
    held: Counter[Time] = Counter({(0,) * arity: 1})
    events: list[PlainEvent] = []
    later = st.tuples(*[st.integers(0, 3)] * arity)
    for _ in range(draw(st.integers(0, max_events))):
        if not held:
            break
        at = draw(st.sampled_from(sorted(held)))
        after = tuple(map(sum, zip(at, draw(later), strict=True)))
        match draw(st.sampled_from(["send", "send", "split", "downgrade", "drop"])):
            case "send":
                events.append(("messages", [after] * draw(st.integers(1, 3))))
            case "split":
                events.append(("progress", [(after, 1)]))
                held[after] += 1
            case "downgrade":
                change = [(at, -1), (after, 1)]
                events.append(("progress", change if draw(st.booleans()) else change[::-1]))
                held[at] -= 1
                held[after] += 1
            case "drop":
                events.append(("progress", [(at, -1)]))
                held[at] -= 1
        held += Counter()
    if close or (close is None and draw(st.booleans())):
        events.append(("progress", [(time, -count) for time, count in sorted(held.items())]))
    return events
