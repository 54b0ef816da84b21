"""One producer process without Spark, which appends with keys from the first one on, whatever it did before.

Usage: producer_job.py LOG STREAM OWNER N. Key k has the rows (k, k) and (k + 2, k), and moves the stream's frontier to
k + 1. Between them it appends nothing and advances, without a key. What is unclear, or lost to another process of the
same owner, is repeated.
"""

from __future__ import annotations

import sys

from spark_timely.errors import NotBeyondError, StorageError, UpperMismatchError
from spark_timely.log.log import open_log


def main(path: str, stream: str, owner: str, n_keys: int) -> None:
    writer = open_log(path, merge_every=10).writer(stream, owner=owner)
    for key in range(n_keys):
        while True:
            try:
                writer.append({"_time": [key, key + 2], "v": [key, key]}, advance_to=key + 1, batch=key)
                if key % 5 == 0:
                    writer.advance(key + 1)
            except NotBeyondError:
                break  # the other process is ahead
            except (StorageError, UpperMismatchError):
                continue
            break


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
