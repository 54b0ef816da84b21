"""Four writers of one log and who maintains its table: nothing is refused; one harmful change is, by its version."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake

from spark_timely.errors import ForeignChangeError, TimelyError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from tests.faults.harness import long_lane

SCHEMA = pa.schema([("v", pa.int64())])
STREAMS = "abcd"
N_HISTORIES = 2000 if long_lane() else 8
PART = 100


@dataclass
class Hands:
    """The log, who writes it, and what its rows are."""

    draw: random.Random
    path: str
    kind: str = "stream"
    rows: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    since: int = 0
    story: list[str] = field(default_factory=list)
    # What the rows were at a version, and since.
    past: dict[int, tuple[Counter[tuple[str, int, int]], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kind = self.draw.choice(("stream", "collection"))
        self.handles = [create_log(self.path, SCHEMA, minimum=(0,), streams=4, kind=self.kind)]  # type: ignore[arg-type]
        if self.draw.random() < 0.25:  # delta-rs commits to such a table
            self.table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
        self.handles += [self.opened() for _ in range(3)]
        for handle in self.handles:
            handle.core.merge_every = self.draw.choice((2, 4, None))
        for name in STREAMS:
            self.handles[0].core.open_stream(name, owner="me")

    def opened(self) -> Log:
        return open_log(self.path)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    def times(self, log: Log, name: str) -> int:
        log.refresh()
        state = log.core.stream(name)
        assert state is not None
        return int(state.frontier.elements[0][0])

    # Ours

    def append(self) -> None:
        log, name = self.draw.choice(self.handles), self.draw.choice(STREAMS)
        at = self.times(log, name)
        times = [at + self.draw.randrange(3) for _ in range(self.draw.randrange(5))]
        values = [self.draw.randrange(1000) for _ in times]
        rows = pa.table({"_time": pa.array(times, pa.int64()), "v": pa.array(values, pa.int64())})
        log.writer(name, owner="me").append(rows, advance_to=at + self.draw.randrange(1, 3))
        self.rows.update((name, time, value) for time, value in zip(times, values, strict=True))

    def forget(self) -> None:
        log = self.draw.choice(self.handles)
        log.refresh()
        moved = log.allow_compaction([self.since + 2])
        self.since = int(moved.elements[0][0])
        log.compact(logical=self.draw.random() < 0.5)

    def compact(self) -> None:
        self.draw.choice(self.handles).compact()

    def retain(self) -> None:
        log = self.draw.choice(self.handles)
        log.refresh()
        log.retain("report", log.frontier(), owner="nightly")
        log.release("report")

    # Others: maintenance

    def optimize(self) -> None:
        events = self.draw.sample(("message", "progress", "dead", "since", "retain"), 2)
        for event in events:
            self.table.optimize.compact(partition_filters=[("_event", "=", event)])

    def order(self) -> None:
        self.table.optimize.z_order(["v"])

    def checkpoint(self) -> None:
        self.table.create_checkpoint()

    def clean(self) -> None:
        self.table.cleanup_metadata()

    def properties(self) -> None:
        days = self.draw.randrange(1, 9)
        self.table.alter.set_table_properties({"delta.deletedFileRetentionDuration": f"interval {days} days"})

    def column(self) -> None:
        self.table.alter.add_columns([Field(f"w{self.table.version()}", "string")])

    def vacuum(self) -> None:
        self.table.vacuum(dry_run=False)

    def delete_and_restore(self) -> None:
        table = self.table
        before = table.version()
        table.delete("_event = 'message' and v % 2 = 0")
        if self.table.version() > before:
            self.table.restore(before)

    def old_rows(self) -> None:
        """Delete what nobody may read any more."""
        if self.kind == "stream":
            self.table.delete(f"_event = 'message' and _time < {self.since}")

    # Others: changes

    def live(self, event: str = "message") -> pa.Table:
        found = self.table.to_pyarrow_table(filters=[("_event", "=", event)])
        return found.filter(pa.compute.greater(found["_time"], self.since)) if event == "message" else found

    def delete(self) -> None:
        rows = self.live()
        value = self.draw.choice(rows["v"].to_pylist())
        self.table.delete(f"_event = 'message' and _time > {self.since} and v = {value}")

    def insert(self) -> None:
        write_deltalake(self.path, self.live().slice(0, 1), mode="append")

    def update(self) -> None:
        value = self.draw.choice(self.live()["v"].to_pylist())
        self.table.update({"v": "v + 1"}, predicate=f"_event = 'message' and _time > {self.since} and v = {value}")

    def lose_progress(self) -> None:
        newest = {name: self.times(self.opened(), name) for name in STREAMS}
        name = self.draw.choice(list(newest))
        state = self.opened().core.stream(name)
        assert state is not None
        self.table.delete(f"_event = 'progress' and _stream = '{name}' and _seq = {state.seq}")

    def forge_progress(self) -> None:
        name = self.draw.choice(STREAMS)
        state = self.opened().core.stream(name)
        assert state is not None
        where = f"_event = 'progress' and _stream = '{name}' and _seq = {state.seq} and _count > 0"
        self.table.update({"_time": "_time + 50"}, predicate=where)

    # What is there

    def check(self, log: Log) -> None:
        log.refresh()
        found: Counter[tuple[str, int, int]] = Counter()
        table = log.messages(stream=None)
        diffs = table["_diff"].to_pylist() if self.kind == "collection" else [1] * table.num_rows
        names = table["_stream"].to_pylist()
        for name, time, value, diff in zip(
            names, table["_time"].to_pylist(), table["v"].to_pylist(), diffs, strict=True
        ):
            found[name, time, value] += diff
        wanted: Counter[tuple[str, int, int]] = Counter()
        for (name, time, value), n in self.rows.items():
            if self.kind == "collection":
                wanted[name, max(time, self.since), value] += n
            elif time >= self.since:
                wanted[name, time, value] += n
        assert found == wanted

    def remember(self) -> None:
        self.past[self.table.version()] = self.rows.copy(), self.since

    def do(self, what: str) -> None:
        self.story.append(what)
        getattr(self, what)()
        self.remember()


OURS = ("append", "append", "append", "append", "forget", "compact", "retain")
MAINTENANCE = (
    "optimize",
    "optimize",
    "order",
    "checkpoint",
    "clean",
    "properties",
    "column",
    "vacuum",
    "delete_and_restore",
    "old_rows",
)
CHANGES = ("delete", "insert", "update", "lose_progress", "forge_progress")


def run(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    hands = Hands(draw, str(folder / str(seed)))
    try:
        history(hands)
    except (AssertionError, TimelyError) as error:
        msg = f"seed={seed} after {hands.story}: {error}"
        raise AssertionError(msg) from error
    finally:
        shutil.rmtree(hands.path)


def history(hands: Hands) -> None:
    draw = hands.draw
    harmful = draw.random() < 0.5
    n_steps = draw.randrange(10, 25)
    for step in range(n_steps):
        hands.do(draw.choice(OURS if step < 5 or draw.random() < 0.6 else MAINTENANCE))
        if draw.random() < 0.2:
            hands.check(draw.choice(hands.handles))
    for handle in (*hands.handles, hands.opened()):
        hands.check(handle)
    if not harmful or not hands.live().num_rows:
        return
    before = hands.table.version()
    what = draw.choice(CHANGES)
    hands.story.append(what)
    getattr(hands, what)()
    changed = hands.table.version()
    assert changed > before
    for _ in range(draw.randrange(4)):
        go_on(hands, draw.choice(("append", "append", "optimize", "checkpoint", "properties")))
    asks: list[Callable[[], object]] = [lambda log=log: (log.refresh(), log.messages()) for log in hands.handles]
    asks += [lambda: hands.opened().messages(), lambda: hands.opened().frontier()]
    for ask in asks:
        with pytest.raises(ForeignChangeError) as found:
            ask()
        assert found.value.context["changed_at"] == [changed], found.value
    whole = int(str(found.value.hint).partition("version=")[2].partition(",")[0])
    assert whole == before, found.value
    hands.table.restore(whole)
    hands.rows, hands.since = hands.past[whole]
    hands.story.append("restore")
    for name in STREAMS:
        log = hands.opened()
        log.writer(name, owner="me").advance(hands.times(log, name) + 1)
    hands.check(hands.opened())
    # Of a log that has not forgotten yet, what others deleted of what it may forget is missed by who counts all.
    assert not hands.opened().verify().problems or "old_rows" in hands.story


def go_on(hands: Hands, what: str) -> None:
    """Write and maintain behind a change: of the stream whose progress it is nothing is written."""
    hands.story.append(what)
    with suppress(ForeignChangeError) if what == "append" else nullcontext():
        getattr(hands, what)()


@pytest.mark.parametrize("first", range(0, N_HISTORIES, PART))
def test_histories_of_four_writers(tmp_path: Path, first: int) -> None:
    for seed in range(first, min(first + PART, N_HISTORIES)):
        run(tmp_path, seed)
