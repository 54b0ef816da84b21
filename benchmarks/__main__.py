"""Run the benchmarks: `python -m benchmarks [--rows N] [--repeats N] [--only NAME]...`."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import spark_timely as st

from . import (
    answer_cases,
    arrangement_cases,
    cli_cases,
    cluster_cases,
    compute_cases,
    continual_cases,
    copy_cases,
    dataflow_cases,
    exchange_cases,
    flat_cases,
    graph_cases,
    guard_cases,
    history_cases,
    latency_cases,
    memory_cases,
    progress_counts,
    progress_reach,
    retention_cases,
    store_cases,
    store_spark_cases,
    subscribe_cases,
    writer_cases,
)
from .arrangement_cases import ArrangementCases
from .data import events
from .dataflow_cases import DataflowCases
from .report import Case, table, write_jsonl
from .spark_cases import NAMES, PEER_SETTINGS, SparkCases

BUILD = Path(__file__).resolve().parents[1] / "build"


def main() -> int:
    """Measure what is asked for, write `build/bench.jsonl`, say a table; 0 when every aim was reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="a part of a case's name")
    given = parser.parse_args()

    def wanted(name: str) -> bool:
        return not given.only or any(part in name for part in given.only)

    scratch = BUILD / "bench" / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    cases = progress_counts.run(scratch, wanted)
    cases += progress_reach.run(scratch, wanted)
    cases += answer_cases.run(scratch, wanted, given.rows)
    cases += exchange_cases.run(scratch, wanted)
    cases += flat_cases.run(scratch, wanted)
    cases += graph_cases.run(scratch, wanted)
    cases += guard_cases.run(scratch, wanted)
    cases += cli_cases.run(scratch, wanted)
    cases += cluster_cases.run(scratch, wanted)
    cases += history_cases.run(scratch, wanted)
    cases += memory_cases.run(scratch, wanted)
    cases += retention_cases.run(scratch, wanted)
    cases += store_cases.run(scratch, wanted)
    cases += store_spark_cases.run(scratch, wanted)
    cases += subscribe_cases.run(scratch, wanted)
    cases += writer_cases.run(scratch, wanted)
    on_one = (
        *NAMES, *dataflow_cases.NAMES, *latency_cases.NAMES, *arrangement_cases.NAMES, *continual_cases.NAMES,
        *copy_cases.NAMES, *compute_cases.NAMES,
    )  # fmt: skip
    if any(map(wanted, on_one)):
        cases += on_spark(given.rows, given.repeats, scratch, wanted)
    write_jsonl(cases, BUILD / "bench.jsonl")
    sys.stdout.write(table(cases) + f"\n\nwritten to {BUILD / 'bench.jsonl'}\n")
    shutil.rmtree(scratch, ignore_errors=True)
    return 0 if all(case.reached() for case in cases) else 1


def on_spark(n_rows: int, repeats: int, scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure what needs a session."""
    spark = st.session(
        "bench",
        master="local[2]",
        delta=True,
        **{"spark.driver.memory": "6g", "spark.ui.enabled": "false", "spark.scheduler.mode": "FAIR", **PEER_SETTINGS},
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        cases = latency_cases.run(spark, scratch, wanted)
        if any(map(wanted, (*NAMES, *dataflow_cases.NAMES))):
            base = SparkCases(spark, events(BUILD / "bench", n_rows), scratch, repeats)
            cases += base.run(wanted)
            cases += DataflowCases(base).run(wanted)
        if any(map(wanted, arrangement_cases.NAMES)):
            cases += ArrangementCases(spark, scratch, n_rows).run(wanted)
        if any(map(wanted, continual_cases.NAMES)):
            cases += continual_cases.run(spark, scratch, wanted, n_rows)
        if any(map(wanted, copy_cases.NAMES)):
            cases += copy_cases.run(spark, scratch, wanted, n_rows)
        if any(map(wanted, compute_cases.NAMES)):
            cases += compute_cases.run(spark, scratch, wanted, n_rows)
        return cases
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
