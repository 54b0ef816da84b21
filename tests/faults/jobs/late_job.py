"""Clients that are killed while their jobs write, and who copies, captures or steps again at once.

Run as ``python late_job.py SPEC.json``. Keys of the specification:

``place``
    What is written: a key of `ACTS`.
``folder``
    Where everything goes.
``url``
    Of a Connect server; null for classic sessions.
``web``
    Where that server's jobs are asked for.
``kills``
    How many clients are killed one after another, and judged.

What was found is printed, one line of JSON for each kill.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import spark_timely as st
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import TimelyError
from spark_timely.spark.capture.foreach_batch import capture
from spark_timely.spark.dataflows.tasks import SparkTasks, catalog_of
from spark_timely.spark.instance.instance import ComputeInstance
from tests.faults.harness import alive, descendants, wait_until

N_COPIED, N_OTHERS = 300_000, 100_000
"""How many rows are copied, and how many come to each other place: a task is at work for some time after its first."""
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
UPPER = 2
Act = Callable[[SparkSession, Path, Path], object]


def append(log: Any, n: int, time_: int, updates: list[tuple[int, int, int, int]], upper: int) -> None:
    """Append ranges of n rows (first, step, v, diff) at a time."""
    parts = [(np.arange(first, n, step), v, diff) for first, step, v, diff in updates]
    columns = {
        "_time": np.full(sum(len(k) for k, *_ in parts), time_),
        "_diff": np.concatenate([np.full(len(k), diff) for k, _, diff in parts]),
        "k": np.concatenate([k for k, *_ in parts]),
        "v": np.concatenate([np.full(len(k), v) for k, v, _ in parts]),
    }
    log.writer(owner="tests").append(pa.table(columns), advance_to=upper)


def inputs(path: Path, n: int) -> None:
    """Make a log of all keys with v=0, of which each second one gets v=1 at time 1."""
    log = st.create_log(path, SCHEMA, minimum=(0,), kind="collection")
    append(log, n, 0, [(0, 1, 0, 1)], 1)


def move(path: Path, n: int) -> None:
    append(st.open_log(path), n, 1, [(0, 2, 0, -1), (0, 2, 1, 1)], UPPER)


# What is done -----------------------------------------------------------------------------------------


def copied(format_: Any) -> Act:
    return lambda spark, log, target: st.copy_to(spark, log, target, format=format_)


def captured(spark: SparkSession, log: Path, target: Path) -> object:
    rows = spark.read.format("timely").load(str(log)).selectExpr("1L AS t", "k", "v")
    return capture(rows, 0, path=str(target), app_id="late", time_column="t", frontier="bounded", lateness=0)  # type: ignore[arg-type]


def mirrored(spark: SparkSession, log: Path, target: Path) -> object:
    return st.mirror_to(spark, log, target, key="k").step().how


def flowed(spark: SparkSession, log: Path, target: Path) -> object:
    scope = Scope("flow")
    scope.replay(st.open_log(log)).filter("k >= 0").capture(str(target))
    engine = Engine(
        scope.name, scope.sinks, scope.storage, files_of=catalog_of, workers=8, shuffle_bytes=1 << 40
    )  # fmt: skip
    tasks = SparkTasks(spark, scope.storage, max_bytes_in_driver=0)
    engine.run_tasks = tasks
    engine.begin()
    while engine.step() is not None:
        pass
    return None


def tasked(spark: SparkSession, log: Path, target: Path) -> object:
    with ComputeInstance(spark, str(target.with_name(f"{target.name}-instance"))) as instance:
        if not instance.has("out"):
            instance.continual_task("out", "SELECT k, v FROM i", inputs={"i": str(log)}, into=target)
        instance.await_frontier("out", UPPER - 1, timeout_s=240)
    return None


ACTS: dict[str, Act] = {
    "parquet": copied("parquet"), "csv": copied("csv"), "capture": captured, "created": mirrored, "merged": mirrored,
    "arrow": flowed, "task": tasked,
}  # fmt: skip
COPIES = {"parquet", "csv"}
DELETED = {*COPIES, "created", "merged"}
"""Of which the folder is deleted before it is tried again: what a log's attempt has left is let be."""


# What is there ----------------------------------------------------------------------------------------


def rows_of(place: str, target: Path) -> tuple[int, int]:
    """Return how many rows are there, and the sum of v."""
    if place == "parquet":
        table = pa.concat_tables([SCHEMA.empty_table(), *map(pq.read_table, sorted(target.glob("*.parquet")))])
    elif place == "csv":
        values = [int(row["v"]) for file in target.glob("*.csv") for row in csv.DictReader(file.open())]
        return len(values), sum(values)
    elif place in ("created", "merged"):
        table = DeltaTable(str(target)).to_pyarrow_table()
    else:
        log = st.open_log(target)
        assert log.verify().legal, log.verify().problems
        table = log.messages()
        signs = table["_diff"].to_numpy() if log.kind == "collection" else np.ones(table.num_rows, np.int64)
        return int(signs.sum()), int((table["v"].to_numpy() * signs).sum())
    return table.num_rows, int(np.sum(table["v"].to_numpy()))


def rows_files(target: Path) -> set[Path]:
    """Return the files of rows, whole or not: a log has others from its creation on."""
    found = {*target.rglob("part-*"), *target.rglob("*.parquet")}
    return {path for path in found if "_event=" not in str(path) or "_event=message" in str(path)}


