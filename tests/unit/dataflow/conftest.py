"""What the tests of dataflows share: a small log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.log import Log
from spark_timely.log.log import create_log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log of the times 0 to 29, three rows at each, in three commits."""
    made = create_log(str(tmp_path / "in"), pa.schema([("n", pa.int64())]), minimum=(0,))
    writer = made.writer(owner="test")
    for first in (0, 10, 20):
        times = np.arange(first, first + 10).repeat(3)
        writer.append(pa.table({"_time": times, "n": times}), advance_to=first + 10)
    made.refresh()
    return made
