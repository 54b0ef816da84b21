"""Ways to take a rule of the capture protocol away in one place: what `test_rules_mutants.py` does to the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.log import writer
from spark_timely.log.core import LogCore
from spark_timely.log.machine import decide
from spark_timely.log.reader import events_of
from spark_timely.protocol import event as capture_event
from spark_timely.protocol import rules as protocol
from spark_timely.protocol.event import StreamEvents
from spark_timely.protocol.rules import StreamCounts, check_messages, check_progress, verify_events
from spark_timely.testing.driver import MicroBatch
from spark_timely.time.antichain import as_times
from tests.oracles import folding
from tests.property import test_protocol as rules
from tests.property import test_rules_replay as replays

Patch = pytest.MonkeyPatch
Mutate = Callable[[Patch], None]


# Checks without a rule ----------------------------------------------------------------------------


def anything(times: Any, _held: Any) -> Any:
    return np.ones(len(times), dtype=np.bool_)


def only_itself(times: Any, held: Any) -> Any:
    return np.array([any((time == other).all() for other in held) for time in times], dtype=np.bool_)


def only_after(times: Any, held: Any) -> Any:
    return np.array(
        [any((time >= other).all() and (time > other).any() for other in held) for time in times], dtype=np.bool_
    )


def with_beyond(check: Callable[..., Any], beyond: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def mutant(*args: Any, **more: Any) -> Any:
        with mock.patch.object(protocol, "beyond", beyond), mock.patch.object(protocol.Antichain, "beyond", beyond):
            return check(*args, **more)

    return mutant


def no_check(*_args: Any, **_more: Any) -> None:
    return None


def entry_by_entry(counts: StreamCounts, times: Any, deltas: Any, **more: Any) -> StreamCounts:
    for time, delta in zip(as_times(times, counts.arity), np.asarray(deltas).reshape(-1), strict=True):
        counts = check_progress(counts, time[None], [delta], **more)
    return counts


def drops_first(counts: StreamCounts, times: Any, deltas: Any, **more: Any) -> StreamCounts:
    rows, changes = as_times(times, counts.arity), np.asarray(deltas).reshape(-1)
    for part in (changes < 0, changes >= 0):
        counts = check_progress(counts, rows[part], changes[part], **more)
    return counts


def _clipped(cls: type[StreamCounts], times: Any, counts: Any, **_more: Any) -> StreamCounts:
    times, counts = protocol.consolidate_rows(times, counts)
    return cls(times[counts > 0], counts[counts > 0])


def below_zero(*args: Any, **more: Any) -> StreamCounts:
    with mock.patch.object(StreamCounts, "_checked", classmethod(_clipped)):
        return check_progress(*args, **more)


def one_at_each(*args: Any, **more: Any) -> StreamCounts:
    found = check_progress(*args, **more)
    return StreamCounts.from_arrays(found.times, np.minimum(found.counts, 1), found.arity)


class AfterProgress:
    """Judges messages by the counts after the progress of their own commit."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def messages(self, _counts: StreamCounts, times: Any, **_more: Any) -> None:
        self.waiting.append(times)

    def progress(self, *args: Any, **more: Any) -> StreamCounts:
        found = check_progress(*args, **more)
        for times in self.waiting:
            check_messages(found, times)
        self.waiting = []
        return found


class OneForAll:
    """Judges all streams as if they shared one capability, at the greatest time that any of them used."""

    def __init__(self) -> None:
        self.top = 0

    def messages(self, _counts: StreamCounts, times: Any, **_more: Any) -> None:
        check_messages(StreamCounts.initial(self.top), times)
        self.top = max(self.top, int(as_times(times, 1).max()))


