"""Real executors, which are killed, fail and are raced: the logs are as if nothing had happened.

A standalone master with two workers, and ``local-cluster``. One application captures, replays the capture through the
sink and replays it in foreachBatch. On the way an executor is killed while a task of it has written or read, a task
fails after it has written, and speculative attempts end together with those that they were to overtake. What attempts
in vain have written lies about and is no part of any log.

``SPARK_TIMELY_LONG=1`` runs more micro-batches and kills executors at random moments too. The seed is printed;
``SPARK_TIMELY_SEED`` repeats a run's choices.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import spark_timely
from tests.faults.cluster import Cluster, executors_below
from tests.faults.harness import END_DEADLINE_S, STARTED, Job, long_lane, seed_of_run, tell, wait_until
from tests.oracles.canonical_model import digest
from tests.oracles.capture_model import CaptureModel

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(3600)]

LATENESS = 4
CAPTURE = {"timeColumn": "t", "frontier": "bounded", "lateness": str(LATENESS), "lateData": "deadLetter"}
# What a replay is captured again with: as complete as its source, or by the greatest time.
HANDED_ON = {"timeColumn": "t", "frontier": "source", "lateData": "error"}
ORDERED = {"timeColumn": "t", "frontier": "bounded", "lateness": "0", "lateData": "error"}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "1s",
}


@dataclass(frozen=True)
class Blow:
    """What happens to the first task 0 from a micro-batch on; see `jobs/executor_job.py`."""

    where: str
    how: str
    batch: int


def make_files(folder: Path, n_files: int, rng: random.Random) -> list[list[tuple[int, int]]]:
    """Write one Parquet file per micro-batch: (t, id) rows, some of them late whatever the cut."""
    folder.mkdir(parents=True)
    batches, number = [], 0
    for index in range(n_files):
        rows = []
        for _ in range(rng.choice([24, 40])):
            rows.append((2 * index - rng.choice([0, 0, 1, 2, 3, 4, 12]), number))
            number += 1
        table = pa.table({"t": [t for t, _ in rows], "id": [i for _, i in rows]})
        file = folder / f"part-{index:05d}.parquet"
        pq.write_table(table, file)
        os.utime(file, (1_700_000_000 + index, 1_700_000_000 + index))  # Spark takes them in this order
        batches.append(rows)
    return batches


def capture(batches: list[list[tuple[int, int]]]) -> CaptureModel:
    """Return what the capture must hold, by the oracle."""
    model = CaptureModel(minimum=-(2**63), policy="bounded", late_data="deadLetter", lateness=LATENESS)
    for rows in batches:
        model.batch([(t, (("t", t), ("id", i))) for t, i in rows])
    return model


class Run:
    """One application: its queries, and the blows that fall."""

    def __init__(self, folder: Path, master: str, conf: dict[str, str]) -> None:
        self.folder, self.master, self.conf = folder, master, conf
        self.queries: list[dict[str, Any]] = []
        self.n_alone = 0

    def add(self, name: str, source: dict[str, Any], through: str, options: dict[str, str], blows: list[Blow]) -> Path:
        """Add a query; return where its log will be."""
        marked = [{**vars(blow), "marker": str(self.folder / f"{name}-{n}")} for n, blow in enumerate(blows)]
        log, checkpoint = self.folder / name, self.folder / f"{name}-checkpoint"
        self.queries.append(
            {
                "source": source,
                "through": through,
                "log": str(log),
                "checkpoint": str(checkpoint),
                "options": options,
                "blows": marked,
            }
        )
        return log

    def add_task(self, name: str, task: dict[str, Any], blows: list[Blow]) -> Path:
        """Add a continual task; return where its log will be."""
        log = self.add(name, {}, "", {}, blows)
        self.queries[-1]["task"] = task
        return log

    def go(self, executors: Callable[[Job], list[int]], rng: random.Random) -> None:
        """Run the application, and kill the executors that wait for it; in the long lane others too."""
        spec = {"master": self.master, "conf": self.conf, "queries": self.queries}
        job = Job("executor_job.py", spec, self.folder / "runs", STARTED)
        try:
            blows = [blow for query in self.queries for blow in query["blows"]]
            markers = [Path(blow["marker"]) for blow in blows]
            for number, blow in enumerate(blows):
                self._reach(job, markers[number], executors, rng)
                if blow["how"] == "kill":
                    struck = json.loads(markers[number].read_text())["executor"]
                    running = executors(job)
                    assert struck in running, f"{struck} is none of {running}"
                    os.kill(struck, signal.SIGKILL)
                    tell(f"killed executor {struck} at {blow['where']}")
                if blow["how"] == "race":
                    self._reach(job, Path(f"{markers[number]}.second"), executors, rng, past=markers[number + 1 :])
            job.finish()
        finally:
            job.kill()

    def _reach(
        self,
        job: Job,
        marker: Path,
        executors: Callable[[Job], list[int]],
        rng: random.Random,
        *,
        past: Sequence[Path] | None = None,
    ) -> None:
        """Wait for a marker; if `past` is given, only until the job has ended or is past the place, at one of those."""

        def reached() -> bool:
            if marker.exists():
                return True
            if past is not None and (job.ended() or any(later.exists() for later in past)):
                # On a busy machine Spark may find no room for a second attempt: the answer is checked all the same.
                self.n_alone += not marker.exists()
                return True
            assert not job.ended(), f"ended before {marker.name}:\n{job.text()}"
            if long_lane() and rng.random() < 0.0005 and (running := executors(job)):
                os.kill(rng.choice(running), signal.SIGKILL)
                tell("killed an executor at random")
            return False

        wait_until(reached, deadline_s=END_DEADLINE_S, what=marker.name, report=job.text)


def check(path: Path, wanted: list[tuple[int, tuple[tuple[str, object], ...]]], frontier: int | None) -> set[str]:
    """Compare a log with its messages and its frontier; return the data files that are no part of it."""
    log = spark_timely.open_log(str(path))
    report = log.verify()
    assert report.legal, report.problems
    assert frontier is not None
    assert Counter((row["t"], row["id"]) for row in log.messages().to_pylist()) == Counter(
        (dict(row)["t"], dict(row)["id"]) for _, row in wanted
    )
    assert report.canonical_hash == digest([((time,), dict(row)) for time, row in wanted], [(frontier,)])
    found = {str(file.relative_to(path)) for file in path.rglob("*.parquet") if "_delta_log" not in file.parts}
    stray = found - log.core.live_paths(found)
    # Whoever wants them gone finds them so; nobody else ever looks at them.
    vacuum = DeltaTable(str(path)).vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True)
    assert {file for file in vacuum if not file.startswith("_delta_log")} >= stray
    return stray


def replays(run: Run, source: Path, *, race: bool) -> list[Path]:
    """Add the replays of a log, through the sink and in foreachBatch, each with blows of its own."""
    found = []
    for through, options in (("sink", HANDED_ON), ("foreachBatch", ORDERED)):
        blows = [Blow("read", "kill", 0)]
        if race and (long_lane() or through == "foreachBatch"):
            blows.append(Blow("read", "race", 1))
        if long_lane():
            blows += [Blow("read", "fail", 2), Blow("read", "kill", 3)]
        elif not race and through == "sink":
            continue
        limits = {"maxTimesPerTrigger": "4", "workers": "2"}
        found.append(run.add(f"replayed-{through}", {"log": str(source), "options": limits}, through, options, blows))
    return found


N_TASK_TIMES = 4
TASK_KEYS = "abcdef"
TASK_BODY = "SELECT i.k, struck(i.n * r.n) AS n FROM i JOIN r USING (k)"


def write_task_logs(folder: Path) -> dict[str, Any]:
    """Write an input with each key at each time, and a reference whose keys come and change; return the task."""
    columns = pa.schema([("k", pa.string()), ("n", pa.int64())])
    writers = {
        name: spark_timely.create_log(folder / name, columns, minimum=(0,), kind=kind).writer(owner="test")
        for name, kind in (("inserts", "stream"), ("reference", "collection"))
    }
    for time in range(N_TASK_TIMES):
        rows = {"_time": [time] * len(TASK_KEYS), "k": list(TASK_KEYS), "n": [10 * time + n for n in range(6)]}
        writers["inserts"].append(pa.table(rows), advance_to=time + 1)
        # At each time one key more, and another number for all that are there.
        updates = [(TASK_KEYS[n], time + n, -1) for n in range(time)] if time else []
        updates += [(TASK_KEYS[n], time + n + 1, 1) for n in range(time + 1)]
        k, n, diffs = zip(*updates, strict=True)
        change = {"_time": [time] * len(k), "_diff": list(diffs), "k": list(k), "n": list(n)}
        writers["reference"].append(pa.table(change), advance_to=time + 1)
    return {"input": str(folder / "inserts"), "reference": str(folder / "reference"), "body": TASK_BODY}


def check_task(path: Path) -> None:
    """Compare what the task wrote with what a loop over times, keys and the reference's numbers gives."""
    wanted = Counter(
        (time, TASK_KEYS[n], (10 * time + n) * (time + n + 1)) for time in range(N_TASK_TIMES) for n in range(time + 1)
    )
    log = spark_timely.open_log(str(path))
    assert log.verify().legal
    assert Counter((row["_time"], row["k"], row["n"]) for row in log.messages().to_pylist()) == wanted
    assert log.frontier().to_json() == [N_TASK_TIMES]


