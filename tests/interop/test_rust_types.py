"""What `spark-timely types` prints is compiled by cargo, and replays what `export` wrote."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.interop.chunk import TimelyVersion
from spark_timely.interop.exporting import export_log
from spark_timely.interop.rust import rust_types
from spark_timely.log import MemoryLog
from tests.modules import ROOT

MANIFEST = """[package]
name = "{name}"
version = "0.1.0"
edition = "2021"

[workspace]

[dependencies]
{needs}

# As that of the other programs here: what all need is compiled once.
[profile.dev]
debug = false
incremental = false
"""
_NUMBERS = pa.struct([pa.field("fn", pa.int64()), pa.field("order-id", pa.list_(pa.float64()))])
SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("type", pa.map_(pa.string(), pa.binary())),
        pa.field("größe", _NUMBERS),
        pa.field("total", pa.uint64()),
    ]
)


@pytest.fixture(scope="session", params=["0.31", "0.32"])
def timely(request: pytest.FixtureRequest) -> TimelyVersion:
    version: TimelyVersion = request.param
    return version


def build(cargo: str, rust: str, timely: TimelyVersion, name: str) -> Path:
    """Build a program with what it says that its manifest needs; return it."""
    needs = re.findall(r"^// (\w+ = .*)$", rust, re.MULTILINE)
    assert len(needs) == 2
    name = f"types-v{timely.replace('.', '')}-{name}"
    there = ROOT / "build" / "interop" / name
    (there / "src").mkdir(parents=True, exist_ok=True)
    (there / "Cargo.toml").write_text(MANIFEST.format(name=name, needs="\n".join(needs)), encoding="utf-8")
    (there / "src" / "main.rs").write_text(rust, encoding="utf-8")
    target = ROOT / "build" / "interop" / "target"
    command = [cargo, "build", "--quiet", "--target-dir", target]
    built = subprocess.run(command, cwd=there, capture_output=True, text=True, timeout=540)
    assert built.returncode == 0, built.stderr
    assert "warning" not in built.stderr, built.stderr
    return target / "debug" / name


def lines(program: Path, files: list[str]) -> list[str]:
    done = subprocess.run([program, *files], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_program_replays_a_log_of_many_types(cargo: str, timely: TimelyVersion, tmp_path: Path) -> None:
    log = MemoryLog.create(SCHEMA, times="timestamp", minimum="2013-01-01")
    moments = [dt.datetime(2013, 6, day, tzinfo=dt.UTC) for day in (1, 2)]
    table = pa.table(
        {
            "_time": pa.array(moments, pa.timestamp("us", "UTC")),
            "at": pa.array(moments, pa.timestamp("us", "UTC")),
            "day": pa.array([dt.date(1970, 1, 3), None]),
            "price": pa.array([decimal.Decimal("-12.50"), None], pa.decimal128(12, 2)),
            "type": pa.array([[("a", b"\x01")], None], pa.map_(pa.string(), pa.binary())),
            "größe": pa.array([{"fn": 5, "order-id": [0.5, None]}, None], _NUMBERS),
            "total": pa.array([(1 << 64) - 1, None], pa.uint64()),
        }
    )
    log.writer(owner="me").append(table, advance_to=[])
    program = build(cargo, rust_types(log, timely=timely), timely, "many")
    for n_files in (1, 2):
        written = export_log(log, tmp_path / str(n_files), files=n_files, timely=timely)
        first, second = lines(program, [each.path for each in written])
        us = [int(moment.timestamp()) * 1_000_000 for moment in moments]
        assert first.endswith(
            f'Record {{ at: {us[0]}, day: Some(2), price: Some(-1250), type: Some([("a", Some([1]))]), '
            f"größe: Some(RecordGrE {{ fn: Some(5), order_id: Some([Some(0.5), None]) }}), "
            f"total: Some({(1 << 64) - 1}) }}"
        ), first
        assert second.endswith(
            f"Record {{ at: {us[1]}, day: None, price: None, type: None, größe: None, total: None }}"
        )
        assert str(us[0]) in first.split("Record")[0]


def test_program_replays_product_times_and_casts(cargo: str, timely: TimelyVersion, tmp_path: Path) -> None:
    log = MemoryLog.create(pa.schema([("n", pa.int64()), ("left", pa.string())]), times=("long", "date", "short"))
    table = pa.table(
        {
            "_time_0": [7],
            "_time_1": pa.array([dt.date(1970, 1, 6)]),
            "_time_2": pa.array([3], pa.int16()),
            "n": [42],
            "left": ["out"],
        }
    )
    log.writer(owner="me").append(table, advance_to=[])
    rust = rust_types(log, columns=["n"], casts={"n": "string"}, timely=timely)
    program = build(cargo, rust, timely, "product")
    written = export_log(log, tmp_path, columns=["n"], casts={"n": "string"}, timely=timely)
    (line,) = lines(program, [each.path for each in written])
    assert line.endswith('Record { n: Some("42") }')
    assert line.startswith("((7, 5), 3) " if timely == "0.31" else "[((7, 5), 3)] ")