def first_coordinate(check: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(first: Any, second: Any, *args: Any, **more: Any) -> Any:
        return check(first, np.asarray(second)[:, :1], *args, **more)

    return mutant


def append(*, progress: Any = None, messages: Any = None, log: bool = False) -> Mutate:
    """Replace the checks that an append makes: as the rules' tests call them, or where a log does."""

    def mutate(patch: Patch) -> None:
        for module in (decide, writer) if log else (rules,):
            if progress is not None:
                patch.setattr(module, "check_progress", progress)
            if messages is not None:
                patch.setattr(module, "check_messages", messages)

    return mutate


def judged_twice(kind: Callable[[], Any]) -> Mutate:
    """Replace the checks of a log by those of an object that remembers; one for each of the two places."""

    def mutate(patch: Patch) -> None:
        for module in (decide, writer):
            one = kind()
            patch.setattr(module, "check_messages", one.messages)
            if hasattr(one, "progress"):
                patch.setattr(module, "check_progress", one.progress)

    return mutate


def start(shift: int, more: int) -> Mutate:
    def mutate(patch: Patch) -> None:
        def initial(_cls: type[StreamCounts], minimum: Any, count: int = 1) -> StreamCounts:
            row = np.atleast_1d(np.asarray(minimum, np.int64)) + shift
            return StreamCounts.from_arrays([row.tolist()], [count + more], len(row))

        patch.setattr(StreamCounts, "initial", classmethod(initial))

    return mutate


def whole(change: Callable[[StreamEvents], StreamEvents] | None = None, **inside: Any) -> Mutate:
    """Replace the check of whole streams: it sees other events, or works with other parts."""

    def mutate(patch: Patch) -> None:
        def mutant(domain: Any, events: Any, **more: Any) -> StreamCounts:
            if not isinstance(events, StreamEvents):
                events = StreamEvents.from_events(events, domain.arity)
            with mock.patch.multiple(protocol, **inside) if inside else mock.MagicMock():
                return verify_events(domain, events if change is None else change(events), **more)

        patch.setattr(rules, "verify_events", mutant)

    return mutate


def no_raises(events: StreamEvents) -> Any:
    return events.progress_times[:0], np.empty(0, np.int64)


def exactly_held(times: Any, steps: Any, intervals: Any, _n_steps: int) -> Any:
    lows, begins, ends = intervals
    return np.array(
        [only_itself([time], lows[(begins <= at) & (at < ends)])[0] for time, at in zip(times, steps, strict=True)],
        dtype=np.bool_,
    )


def never_negative(*args: Any) -> Any:
    times, steps, counts = capture_event.running_counts(*args)
    return times, steps, np.maximum(counts, 0)


def without_messages(events: StreamEvents) -> StreamEvents:
    return replace(events, message_times=events.message_times[:0], message_steps=events.message_steps[:0])


def cut_apart(events: StreamEvents, keys: Any) -> StreamEvents:
    """Make a batch of its own of the entries of each key, in the order of the keys."""
    order = np.lexsort([keys, events.progress_steps])
    pairs = np.stack([events.progress_steps[order], keys[order]], axis=1)
    new = np.ones(len(pairs), dtype=np.bool_)
    new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    steps = np.cumsum(new) - 1
    before = np.searchsorted(pairs[:, 0], np.arange(events.n_steps + 1))
    first = np.append(steps, len(np.flatnonzero(new)))[before]
    return replace(
        events,
        progress_times=events.progress_times[order],
        progress_deltas=events.progress_deltas[order],
        progress_steps=steps.astype(np.int64),
        message_steps=first[events.message_steps].astype(np.int64),
        n_steps=int(new.sum()),
    )


def one_entry_each(events: StreamEvents) -> StreamEvents:
    return cut_apart(events, np.arange(len(events.progress_steps)))


def drops_before_raises(events: StreamEvents) -> StreamEvents:
    return cut_apart(events, (events.progress_deltas > 0).astype(np.int64))


def judged_later(events: StreamEvents) -> StreamEvents:
    return replace(events, message_steps=np.minimum(events.message_steps + 1, events.n_steps))


def judged_at_the_start(events: StreamEvents) -> StreamEvents:
    return replace(events, message_steps=events.message_steps * 0)


def passed_over_twice(patch: Patch) -> None:
    def mutant(domain: Any, events: Any, **more: Any) -> StreamCounts:
        if not isinstance(events, StreamEvents):
            list(events)
        return verify_events(domain, events, **more)

    patch.setattr(rules, "verify_events", mutant)


def narrowed(patch: Patch) -> None:
    def mutant(domain: Any, events: Any, **more: Any) -> StreamCounts:
        if isinstance(events, StreamEvents):
            events = replace(
                events, message_times=events.message_times[:, :1], progress_times=events.progress_times[:, :1]
            )
        return verify_events(domain, events, **more)

    patch.setattr(rules, "verify_events", mutant)


def folded(change: Callable[..., StreamEvents]) -> Mutate:
    return lambda patch: patch.setattr(rules, "fold_events", change)


def without_further_counts(streams: Any, order: Any = None, *, minimum: Any) -> StreamEvents:
    found = folding.fold_events(streams, order, minimum=minimum)
    first = (found.progress_steps == 0) & (len(streams) > 1)
    return replace(found, progress_deltas=np.where(first, 0, found.progress_deltas))


def one_after_the_other(streams: Any, _order: Any = None, *, minimum: Any) -> StreamEvents:
    return folding.fold_events(streams, None, minimum=minimum)


def any_arity(streams: Any, order: Any = None, *, minimum: Any) -> StreamEvents:
    fits = [stream for stream in streams if stream.arity == len(minimum)]
    return folding.fold_events(fits, order, minimum=minimum)


def columns(change: Callable[[Any], Any]) -> Mutate:
    def mutate(patch: Patch) -> None:
        def mutant(events: Any, arity: int) -> StreamEvents:
            return StreamEvents.from_events(rules.as_events([(k, change(c)) for k, c in events], arity), arity)

        patch.setattr(rules, "as_columns", mutant)

    return mutate


def backwards(patch: Patch) -> None:
    def mutant(core: LogCore, *args: Any, **more: Any) -> Iterator[Any]:
        return iter(list(events_of(core, *args, **more))[::-1])

    patch.setattr("tests.conformance.test_log_protocol.events_of", mutant)


# A replay that breaks a rule ----------------------------------------------------------------------


def replay_of(change: Callable[[list[MicroBatch]], list[MicroBatch]]) -> Mutate:
    def mutate(patch: Patch) -> None:
        real = replays.replayed
        patch.setattr(replays, "replayed", lambda driver, **more: change(real(driver, **more)))

    return mutate


def each_task(change: Callable[[pa.Table], pa.Table]) -> Mutate:
    return replay_of(lambda batches: [replace(b, tasks=tuple(change(task) for task in b.tasks)) for b in batches])


def kept(table: pa.Table, keep: Any) -> pa.Table:
    return table.filter(pc.fill_null(keep, fill_value=False))


def is_progress(table: pa.Table) -> Any:
    if "_event" not in table.column_names:
        return pa.array([False] * table.num_rows, pa.bool_())
    return pc.equal(table["_event"], "progress")


def last_message_lost(table: pa.Table) -> pa.Table:
    rows = np.flatnonzero(~np.asarray(is_progress(table)))
    return table if not len(rows) else kept(table, pa.array(np.arange(table.num_rows) != rows[-1]))


def no_further_counts(table: pa.Table) -> pa.Table:
    if "_event" not in table.column_names:
        return table
    # Of no stream: what a query states at its beginning, and all progress of a complete one.
    return kept(table, pc.invert(pc.and_(is_progress(table), table["_stream"].is_null())))


def progress_ahead(batches: list[MicroBatch]) -> list[MicroBatch]:
    found = []
    for batch in batches:
        for keep in (is_progress, lambda table: pc.invert(is_progress(table))):
            found.append(replace(batch, tasks=tuple(kept(task, keep(task)) for task in batch.tasks)))
    return found


def raises_and_drops_apart(batches: list[MicroBatch]) -> list[MicroBatch]:
    found = []
    for batch in batches:
        for sign in (pc.less, pc.greater):
            tasks = []
            for task in batch.tasks:
                mine = sign(task["_delta"], 0)
                tasks.append(kept(task, mine if sign is pc.less else pc.fill_null(mine, fill_value=True)))
            found.append(replace(batch, tasks=tuple(tasks)))
    return found


def wide_times(table: pa.Table) -> pa.Table:
    for i, name in enumerate(table.column_names):
        if name.startswith("_time"):
            narrow = pa.types.is_date32(table[name].type)
            column = table[name].cast(pa.int32()) if narrow else table[name]
            table = table.set_column(i, name, column.cast(pa.int64()))
    return table
