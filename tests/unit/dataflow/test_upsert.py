"""How an upsert is written down: what it gives, what it keeps, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.dataflow.fingerprint import plans_of
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyError
from spark_timely.log.log import create_log
from spark_timely.spark.tasks.continual import ContinualTask
from spark_timely.testing import rows_of, stream_of

ROWS = {
    "_time": [1, 2, 3, 4],
    "k": ["a", "a", "a", "b"],
    "s": [1, 5, 3, 4],
    "n": [1, None, 7, 8],
    "op": ["I", "U", "U", "T"],
}
TAKES = {"keys": "k", "sequence_by": "s"}


@pytest.fixture
def changes() -> Stream:
    return stream_of(ROWS)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"keys": []}, InvalidUsageError, r"found keys=\(\) and sequence_by=\('s',\)"),
        ({"sequence_by": []}, InvalidUsageError, "name the columns of the key"),
        ({"keys": "x"}, SchemaMismatchError, "no column 'x'"),
        ({"sequence_by": ["s", "x"]}, SchemaMismatchError, "no column 'x'"),
        ({"sequence_by": "k"}, SchemaMismatchError, "sequence_by='k' of type=string, a key"),
        ({"delete_when": "x = 1"}, TimelyError, "x"),
        ({"columns": "k"}, InvalidUsageError, "give a list of names"),
        ({"columns": ["k"], "except_columns": ["n"]}, InvalidUsageError, "beside except_columns"),
        ({"columns": ["k", "x"]}, SchemaMismatchError, "no column 'x'"),
        ({"columns": ["n"]}, InvalidUsageError, "found key 'k' left out of the result"),
        ({"except_columns": ["k"]}, InvalidUsageError, "found key 'k' left out of the result"),
        ({"history": True, "truncate_when": "op = 'T'"}, InvalidUsageError, "found history beside truncate_when"),
        ({"history": True, "tombstones": 3, "delete_when": "op = 'D'"}, InvalidUsageError, "history beside tombstones"),
        ({"truncate_when": "op = 'T'", "tombstones": 3}, InvalidUsageError, "found tombstones beside truncate_when"),
        ({"ignore_null_updates": True, "tombstones": 3}, InvalidUsageError, "beside ignore_null_updates"),
        ({"tombstones": 3}, InvalidUsageError, "found tombstones=3 without delete_when"),
        ({"tombstones": 0, "delete_when": "op = 'D'"}, InvalidUsageError, "found tombstones=0"),
        (
            {"tombstones": 3, "delete_when": "op = 'D'", "sequence_by": "op", "columns": ["k"]},
            SchemaMismatchError,
            "found sequence_by='op' of type=string",
        ),
    ],
)
def test_parameters_that_do_not_fit_are_refused(
    changes: Stream, given: dict[str, Any], error: type[TimelyError], text: str
) -> None:
    with pytest.raises(error, match=text) as refused:
        changes.upsert(**{**TAKES, **given})
    assert "upsert_2" in str(refused.value)


def test_columns_of_versions_are_no_columns_of_the_changes() -> None:
    rows = stream_of({"_time": [1], "k": [1], "s": [1], "__END_AT": [1]})
    with pytest.raises(SchemaMismatchError, match="__END_AT"):
        rows.upsert(**TAKES, history=True)
    assert rows.upsert(**TAKES, history=True, except_columns=["__END_AT"]).schema.names[-2:] == [
        "__START_AT",
        "__END_AT",
    ]


def test_updates_of_a_collection_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match="found updates of 'replay_1', a collection"):
        stream_of({**ROWS, "_diff": [1] * 4}).upsert(**TAKES)
    schema = pa.schema([("k", pa.string()), ("s", pa.int64())])
    log = create_log(str(tmp_path / "log"), schema, minimum=(0,), kind="collection")
    with pytest.raises(InvalidUsageError, match=r"could not begin task 'u': found its input '.*/log' to be a coll"):
        ContinualTask.upsert("u", input=log, output=str(tmp_path / "out"), **TAKES)


def test_hidden_columns_are_no_part_of_the_result(changes: Stream) -> None:
    everything = {"delete_when": "op = 'D'", "ignore_null_updates": True, "except_columns": ["s", "op"]}
    for more in ({}, {"history": True}, {"truncate_when": "op = 'T'"}):
        made = changes.upsert(**TAKES, **everything, **more)
        ends = ["__START_AT", "__END_AT"] if more == {"history": True} else []
        assert made.schema.names == ["k", "n", *ends]
        assert set(rows_of(made)[0]) == {"_time", "_diff", "k", "n", *ends}


def test_sequence_of_several_columns_makes_bounds_of_several(changes: Stream) -> None:
    made = changes.upsert(keys="k", sequence_by=["s", "op"], columns=["k", "n"], history=True)
    assert rows_of(made, upper=[2]) == [
        {"_time": 1, "_diff": 1, "k": "a", "n": 1, "__START_AT": {"s": 1, "op": "I"}, "__END_AT": None}
    ]


def test_a_change_without_a_sequence_changes_nothing() -> None:
    rows = stream_of({"_time": [1, 2], "k": ["a", "a"], "s": pa.array([1, None], pa.int64()), "n": [1, 2]})
    for more in ({}, {"history": True}, {"ignore_null_updates": True}):
        assert [row["n"] for row in rows_of(rows.upsert(**TAKES, **more))] == [1]


def test_each_way_is_a_plan_of_its_own(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("s", pa.int64()), ("n", pa.int64()), ("op", pa.string())])
    log = create_log(str(tmp_path / "log"), schema, minimum=(0,))
    ways: list[dict[str, Any]] = [
        {},
        {"delete_when": "op = 'D'"},
        {"delete_when": "op = 'X'"},
        {"truncate_when": "op = 'T'"},
        {"ignore_null_updates": True},
        {"history": True},
        {"history": True, "ignore_null_updates": True},
        {"sequence_by": ["s", "n"]},
        {"columns": ["k", "n"]},
        {"delete_when": "op = 'D'", "tombstones": 3},
        {"delete_when": "op = 'D'", "tombstones": 4},
    ]
    found = set()
    for way in ways:
        scope = Scope("flow")
        scope.replay(log).upsert(**{**TAKES, **way}).capture(str(tmp_path / "out"))
        plans = plans_of(scope.sinks, {log.path: log.core.log_id})
        found.add(plans[next(sink for sink in scope.sinks if not sink.kept)].fingerprint)
        assert pickle.loads(pickle.dumps([sink.view for sink in scope.sinks]))
    assert len(found) == len(ways)
