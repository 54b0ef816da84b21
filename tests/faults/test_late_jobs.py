"""Clients are killed while their jobs write, and the same is done again at once: it is whole, or refused by name.

``SPARK_TIMELY_KILLS`` says how many in each test; unless it is given, 100 copies of each kind of client and 100 at each
other place. The seed is printed; ``SPARK_TIMELY_SEED`` repeats a run's choices.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_timely.spark import session_settings
from tests.faults.connect_server import ConnectServer
from tests.faults.harness import Job, seed_of_run, tell

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(7200)]

JOB = re.compile(r"timely-(copy-[0-9a-f]{32}|mirror-[0-9a-f]{12})")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    settings = {
        # Tasks that come in several turns, so that some have ended when the client is killed.
        "spark.sql.shuffle.partitions": "6",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        # Each session would make and compile all code of its queries anew.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": session_settings()["spark.driver.extraJavaOptions"],  # it lives for an hour
    }
    # What is killed here is Python that Spark has not started.
    with ConnectServer(tmp_path_factory.mktemp("server"), started=False, **settings) as server:
        yield server


def found(spec: dict[str, object], folder: Path) -> list[dict[str, Any]]:
    job = Job("late_job.py", {**spec, "seed": seed_of_run(), "folder": str(folder / "work")}, folder / "runs")
    (folder / "work").mkdir()
    try:
        job.finish(7000)
    finally:
        job.kill()
    text = job.output.read_text(errors="replace")
    return [json.loads(line) for line in re.findall(r"^FOUND (.*)$", text, re.MULTILINE)]


def check(kills: list[dict[str, Any]], n: int) -> None:
    tell(f"seed {seed_of_run()}")
    assert len(kills) == n
    whole = [each for each in kills if each["at once"] == "whole"]
    refused = [each for each in kills if each["at once"] != "whole"]
    late = sum(each["late"] for each in kills)
    tell(f"{len(whole)} of {n} whole at once, {late} with a job that still ran, {len(refused)} refused")
    for each in refused:
        tell(each["at once"])
        assert JOB.search(each["at once"]), each
    assert len(whole) >= 0.95 * n
    assert all(each["after"] == "whole" for each in kills), [each for each in kills if each["after"] != "whole"]
    assert not any(each.get("new") for each in kills)
    assert late, "no job has outlived its client: nothing was tried"
    for each in kills:
        assert "then" not in each or JOB.search(each["then"]), each


def number_of(usual: int) -> int:
    return int(os.environ.get("SPARK_TIMELY_KILLS", usual))


@pytest.mark.parametrize("place", ["parquet", "csv"])
def test_copy_through_connect_is_whole_at_once(server: ConnectServer, tmp_path: Path, place: str) -> None:
    n = number_of(50)
    check(found({"place": place, "url": server.url, "web": server.web, "kills": n}, tmp_path), n)


@pytest.mark.parametrize("place", ["parquet", "csv"])
def test_copy_of_a_classic_client_is_whole_at_once(tmp_path: Path, place: str) -> None:
    n = number_of(50)
    check(found({"place": place, "url": None, "web": None, "kills": n}, tmp_path), n)


@pytest.mark.parametrize("place", ["capture", "arrow", "task", "created", "merged"])
def test_each_other_place_is_whole_at_once(server: ConnectServer, tmp_path: Path, place: str) -> None:
    n = number_of(100)
    check(found({"place": place, "url": server.url, "web": server.web, "kills": n}, tmp_path), n)
