"""One process without Spark that deletes replaced files of a log, and is killed (SIGKILL) between two of them.

Usage: vacuum_job.py LOG WAY N. WAY is `demand`, or `upkeep`: two days later, values are appended up to 99. It is killed
before the N-th file is deleted; with N = 0 never.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import count

import pyarrow as pa

from spark_timely.log.log import open_log


def main(path: str, way: str, number: int) -> None:
    unlink, turns = os.unlink, count(1)

    def unlink_or_die(name: str) -> None:
        if "/_event=" in str(name) and next(turns) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        unlink(name)

    os.unlink = unlink_or_die  # type: ignore[assignment]
    ahead = 0 if way == "demand" else 2 * 24 * 3600
    log = open_log(path, merge_every=5, clock=lambda: time.time() + ahead)
    if way == "demand":
        log.vacuum(older_than="0s")
        return
    writer = log.writer(owner="me")
    for value in range(log.frontier().elements[0][0], 100):
        writer.append(pa.table({"_time": [value], "v": [value]}), advance_to=value + 1)


if __name__ == "__main__":
    where, how, when = sys.argv[1:]
    main(where, how, int(when))
