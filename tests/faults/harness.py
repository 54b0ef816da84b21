"""Start a Spark job as a process group of its own, kill it, look at its checkpoint.

A job is a script of `tests/faults/jobs` with one argument: a JSON file that says what to do. Every wait
has a deadline and reports what it last saw. Only processes that a `Job` started are ever ended: by
the id of its group, and by the ids of its own descendants (Spark's Python workers make groups of
their own).
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

JOBS = Path(__file__).parent / "jobs"
# A JVM that lives for less than a minute: what it compiles must pay within it.
# With this compiler alone the JVM has 48 MB for compiled code. Sessions of minutes fill them: code is then thrown out
# and compiled again.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
# Variables of a job whose Python processes Spark starts as a user's, in place of having them forked (`tests.forking`).
STARTED = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
START_DEADLINE_S = 180.0
END_DEADLINE_S = 300.0


def quick_java() -> str:
    """Return the options of such a JVM, and those that all JVMs of the tests have: see `tests.class_archive`."""
    return f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {QUICK}".lstrip()


def run_forked(main: Callable[..., None], *args: object) -> int:
    """Run a function in a process of its own; return its exit code, which a signal that kills it makes negative.

    The process is forked of one that has imported what such functions need: to import it takes longer than they do.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.jobs.continual_job"])
    process = context.Process(target=main, args=args)
    process.start()
    process.join(120)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise DeadlineError("the process did not end within 120 s")
    return process.exitcode


class DeadlineError(AssertionError):
    """A condition did not come true in time."""


def wait_until(
    condition: Callable[[], bool],
    *,
    deadline_s: float,
    what: str,
    report: Callable[[], str] = str,
    step_s: float = 0.02,
) -> None:
    """Return once `condition` holds; fail with the last state seen after `deadline_s` seconds."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise DeadlineError(f"{what} did not happen within {deadline_s} s: {report()}")
        time.sleep(step_s)


def descendants(root: int) -> list[int]:
    """Return the ids of the processes below `root`, children before their own children.

    What is forked in place of a process (`tests.forking`) is below that one: its name says so.
    """
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                name, _, stat = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                parent = int(name.removeprefix("for ")) if name.startswith("for ") else int(stat.split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        children = parents.get(queue.pop(), [])
        found.extend(children)
        queue.extend(children)
    return found


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


class Job:
    """A Spark program in a process group of its own.

    Parameters
    ----------
    script : str
        Name of a file in `tests/faults/jobs`.
    spec : dict
        Passed to it as JSON.
    folder : Path
        Where its output goes, one file per start.
    environment : mapping of str to str, optional
        Variables that it has besides, or in place of others; an empty one is none. With `STARTED` Spark's Python
        processes are as a user's; else they are forked.
    """

    def __init__(
        self, script: str, spec: dict[str, object], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("run-*.json")))
        self.output = folder / f"run-{number:03d}.txt"
        spec_file = folder / f"run-{number:03d}.json"
        spec_file.write_text(json.dumps(spec))
        variables = dict(os.environ)
        variables.update(
            SPARK_LOCAL_DIRS=str(folder / "spark-local"),
            SPARK_LOCAL_IP="127.0.0.1",
            JAVA_TOOL_OPTIONS=quick_java(),
            PYTHONPATH=os.pathsep.join([str(JOBS.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]),
        )
        variables.update(environment or {})
        with self.output.open("w") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(JOBS / script), str(spec_file)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={name: value for name, value in variables.items() if value},
                cwd=folder,
                start_new_session=True,
            )
        self.group = self._process.pid

    def text(self) -> str:
        """Return the end of what the job wrote."""
        return self.output.read_text(errors="replace")[-6000:]

    def ended(self) -> bool:
        """Say whether the job's own process has ended."""
        return self._process.poll() is not None

    def end_within(self, seconds: float) -> bool:
        """Wait at most that long; say whether the job ended by itself."""
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def finish(self, deadline_s: float = END_DEADLINE_S) -> str:
        """Wait for a clean end; fail with the job's own words otherwise."""
        if not self.end_within(deadline_s):
            words = self.text()
            self.kill()
            raise DeadlineError(f"job did not end within {deadline_s} s:\n{words}")
        if self._process.returncode != 0:
            raise AssertionError(f"job ended with {self._process.returncode}:\n{self.text()}")
        return self.text()

    def kill(self, *, with_workers: bool = True) -> None:
        """End the driver (Python and JVM) by SIGKILL.

        Parameters
        ----------
        with_workers : bool
            Also kill Spark's Python processes, which are in groups of their own. Without it they find
            out by themselves that the driver has gone: one that is committing may still commit.
        """
        below = descendants(self.group)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        if with_workers:
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait(timeout=START_DEADLINE_S)
        wait_until(
            lambda: not any(alive(pid) for pid in below),
            deadline_s=START_DEADLINE_S,
            what="the end of the job's processes",
            report=lambda: repr([pid for pid in below if alive(pid)]),
        )


def strike(marker: str, group: int) -> None:
    """Within a job: write the marker, kill the driver's group, then this process if it is in another one."""
    Path(marker).write_text("struck")
    os.killpg(group, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def numbers(folder: Path) -> list[int]:
    """Return the batch ids that a folder of a checkpoint (`offsets`, `commits`) has, sorted."""
    if not folder.is_dir():
        return []
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())


def delete_last_commit(checkpoint: Path) -> int | None:
    """Make Spark forget that its last micro-batch was committed; return the batch id."""
    done = numbers(checkpoint / "commits")
    if not done:
        return None
    last = done[-1]
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    return last


def seed_of_run(variable: str = "SPARK_TIMELY_SEED") -> int:
    """Return the seed of this run: given by the environment, or new. Callers print it."""
    given = os.environ.get(variable)
    return int(given) if given else random.SystemRandom().randrange(2**32)


def long_lane() -> bool:
    """Say whether the long lane was asked for (`SPARK_TIMELY_LONG=1`)."""
    return os.environ.get("SPARK_TIMELY_LONG", "") not in {"", "0"}


def tell(text: str) -> None:
    """Write to the test's output, where a failure (or ``pytest -s``) shows it."""
    sys.stdout.write(text + "\n")
