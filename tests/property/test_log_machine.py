"""A log driven at random, through several handles and over a store that fails, against dictionaries."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_timely.errors import (
    ClosedError,
    NegativeCountError,
    NotBeyondError,
    ProtocolError,
    RolledBackError,
    StorageError,
    UnheldCapabilityError,
)
from spark_timely.log import MemoryLog
from spark_timely.log.files.parquet import message_table, write_data_files
from spark_timely.log.machine.state import CommitRequest, StreamState
from spark_timely.time.antichain import Antichain
from tests.faults.unreliable import UnreliableStore
from tests.oracles.protocol_model import NegativeError, UnheldError, judge, less_equal, minima
from tests.support import examples

VALUES = pa.schema([("v", pa.int64())])
NAMES = ("a", "b", "c", "d")
COORDINATE = st.integers(0, 6)


class LogMachine(RuleBasedStateMachine):
    """Every operation is accepted exactly where the model accepts it, and does what it does there."""

    arity: int
    logs: list[MemoryLog]

    @initialize(arity=st.integers(1, 2), streams=st.integers(1, 3), seed=st.integers(0, 1 << 20), bad=st.booleans())
    def create(self, arity: int, streams: int, seed: int, bad: bool) -> None:
        self.arity = arity
        minimum = (0,) * arity
        first = MemoryLog.create(VALUES, times=("long",) * arity, minimum=minimum, streams=streams, merge_every=3)
        self.logs = [first, first.another(), first.another()]
        if bad:
            for i, log in enumerate(self.logs):
                log.core.store = UnreliableStore(log.core.store, seed=seed + i, happens=0.7, reports_failure=0.3)
        self.open: dict[tuple[int, ...], int] = {minimum: streams}
        self.counts: dict[str, dict[tuple[int, ...], int]] = {}
        self.seqs: dict[str, int] = {}
        self.batches: dict[str, list[tuple[int, tuple[tuple[int, ...], ...]]]] = {}
        self.rows: Counter[tuple[str, tuple[int, ...]]] = Counter()

    def handle(self, which: int) -> MemoryLog:
        return self.logs[which % len(self.logs)]

    def time(self, draw: tuple[int, int]) -> tuple[int, ...]:
        return draw[: self.arity]

    @rule(
        which=st.integers(0, 2),
        name=st.sampled_from(NAMES),
        at=st.none() | st.tuples(COORDINATE, COORDINATE),
        donor=st.none() | st.sampled_from(NAMES),
    )
    def open_stream(self, which: int, name: str, at: tuple[int, int] | None, donor: str | None) -> None:
        if name in self.counts:
            return
        log = self.handle(which)
        time = None if at is None else self.time(at)
        minimum = (0,) * self.arity
        live = {n: c for n, c in self.counts.items() if c}
        if donor is not None and donor not in live:
            donor = None
        if donor is None and self.open:
            allowed, given = True, time or minimum
            self.open = {t: n - 1 for t, n in self.open.items() if n > 1}
        else:
            donors = [donor] if donor is not None else list(live)
            fits = [d for d in donors if time is None or any(less_equal(h, time) for h in live[d])]
            if not live:
                with pytest.raises(ClosedError):
                    log.core.open_stream(name, owner=name, at=time)
                return
            allowed = bool(fits)
            given = time if time is not None else min(minima(live[d])[0] for d in donors)
        if not allowed:
            with pytest.raises(NotBeyondError):
                log.core.open_stream(name, owner=name, at=time, donor=donor)
            return
        state = log.core.open_stream(name, owner=name, at=time, donor=donor)
        assert state.frontier == Antichain.of(given)
        self.counts[name], self.seqs[name], self.batches[name] = {given: 1}, 0, []

    @precondition(lambda self: self.counts)
    @rule(
        which=st.integers(0, 2),
        pick=st.integers(0, 3),
        messages=st.lists(st.tuples(COORDINATE, COORDINATE), max_size=4),
        changes=st.lists(st.tuples(st.tuples(COORDINATE, COORDINATE), st.integers(-1, 2)), max_size=3),
        downgrade=st.booleans(),
    )
    def commit(
        self,
        which: int,
        pick: int,
        messages: list[tuple[int, int]],
        changes: list[tuple[tuple[int, int], int]],
        downgrade: bool,
    ) -> None:
        name = sorted(self.counts)[pick % len(self.counts)]
        log, held = self.handle(which), self.counts[name]
        times = [self.time(m) for m in messages]
        deltas = [(self.time(t), d) for t, d in changes]
        if downgrade and held:
            # A likely legal one: give up one that is held for some that are later.
            least = sorted(held)[pick % len(held)]
            deltas = [(least, -1), *((tuple(np.maximum(least, t).tolist()), 1) for t, d in deltas if d > 0)]
            times = [tuple(np.maximum(least, t).tolist()) for t in times]
        batch = len(self.batches[name])
        if not held:
            expected: type[Exception] | None = ClosedError
        else:
            try:
                after = judge([("messages", times), ("progress", deltas)], held)
                expected = None
            except UnheldError:
                expected = UnheldCapabilityError
            except NegativeError:
                expected = NegativeCountError
        if expected is not None:
            # Where several rules are broken any may be told.
            with pytest.raises(ClosedError if expected is ClosedError else ProtocolError):
                self.send(log, name, batch, times, deltas)
            return
        outcome = self.send(log, name, batch, times, deltas)
        assert outcome.before.to_json() == log_counts(held)
        assert outcome.counts.to_json() == log_counts(after)
        self.counts[name] = after
        self.seqs[name] += 1
        assert outcome.seq == self.seqs[name]
        self.batches[name].append((batch, tuple(times)))
        self.rows.update((name, t) for t in times)

    def send(
        self,
        log: MemoryLog,
        name: str,
        batch: int,
        times: list[tuple[int, ...]],
        deltas: list[tuple[tuple[int, ...], int]],
    ) -> StreamState:
        rows = np.array(times, np.int64).reshape(-1, self.arity)
        table = message_table(
            log.core.format, pa.table({"v": pa.array(range(len(times)), pa.int64())}), rows, name, 1 << 20
        )
        # The seq is only known from the newest state; who writes rows reads it first.
        log.refresh()
        state = log.core.stream(name)
        assert state is not None
        place = table.schema.get_field_index("_seq")
        table = table.set_column(place, "_seq", pa.array([state.seq + 1] * len(times), pa.int64()))
        files = write_data_files(log.core.storage, table, rows, stream=name, seq=state.seq + 1, domain=log.domain)
        request = CommitRequest(
            name,
            name,
            np.array([t for t, _ in deltas], np.int64).reshape(-1, self.arity),
            np.array([d for _, d in deltas], np.int64),
            batch=batch,
            files=files,
        )
        while True:
            try:
                outcome = log.core.commit(request)
            except StorageError:
                continue
            return outcome.state

    @precondition(lambda self: any(self.batches.values()))
    @rule(which=st.integers(0, 2), pick=st.integers(0, 3))
    def repeat(self, which: int, pick: int) -> None:
        name = [n for n in sorted(self.batches) if self.batches[n]][pick % len([b for b in self.batches.values() if b])]
        log = self.handle(which)
        batch, times = self.batches[name][-1]
        state = self.send(log, name, batch, list(times), [])
        assert state.seq == self.seqs[name]
        if batch > 0:
            with pytest.raises(RolledBackError):
                self.send(log, name, batch - 1, [], [])

    @precondition(lambda self: any(self.counts.values()))
    @rule(which=st.integers(0, 2), pick=st.integers(0, 3), to=st.none() | st.tuples(COORDINATE, COORDINATE))
    def advance(self, which: int, pick: int, to: tuple[int, int] | None) -> None:
        live = sorted(n for n, c in self.counts.items() if c)
        name = live[pick % len(live)]
        target = [] if to is None else [self.time(to)]
        frontier = Antichain.empty(self.arity) if to is None else Antichain.of(self.time(to))
        legal = all(any(less_equal(h, t) for h in self.counts[name]) for t in target)
        try:
            state = self.handle(which).advance(name, frontier)
        except NotBeyondError:
            assert not legal
            return
        except StorageError:
            # Unclear even after several tries: read what became of it.
            log = self.handle(which)
            log.refresh()
            found = log.core.stream(name)
            assert found is not None
            state = found
            if state.seq == self.seqs[name]:
                return
        assert legal
        self.counts[name] = dict.fromkeys(target, 1)
        self.seqs[name] += 1
        assert state.seq == self.seqs[name]

    @rule(which=st.integers(0, 2))
    def compact(self, which: int) -> None:
        try:
            self.handle(which).compact()
        except StorageError:
            return

    @rule(which=st.integers(0, 2))
    def reopen(self, which: int) -> None:
        fresh = self.logs[0].another()
        store = self.logs[which].core.store
        if isinstance(store, UnreliableStore):
            store.inner = fresh.core.store
            fresh.core.store = store  # type: ignore[assignment]
        self.logs[which] = fresh

    @invariant()
    def every_handle_agrees(self) -> None:
        if not hasattr(self, "logs"):
            return
        total: Counter[tuple[int, ...]] = Counter(self.open)
        for counts in self.counts.values():
            total.update(counts)
        for log in self.logs:
            log.refresh()
            assert {n: s.seq for n, s in log.streams().items()} == self.seqs
            assert log.frontier().elements == tuple(minima(total))
            assert log.core.unclaimed == sum(self.open.values())

    def teardown(self) -> None:
        if not hasattr(self, "logs"):
            return
        log = self.logs[0].another()
        report = log.verify()
        assert report.legal, report.problems
        names = log.domain.columns
        found = Counter((row["_stream"], tuple(row[n] for n in names)) for row in log.messages().to_pylist())
        assert found == self.rows


def log_counts(counts: dict[tuple[int, ...], int]) -> list[list[object]]:
    return [[t[0] if len(t) == 1 else list(t), n] for t, n in sorted(counts.items())]


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(examples(28, long=1200), stateful_step_count=25)
