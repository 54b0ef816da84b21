"""One producer process without Spark: opens a stream of a log and appends micro-batches to it.

Usage: append_job.py LOG STREAM OWNER FIRST N [DONOR]. Batch b holds the rows (b, b) and (b + 2, b), and
moves the stream's frontier to b + 1. A batch that the log has already is passed over, as a restarted
query does; a lost race on the stream is judged anew.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa

from spark_timely.errors import RolledBackError, StorageError, UpperMismatchError
from spark_timely.log.files.parquet import message_table, write_data_files
from spark_timely.log.log import open_log
from spark_timely.log.machine.state import CommitRequest


def main(path: str, stream: str, owner: str, first: int, n_batches: int, donor: str | None) -> None:
    log = open_log(path, merge_every=10)
    state = log.core.open_stream(stream, owner=owner, donor=donor)
    for batch in range(first, first + n_batches):
        while True:
            log.refresh()
            state = log.core.stream(stream)
            if state is None:
                raise SystemExit(f"stream {stream} is gone")
            if state.batch is not None and batch <= state.batch and log.core.recorded(stream, batch) is not None:
                break
            if state.batch is not None and batch <= state.batch:
                raise SystemExit(f"batch {batch} is missing below {state.batch}")
            held = int(state.counts.times[0, 0])
            times = np.maximum(np.array([[batch], [batch + 2]], np.int64), held)
            payload = pa.table({"v": pa.array([batch, batch], pa.int64())})
            table = message_table(log.core.format, payload, times, stream, state.seq + 1)
            files = write_data_files(
                log.core.storage, table, times, stream=stream, seq=state.seq + 1, domain=log.domain
            )
            upper = max(batch + 1, held)
            request = CommitRequest(
                stream,
                owner,
                np.array([[held], [upper]], np.int64),
                np.array([-1, 1], np.int64),
                batch=batch,
                expected_seq=state.seq,
                files=files,
            )
            try:
                outcome = log.core.commit(request)
            except (RolledBackError, UpperMismatchError, StorageError):
                # The other process is ahead. Whatever is not part of the log is not needed.
                live = log.core.live_paths([f.path for f in files])
                for file in files:
                    if file.path not in live:
                        log.core.storage.delete(file.path)
                continue
            if outcome.duplicate:
                for file in files:
                    log.core.storage.delete(file.path)
            break


if __name__ == "__main__":
    where, name, who, start, count, *rest = sys.argv[1:]
    main(where, name, who, int(start), int(count), rest[0] if rest else None)
