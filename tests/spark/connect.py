"""One process with a Connect session that runs named jobs in turn: classic and Connect sessions do not mix in one.

A job is a module beside this file with a function `main(spark, folder)` that returns what was found, as JSON. Orders
and answers are files of a folder, each there at once: ``0.order.json`` asks, ``0.answer.json`` tells. The process
goes when it is told to, or when whoever started it is gone.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import spark_timely
from spark_timely.spark import session_settings
from tests.faults.harness import DeadlineError, Job, wait_until

JOB_DEADLINE_S = 600.0  # the first one's holds the start of the server too
STOP = "stop"


def connect_session() -> SparkSession:
    """Return a Connect session with a server of its own and the source registered."""
    os.environ["SPARK_TESTING"] = "1"  # a free port for the server, so that several runs do not meet on one
    os.environ["SPARK_TIMELY_STARTED_DAEMONS"] = "1"  # the first of each module as a user's: see `tests.forking`
    settings = session_settings()
    # The server starts some Python processes without the environment of executors: they take its own, and find
    # pyspark compiled too. Each has ten seconds to answer.
    paths = [settings["spark.executorEnv.PYTHONPATH"], *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    builder = SparkSession.builder.remote("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false")
    builder = builder.config("spark.scheduler.mode", "FAIR")  # instances have pools then
    builder = builder.config("spark.sql.codegen.wholeStage", "false")  # as in the fixture `spark`
    spark: SparkSession = builder.getOrCreate()
    spark_timely.register(spark)
    return spark


class ConnectJobs:
    """Runs jobs in one process, which is started by the first; another one where it ended or had to be ended.

    Parameters
    ----------
    folder : Path
        For orders, answers and all that the process writes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._job: Job | None = None
        self._n_orders = 0

    def run(self, name: str, folder: Path, *, deadline_s: float = JOB_DEADLINE_S) -> dict[str, Any]:
        """Run a job with a folder of its own; return what it found, fail with its traceback."""
        if self._job is None or self._job.ended():
            self._job = Job(str(Path(__file__)), {"folder": str(self.folder), "first": self._n_orders}, self.folder)
        job, answer_file = self._job, self.folder / f"{self._n_orders}.answer.json"
        self._order({"job": name, "folder": str(folder)})
        try:
            wait_until(
                lambda: answer_file.exists() or job.ended(),
                deadline_s=deadline_s,
                what=f"the end of job {name!r}",
                report=lambda: self._words(job),
            )
        except DeadlineError:
            job.kill()  # whatever it hangs in, the next job shall not
            raise
        assert answer_file.exists(), f"the process ended in job {name!r}:\n{self._words(job)}"
        answer = json.loads(answer_file.read_text())
        if "error" in answer:
            raise AssertionError(f"job {name!r} failed:\n{answer['error']}\nall output:\n{self._words(job)}")
        found: dict[str, Any] = answer["found"]
        return found

    def close(self) -> None:
        """End the process by its own will; fail with its words otherwise."""
        if self._job is not None and not self._job.ended():
            self._order({"job": STOP, "folder": ""})
            self._job.finish()

    def _order(self, order: dict[str, str]) -> None:
        _write(self.folder / f"{self._n_orders}.order.json", order)
        self._n_orders += 1

    @staticmethod
    def _words(job: Job) -> str:
        return job.output.read_text(errors="replace")


def _write(file: Path, content: dict[str, Any]) -> None:
    """Write a file that is there as a whole or not at all."""
    text = json.dumps(content)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.rename(file)


def serve(folder: Path, number: int) -> None:
    """Run the jobs that are ordered, from a number on, until told to stop."""
    starter = os.getppid()
    spark = connect_session()
    while os.getppid() == starter:
        file = folder / f"{number}.order.json"
        if not file.exists():
            time.sleep(0.02)
            continue
        order = json.loads(file.read_text())
        if order["job"] == STOP:
            break
        answer = folder / f"{number}.answer.json"
        try:
            job = importlib.import_module(f"tests.spark.{order['job']}")
            _write(answer, {"found": job.main(spark, Path(order["folder"]))})
        except Exception:  # noqa: BLE001 - told to whoever ordered the job; the next one runs all the same
            for query in spark.streams.active:
                query.stop()
            _write(answer, {"error": traceback.format_exc()})
        number += 1
    spark.stop()


if __name__ == "__main__":
    _spec = json.loads(Path(sys.argv[1]).read_text())
    serve(Path(_spec["folder"]), _spec["first"])
