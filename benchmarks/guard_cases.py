"""What it costs to know what other programs changed: commits, opening, and looks."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

import spark_timely as st
from spark_timely.canonical.content import digest_of_messages, is_worth_it
from spark_timely.conf.options import SOURCE_OPTIONS, parse_options
from spark_timely.datasource.planner import ReplayPlanner, layout_of
from spark_timely.datasource.reader import read_split
from spark_timely.log.machine.judge import Judgement
from spark_timely.log.machine.state import DataFile
from spark_timely.log.store.guard import NOTHING_OPEN

from .report import Case, alternate, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_timely.log import Log

SCHEMA = pa.schema([("value", pa.int64())])
APPENDS, APPEND_ROUNDS = 50, 15
FILES, OPENS = 100_000, 7
MERGES, MERGED, POLLS = 100, 10, 9
DIGEST_APPENDS, DIGEST_WARM = 120, 20
# Rows and columns, at the bounds of what has a digest by itself.
DIGESTS = {
    "append_1_with_digest_vs_without": (1, 5),
    "append_8k_with_digest_vs_without": (8_000, 5),
    "append_24k_with_digest_vs_without": (24_000, 1),
}
COMMITS, COMMIT_ROWS, DELIVERIES = 100, 30_000, 9
APPEND, OPEN, POLL, DELIVER = (
    "append_with_guard_vs_without",
    "open_100k_files_with_guard_vs_without",
    "poll_100_foreign_vs_100_own_merges",
    "first_delivery_optimized_vs_read",
)


class Unguarded:
    """Stands in for a guard, and looks at nothing."""

    def follow(self, *_: object) -> None:
        """Take notice of nothing."""

    def look(self, *_: object) -> Judgement:
        """Return that nothing is open."""
        return NOTHING_OPEN

    def look_into(self, *_: object) -> None:
        """Look into nothing."""

    def judged(self, *_: object) -> tuple[None, tuple[()]]:
        """Return that nothing was judged."""
        return None, ()

    def forget(self) -> None:
        """Forget nothing."""


def unguarded(log: Log) -> Log:
    """Take the guard away from a handle."""
    log.core.store._guard = Unguarded()  # type: ignore[attr-defined]
    return log


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure each beside the same without a guard, or a look; looks at foreign entries beside looks at our own."""
    made = {APPEND: _append, OPEN: _open, POLL: _poll, DELIVER: _deliver}
    made |= {name: partial(_digested, name=name) for name in DIGESTS}
    return [make(scratch) for name, make in made.items() if wanted(name)]


def _append(scratch: Path) -> Case:
    case = Case(
        APPEND,
        f"{APPENDS} commits of one row; peer: the same by handles that judge nothing and say no mark",
        1.03,
        unit="ms",
        higher_is_better=False,
    )
    logs = [st.create_log(str(scratch / f"append-{side}"), SCHEMA, minimum=(0,)) for side in ("with", "without")]
    unguarded(logs[1])
    writers = [log.writer(owner="bench") for log in logs]
    times = [itertools.count(), itertools.count()]

    def append(side: int) -> float:
        def commits() -> None:
            for _ in range(APPENDS):
                time = next(times[side])
                writers[side].append(pa.table({"_time": [time], "value": [time]}), advance_to=time + 1)

        if not side:
            return 1000 * seconds(commits) / APPENDS
        with patch("spark_timely.log.store.entries.marks", lambda *_: {}):
            return 1000 * seconds(commits) / APPENDS

    alternate(case, lambda: append(0), lambda: append(1), APPEND_ROUNDS)
    for log, count in zip(logs, times, strict=True):  # by delta-rs: entries without a mark are another program's
        found = DeltaTable(log.path).to_pyarrow_table(columns=["_seq"], filters=[("_event", "=", "message")])
        assert found.num_rows == next(count)
    return case


def _digested(scratch: Path, name: str) -> Case:
    rows, columns = DIGESTS[name]
    case = Case(
        name,
        f"commits of {rows} rows of {columns + 1} numbers that say a digest; peer: the same less the time spent on it",
        1.03,
        unit="ms",
        higher_is_better=False,
    )
    schema = pa.schema([(f"c{i}", pa.float64() if i % 3 == 2 else pa.int64()) for i in range(columns)])
    log = st.create_log(str(scratch / name), schema, minimum=(0,), merge_every=None)
    writer, draw = log.writer(owner="bench"), np.random.default_rng(7)
    values = {each.name: pa.array(draw.integers(0, 1 << 40, rows)).cast(each.type) for each in schema}
    spent = 0.0

    def timed(real: Callable[..., object]) -> Callable[..., object]:
        def run(*given: object) -> object:
            nonlocal spent
            begun = perf_counter()
            found = real(*given)
            spent += perf_counter() - begun
            return found

        return run

    # Within an append, whose work takes a core's cache from that of a digest: measured apart it would cost half.
    where = "spark_timely.log.files.parquet"
    with (
        patch(f"{where}.is_worth_it", timed(is_worth_it)),
        patch(f"{where}.digest_of_messages", timed(digest_of_messages)),
    ):
        for time in range(DIGEST_APPENDS):
            table = pa.table({"_time": np.sort(draw.integers(time, time + 100, rows)), **values})
            spent = 0.0
            took = seconds(lambda table=table, time=time: writer.append(table, advance_to=time + 1))  # type: ignore[misc]
            if time >= DIGEST_WARM:
                case.ours.append(1000 * took)
                case.peer.append(1000 * (took - spent))
    state = st.open_log(log.path).core.stream("main")
    assert state is not None
    assert state.note.content is not None
    return case


