"""What a capture in foreachBatch learns from a file, and the names that it gives columns for a moment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely.errors import SchemaMismatchError
from spark_timely.log.log import create_log
from spark_timely.log.store.cloud import open_storage
from spark_timely.spark.capture import staging


@pytest.mark.parametrize("name", [staging._PLACE, staging._PLACE_NOW])
def test_place_of_a_row_has_a_name_that_no_log_allows(tmp_path: Path, name: str) -> None:
    with pytest.raises(SchemaMismatchError, match="could not use a payload column"):
        create_log(str(tmp_path / "log"), pa.schema([(name, pa.int64())]), minimum=(0,))


def test_sample_leaves_out_wide_and_nested_columns(tmp_path: Path) -> None:
    n = staging.SAMPLE_ROWS + 5
    ids = np.arange(n)
    columns = {
        "id": ids,
        "id.x": ids,
        "few": ids % 3,
        "none": pa.nulls(n, pa.int32()),
        "text": [f"{number:x}" for number in ids],
        "wide": [f"{number:>300x}" for number in ids],
        "deep": [{"id": number} for number in ids],
        "many": [[number] for number in ids],
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=n // 3)
    pq.write_table(pa.table({"id": ids[:1000]}), tmp_path / "few.parquet")
    pq.write_table(pa.table({"id": ids[:0]}), tmp_path / "none.parquet")
    storage = open_storage(str(tmp_path), {})
    assert staging._plain_columns(storage, "rows.parquet") == ("id", "text")
    assert staging._plain_columns(storage, "few.parquet") == ()
    assert staging._plain_columns(storage, "none.parquet") == ()
