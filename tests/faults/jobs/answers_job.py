"""A copy in files, or a step of a mirror, that kills itself at a moment: its specification says which."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spark_timely
from spark_timely.log.log import Log
from spark_timely.log.store.storage import FileStorage
from spark_timely.spark.answers import copy_to, mirror


def die() -> None:
    """End this process and its JVM's, as a power cut would."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def die_after(target: object, name: str) -> None:
    """Die when a function is done, before its caller knows."""
    inner = getattr(target, name)

    def outer(*args: Any, **more: Any) -> Any:
        inner(*args, **more)
        die()

    setattr(target, name, outer)


def die_when(holds: Callable[[], bool], more_s: float) -> None:
    """Die some time after a condition holds."""

    def watch() -> None:
        while not holds():  # a turn each millisecond
            time.sleep(0.001)
        time.sleep(more_s)
        die()

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Do what the specification says, and die where it says."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    place, moment = Path(spec["place"]), str(spec["die"])
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    spark = spark_timely.session("answers", master="local[2]", delta=True, **settings)
    if moment == "begun":
        die_after(copy_to, "begin")
    elif moment == "written":
        die_after(copy_to, "_written")
    elif moment == "named":
        die_after(FileStorage, "give_name")
    elif moment == "deleted":
        die_after(FileStorage, "delete")
    elif moment == "merged":
        die_after(mirror.Mirror, "_merge")
    elif moment == "created":
        die_after(mirror.Mirror, "_write")
    elif moment == "retained":
        die_after(Log, "retain")
    elif moment == "while":
        before = set(place.rglob("*.parquet")) if place.exists() else set()
        die_when(lambda: place.exists() and bool(set(place.rglob("*.parquet")) - before), float(spec["more_s"]))
    elif moment == "any":
        die_when(lambda: True, float(spec["more_s"]))
    if spec["what"] == "copy":
        copy_to.copy_to(spark, spec["log"], place)
    else:
        mirror.mirror_to(spark, spec["log"], place, key=spec["key"]).step()
    spark.stop()


if __name__ == "__main__":
    main()
