"""Contents with a negative count are refused by every reader of a process, or all readers give the same answer.

Random collections: updates of several streams, in which rows are taken away that were never there, at the beginning,
after since, in one stream what another adds later, and made good again. Of each time every reader is asked.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.answers.peek import peek
from spark_timely.answers.subscribe import subscribe
from spark_timely.errors import NegativeMultiplicityError
from spark_timely.log import Log
from spark_timely.log.log import create_log
from tests.support import long_lane

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
Row = tuple[Any, ...]
END = 5


def made(path: Path, rng: random.Random) -> tuple[Log, Counter[tuple[int, Row]]]:
    """Return a collection, and the updates that it was made of; of some all before a since is one base."""
    log = create_log(path, SCHEMA, minimum=(0,), kind="collection", streams=2, key="k" if rng.random() < 0.7 else ())
    updates: Counter[tuple[int, Row]] = Counter()
    writers = [log.writer(name, owner=name) for name in ("one", "two")]
    bad = rng.choice([None, 0, 1, 2, 3])
    for time in range(END):
        for writer in writers:  # two turns
            rows: list[tuple[Row, int]] = [
                ((rng.choice("abcd"), rng.randrange(2)), rng.choice([1, 1, 2])) for _ in range(rng.randrange(4))
            ]
            if bad == time and writer is writers[0]:
                rows.append((("bad", 7), -1))
            if bad is not None and time == bad + 2 and writer is writers[1] and rng.random() < 0.7:
                rows.append((("bad", 7), rng.choice([1, 2])))
            for row, diff in rows:
                updates[time, row] += diff
            columns = {name: [row[i] for row, _ in rows] for i, name in enumerate(SCHEMA.names)}
            columns |= {"_time": [time for _ in rows], "_diff": [diff for _, diff in rows]}
            fields = [*SCHEMA, ("_time", pa.int64()), ("_diff", pa.int64())]
            writer.append(pa.table(columns, pa.schema(fields)), advance_to=time + 1)
    if rng.random() < 0.5:
        log.allow_compaction(rng.randrange(1, END))
        log.compact(logical=rng.random() < 0.7)
    return log, updates


def subscribed(log: Log, time: int, **given: Any) -> pa.Table:
    with subscribe(log, as_of=time, up_to=time + 1, **given) as changes:
        return changes.fetch(timeout_s=0)


READERS: dict[str, Callable[[Log, int], pa.Table]] = {
    "snapshot": lambda log, time: log.snapshot(time),
    "peek": lambda log, time: peek(log, as_of=time),
    "peek of the first rows": lambda log, time: peek(log, as_of=time, order_by="v", limit=100),
    "peek by keys": lambda log, time: peek(log, as_of=time, keys={"k": ["a", "b", "c", "d", "bad"]}),
    "subscribe": subscribed,
    "subscribe from before": lambda log, time: subscribed(log, time, progress=True),
}
ENVELOPES: dict[str, Callable[[Log, int], pa.Table]] = {
    "upsert": lambda log, time: subscribed(log, time, envelope="upsert", key=["k", "v"]),
    "debezium": lambda log, time: subscribed(log, time, envelope="debezium", key=["k", "v"]),
}


def contents(table: pa.Table) -> Counter[Row]:
    rows = [row for row in table.to_pylist() if not row.get("_progressed")]
    return Counter({tuple(row[name] for name in SCHEMA.names): row["_diff"] for row in rows})


@pytest.mark.parametrize("seed", range(300 if long_lane() else 4))
def test_every_reader_judges_contents_alike(seed: int, tmp_path: Path) -> None:
    log, updates = made(tmp_path / "log", random.Random(seed))
    for time in range(log.since().elements[0][0], END):
        wanted: Counter[Row] = Counter()
        for (when, row), diff in updates.items():
            if when <= time:
                wanted[row] += diff
        negative = any(count < 0 for count in wanted.values())
        for name, read in {**READERS, **ENVELOPES}.items():
            if negative:
                with pytest.raises(NegativeMultiplicityError, match=r"found row=.*'bad'.* with count=-1") as caught:
                    read(log, time)
                assert "it retracts a row that it never added" in str(caught.value.hint), name
            elif name in READERS:
                assert contents(read(log, time)) == Counter({row: n for row, n in wanted.items() if n}), name
            else:
                assert read(log, time).num_rows == sum(n > 0 for n in wanted.values()), name


def test_changes_after_the_contents_are_given_as_they_are(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    rows = {"_time": [0, 1], "_diff": [1, -1], "k": ["a", "bad"], "v": [1, 7]}
    log.writer(owner="tests").append(pa.table(rows), advance_to=2)
    for given in ({"as_of": 0}, {"as_of": 1, "snapshot": False}, {"resume_from": 1}):
        with subscribe(log, up_to=2, **given) as changes:  # type: ignore[arg-type]
            found = changes.fetch(timeout_s=0)
        assert [row for row in found.to_pylist() if row["_time"] == 1] == (
            [] if "snapshot" in given else [{"_time": 1, "_diff": -1, "k": "bad", "v": 7}]
        )
