"""The source, the sink, foreachBatch, hand-overs, dataflows and damaged logs through Spark Connect, on one server."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import spark_timely
from tests.faults.harness import Job, long_lane
from tests.oracles import digest_model
from tests.spark.connect import JOB_DEADLINE_S, ConnectJobs
from tests.spark.connect_compute_job import EXPECTED as ANSWERS_OF_AN_INSTANCE
from tests.spark.connect_compute_sessions_job import EXPECTED as SESSIONS_OF_AN_INSTANCE
from tests.spark.connect_continual_job import enrich, updates, write_orders
from tests.spark.connect_forgetting_job import check as check_forgetting
from tests.spark.connect_tasks_job import EXPECTED as TASKS_OF_AN_INSTANCE
from tests.spark.misuses import Shown, misuses
from tests.spark.misuses import check as check_misuse
from tests.spark.went_back import Case, cases_of, check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectJobs]:
    """Return what runs the jobs, all in one process with one session."""
    found = ConnectJobs(tmp_path_factory.mktemp("connect"))
    yield found
    found.close()


def test_job_that_fails_is_told_with_its_traceback(jobs: ConnectJobs, tmp_path: Path) -> None:
    # The tests below show that the process goes on.
    with pytest.raises(AssertionError, match=r"job 'no_such_job' failed:\nTraceback(.|\n)*No module named"):
        jobs.run("no_such_job", tmp_path)


def test_capture_and_replay_through_connect(jobs: ConnectJobs, tmp_path: Path) -> None:
    found = jobs.run("connect_replay_job", tmp_path)
    times = [sorted(row["_time"] for row in batch) for batch in found["batches"]]
    assert times == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10]]
    ordered = [[sorted(map(str, batch)) for batch in found[way]] for way in ("batches", "driven")]
    assert ordered[0] == ordered[1]
    assert found["framed"] == 11
    assert found["end"]["frontier"] == [11]
    assert found["read"] == 11
    assert found["cut"] == 7
    assert found["counts"] == [["w0", 4], ["w1", 4], ["w2", 3]]
    log = spark_timely.open_log(tmp_path / "log")
    assert log.frontier().to_json() == [11]
    assert log.messages().num_rows == 12
    assert log.verify().legal


def test_consumer_through_connect_loses_nothing(jobs: ConnectJobs, tmp_path: Path) -> None:
    check_forgetting(jobs.run("connect_forgetting_job", tmp_path))


def test_misuses_through_connect_are_shown_as_in_classic(jobs: ConnectJobs, tmp_path: Path) -> None:
    found = jobs.run("connect_misuses_job", tmp_path)
    for misuse, shown in zip(misuses(), found["shown"], strict=True):
        check_misuse(misuse, Shown(**shown))


def test_captures_through_connect_give_the_same_log(jobs: ConnectJobs, tmp_path: Path) -> None:
    found = jobs.run("connect_capture_job", tmp_path)
    for through in ("sink", "foreachBatch"):
        told = [line for line in found["errors"][through].splitlines() if "[TIMELY_" in line]
        assert "found time 3 behind the frontier [5]" in told[-1]
        assert "hint: set lateData to 'deadLetter'" in told[-1]
    logs = [spark_timely.open_log(tmp_path / through) for through in ("sink", "foreachBatch")]
    for log in logs:
        assert log.frontier().is_empty
        assert log.messages()["_time"].to_pylist() == [1, 2, 5, 5, 9]
        assert log.dead()["word"].to_pylist() == ["w3"]
        assert log.verify().legal
    assert logs[0].messages().drop_columns("_seq") == logs[1].messages().drop_columns("_seq")
    expected = [
        [{"t": ("bigint", t), "word": ("string", f"w{t}")} for t in part] for part in ([1, 2, 5], [5, 3, 9], [])
    ]
    assert found["digests"] == [digest_model.digest(part) for part in expected]
    assert found["messages"] == ["[[0, 0]]", "[[1, 1]]", "[]"]
    collection = spark_timely.open_log(tmp_path / "collection")
    assert collection.messages(columns=["word", "_diff"]).to_pylist() == [
        {"word": "x", "_diff": 1},
        {"word": "y", "_diff": -2},
    ]
    assert collection.verify().legal
    assert found["idle"][-1] == "idle: no micro-batch for 1 second, all rows up to 9 are complete"
    idle = spark_timely.open_log(tmp_path / "idle")
    assert idle.frontier().elements == ((10,),)
    assert idle.messages()["_time"].to_pylist() == [1, 2, 3, 5, 5, 9]


def test_hand_over_through_connect(jobs: ConnectJobs, tmp_path: Path) -> None:
    found = jobs.run("connect_handover_job", tmp_path)
    # In run 1 nothing was heard of c; in run 2 nothing of a, which is known to be at 10.
    assert (found["run 0"], found["run 1"]) == ([-(2**63)], [9])
    assert found["told"] == [0, [9]]
    for name, times in (("first", [4, 8, 8, 12]), ("second", [4, 8, 8])):
        log = spark_timely.open_log(tmp_path / name)
        assert sorted(log.messages()["t"].to_pylist()) == times
        assert log.frontier().to_json() == [9]
        assert log.verify().legal


def test_dataflow_runs_and_goes_on_through_connect(jobs: ConnectJobs, tmp_path: Path) -> None:
    found = jobs.run("connect_dataflow_job", tmp_path)
    expected: Counter[tuple[int, str]] = Counter()
    for time in [*range(12), *range(10, 22)]:
        expected[-(-time // 10) * 10, f"k{time % 2}"] += 2 * time
    assert found["frontiers"] == [[10], [], [33]]
    doubled = [2 * time for time in [*range(12), *range(10, 22)]]
    assert found["large"] == sorted(n for n in doubled if n > 20)
    sums: Counter[tuple[int, str]] = Counter()
    for time in [*range(12), *range(10, 22)]:
        if time > 5:
            sums[time // 5 * 5 + 5, f"k{time % 2}"] += time
    assert found["windows"] == sorted([time, key, n] for (time, key), n in sums.items())
    assert found["captured"] == {
        "capture_5": len(expected),
        "capture_8": len(found["large"]),
    }
    assert found["rows"] == sorted([time, key, n] for (time, key), n in expected.items())


def test_history_is_remembered_through_connect(jobs: ConnectJobs, tmp_path: Path) -> None:
    found = jobs.run("connect_history_job", tmp_path)
    # The change of a that comes late is older than its deletion: a stays absent.
    assert sorted(found["current"]) == [
        [0, 1, "a", 5, "I"],
        [0, 1, "b", 1, "I"],
        [1, -1, "a", 5, "I"],
        [2, -1, "b", 1, "I"],
        [2, 1, "b", 3, "U"],
    ]
    assert sorted(found["counts"]) == [
        [0, 1, "a", 1],
        [0, 1, "b", 1],
        [1, -1, "a", 1],
        [1, 1, "a", 2],
        [2, -1, "a", 2],
        [2, -1, "b", 1],
        [2, 1, "a", 3],
        [2, 1, "b", 2],
    ]
    assert found["first"] == [[0, "a", 5, "I"], [0, "b", 1, "I"]]
    assert sorted(found["joined"], key=lambda row: row[:2]) == [
        [0, "a", 5, "I", 5],
        [0, "b", 1, "I", 1],
        [1, "a", 10, "D", None],
        [2, "a", 7, "U", None],
        [2, "b", 3, "U", 3],
    ]
    assert found["result"] == ["a", "b"]
    assert "keeps key k, columns k, changed, op, in its own output" in found["explain"]


def test_continual_tasks_through_connect_write_equal_logs(
    jobs: ConnectJobs, spark: SparkSession, tmp_path: Path
) -> None:
    deadline_s = 3000 if long_lane() else JOB_DEADLINE_S
    found = jobs.run("connect_continual_job", tmp_path / "connect", deadline_s=deadline_s)
    assert found["views"] == []
    write_orders(tmp_path / "classic")
    enrich(spark, tmp_path / "classic")
    for name in ("enriched", "best", "function", "arrow", "times", "upserted"):
        one, other = (updates(tmp_path / way / name) for way in ("classic", "connect"))
        assert one, name
        assert one == other, name
        assert spark_timely.open_log(tmp_path / "connect" / name).frontier().is_empty


@pytest.mark.parametrize("case", cases_of("connect"))
def test_what_went_back_is_refused_through_connect(jobs: ConnectJobs, case: Case, tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text(json.dumps(case.facts()))
    check(jobs.run("connect_went_back_job", tmp_path), case.damages)


def test_instance_answers_through_connect_as_on_classic(jobs: ConnectJobs, tmp_path: Path) -> None:
    assert jobs.run("connect_compute_job", tmp_path) == ANSWERS_OF_AN_INSTANCE


def test_instance_has_pools_and_sessions_through_connect(jobs: ConnectJobs, tmp_path: Path) -> None:
    assert jobs.run("connect_compute_sessions_job", tmp_path) == SESSIONS_OF_AN_INSTANCE


def test_tasks_of_an_instance_through_connect_as_on_classic(jobs: ConnectJobs, tmp_path: Path) -> None:
    assert jobs.run("connect_tasks_job", tmp_path) == TASKS_OF_AN_INSTANCE


def test_answers_through_connect(jobs: ConnectJobs, tmp_path: Path) -> None:
    assert jobs.run("connect_answers_job", tmp_path) == {
        "joined": [[1, "orders 1", "rates 1", 2], [2, "orders 2", "rates 2", 2]],  # as of its own time
        "again": [[4]],
        "all": 3,
        "parquet": 3,
        "csv": 3,
        "copied": [2, 3, 4],
        "names": [".csv"],
        "attempts": {
            "refused": "found INCOMPLETE in it, of a copy by job 'timely-copy-TOKEN' of session 'SESSION'",
            "at once": 100, "ended": [1, 1, True], "rows": 100,
        },
        "frontiers": [["[4]", "tests"]],
        "progress": [["0", 0], ["3", 0], ["4", 1]],
        "peek": [4, 3],
        "mirror": [
            "found a Spark session without Delta (DATA_SOURCE_NOT_FOUND)", False,
            "found a Spark session without Delta (PARSE_SYNTAX_ERROR)", True,
        ],
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
def test_mirror_through_connect(tmp_path: Path) -> None:
    """In a server of its own, which has Delta."""
    said = Job(str(Path(__file__).with_name("connect_mirror_job.py")), {"folder": str(tmp_path)}, tmp_path).finish()
    found = json.loads(re.findall(r"^FOUND (.*)$", said, re.MULTILINE)[-1])
    assert found["keyed"] == ["created", "merged", "nothing", [[1, "A"], [2, "b"], [3, "c"]]]
    assert found["counted"] == ["created", "merged", "nothing", [[1, "A", 1], [2, "b", 1], [3, "c", 1]]]
    assert "found two rows or more of key ['k']=" in found["violated"]
    assert found["foreign"] == "DataLossError"