def play(folder: Path, master: str, executors: Callable[[Job], list[int]], *, race: bool) -> None:
    """Capture, replay, and compare."""
    seed = seed_of_run()
    tell(f"seed {seed}")
    rng = random.Random(seed)
    blows = [Blow("write", "kill", 1)]
    if race:
        blows += [Blow("write", "fail", 2), Blow("write", "race", 3)]
    if long_lane():
        last = blows[-1].batch
        blows += [Blow("write", how, last + n) for n, how in enumerate(["kill", "fail", "kill", "kill"], 1)]
    n_files = blows[-1].batch + 3
    model = capture(make_files(folder / "in", n_files, rng))
    run = Run(folder, master, SPECULATION if race else {})
    captured = run.add("captured", {"files": str(folder / "in")}, "sink", CAPTURE, blows)
    copies = replays(run, captured, race=race)
    task = write_task_logs(folder)
    # Whole, and with an executor killed that has joined its rows: the two give the same.
    joined = run.add_task("joined", task, [])
    struck = run.add_task("struck", task, [Blow("body", "kill", 0)])
    run.go(executors, rng)
    for path in (joined, struck):
        check_task(path)
    stray = check(captured, model.messages, model.frontier)
    assert len(stray) >= len(blows) - run.n_alone, f"seed {seed}: an attempt in vain has left its files, found {stray}"
    assert spark_timely.open_log(str(captured)).dead().num_rows == len(model.dead)
    assert model.frontier is not None
    closed = [(time, row) for time, row in model.messages if time < model.frontier]
    for copy in copies:
        handed_on = copy.name.endswith("sink")
        check(copy, closed, model.frontier if handed_on else max(time for time, _ in closed))


def test_two_workers_of_a_master_lose_and_double_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        play(tmp_path, cluster.url, lambda _: cluster.executors(), race=True)


@pytest.mark.long
def test_local_cluster_loses_and_doubles_nothing(tmp_path: Path) -> None:
    play(tmp_path, "local-cluster[2,1,1024]", lambda job: executors_below(job.group), race=False)
