"""A small standalone Spark cluster: a master and workers as plain processes of ours, on this machine.

Each worker has a host of its own (127.0.0.1, 127.0.0.2, …), because Spark runs no speculative copy of a task on
the host that it runs on already. Only what was started here is ever ended, by its id.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.faults.harness import QUICK, START_DEADLINE_S, STARTED, alive, descendants, wait_until

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class _Daemon:
    """One JVM of the cluster, in a process group of its own."""

    def __init__(self, name: str, main_class: str, arguments: list[str], folder: Path, host: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.output = folder / f"{name}.txt"
        environment = dict(os.environ)
        environment.update(
            STARTED,
            SPARK_HOME=str(SPARK_CLASS.parents[1]),
            SPARK_DAEMON_MEMORY="256m",
            SPARK_DAEMON_JAVA_OPTS=QUICK,
            SPARK_LOCAL_IP=host,
            SPARK_LOCAL_DIRS=str(folder / f"{name}-local"),
        )
        with self.output.open("w") as out:
            # `spark-class` ends by becoming the JVM.
            self.process = subprocess.Popen(
                ["bash", str(SPARK_CLASS), main_class, "--host", host, "--port", "0", "--webui-port", "0", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    def said(self, pattern: str) -> re.Match[str]:
        """Wait until the process has written something, and return it."""

        def seen() -> bool:
            ended = self.process.poll()
            assert ended is None, f"ended with {ended}:\n{self.text()}"
            return re.search(pattern, self.text()) is not None

        wait_until(seen, deadline_s=START_DEADLINE_S, what=f"{pattern!r}", report=self.text)
        found = re.search(pattern, self.text())
        assert found is not None
        return found

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def kill(self) -> None:
        """End the process and all that it started."""
        below = descendants(self.process.pid)
        for pid in (self.process.pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=START_DEADLINE_S)
        wait_until(lambda: not any(map(alive, below)), deadline_s=START_DEADLINE_S, what="the end of the processes")


class Cluster:
    """A standalone master with workers of one core each, who register while an application starts.

    Parameters
    ----------
    folder : Path
        For what the processes write.
    n_workers : int
        Executors that an application gets: one per worker.
    """

    def __init__(self, folder: Path, n_workers: int = 2) -> None:
        self.workers: list[_Daemon] = []
        self.master = _Daemon("master", "org.apache.spark.deploy.master.Master", [], folder, "127.0.0.1")
        try:
            self.url = self.master.said(r"Starting Spark master at (spark://[\w.:]+)")[1]
            for number in range(n_workers):
                size = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"), self.url]
                name, host = f"worker-{number}", f"127.0.0.{number + 1}"
                self.workers.append(_Daemon(name, "org.apache.spark.deploy.worker.Worker", size, folder, host))
        except BaseException:
            self.stop()
            raise

    def executors(self) -> list[int]:
        """Return the ids of the executors that the workers run now."""
        return [pid for worker in self.workers for pid in executors_below(worker.process.pid)]

    def stop(self) -> None:
        """End everything."""
        for daemon in (*self.workers, self.master):
            daemon.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def executors_below(root: int) -> list[int]:
    """Return the ids of the executors among the processes below one."""
    found = []
    for pid in descendants(root):
        with contextlib.suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
