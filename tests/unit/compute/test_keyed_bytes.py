"""How an instance has its steps cut by key is seen in no answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.log.log import create_log, open_log
from tests.property.test_dataflow import runner
from tests.unit.compute.instances import SCHEMA, TOTALS, handle, runtime

ROWS, KEYS = 150_000, 5_000


def test_answer_does_not_depend_on_how_steps_are_cut_by_key(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    log = create_log(tmp_path / "orders", SCHEMA, kind="collection", minimum=(0,), flush=False)
    writer = log.writer(owner="test")
    parts = []
    for time in range(2):  # one turn per commit
        columns = {
            "_time": np.full(ROWS, time),
            "_diff": np.ones(ROWS, np.int64),
            "k": rng.integers(0, KEYS, ROWS),
            "v": rng.integers(0, 1 << 40, ROWS),
        }
        parts.append(pa.table(columns))
        writer.append(parts[-1], advance_to=time + 1)
    found: dict[int | None, Any] = {}
    shuffled: dict[int | None, int] = {}
    for keyed_bytes in (None, 1, 2 << 20):  # one turn per way to cut

        def tasks(name: str, options: Mapping[str, Any], cut: int | None = keyed_bytes) -> Any:
            del name
            run = runner({path: dict(each) for path, each in options.items()})

            def counted(outputs: Sequence[Any], todo: Sequence[Any]) -> Any:
                shuffled[cut] = max(shuffled.get(cut, 0), sum(task.piece is not None for task in todo))
                return run(outputs, todo)

            return counted

        made = runtime(tasks=tasks, keyed_bytes=lambda cut=keyed_bytes: cut)
        with handle(tmp_path / f"instance-{keyed_bytes}", runtime=made) as instance:
            instance.index("totals", TOTALS, imports={"orders": log.path}, key="k", as_of=0)
            instance.await_frontier("totals", 1)
            path = instance._driver.state.path_of("totals")
            assert path is not None
            found[keyed_bytes] = [
                open_log(path).snapshot(at).select(["k", "n", "s", "_diff"]).sort_by("k") for at in (0, 1)
            ]
    assert shuffled[None] == 0
    assert min(shuffled[1], shuffled[2 << 20]) > 1
    for at, rows in enumerate(found[None]):  # two turns
        whole = pa.concat_tables(parts[: at + 1]).group_by("k").aggregate([("v", "sum"), ("v", "count")]).sort_by("k")
        assert pc.all(pc.equal(rows["s"].combine_chunks(), whole["v_sum"].combine_chunks())).as_py()
        assert rows["n"].to_pylist() == whole["v_count"].to_pylist()
        assert rows["_diff"].to_pylist() == [1] * rows.num_rows
        assert [each[at].equals(rows) for each in found.values()] == [True] * 3
