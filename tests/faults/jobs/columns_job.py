"""One producer process without Spark: appends to its stream, and may add columns to the log on the way.

Usage: columns_job.py LOG STREAM N [COLUMN TYPE]. Turn i appends the row (i, i) and moves the stream to i + 1. With
a column it adds that in the middle, and fills it from then on. Waits for the file LOG.go before it begins.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa

from spark_timely.errors import SchemaMismatchError
from spark_timely.log.log import open_log


def main(path: str, stream: str, n_turns: int, column: str | None, kind: str | None) -> None:
    log = open_log(path, merge_every=10)
    writer = log.writer(stream, owner=stream)
    Path(f"{path}.{stream}").touch()
    while not Path(f"{path}.go").exists():
        time.sleep(0.005)
    added: pa.Field | None = None
    for turn in range(n_turns):
        if column is not None and turn == n_turns // 2:
            added = pa.field(column, pa.type_for_alias(str(kind)))
            try:
                log.add_columns(pa.schema([added]))
            except SchemaMismatchError as error:
                sys.stdout.write(f"{error}\n")
                added = None
        rows = pa.table({"_time": [turn], "v": [turn]})
        if added is not None:
            rows = rows.append_column(added.name, pa.array([turn]).cast(added.type))
        writer.append(rows, advance_to=turn + 1)


if __name__ == "__main__":
    where, name, turns, *rest = sys.argv[1:]
    main(where, name, int(turns), *(rest or (None, None)))