def file_of_messages(log: Log, name: str, seq: int, rows: int) -> DataFile:
    """Return what a commit says of a file of messages; it is empty, for nobody reads it."""
    stats = {
        "numRecords": rows,
        "minValues": {"_stream": "main", "_seq": seq, "_time": seq},
        "maxValues": {"_stream": "main", "_seq": seq, "_time": seq},
    }
    times = np.array([[seq]], np.int64)
    path = f"_event=message/{name}-{seq:012d}-{secrets.token_hex(8)}.parquet"
    file = Path(log.path, path)
    file.parent.mkdir(exist_ok=True)
    file.touch()
    return DataFile(path, 1000, rows, "message", json.dumps(stats), times, np.concatenate([times, times]))


def _open(scratch: Path) -> Case:
    case = Case(
        OPEN,
        f"a log of {FILES} files opened, its frontier and files; peer: the same by a handle without a guard",
        1.15,
        higher_is_better=False,
    )
    log = st.create_log(str(scratch / "files"), SCHEMA, minimum=(0,), merge_every=None)
    log.writer(owner="bench").advance(1)
    log.core.store.transact([file_of_messages(log, "main", seq, 1) for seq in range(FILES)], [])
    log.refresh()
    log.core.tidy()
    log.writer(owner="bench").advance(2)

    def opened(*, guard: bool) -> float:
        def ask() -> None:
            found = st.open_log(log.path) if guard else unguarded(st.open_log(log.path))
            assert found.frontier().to_json() == [2]
            assert len(found.core.files()) == FILES

        return seconds(ask)

    alternate(case, lambda: opened(guard=True), lambda: opened(guard=False), OPENS)
    return case


def _poll(scratch: Path) -> Case:
    case = Case(
        POLL,
        f"a look at {MERGES} entries of another program that each make one file of {MERGED}; peer: as many of ours",
        1.5,
        unit="ms",
        higher_is_better=False,
    )

    def merge(log: Log, old: Sequence[DataFile], seq: int) -> None:
        log.core.store.transact(
            [file_of_messages(log, "merged", seq, MERGED)], [], removes=old, data_change=False, exclusive=True
        )
        log.refresh()

    def polled(number: int, *, foreign: bool) -> float:
        log = st.create_log(str(scratch / f"poll-{foreign}-{number}"), SCHEMA, minimum=(0,), merge_every=None)
        groups = [
            [file_of_messages(log, "main", MERGED * group + n, 1) for n in range(MERGED)] for group in range(MERGES)
        ]
        log.core.store.transact(list(itertools.chain(*groups)), [])
        log.refresh()
        reader = st.open_log(log.path)
        assert len(reader.core.files()) == MERGES * MERGED
        for group, old in enumerate(groups):
            if foreign:
                with patch("spark_timely.log.store.entries.marks", lambda *_: {}):
                    merge(log, old, MERGED * group)
            else:
                merge(log, old, MERGED * group)

        def look() -> None:
            reader.refresh()
            assert len(reader.core.files()) == MERGES

        return 1000 * seconds(look)

    numbers = itertools.count()
    alternate(
        case,
        lambda: polled(next(numbers), foreign=True),
        lambda: polled(next(numbers), foreign=False),
        POLLS,
    )
    return case


def _orders(commit: int, draw: np.random.Generator) -> pa.Table:
    times = np.sort(draw.integers(100 * commit, 100 * (commit + 1), COMMIT_ROWS))
    customers = pa.array([f"customer {each}" for each in draw.integers(0, 50_000, COMMIT_ROWS).tolist()])
    notes = pa.array([f"order {each} left for {each % 97}" for each in draw.integers(0, 1 << 40, COMMIT_ROWS).tolist()])
    return pa.table(
        {
            "_time": times,
            "id": np.arange(COMMIT_ROWS) + commit * COMMIT_ROWS,
            "customer": customers,
            "amount": draw.normal(size=COMMIT_ROWS),
            "at": pa.array(1_000_000 * times, pa.timestamp("us", "UTC")),
            "note": notes,
        }
    )


def _deliver(scratch: Path) -> Case:
    rows = COMMITS * COMMIT_ROWS
    case = Case(
        DELIVER,
        f"{rows} rows of {COMMITS} commits in files that another program optimized, planned and read as a source does"
        " by a fresh handle; peer: the same by one that looks into no file",
        1.1,
        higher_is_better=False,
    )
    draw = np.random.default_rng(7)
    tables = (_orders(commit, draw) for commit in range(COMMITS))
    first = next(tables)
    log = st.create_log(
        str(scratch / "optimized"), first.drop_columns(["_time"]).schema, minimum=(0,), merge_every=None
    )
    writer = log.writer(owner="bench")
    for commit, table in enumerate(itertools.chain([first], tables)):
        writer.append(table, advance_to=100 * (commit + 1))
    DeltaTable(log.path).optimize.compact()
    options = parse_options(SOURCE_OPTIONS, {"path": log.path})

    def delivered(*, looks: bool) -> float:
        reader = st.open_log(log.path)
        assert reader.frontier().to_json() == [100 * COMMITS]
        layout = layout_of(reader, options)

        def read() -> None:
            looked = patch.object(reader.core.store, "look_into", lambda *_: None)
            with contextlib.nullcontext() if looks else looked:
                splits = ReplayPlanner(reader, options, layout).plan_batch()
            found = [
                batch["id"] for split in splits for batch in read_split(split, layout, storage=reader.core.storage)
            ]
            assert sum(map(len, found)) == rows
            ids = pa.chunked_array(found)
            assert pc.sum(ids).as_py() == rows * (rows - 1) // 2

        return seconds(read)

    alternate(case, lambda: delivered(looks=True), lambda: delivered(looks=False), DELIVERIES)
    return case
