"""Captures of the real timely through Spark: k imported, replayed by j workers, exported to m, imported again."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_timely
from spark_timely.interop.exporting import export_log
from spark_timely.interop.importing import CaptureTypes, StreamImport
from spark_timely.log import Log
from spark_timely.log.log import create_log
from tests.oracles.golden import captures, golden_bytes, types_of

pytestmark = [pytest.mark.spark, pytest.mark.golden]


def imported(path: str, types: CaptureTypes, files: list[Path]) -> Log:
    domain = types.layout.domain
    times = [type_.value for type_ in domain.types]
    log = create_log(path, types.payload, times=times, minimum=domain.minimum, streams=len(files))
    for i, file in enumerate(files):
        assert StreamImport(log, f"w{i}", types, name=file.name).take_file(str(file)).closed
    return log


@pytest.mark.parametrize(
    ("group", "workers", "files"), [("c_4workers", 3, 2), ("d2_product_2workers", 1, 5), ("c2_3workers", 2, 1)]
)
def test_captures_survive_the_way_through_spark(
    spark: SparkSession, group: str, workers: int, files: int, tmp_path: Path
) -> None:
    names = [name for name in captures() if name.startswith(group)]
    types = CaptureTypes.parse(*types_of(names[0]), timely="0.31")
    sources = []
    for name in names:
        sources.append(tmp_path / f"{name}.bin")
        sources[-1].write_bytes(golden_bytes(f"capture_{name}.bin"))
    first = imported(str(tmp_path / "first"), types, sources)
    df = (
        spark.readStream.format("timely")
        .options(workers=workers, includeTime="true", maxTimesPerTrigger="150")
        .load(first.path)
    )
    second = str(tmp_path / "second")
    spark_timely.start(
        df,
        path=second,
        checkpoint=str(tmp_path / "checkpoint"),
        time_column=",".join(first.domain.columns),
        frontier="source",
        trigger="availableNow",
    ).await_termination()
    log = spark_timely.open_log(second)
    assert log.frontier().is_empty
    written = export_log(log, tmp_path / "out", files=files, types=types)
    third = imported(str(tmp_path / "third"), types, [Path(each.path) for each in written])
    wanted = first.verify()
    assert wanted.messages == sum(each.records for each in written)
    assert [log.verify().digest, third.verify().digest] == [wanted.digest] * 2
