"""What a micro-batch's sources know about completeness, from the checkpoint's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_timely.errors import InvalidUsageError, LogFormatError, StorageError
from spark_timely.spark.base.source_frontier import SourceFrontier, batch_frontier, source_frontier
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeType

LONG = (TimeType.LONG,)


def offset(frontier: list[int] | list[list[int]], times: tuple[str, ...] = ("long",), **more: object) -> str:
    origin: list[int] | list[list[int]] = [0] if len(times) == 1 else [[0] * len(times)]
    found = {"version": 1, "delivery": "complete", "times": list(times), "log": "a", "origin": origin}
    return json.dumps({**found, "frontier": frontier, **more})


def checkpoint(path: Path, *lines: str, batch_id: int = 0, head: str = "v1") -> str:
    (path / "offsets").mkdir(exist_ok=True)
    text = "\n".join([head, '{"batchWatermarkMs":0}', *lines])
    (path / "offsets" / str(batch_id)).write_text(text)
    return str(path)


def test_one_source_gives_its_end(tmp_path: Path) -> None:
    where = checkpoint(tmp_path, offset([5]))
    checkpoint(tmp_path, offset([9]), batch_id=1)
    assert batch_frontier(0, checkpoint=where) == Antichain.of(5)
    assert source_frontier(1, where) == SourceFrontier(Antichain.of(9), LONG)


def test_several_sources_are_as_far_as_the_one_that_is_behind(tmp_path: Path) -> None:
    assert batch_frontier(0, checkpoint=checkpoint(tmp_path, offset([5]), offset([3]), offset([]))) == Antichain.of(3)
    pairs = ("long", "long")
    where = checkpoint(tmp_path, offset([[1, 5]], pairs), offset([[4, 2]], pairs))
    assert batch_frontier(0, checkpoint=where) == Antichain.of((1, 5), (4, 2))


def test_second_version_of_the_offset_log_names_its_sources(tmp_path: Path) -> None:
    where = checkpoint(tmp_path, "1:" + offset([5]), "orders:" + offset([3]), head="v2")
    assert batch_frontier(0, checkpoint=where) == Antichain.of(3)
    assert source_frontier(0, checkpoint(tmp_path, "0:" + offset([5]), "1:-", head="v2")).frontier is None


def test_complete_sources_are_complete(tmp_path: Path) -> None:
    assert batch_frontier(0, checkpoint=checkpoint(tmp_path, offset([]), offset([]))).is_empty


def test_source_that_has_not_begun_holds_everything_back(tmp_path: Path) -> None:
    where = checkpoint(tmp_path, offset([5], ("date",)), "-")
    assert source_frontier(0, where) == SourceFrontier(None, (TimeType.DATE,))
    symbolic = json.dumps({"version": 1, "delivery": "complete", "times": ["long"], "begin": {"frontier": [3]}})
    where = checkpoint(tmp_path, offset([]), symbolic)
    assert source_frontier(0, where).frontier is None
    assert batch_frontier(0, checkpoint=where) == Antichain.of(-(2**63))
    assert batch_frontier(0, checkpoint=checkpoint(tmp_path, "-")) == Antichain.of(-(2**63))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('{"logOffset":17}', "a file source"),
        ('{"sourceVersion":1,"reservoirId":"x","reservoirVersion":3,"index":-1}', "a Delta table"),
        ('{"offset":1,"timestamp":1000}', "Spark's rate source"),
        ("17", "a source"),
        ('{"topic":{"0":5}}', "a source"),
        ("[1]", "a source"),
        ("", "a source"),
        ('{"version":1,"delivery":"complete","times":["centuries"],"frontier":[1]}', "a source"),
        ('{"version":1,"delivery":"complete","times":7,"frontier":[1]}', "a source"),
    ],
)
def test_other_sources_are_refused_by_name(tmp_path: Path, line: str, name: str) -> None:
    with pytest.raises(
        InvalidUsageError, match=f"found {name} that is not timely, at offset .* — hint: read the other"
    ):
        batch_frontier(0, checkpoint=checkpoint(tmp_path, offset([5]), line))


def test_order_of_arrival_and_progress_rows_are_refused(tmp_path: Path) -> None:
    line = offset([5], delivery="arrival", seqs={"a": 3}, origin={})
    with pytest.raises(InvalidUsageError, match="delivery='arrival' — hint: read it with delivery=complete"):
        batch_frontier(0, checkpoint=checkpoint(tmp_path, line))
    with pytest.raises(InvalidUsageError, match="content='events' — hint: read it with delivery=complete"):
        batch_frontier(0, checkpoint=checkpoint(tmp_path, offset([5], content="events")))
    assert batch_frontier(0, checkpoint=checkpoint(tmp_path, offset([5], content="rows"))) == Antichain.of(5)


def test_offset_without_types_is_refused_for_dates(tmp_path: Path) -> None:
    line = json.dumps({"version": 1, "delivery": "complete", "log": "a", "origin": [0], "frontier": [5]})
    with pytest.raises(InvalidUsageError, match=r"does not say of which type its times are, at offset .* an earlier"):
        batch_frontier(0, checkpoint=checkpoint(tmp_path, line))


def test_offset_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogFormatError, match="found an offset of version=2, known is 1"):
        batch_frontier(0, checkpoint=checkpoint(tmp_path, offset([5], version=2)))


def test_times_of_several_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match=r"times of types \(date\) and \(timestamp\)"):
        batch_frontier(0, checkpoint=checkpoint(tmp_path, offset([5], ("timestamp",)), offset([5], ("date",))))
    pair = offset([[1, 2]], ("long", "date"))
    with pytest.raises(InvalidUsageError, match=r"times of types \(long\) and \(long, date\)"):
        batch_frontier(0, checkpoint=checkpoint(tmp_path, pair, offset([5])))


def test_stateful_operators_are_refused_by_name(tmp_path: Path) -> None:
    where = checkpoint(tmp_path, offset([5]))
    (tmp_path / "state").mkdir()
    assert batch_frontier(0, checkpoint=where) == Antichain.of(5)
    for number, path, name in ((0, "metadata", "dedupe"), (1, "v2/3", "symmetricHashJoin"), (2, "metadata", None)):
        file = tmp_path / "state" / str(number) / "_metadata" / path
        file.parent.mkdir(parents=True)
        found = {} if name is None else {"operatorInfo": {"operatorId": number, "operatorName": name}}
        file.write_text(f"v1\n{json.dumps(found)}")
    (tmp_path / "state" / "3").mkdir()
    with pytest.raises(InvalidUsageError) as found_error:
        batch_frontier(0, checkpoint=where)
    text = str(found_error.value)
    assert "stateful operators in the query: dedupe, symmetricHashJoin, an unknown one, an unknown one" in text
    assert "stateful operators keep rows back" in text


def test_checkpoint_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    where = checkpoint(tmp_path, offset([5]))
    with pytest.raises(StorageError, match="no readable 'offsets/3' in checkpoint"):
        batch_frontier(3, checkpoint=where)
    with pytest.raises(StorageError, match="no readable 'offsets/0' in checkpoint"):
        batch_frontier(0, checkpoint="hdfs://nowhere/at/all")
    for head, lines in (("v9", (offset([5]),)), ("v1", ())):
        with pytest.raises(StorageError, match="another form"):
            batch_frontier(0, checkpoint=checkpoint(tmp_path, *lines, head=head))
