"""One query that captures, damaged in several ways between its runs; for classic sessions and for Connect."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_timely
from spark_timely.log.log import create_log, open_log
from tests.faults.harness import long_lane

POLICIES: dict[str, dict[str, object]] = {
    "batch": {"frontier": "batch"},
    "bounded": {"frontier": "bounded", "time_column": "t"},
    "source": {"frontier": "source", "time_column": "_time"},
    "events": {"frontier": "events"},
    "hold": {"frontier": "hold", "time_column": "t"},
}
WAYS = ("sink", "start", "capture")
DAMAGES = {
    "checkpoint restored": "planned from other offsets",
    "checkpoint copied": "planned from other offsets",
    "log deleted": "found no log where this query left one",
    "log restored": "found the log restored to an earlier state, with seq=2 and micro-batch 1",
    "log replaced": "found another log",
}
SESSIONS = ("classic", "connect")


@dataclass(frozen=True)
class Case:
    """What one query is like, and what happens to it."""

    policy: str
    way: str
    session: str
    damages: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.session}-{self.way}-{self.policy}"

    def facts(self) -> dict[str, object]:
        return asdict(self)


def pairwise() -> list[Case]:
    """Return six cases in which any two of way, session and damage meet, and every policy comes.

    A policy meets each damage in `tests/unit/sink/test_went_back.py` and `tests/unit/sink/test_identity.py`.
    """
    damages, policies = tuple(DAMAGES), itertools.cycle(POLICIES)
    cases = []
    for number, way in enumerate(WAYS):
        one, other = SESSIONS[number % 2], SESSIONS[1 - number % 2]
        cases.append(Case(next(policies), way, one, damages[:3]))
        cases.append(Case(next(policies), way, other, damages[3:]))
    return cases


def all_cases(seed: int) -> list[Case]:
    """Return all 150 combinations: 30 queries with all damages each, in any order."""
    rng = random.Random(seed)
    return [
        Case(policy, way, session, tuple(rng.sample(list(DAMAGES), len(DAMAGES))))
        for session, policy, way in itertools.product(SESSIONS, POLICIES, WAYS)
    ]


def cases_of(session: str) -> list[Any]:
    """Return the cases with a kind of session as parameters: a few, and in the long lane all."""
    seed = int(os.environ.get("SPARK_TIMELY_SEED", "14"))
    few = [pytest.param(case, id=case.name) for case in pairwise() if case.session == session]
    every = [case for case in all_cases(seed) if case.session == session and long_lane()]
    return [*few, *(pytest.param(case, marks=pytest.mark.long, id=f"long {case.name}") for case in every)]


class CapturedQuery:
    """A query with a source that grows piece by piece: one piece is one micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path, policy: str, way: str) -> None:
        self.spark, self.folder, self.policy, self.way = spark, folder, policy, way
        self.log_path, self.checkpoint = folder / "log", folder / "checkpoint"
        self.pieces = 0
        self.incoming = folder / "incoming"
        if policy == "source":
            self.source = create_log(self.incoming, pa.schema([("id", pa.int64())]), minimum=(0,))
        else:
            self.incoming.mkdir()

    def grow(self, pieces: int = 1) -> None:
        for _ in range(pieces):
            n, self.pieces = self.pieces, self.pieces + 1
            if self.policy == "source":
                rows = pa.table({"_time": pa.array([n], pa.int64()), "id": pa.array([n], pa.int64())})
                self.source.writer(owner="test").append(rows, advance_to=n + 1)
                continue
            columns: dict[str, pa.Array] = {"t": pa.array([n], pa.int64()), "id": pa.array([n], pa.int64())}
            if self.policy == "events":
                columns = {
                    "_event": pa.array(["message"]),
                    "_delta": pa.array([None], pa.int64()),
                    "_time": columns["t"],
                    "id": columns["id"],
                }
            file = self.incoming / f"part-{n}.parquet"
            pq.write_table(pa.table(columns), file)
            # The file source goes by modification times, and files of one millisecond are in no order.
            os.utime(file, (1_700_000_000 + n, 1_700_000_000 + n))

    def rows(self) -> DataFrame:
        stream = self.spark.readStream
        if self.policy == "source":
            options = {"includeTime": "true", "maxTimesPerTrigger": "1"}
            return stream.format("timely").options(**options).load(str(self.incoming))
        events = "_event string, _delta long, _time long, id long"
        schema = events if self.policy == "events" else "t long, id long"
        return stream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.incoming))

    def run(
        self, *, checkpoint: Path | None = None, change: Callable[[DataFrame], DataFrame] | None = None, **more: object
    ) -> str | None:
        """Capture what there is; return the text of the error it ends with, if any."""
        path, place = str(self.log_path), str(checkpoint or self.checkpoint)
        options = {**POLICIES[self.policy], **more}
        df = self.rows()
        try:
            if self.way == "start":
                spark_timely.start(
                    df if change is None else change(df), path=path, checkpoint=place, trigger="availableNow", **options
                ).await_termination()
                return None
            if self.way == "sink":
                texts = {name: str(value) for name, value in options.items()}
                writer = (df if change is None else change(df)).writeStream.format("timely").options(path=path, **texts)
            else:

                def capture(batch: DataFrame, batch_id: int) -> None:
                    import spark_timely

                    changed = batch if change is None else change(batch)
                    spark_timely.capture(changed, batch_id, path=path, checkpoint=place, **options)

                writer = df.writeStream.foreachBatch(capture)
            query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - its text is what the test looks at
            return str(error)
        return None

    def state(self) -> list[str]:
        """Return what the log is: every file of it, and its version."""
        if not self.log_path.exists():
            return []
        files = sorted(str(file.relative_to(self.log_path)) for file in self.log_path.rglob("*") if file.is_file())
        return [str(open_log(self.log_path).core.version), *files]


