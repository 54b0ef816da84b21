"""The tasks of the Databricks bundle, run here one after the other as its jobs run them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import spark_timely
from tests.modules import bundle_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def arrive(folder: Path, number: int, rows: list[tuple[int | None, str]]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"id": id_, "hour": f"2013-06-12T{hour}:00Z"}) for id_, hour in rows]
    (folder / f"part-{number}.json").write_text("\n".join(lines))


def test_tasks_capture_hand_over_compact_and_wait(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del spark  # the jobs take the session that is there
    job = bundle_job()
    inbox, orders, clean = tmp_path / "in", str(tmp_path / "orders"), str(tmp_path / "clean")
    schema = "id LONG, hour TIMESTAMP"

    def run() -> None:
        form = ["--format=json", f"--schema={schema}", "--lateness=1 hour", f"--input={inbox}"]
        job.main(["capture", f"--log={orders}", f"--checkpoint={tmp_path}/c1", "--time-column=hour", *form])
        job.main(["compact", f"--log={orders}", "--single-writer=true"])
        job.main(
            ["handover", f"--source={orders}", f"--log={clean}", f"--checkpoint={tmp_path}/c2", "--time-column=hour"]
        )
        job.main(["compact", f"--log={clean}", "--single-writer=true"])

    wait = ["wait", f"--log={clean}", "--time=2013-06-12T08:00:00Z", "--timeout=0"]
    arrive(inbox, 0, [(1, "07:00"), (None, "07:00"), (2, "08:00"), (3, "09:00")])
    run()
    with pytest.raises(SystemExit) as ended:
        job.main(wait)
    assert ended.value.code == 1, "orders of 8 o'clock may still come"
    arrive(inbox, 1, [(4, "08:00"), (5, "10:00")])
    run()
    job.main(wait)
    log = spark_timely.open_log(clean)
    assert log.frontier() == spark_timely.open_log(orders).frontier()
    assert sorted(log.messages()["id"].to_pylist()) == [1, 2, 4]
    capsys.readouterr()
    job.main(["report", f"--log={clean}", "--time-column=hour"])
    said = capsys.readouterr().out
    assert [line.split("|")[2].strip() for line in said.splitlines() if "2013" in line] == ["1", "2"]