def outside(target: Path) -> set[str]:
    """Return the files of a folder, but for those below the folder of an attempt."""
    found = (path.relative_to(target) for path in target.rglob("*") if path.is_file())
    return {str(path) for path in found if not path.parts[0].startswith("_attempt-")}


def remove(target: Path) -> None:
    def gone() -> bool:
        shutil.rmtree(target, ignore_errors=True)
        return not target.exists()

    wait_until(gone, deadline_s=60, what=f"the end of {target}", step_s=0)


# Client and judge -------------------------------------------------------------------------------------


def session(url: str | None, folder: Path) -> SparkSession:
    if url is not None:
        spark: SparkSession = SparkSession.builder.remote(url).getOrCreate()
        st.register(spark)
        return spark
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.local.dir": str(folder / "l")}
    return st.session("late", master="local[2]", **settings)


def running(web: str) -> bool:
    (application,) = json.loads(urlopen(web).read())
    return bool(json.loads(urlopen(f"{web}/{application['id']}/jobs?status=running").read()))


def client(place: str, url: str | None, folder: Path, log: Path, target: Path) -> None:
    """Do it, to be killed on the way."""
    out = os.open(target.with_suffix(".txt"), os.O_CREAT | os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    ACTS[place](session(url, folder), log, target)


class Judge:
    """Kills clients and looks at what is there.

    Clients are forked by a process that has imported everything, and has neither threads nor a session.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.place, self.folder, self.spec = str(spec["place"]), Path(spec["folder"]), spec
        self.log = self.folder / "log"
        self.clients = multiprocessing.get_context("forkserver")
        self.clients.set_forkserver_preload(["__main__"])
        self.spark = session(spec["url"], self.folder)
        self.rng = random.Random(spec["seed"])
        self.n = n = N_COPIED if self.place in COPIES else N_OTHERS
        half = (n + 1) // 2
        wanted = {"created": (n, 0), "capture": (n + 2 * half, half)}  # a capture takes retractions as rows
        wanted["task"] = n + half, half  # a task takes what is inserted
        self.wanted = wanted.get(self.place, (n, half))

    def kill_one(self, number: int) -> dict[str, Any]:
        log, target = self.log, self.folder / f"out-{number}"
        if self.place == "merged" or not log.exists():  # what was merged is not merged again
            shutil.rmtree(log, ignore_errors=True)
            inputs(log, self.n)
            if self.place == "merged":
                mirrored(self.spark, log, target)
            if self.place != "created":
                move(log, self.n)
        before = rows_files(target)
        killed = self.clients.Process(target=client, args=(self.place, self.spec["url"], self.folder, log, target))
        killed.start()
        assert killed.pid is not None
        begun = lambda: bool(rows_files(target) - before)  # noqa: E731
        wait_until(lambda: begun() or not killed.is_alive(), deadline_s=240, what="a file", step_s=0.005)
        time.sleep(self.rng.uniform(0.0, 0.4 if self.place in COPIES else 0.1))
        below = descendants(killed.pid)
        late = (lambda: running(self.spec["web"])) if self.spec["web"] else (lambda: any(map(alive, below)))
        killed.kill()
        killed.join()
        found: dict[str, Any] = {"late": late()}
        if self.place in DELETED:
            remove(target)
        found["at once"] = self.act(log, target)
        if found["at once"] == "whole":
            names = outside(target)
        wait_until(lambda: not late(), deadline_s=300, what="the end of the late job", step_s=0.05)
        if found["at once"] == "whole" and self.place not in ("created", "merged"):
            new = outside(target) - names
            # Of a log's dead attempt there may be files that nobody knows; of a copy there is nothing.
            found["new"] = sorted(new) if self.place in DELETED else []
            found["after"] = self.judged(target)
        else:
            found["after"] = self.again(log, target, found)
        if found["after"] == "whole":
            for path in (target, target.with_name(f"{target.name}-instance")):
                shutil.rmtree(path, ignore_errors=True)
        return found

    def act(self, log: Path, target: Path) -> str:
        """Do it once more, and return what became of it."""
        try:
            ACTS[self.place](self.spark, log, target)
        except TimelyError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - of Spark; the line is printed
            return f"{type(error).__name__}: {str(error)[:500]}"
        return self.judged(target)

    def judged(self, target: Path) -> str:
        try:
            found = rows_of(self.place, target)
        except Exception as error:  # noqa: BLE001 - a table that cannot be read
            return f"{type(error).__name__}: {str(error)[:300]}"
        signs = [path.name for path in target.iterdir() if path.name == "INCOMPLETE"]
        return "whole" if found == self.wanted and not signs else f"{found} of {self.wanted}, {signs}"

    def again(self, log: Path, target: Path, found: dict[str, Any]) -> str:
        """After the late job: what was refused is made again; a mirror makes its next step, or is made again."""
        done = self.act(log, target)
        if done != "whole":
            found["then"] = done
            remove(target)
            done = self.act(log, target)
        return done


def main() -> None:
    """Kill and judge."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    judge = Judge(spec)
    for number in range(spec["kills"]):
        sys.stdout.write(f"\nFOUND {json.dumps(judge.kill_one(number))}\n")
        sys.stdout.flush()
    os._exit(0)  # Connect would ask its server once more


if __name__ == "__main__":
    main()
