"""A look-up in an arrangement gives the updates of its keys before a frontier, and no others."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.time.antichain import Antichain
from spark_timely.trace import keys as keys_module
from spark_timely.trace.arrangement import Arrangement, columns_text
from spark_timely.trace.keys import KeySet, key_hashes
from spark_timely.trace.run import in_pieces, write_run
from spark_timely.trace.spine import RunFile, Spine
from spark_timely.trace.updates import Updates

SCHEMA = pa.schema([("j", pa.int64()), ("k", pa.string()), ("v", pa.int64())])
Row = tuple[int | None, str | None, int, int, int]


def arranged(folder: Path, rows: list[Row], key: list[str]) -> Arrangement:
    """Arrange (j, k, v, time, diff) in two runs."""
    runs = []
    for number in range(2):
        mine = rows[number::2]
        table = pa.table([pa.array([row[i] for row in mine], SCHEMA.field(i).type) for i in range(3)], schema=SCHEMA)
        times, diffs = (np.array([row[i] for row in mine], np.int64) for i in (3, 4))
        updates = Updates(table, times.reshape(-1, 1), diffs, key_hashes(table, key)).consolidated(partial=True)
        runs.append(RunFile(f"run-{number}", *write_run(str(folder / f"run-{number}"), in_pieces(updates, 3))))
    spine = Spine(0, "log", columns_text(key, SCHEMA), {}, 0, 10, tuple(run for run in runs if run.rows))
    return Arrangement.of_spine(str(folder), spine, SCHEMA, events=False)


@pytest.mark.parametrize("key", [["k"], ["k", "j"], ["j"], []])
@pytest.mark.parametrize("few", [False, True])
def test_look_up_gives_the_updates_of_its_keys_before_a_frontier(
    key: list[str], few: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if few:  # keys share hashes
        found = key_hashes
        monkeypatch.setattr(keys_module, "key_hashes", lambda rows, by: found(rows, by) % np.uint64(2))
        monkeypatch.setitem(globals(), "key_hashes", keys_module.key_hashes)
    rng = random.Random(f"{key} {few}")
    for turn in range(20):
        folder = tmp_path / str(turn)
        folder.mkdir()
        rows: list[Row] = [
            (rng.choice([1, 2, None]), rng.choice(["a", "b", None]), n, rng.randrange(9), rng.choice([1, -1]))
            for n in range(rng.randrange(30))
        ]
        index: Arrangement = pickle.loads(pickle.dumps(arranged(folder, rows, key)))
        opened = index.opened()
        for run in folder.iterdir():
            run.unlink()  # what is opened stays readable
        asked = [rng.choice(rows)[:2] for _ in range(rng.randrange(1, 3))] if rows else [(7, "z")]
        table = pa.table({"j": [j for j, _ in asked], "k": [k for _, k in asked]})
        wanted = {tuple(row.values()) for row in table.select(key).to_pylist()}
        for frontier in (Antichain.of(rng.randrange(10)), Antichain.empty(1)):
            got = opened.before(KeySet(table, key), frontier, ["v"])
            assert got.rows.schema.names == ["v"]
            end = frontier.elements[0][0] if frontier else 10
            here = zip(got.rows["v"].to_pylist(), got.times[:, 0].tolist(), got.diffs.tolist(), strict=True)
            assert sorted(here) == sorted(
                (v, time, diff)
                for j, k, v, time, diff in rows
                if time < end and (tuple({"j": j, "k": k}[name] for name in key) in wanted or not key)
            )


def test_key_that_the_log_has_in_another_type_is_refused(tmp_path: Path) -> None:
    spine = Spine(0, "log", columns_text(["j"], SCHEMA), {}, 0, 10)
    other = pa.schema([("j", pa.int32()), ("k", pa.string())])
    with pytest.raises(ValueError, match="of other types"):
        Arrangement.of_spine(str(tmp_path), spine, other, events=False)
    spine = Spine(0, "log", columns_text(["k"], SCHEMA), {}, 0, None)
    assert Arrangement.of_spine(str(tmp_path), spine, other, events=False).schema.names == ["k"]
