"""The live files of a table, against a dictionary."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.log.files.format import LogFormat
from spark_timely.log.files.index import FileIndex, LiveFiles, index_adds
from spark_timely.time.antichain import Antichain

FORM = LogFormat.build(pa.schema([("v", pa.int64())]), times=("long",))


def add(path: str, event: str, size: int) -> dict[str, Any]:
    return {"path": path, "size": size, "partitionValues": {"_event": event}, "stats": None}


steps = st.lists(
    st.tuples(
        st.booleans(),
        st.dictionaries(
            st.integers(0, 30).map(str), st.tuples(st.sampled_from(["message", "dead", "progress"]), st.integers(0, 9))
        ),
    ),
    max_size=12,
)


@given(steps)
def test_live_files_are_those_added_and_not_removed(done: list[Any]) -> None:
    live, model = LiveFiles(1), {}
    given_out: list[tuple[FileIndex, list[str], list[int]]] = []
    for removes, files in done:
        if removes:
            live.remove(files)
            model = {path: said for path, said in model.items() if path not in files}
        else:
            live.add(index_adds(FORM, [add(path, *said) for path, said in files.items()]))
            model |= files
        assert len(live) == len(model)
        assert live.size_bytes == sum(size for _, size in model.values())
        for event in ("message", "dead", "progress", "since"):
            index = live.index(event)
            found = dict(zip(index.paths.tolist(), index.sizes.tolist(), strict=True))
            assert found == {path: size for path, (kind, size) in model.items() if kind == event}
            assert set(index.events.tolist()) <= {event}
            given_out.append((index, index.paths.tolist(), index.sizes.tolist()))
        assert all((path in live) == (path in model) for path in map(str, range(31)))
    for index, paths, sizes in given_out:
        assert (index.paths.tolist(), index.sizes.tolist()) == (paths, sizes)


def test_to_add_one_file_copies_no_others() -> None:
    live = LiveFiles(1)
    live.add(index_adds(FORM, [add(str(n), "message", n) for n in range(100)]))
    before = live.index("message")
    live.add(index_adds(FORM, [add("one more", "message", 7)]))
    after = live.index("message")
    assert len(before) == 100
    assert len(after) == 101
    assert np.shares_memory(before.sizes, after.sizes)


def test_room_after_removals_is_for_the_files_left() -> None:
    live = LiveFiles(1)
    live.add(index_adds(FORM, [add(str(n), "message", n) for n in range(300)]))
    live.remove([str(n) for n in range(100)])
    before = live.index("message")
    for n in range(300, 500):
        live.add(index_adds(FORM, [add(str(n), "message", n)]))
    assert np.shares_memory(before.sizes, live.index("message").sizes)


def test_file_without_bounds_may_hold_any_time() -> None:
    bounds = {
        "minValues": {"_stream": "a", "_seq": 1, "_time": 5},
        "maxValues": {"_stream": "a", "_seq": 1, "_time": 7},
    }
    adds = [add("bounded", "message", 1) | {"stats": json.dumps(bounds)}, add("unbounded", "message", 1)]
    index = index_adds(FORM, adds)
    assert index.known.tolist() == [True, False]
    # Its bounds stand as zeros, which are neither beyond 6 nor below the least time.
    assert index.may_hold_times(Antichain.of(6), None).tolist() == [True, True]
    assert index.may_hold_times(Antichain.of(8), Antichain.of(9)).tolist() == [False, True]
    assert index.may_hold_times(None, Antichain.of(-3)).tolist() == [False, True]
