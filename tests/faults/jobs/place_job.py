"""Write logs where the file system refuses calls, and tell how it went.

Usage: place_job.py FOLDER ERRNO CALL…: first without any promise, then with ``single_writer=True``. Prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.faults.no_links import refuse

refuse(*sys.argv[3:], code=int(sys.argv[2]))

import pyarrow as pa  # noqa: E402 - libraries start threads, which the filter must concern

import spark_timely  # noqa: E402
from spark_timely.errors import TimelyError  # noqa: E402

SCHEMA = pa.schema([("v", pa.int64())])


def files(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def rows(n: int) -> pa.Table:
    return pa.table({"_time": [n, n + 1], "v": [n, -n]})


def told(error: TimelyError) -> dict[str, object]:
    return {"error": type(error).__name__, "text": str(error), "determinate": getattr(error, "determinate", None)}


def main(folder: Path) -> dict[str, object]:
    """Try everything once."""
    found: dict[str, object] = {}
    try:
        os.link(__file__, folder / "link")
        found["link"] = "possible"
    except OSError as error:
        found["link"] = error.errno
    fresh, old = folder / "fresh", folder / "old"
    try:
        spark_timely.create_log(fresh, SCHEMA)
    except TimelyError as error:
        found["create"] = {**told(error), "files": files(fresh)}
    before = files(old)
    try:
        spark_timely.open_log(old).writer(owner="o").append(rows(5), advance_to=6)
    except TimelyError as error:
        found["append"] = {**told(error), "unchanged": files(old) == before}
    try:
        log = spark_timely.create_log(fresh, SCHEMA, single_writer=True, merge_every=10)
        writer = log.writer(owner="o")
        for n in range(25):
            writer.append(rows(n), advance_to=n + 1)
        # Another handle of the same process knows nothing of it, and finds out.
        late = spark_timely.open_log(old, single_writer=True)
        stale = spark_timely.open_log(old, single_writer=True)
        late.writer(owner="o").append(rows(5), advance_to=6)
        stale.writer("second", owner="o").append(rows(7), advance_to=8)
        log.compact()
        # A pickled copy promises the same.
        spark_timely.open_log(old, single_writer=True).__reduce__()[0](*late.__reduce__()[1]).close("second")
    except TimelyError as error:
        found["promised"] = {**told(error), "files": files(fresh)}
        return found
    for name, path in (("fresh", fresh), ("old", old)):
        report = spark_timely.open_log(path).verify()
        found[name] = {"legal": report.legal, "hash": report.canonical_hash, "messages": report.messages}
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))))
