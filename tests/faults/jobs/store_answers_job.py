"""SQL over a log in an object store and one on a disk, a peek by a job, and copies into the store.

Run as ``python store_answers_job.py SPEC.json``. Keys of the specification: ``far`` and ``near``, paths of two
collections of (k, v); ``folder``, where the copies go; ``settings``, of the session; ``die``, how many seconds after
the first file of a copy to die, or null. Credentials are in the environment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import spark_timely
from spark_timely.errors import InvalidUsageError
from spark_timely.log.store.cloud import open_storage
from spark_timely.spark.answers.peek_job import peek_job


def die_when_written(folder: str, more_s: float) -> None:
    """Die some time after there is more in a folder than the sign."""

    def watch() -> None:
        storage = open_storage(folder)
        while not [name for name in storage.names() if name != "INCOMPLETE"]:  # a turn each request
            time.sleep(0.001)
        time.sleep(more_s)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Do it, and print what was found."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", **spec["settings"]}
    spark = spark_timely.session("store answers", master="local[2]", **settings)
    folder = spec["folder"]
    if spec["die"] is not None:
        die_when_written(folder, float(spec["die"]))
        spark_timely.copy_to(spark, spec["far"], folder)
        spark.stop()
        return
    text = "SELECT k, f.v AS v, n.v AS w, :time AS at FROM far f JOIN near n USING (k) ORDER BY k"
    rows = spark_timely.sql(spark, text, names={"far": spec["far"], "near": spec["near"]}).collect()
    found: dict[str, object] = {"joined": [list(row) for row in rows]}
    by_job = spark_timely.peek(spec["far"], where="k > 2", order_by="k", scan_limit=0, job=peek_job(spark))
    found["peeked"] = by_job.select(["k", "v"]).to_pylist()
    found["copied"] = [
        spark_timely.copy_to(spark, spec["far"], folder),
        spark_timely.copy_to(spark, spec["near"], f"{folder}-near", format="csv", where="k <> 1"),
    ]
    try:
        spark_timely.copy_to(spark, spec["near"], folder)
    except InvalidUsageError as error:
        found["refused"] = str(error)
    sys.stdout.write(f"\nFOUND {json.dumps(found)}\n")
    spark.stop()


if __name__ == "__main__":
    main()
