"""Producers that are interrupted, started again, repeat themselves and race, against a dictionary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_timely.errors import RolledBackError, StorageError, UpperMismatchError
from spark_timely.log import MemoryLog
from spark_timely.log.core import LogCore
from spark_timely.log.store.base import MemoryStore
from spark_timely.log.writer import StreamWriter
from spark_timely.time.antichain import Antichain
from tests.faults.unreliable import UnreliableStore
from tests.oracles.producer_model import ProducerModel, Row
from tests.support import examples

VALUES = pa.schema([("v", pa.int64())])
KEYS = st.none() | st.integers(0, 3)
COUNT = st.integers(0, 3)


def table_of(rows: Sequence[Row]) -> pa.Table:
    return pa.table({name: pa.array([row[i] for row in rows], pa.int64()) for i, name in enumerate(("_time", "v"))})


class ProducerMachine(RuleBasedStateMachine):
    """One owner of one stream; its appends are repeated until it is told what came of them."""

    plain: MemoryLog

    @initialize(seed=st.integers(0, 1 << 20), lands_late=st.sampled_from([0.0, 0.7]))
    def create(self, seed: int, lands_late: float) -> None:
        self.plain = MemoryLog.create(VALUES, minimum=(0,), merge_every=4)
        self.plain.writer(owner="me")
        self.seed, self.lands_late = seed, lands_late
        self.model = ProducerModel()
        self.value = 0
        self.time = 0
        self.said: list[tuple[int, list[Row], int | None]] = []
        self.former: list[LogCore] = []
        self.hints: list[str] = []
        self.writer = self.another()

    def another(self) -> StreamWriter:
        """Return a writer as a process has it that was just started."""
        log = self.plain.another()
        writer = log.writer(owner="me")
        self.seed += 1
        log.core.store = UnreliableStore(
            log.core.store,
            seed=self.seed,
            happens=0.6,
            reports_failure=0.5,
            lands_late=self.lands_late,
            waits=0.6,
            goes=0.5,
            another=lambda: MemoryStore(self.plain.core.store.table),
        )
        return writer

    def fresh(self, n: int) -> list[Row]:
        """Return rows that were never there, at times that may still be used."""
        rows = [(self.time + i, self.value + i) for i in range(n)]
        self.value += n
        return rows

    def told(
        self, key: int | None, rows: list[Row], to: int | None, restarts: Sequence[bool] = (), meanwhile: int = 0
    ) -> str:
        """Append until it is told what came of it; with a key also through restarts.

        After the first failure other appends may come before it is repeated.
        """
        for turn in range(200):
            try:
                outcome = self.writer.append(table_of(rows), advance_to=to, batch=key)
            except StorageError as error:
                self.hints.append(error.hint or "")
                if turn < len(restarts) and restarts[turn]:
                    self.restart()
                    if key is None:
                        return "abandoned"
                for _ in range(meanwhile):
                    other = self.fresh(1)
                    assert self.told(None, other, None) in ("new", "there")
                    self.model.append(None, other, None)
                meanwhile = 0
            except UpperMismatchError:
                # An earlier attempt took effect between decision and commit: nothing was done.
                continue
            except RolledBackError:
                return "refused"
            else:
                return "new" if outcome.committed else "there"
        raise AssertionError("the store fails too often")

    def next_key(self, step: int | None) -> int | None:
        return None if step is None else max(self.model.keys, default=-1) + 1 + step

    # Steps -------------------------------------------------------------------------------------------

    @rule(
        step=KEYS,
        n=COUNT,
        up=st.none() | COUNT,
        restarts=st.lists(st.booleans(), max_size=4),
        meanwhile=st.integers(0, 2),
    )
    def append(self, step: int | None, n: int, up: int | None, restarts: list[bool], meanwhile: int) -> None:
        key, rows = self.next_key(step), self.fresh(n)
        to = None if up is None else self.time + up
        assert self.model.judge(key, rows, to) == "new"
        # Others that come meanwhile may be after it.
        self.time = max(self.time, to or 0)
        answer = self.told(key, rows, to, restarts, meanwhile)
        if answer == "abandoned":
            self.model.abandon(rows, to)
            return
        # Told as done, or found by its repetition.
        assert answer in ("new", "there")
        self.model.append(key, rows, to)
        if key is not None:
            self.said.append((key, rows, to))

    @rule(n=st.integers(1, 3), times=st.integers(2, 3))
    def append_equal_rows_on_purpose(self, n: int, times: int) -> None:
        rows = self.fresh(n)
        for _ in range(times):
            assert self.told(None, rows, None) in ("new", "there")
            self.model.append(None, rows, None)

    @precondition(lambda self: self.said)
    @rule(pick=st.integers(0, 99), change=st.sampled_from(["", "", "rows", "more", "less", "progress"]))
    def repeat(self, pick: int, change: str) -> None:
        key, rows, to = self.said[pick % len(self.said)]
        rows = list(rows)
        if change == "more" or (change and not rows):
            rows.append((self.time, self.value))
        elif change == "rows":
            rows[0] = (rows[0][0], rows[0][1] + 1_000_000)
        elif change == "less":
            rows.pop()
        elif change == "progress":
            to = self.time + 50
        assert self.told(key, rows, to) == self.model.judge(key, rows, to)

    @rule(step=st.integers(0, 3), key=st.data())
    def an_earlier_key_that_was_left_out(self, step: int, key: st.DataObject) -> None:
        free = [k for k in range(max(self.model.keys, default=0)) if k not in self.model.keys]
        if not free:
            return
        rows = self.fresh(step)
        assert self.told(key.draw(st.sampled_from(free)), rows, None) == "refused"

    @rule(up=st.integers(0, 3))
    def advance(self, up: int) -> None:
        self.time += up
        for _ in range(200):
            try:
                self.writer.advance(self.time)
            except (StorageError, UpperMismatchError):
                continue
            break
        self.model.frontier = max(self.model.frontier, self.time)

    @rule()
    def restart(self) -> None:
        """Continue as another process; what the former one wrote may take effect later."""
        self.former.append(self.writer.core)
        self.writer = self.another()

    @precondition(lambda self: self.former)
    @rule(pick=st.integers(0, 99))
    def a_late_write_takes_effect(self, pick: int) -> None:
        self.former.pop(pick % len(self.former)).store.refresh()

    @rule(
        step=st.integers(0, 2),
        n=COUNT,
        other=st.sampled_from(["same", "same", "rows", "progress", "higher", "keyless"]),
        up=st.none() | st.integers(0, 2),
    )
    def race(self, step: int, n: int, other: str, up: int | None) -> None:
        """Another process of the owner appends between this one's decision and its commit."""
        key, rows = self.next_key(step), self.fresh(n)
        assert key is not None
        to = None if up is None else self.time + up
        theirs: tuple[int | None, list[Row], int | None] = {
            "same": (key, rows, to),
            "rows": (key, [*rows, (self.time, -1 - self.value)], to),
            "progress": (key, rows, self.time + 9),
            "higher": (key + 1, self.fresh(1), None),
            "keyless": (None, self.fresh(1), None),
        }[other]
        rival = self.plain.another().writer(owner="me")
        log = self.plain.another()
        mine = log.writer(owner="me")
        store = UnreliableStore(log.core.store, happens=1.0, reports_failure=0.0)
        met = []

        def first() -> None:
            if not met:
                met.append(rival.append(table_of(theirs[1]), advance_to=theirs[2], batch=theirs[0]).committed)

        store.before_commit, log.core.store = first, store
        try:
            answer = "new" if mine.append(table_of(rows), advance_to=to, batch=key).committed else "there"
        except RolledBackError:
            answer = "refused"
        except UpperMismatchError:
            answer = "overtaken"
        assert met == [True]
        self.model.append(*theirs)
        if theirs[0] is not None:
            self.said.append((theirs[0], theirs[1], theirs[2]))
        self.time = max(self.time, theirs[2] or 0)
        wanted = {"same": "there", "keyless": "overtaken"}.get(other, "refused")
        assert answer == wanted

    # What holds --------------------------------------------------------------------------------------

    @invariant()
    def log_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "plain"):
            return
        self.plain.refresh()
        found = self.plain.messages()
        counted = Counter(zip(found["_time"].to_pylist(), found["v"].to_pylist(), strict=True))
        allowed = Counter(self.model.rows)
        for rows, _ in self.model.perhaps:
            allowed.update(rows)
        assert not self.model.rows - counted
        assert not counted - allowed
        # Never past what was said, or may have been.
        low = self.model.frontier
        high = max([low, *(to for _, to in self.model.perhaps)])
        assert Antichain.of(low).less_equal_frontier(self.plain.frontier())
        assert self.plain.frontier().less_equal_frontier(Antichain.of(high))

    def teardown(self) -> None:
        if not hasattr(self, "plain"):
            return
        self.plain.refresh()
        found = self.plain.messages()
        self.model.settle(Counter(zip(found["_time"].to_pylist(), found["v"].to_pylist(), strict=True)))
        assert all("repeat the append" in hint for hint in self.hints)
        report = self.plain.verify()
        assert report.legal, report.problems


TestProducers = ProducerMachine.TestCase
TestProducers.settings = settings(examples(28, long=1500), stateful_step_count=20)
