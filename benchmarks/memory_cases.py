"""Peak memory of a planner and of a worker: at 10 million distinct times, and with one time of 5 million rows."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import spark_timely as st

from .report import Case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TIMES, ONE_TIME_ROWS, COMMITS = 10_000_000, 5_000_000, 10
LOGS = {"10m_distinct_times": TIMES, "one_time_of_5m_rows": ONE_TIME_ROWS}
NAMES = tuple(f"memory_{part}_{log}" for log in LOGS for part in ("planner", "worker"))

# In a process of its own: the peak is the process's. What imports take is said beside it.
_MEASURED = """
import json, sys
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.log.log import open_log
# Not getrusage: its peak begins with that of the process that was forked.
peak = lambda: next(int(x.split()[1]) / 1024 for x in open("/proc/self/status") if x.startswith("VmHWM"))
path, part = sys.argv[1:]
before = peak()
options = {"path": path, "workers": "4", "splitBy": "time"}
options |= {"maxTimesPerTrigger": "1000000"} if part == "planner" else {}
source = TimelyDataSource(options)
reader = source.streamReader(source.schema()) if part == "planner" else source.reader(source.schema())
rows = 0
if part == "planner":
    limit, offset = reader.getDefaultReadLimit(), reader.initialOffset()
    while True:
        end = json.loads(json.dumps(reader.latestOffset(offset, limit)))
        if end == offset:
            break
        rows += len(reader.partitions(offset, end))
        offset = end
else:
    # Planned elsewhere: its plan is not the worker's memory.
    import pickle, subprocess
    code = ("import pickle, sys; from spark_timely.datasource.source import TimelyDataSource;"
            "s = TimelyDataSource(%r); sys.stdout.buffer.write(pickle.dumps(s.reader(s.schema()).partitions()))")
    planned = subprocess.run([sys.executable, "-c", code % options], check=True, capture_output=True).stdout
    for split in pickle.loads(planned):
        rows += sum(batch.num_rows for batch in reader.read(split))
print(before, peak(), rows)
"""


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure what is wanted; for information, in MB."""
    cases = []
    for kind, n_rows in LOGS.items():
        names = [f"memory_{part}_{kind}" for part in ("planner", "worker")]
        if not any(map(wanted, names)):
            continue
        path = scratch / f"memory-{kind}"
        _write(path, n_rows, distinct=kind == "10m_distinct_times")
        cases += [_case(name, path, n_rows) for name in names if wanted(name)]
    return cases


def _write(path: Path, n_rows: int, *, distinct: bool) -> None:
    rng = np.random.default_rng(1)
    schema = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("text", pa.string())])
    writer = st.create_log(path, schema, minimum=(0,), auto_compact=False).writer(owner="bench")
    size = n_rows // COMMITS
    for number in range(COMMITS):
        first = number * size
        times = np.arange(first, first + size) if distinct else np.zeros(size, np.int64)
        letters = rng.integers(ord("a"), ord("z") + 1, (size, 20), dtype=np.uint8)
        offsets = pa.py_buffer(np.arange(0, 20 * size + 1, 20, dtype=np.int32))
        rows = pa.table(
            {
                "_time": times,
                "id": np.arange(first, first + size),
                "value": rng.random(size),
                "text": pa.StringArray.from_buffers(size, offsets, pa.py_buffer(letters.tobytes())),
            }
        )
        writer.append(rows, advance_to=first + size if distinct else int(number == COMMITS - 1))


def _case(name: str, path: Path, n_rows: int) -> Case:
    part = name.split("_")[1]
    what = "plans of whole times, a million at most each" if part == "planner" else "all four splits, one by one"
    case = Case(
        name,
        f"peak memory of a process for {what}, {n_rows} rows; peer: the same process after its imports",
        None,
        unit="MB",
        higher_is_better=False,
    )
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(path), part], check=True, capture_output=True, text=True
    )
    before, peak, rows = map(float, done.stdout.split())
    if part == "worker" and rows != n_rows:
        message = f"{name}: expected {n_rows} rows, read {rows}"
        raise AssertionError(message)
    case.ours.append(peak)
    case.peer.append(before)
    return case