def check(found: dict[str, Any], damages: Sequence[str]) -> None:
    """Fail if a damage was not refused by its name, changed the log, or lost a row."""
    assert found["runs"] == [None, None]
    assert found["ids"] == [0, 1, 2]
    for damage in damages:
        said = found[damage]["said"] or "nothing"
        line = next((line for line in said.splitlines() if "[TIMELY_ROLLED_BACK]" in line), said)
        assert DAMAGES[damage] in line, damage
        assert " — hint: " in line, damage
        assert found[damage]["unchanged"], damage
    assert (found["last"], found["all"]) == (None, [0, 1, 2, 3])


def put(kept: Path, place: Path) -> None:
    """Put a copy of a folder in its place."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(kept, place)


def scenario(spark: SparkSession, folder: Path, policy: str, way: str, damages: list[str]) -> dict[str, object]:
    """Run a query, damage it, run it again; return by damage what it said, and whether the log is as it was."""
    query = CapturedQuery(spark, folder, policy, way)
    query.grow(2)
    first = query.run()
    for what in ("log", "checkpoint"):
        shutil.copytree(folder / what, folder / f"{what} after two")
    query.grow()
    second = query.run()
    for what in ("log", "checkpoint"):
        shutil.copytree(folder / what, folder / f"{what} after three")
    query.grow()
    found: dict[str, object] = {"runs": [first, second], "ids": ids(query)}
    for damage in damages:
        checkpoint = query.checkpoint
        if damage == "checkpoint restored":
            put(folder / "checkpoint after two", query.checkpoint)
        elif damage == "checkpoint copied":
            checkpoint = folder / "copied"
            shutil.copytree(folder / "checkpoint after two", checkpoint)
        elif damage == "log restored":
            put(folder / "log after two", query.log_path)
        else:
            log = open_log(query.log_path)
            shutil.rmtree(query.log_path)
            if damage == "log replaced":
                times = tuple(kind.value for kind in log.domain.types)
                create_log(query.log_path, log.schema, times=times, minimum=log.domain.minimum)
        before = query.state()
        said = query.run(checkpoint=checkpoint)
        found[damage] = {"said": said, "unchanged": query.state() == before}
        put(folder / "log after three", query.log_path)
        put(folder / "checkpoint after three", query.checkpoint)
    found["last"] = query.run()
    found["all"] = ids(query)
    return found


def ids(query: CapturedQuery) -> list[int]:
    """Return which rows the log has."""
    return sorted(open_log(query.log_path).messages()["id"].to_pylist())
