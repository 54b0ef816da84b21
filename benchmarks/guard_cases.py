"""What it costs to know what other programs changed: commits, opening, and looks."""

from __future__ import annotations

import itertools
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import spark_timely as st
from spark_timely.log.machine.state import DataFile

from .report import Case, alternate, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_timely.log import Log

SCHEMA = pa.schema([("value", pa.int64())])
APPENDS, APPEND_ROUNDS = 50, 15
FILES, OPENS = 100_000, 7
MERGES, MERGED, POLLS = 100, 10, 9
DIGEST_APPENDS, DIGEST_ROUNDS = 20, 15
APPEND, OPEN, POLL, DIGEST, DIGEST_20K = (
    "append_with_guard_vs_without",
    "open_100k_files_with_guard_vs_without",
    "poll_100_foreign_vs_100_own_merges",
    "append_with_digest_vs_without",
    "append_20k_with_digest_vs_without",
)


class Unguarded:
    """Stands in for a guard, and looks at nothing."""

    def follow(self, *_: object) -> None:
        """Take notice of nothing."""

    def look(self, *_: object) -> tuple[()]:
        """Return that nothing was changed."""
        return ()

    def judged(self, *_: object) -> None:
        """Return that nothing was judged."""

    def forget(self) -> None:
        """Forget nothing."""


def unguarded(log: Log) -> Log:
    """Take the guard away from a handle."""
    log.store._guard = Unguarded()  # type: ignore[attr-defined]
    return log


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure each beside the same without a guard; looks at foreign entries beside looks at our own."""
    made = {APPEND: _append, OPEN: _open, POLL: _poll, DIGEST: _digest, DIGEST_20K: _digest_20k}
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
    for log, count in zip(logs, times, strict=True):
        assert st.open_log(log.path).messages().num_rows == next(count)
    return case


NUMBERS = pa.schema([("id", pa.int64()), ("price", pa.float64())])


def _digest(scratch: Path) -> Case:
    return _digested(scratch, DIGEST, 1_000, NUMBERS)


def _digest_20k(scratch: Path) -> Case:
    return _digested(scratch, DIGEST_20K, 20_000, SCHEMA)


def _digested(scratch: Path, name: str, rows: int, schema: pa.Schema) -> Case:
    case = Case(
        name,
        f"commits of {rows} rows of {len(schema) + 1} numbers by `content_digest='auto'`; peer: the same by 'off'",
        1.03,
        unit="ms",
        higher_is_better=False,
    )
    logs = [st.create_log(str(scratch / f"{name}-{side}"), schema, minimum=(0,), merge_every=None) for side in "ab"]
    writers = [
        log.writer(owner="bench", content_digest=wanted)  # type: ignore[arg-type]
        for log, wanted in zip(logs, ("auto", "off"), strict=True)
    ]
    draw = np.random.default_rng(7)
    columns = {field.name: pa.array(draw.integers(0, 1 << 40, rows)).cast(field.type) for field in schema}
    times = [itertools.count(), itertools.count()]

    def append(side: int) -> float:
        def commits() -> None:
            for _ in range(DIGEST_APPENDS):
                time = next(times[side])
                stamps = np.sort(draw.integers(time, time + 100, rows))
                writers[side].append(pa.table({"_time": stamps, **columns}), advance_to=time + 1)

        return 1000 * seconds(commits) / DIGEST_APPENDS

    alternate(case, lambda: append(0), lambda: append(1), DIGEST_ROUNDS)
    for log, said in zip(logs, (True, False), strict=True):
        state = st.open_log(log.path).stream("main")
        assert state is not None
        assert (state.note.content is not None) is said
    return case


def _file(log: Log, name: str, seq: int, rows: int) -> DataFile:
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
    log.store.transact([_file(log, "main", seq, 1) for seq in range(FILES)], [])
    log.refresh()
    log.tidy()
    log.writer(owner="bench").advance(2)

    def opened(*, guard: bool) -> float:
        def ask() -> None:
            found = st.open_log(log.path) if guard else unguarded(st.open_log(log.path))
            assert found.frontier().to_json() == [2]
            assert len(found.files()) == FILES

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
        log.store.transact([_file(log, "merged", seq, MERGED)], [], removes=old, data_change=False, exclusive=True)
        log.refresh()

    def polled(number: int, *, foreign: bool) -> float:
        log = st.create_log(str(scratch / f"poll-{foreign}-{number}"), SCHEMA, minimum=(0,), merge_every=None)
        groups = [[_file(log, "main", MERGED * group + n, 1) for n in range(MERGED)] for group in range(MERGES)]
        log.store.transact(list(itertools.chain(*groups)), [])
        log.refresh()
        reader = st.open_log(log.path)
        assert len(reader.files()) == MERGES * MERGED
        for group, old in enumerate(groups):
            if foreign:
                with patch("spark_timely.log.store.entries.marks", lambda *_: {}):
                    merge(log, old, MERGED * group)
            else:
                merge(log, old, MERGED * group)

        def look() -> None:
            reader.refresh()
            assert len(reader.files()) == MERGES

        return 1000 * seconds(look)

    numbers = itertools.count()
    alternate(
        case,
        lambda: polled(next(numbers), foreign=True),
        lambda: polled(next(numbers), foreign=False),
        POLLS,
    )
    return case
