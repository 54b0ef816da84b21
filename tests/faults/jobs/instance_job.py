"""One process without Spark that maintains an instance, and is killed (SIGKILL) or stopped (SIGSTOP) on the way.

Usage: instance_job.py SPEC.json. It does the commands of a script, each once, and writes down how many were
acknowledged. At the start the instance has to be as after these, or after one more. With ``number`` it is killed before
the N-th of these steps: a write of storage, the same once it has happened, a reduction of the history; with 0 never.
With ``pause`` it stops itself between a job that brings something new and its append, and says how it ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.history import History
from spark_timely.errors import TimelyError
from spark_timely.log.store.storage import FileStorage
from tests.unit.compute.instances import TOTALS, handle, runtime, tasks

N_COMMANDS = 60


def state_after(n_commands: int) -> tuple[set[str], int | None]:
    """Return the exports that are there after so many commands, and the hydration limit."""
    exports, limit = set[str](), None
    for number in range(n_commands):
        match number % 6:
            case 0:
                exports.add(f"x{number}")
            case 2:
                limit = number
            case 3:
                exports.add("log")
            case 5:
                exports.discard(f"x{number - 5}" if number % 12 == 5 else "log")
    return exports, limit


def do(instance: Handle, spec: dict[str, Any], number: int) -> None:
    """Do the command of a number."""
    imports = {"orders": spec["log"]}
    match number % 6:
        case 0:
            instance.index(f"x{number}", TOTALS, imports=imports, key="k")
        case 1 | 4:
            # Many of them: the history is reduced again and again.
            for export in sorted(state_after(number)[0] - {"log"}):
                for time in range(4):
                    instance.allow_compaction(export, time)
        case 2:
            instance.configure(hydration_limit=number)
        case 3:
            if not instance.has("log"):
                instance.maintain("log", TOTALS, spec["out"] + str(number), imports=imports)
        case 5:
            instance.drop(f"x{number - 5}" if number % 12 == 5 else "log")


def state_of(instance: Handle) -> tuple[set[str], int | None]:
    limits = [
        dict(each.values)["hydration_limit"]
        for each in instance._driver.instance.history.reduced()
        if type(each).__name__ == "UpdateConfiguration"
    ]
    return set(instance.show("exports")["export_id"].to_pylist()), limits[0] if limits else None


def die_at(number: int) -> None:
    """Kill this process before the N-th step."""
    turns, lock = count(1), threading.Lock()

    def step() -> None:
        with lock:
            if next(turns) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(target: Any, name: str) -> None:
        inner = getattr(target, name)

        def outer(*args: Any, **more: Any) -> Any:
            step()
            found = inner(*args, **more)
            step()
            return found

        setattr(target, name, outer)

    for name in ("write", "put", "delete"):
        watch(FileStorage, name)
    watch(History, "reduce")


def killed(spec: dict[str, Any]) -> None:
    acknowledged = Path(spec["acknowledged"])
    done = int(acknowledged.read_text()) if acknowledged.exists() else 0
    die_at(spec["number"])
    with handle(Path(spec["directory"])) as instance:
        found = state_of(instance)
        if found != state_after(done):
            assert found == state_after(done + 1), f"after {done}: {found}"
            done += 1
        for number in range(done, N_COMMANDS):
            do(instance, spec, number)
            part = acknowledged.with_suffix(".part")
            part.write_text(str(number + 1))
            part.replace(acknowledged)
        for export in state_of(instance)[0]:
            instance.await_frontier(export, spec["time"])


def paused(spec: dict[str, Any]) -> None:
    ready, said, once = Path(spec["ready"]), Path(spec["said"]), threading.Lock()

    def pausing(name: str, options: Any) -> Any:
        run = tasks(name, options)

        def job(plans: Any, todo: Any) -> Any:
            found = run(plans, todo)
            if ready.exists() and once.acquire(blocking=False):
                os.kill(os.getpid(), signal.SIGSTOP)
            return found

        return job

    with handle(Path(spec["directory"]), runtime=runtime(tasks=pausing)) as instance:
        instance.maintain("log", TOTALS, spec["out"], imports={"orders": spec["log"]})
        instance.index("x", TOTALS, imports={"orders": spec["log"]}, key="k")
        for export in ("log", "x"):
            instance.await_frontier(export, spec["time"])
        ready.write_text("")
        try:
            # What the newer start has written is true for this one too, until it has found that it was replaced.
            instance.await_frontier("log", spec["time"] + 1)
            instance.configure(hydration_limit=1)
            said.write_text("it continued")
        except TimelyError as error:
            said.write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    _spec = json.loads(Path(sys.argv[1]).read_text())
    (paused if _spec.get("pause") else killed)(_spec)
