"""Peeks for one key of a log that is sorted by it, beside the best engine on the same file; and with later files."""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import spark_timely as st
from spark_timely.answers.file_cache import forget_files
from spark_timely.answers.peek import PeekExplanation, peek
from spark_timely.dataflow.engine.arrangements import Arrangements, Indexing
from spark_timely.dataflow.remembered import Look
from spark_timely.dataflow.views import Replay
from spark_timely.spark.dataflows.tasks import catalog_of, run_one

from .report import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from spark_timely.log import Log

NAMES = ("peek_log_vs_best_engine", "peek_index_vs_best_engine", "peek_log_100_later_files")
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("name", pa.string())])
ROUNDS, PEEKS, LATER, LATER_ROWS = 7, 60, 100, 100
# As much of the log is appended at once; compaction then puts it in the order of its key.
PARTS = 4


def run(scratch: Path, wanted: Callable[[str], bool], n_rows: int) -> list[Case]:
    """Measure single keys, drawn again for each round, ours and the engines' in turn."""
    if not any(map(wanted, NAMES)):
        return []
    measures = _Peeks(scratch, n_rows)
    cases = []
    if any(map(wanted, NAMES[:2])):
        cases += measures.beside_engines()
    if wanted(NAMES[2]):
        cases.append(measures.later_files())
    return [case for case in cases if wanted(case.name)]


class _Peeks:
    def __init__(self, scratch: Path, n_rows: int) -> None:
        self.scratch, self.n = scratch, n_rows
        self.rng = np.random.default_rng(7)
        self.path = str(scratch / "answers" / "log")
        self.log = self._made()

    def _made(self) -> Log:
        """Return a log with each key once, in one file in the order of the keys."""
        log = st.create_log(self.path, SCHEMA, kind="collection", minimum=(0,), key="k", flush=False, merge_every=None)
        keys = self.rng.permutation(self.n).astype(np.int64)
        writer = log.writer(owner="bench")
        for part in np.array_split(keys, PARTS):
            ones = pa.array(np.ones(len(part), np.int64))
            writer.append(_rows(part).append_column("_time", ones).append_column("_diff", ones))
        writer.advance([2])
        log.compact(target_file_size=1 << 34)
        if len(log.core.files()) != 1:
            msg = f"expected one file, found {len(log.core.files())}"
            raise AssertionError(msg)
        return log

    def _index(self) -> Log:
        """Return a copy of the log that has an index by its key."""
        path = str(self.scratch / "answers" / "indexed")
        shutil.copytree(self.path, path)
        log = st.open_log(path)
        look = Look(log.path, ("k",), tuple(SCHEMA.names))
        leaf = Replay("log", log.domain, log.schema, (), log.path, log.kind)
        made = Arrangements({log.path: log}, {log.path: catalog_of(log)}, Indexing(0, 0, 0, background=False))
        made.before(
            look, leaf, log.domain.minimum_frontier, log.frontier(),
            lambda plans, tasks: [run_one(task, plans[0], {log.path: {}}) for task in tasks],
        )  # fmt: skip
        return log

    def _later(self, n_files: int) -> Log:
        """Return a copy of the log with some small files behind it."""
        path = str(self.scratch / "answers" / f"later-{n_files}")
        shutil.copytree(self.path, path)
        log = st.open_log(path, merge_every=None, flush=False)
        writer = log.writer(owner="bench")
        for number in range(n_files):
            rows = _rows(self.n + number * LATER_ROWS + np.arange(LATER_ROWS, dtype=np.int64))
            times = pa.array(np.full(LATER_ROWS, 2 + number, np.int64))
            diffs = pa.array(np.ones(LATER_ROWS, np.int64))
            writer.append(rows.append_column("_time", times).append_column("_diff", diffs), advance_to=[3 + number])
        return log

    def _engines(self) -> Iterator[tuple[str, Callable[[int], pa.Table]]]:
        """Give what answers one key from the log's file, ready and warm; each with its footers kept."""
        import datafusion
        import duckdb

        file = f"{self.path}/{self.log.core.files().paths[0]}"
        ducks = duckdb.connect()
        ducks.execute("SET threads = 2")
        ducks.execute("SET parquet_metadata_cache = true")
        query = "SELECT k, v, name, _diff FROM '{}' WHERE k = {} AND _time <= 1"
        yield "duckdb", lambda key: ducks.sql(query.format(file, key)).to_arrow_table()
        context = datafusion.SessionContext()
        context.register_parquet("log", file)
        yield "datafusion", lambda key: context.sql(query.replace("'{}'", "log").format(key)).to_arrow_table()

    def beside_engines(self) -> list[Case]:
        """Measure a peek by the log, one by an index, and the faster of the engines."""
        engines = dict(self._engines())
        indexed = self._index()
        ways = {"log": self._peek(self.log, "log"), "index": self._peek(indexed, "index"), **engines}
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            keys = self.rng.integers(0, self.n, PEEKS).tolist()
            for name, ask in ways.items():
                took[name].append(_median_s(ask, keys))
        best = min(engines, key=lambda name: statistics.median(took[name]))
        what = f"one key of {self.n:,} rows, {{}}, results as Arrow; peer: {best} on the same file"
        settings = {name: round(statistics.median(times), 6) for name, times in took.items()}
        return [
            Case(NAMES[0], what.format("from a file in its order"), 1.0, higher_is_better=False,
                 ours=took["log"], peer=took[best], settings=settings),
            Case(NAMES[1], what.format("from an index"), 0.1, higher_is_better=False,
                 ours=took["index"], peer=took[best], settings=settings),
        ]  # fmt: skip

    def later_files(self) -> Case:
        """Measure a peek with many small files behind the large one, and with one."""
        forget_files()
        many, one = (self._peek(self._later(n), "log") for n in (LATER, 1))
        case = Case(
            NAMES[2],
            f"one key of {self.n:,} rows with {LATER} files of {LATER_ROWS} rows behind them; peer: with one such file",
            3.0,
            higher_is_better=False,
        )
        for _ in range(ROUNDS):
            keys = self.rng.integers(0, self.n, PEEKS).tolist()
            case.ours.append(_median_s(many, keys))
            case.peer.append(_median_s(one, keys))
        return case

    def _peek(self, log: Log, way: str) -> Callable[[int], pa.Table]:
        explained: list[PeekExplanation] = []
        (row,) = peek(log, keys={"k": [3]}, explain=explained.append).to_pylist()
        if row != {"k": 3, "v": 3 * 7919, "name": "name-3", "_diff": 1} or explained[0].way != way:
            msg = f"expected the row of key 3 by the {way}, found {row} by {explained[0]}"
            raise AssertionError(msg)
        return lambda key: peek(log, keys={"k": [key]})


def _rows(keys: np.ndarray) -> pa.Table:
    names = pa.array([f"name-{number}" for number in range(1000)]).take(pa.array(keys % 1000))
    return pa.table({"k": keys, "v": keys * 7919, "name": names})


def _median_s(ask: Callable[[int], pa.Table], keys: list[int]) -> float:
    """Return the median seconds of one question, after some that are not counted."""
    for key in itertools.islice(keys, 3):
        ask(key)
    took = []
    for key in keys:
        start = time.perf_counter()
        rows = ask(key)
        took.append(time.perf_counter() - start)
        if rows.num_rows != 1:
            msg = f"expected one row of key {key}, found {rows.num_rows}"
            raise AssertionError(msg)
    return statistics.median(took)
