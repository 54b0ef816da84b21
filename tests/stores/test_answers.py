"""Answers from logs in an object store: what a disk gives, a store gives; a copy in one is all there or visibly not.

Spark itself reaches stores through Hadoop's connectors alone, so its jobs are in the long lane, through S3A.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_timely
from spark_timely.answers.subscribe import subscribe
from spark_timely.errors import (
    InvalidOptionError,
    InvalidUsageError,
    RolledBackError,
    SinceViolationError,
    StorageError,
)
from spark_timely.log.store import cloud
from spark_timely.log.store.cloud import CloudStorage, open_storage
from spark_timely.spark.answers import copy_to as copies
from spark_timely.spark.answers.copy_folder import Written, begin, finish
from spark_timely.spark.answers.copy_to import INCOMPLETE, copy_to
from tests.faults.harness import Job, seed_of_run, tell
from tests.stores.conftest import IGNORANT, Place
from tests.stores.hadoop import environment, jars, s3a_settings
from tests.stores.proxy import Rule
from tests.stores.servers import MissingError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
Rows = Counter[tuple[int, str]]
MOTO = pytest.mark.parametrize("server", ["moto"], indirect=True)


class World:
    """A collection of values by keys in a store, with what it holds at each time by plain Python."""

    def __init__(self, place: Place, path: str = "prices") -> None:
        self.log = spark_timely.create_log(
            f"{place.url}/{path}", SCHEMA, minimum=(0,), kind="collection", storage_options=place.options
        )
        self.held: dict[int, str] = {}
        self.at: list[Rows] = []

    def move(self, keys: list[int]) -> None:
        """Give some keys a new value at the next time, or take them away."""
        time = len(self.at)
        rows = [(key, value, -1) for key, value in self.held.items() if key in keys]
        self.held = {key: value for key, value in self.held.items() if key not in keys}
        new = {key: f"{key} at {time}" for key in keys if not time or (time + key) % 4}
        self.held |= new
        rows += [(key, value, 1) for key, value in new.items()]
        columns = {
            "_time": pa.array([time] * len(rows), pa.int64()),
            "_diff": pa.array([diff for *_, diff in rows], pa.int64()),
            "k": pa.array([key for key, *_ in rows], pa.int64()),
            "v": [value for _, value, _ in rows],
        }
        self.log.writer(owner="tests").append(pa.table(columns), advance_to=time + 1)
        self.at.append(Counter(self.held.items()))


@pytest.fixture
def world(place: Place) -> World:
    world, rng = World(place), random.Random(24)
    world.move(list(range(8)))
    for _ in range(5):
        world.move(rng.sample(range(8), 3))
    return world


def counted(rows: pa.Table) -> Rows:
    found: Rows = Counter()
    for row in rows.to_pylist():
        found[row["k"], row["v"]] += row["_diff"]
    return found


# In process ------------------------------------------------------------------------------------------


def test_peek_gives_the_contents_at_each_time(place: Place, world: World) -> None:
    for time, expected in enumerate(world.at):
        rows = spark_timely.peek(world.log.path, as_of=time, storage_options=place.options)
        assert counted(rows) == expected
        some = spark_timely.peek(world.log, as_of=time, keys={"k": [1, 5, 99]})
        assert counted(some) == Counter({row: n for row, n in expected.items() if row[0] in (1, 5)})
    world.log.allow_compaction([4])
    world.log.compact()
    assert counted(spark_timely.peek(world.log, order_by="k", limit=3)) == Counter(sorted(world.at[5])[:3])
    with pytest.raises(SinceViolationError, match=r"found since=\[4\], upper=\[6\]"):
        spark_timely.peek(world.log, as_of=3)


def test_next_peek_takes_a_look_and_the_new_files(place: Place, world: World) -> None:
    log = spark_timely.open_log(world.log.path, storage_options=place.options)
    spark_timely.peek(log)
    with place.proxy.counting() as seen:
        assert counted(spark_timely.peek(log, keys={"k": [1]})).total() <= 1
    assert seen.total <= 1, str(seen)
    world.move([1, 2])
    with place.proxy.counting() as seen:
        assert counted(spark_timely.peek(log)) == world.at[-1]
    assert len([each for each in seen.requests if "_event=message" in each.key]) <= 2, str(seen)  # of the new file


def test_subscription_by_name_continues_over_a_store(place: Place, world: World) -> None:
    given: Rows = Counter()
    stored = None
    for _ in range(3):  # three consumers, each after the one before was let go
        begin: dict[str, Any] = {"as_of": 2} if stored is None else {"resume_from": stored}
        options = {"storage_options": place.options, "poll_s": 0.0}
        with subscribe(world.log.path, name="till", **begin, **options) as changes:  # type: ignore[arg-type]
            for _ in range(2):
                batch = changes.next_batch(timeout_s=30)
                assert batch is not None
                given.update(counted(batch.rows))
                stored = str(changes.cut)
                changes.acknowledge(batch.upper)
                assert +given == world.at[batch.upper.elements[0][0] - 1]
        world.move([0, 3])
        world.log.allow_compaction(world.log.frontier())
        world.log.compact()
    assert world.log.retainers()["till"].needed is not None
    assert world.log.since().elements[0][0] > 0
    assert not -given


# Copies ----------------------------------------------------------------------------------------------


@pytest.fixture
def by_python(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the rows of a copy be written by this process, where Spark has no connector; return what is in the folder
    meanwhile."""
    seen: list[str] = []

    def write(frame: Any, root: str, format_: str, most: int) -> Written:
        del format_, most
        folder, _, own = root.rpartition("/")
        storage = open_storage(folder, write.options)  # type: ignore[attr-defined]
        rows = frame.toArrow()
        for number in range(2):
            with storage.open_output(f"{own}/part-{number}.parquet") as file:
                pq.write_table(rows.slice(number * 3, 3 if number == 0 else None), file)
            seen.extend("_attempt" if name == own else name for name in storage.names())
        storage.write(f"{own}/_temporary/0/task_9/part-9.parquet", b"late")
        return Written(rows.num_rows)

    monkeypatch.setattr(copies, "_written", write)
    monkeypatch.setattr(copies, "spark_root", lambda _, storage: storage.uri)
    write.options = {}  # type: ignore[attr-defined]
    return seen


@pytest.fixture
def frame(spark: SparkSession) -> Any:
    return spark.createDataFrame([(n, f"value {n}") for n in range(7)], "k long, v string")


def contents(storage: CloudStorage) -> Rows:
    """Return the rows of a copy, as a reader finds them that knows nothing of the library."""
    found: Rows = Counter()
    for name in storage.names():
        if name.endswith(".parquet"):
            with storage.open_input(name) as file:
                found.update(tuple(row.values()) for row in pq.read_table(file).to_pylist())
    return found


@pytest.mark.spark
@MOTO
def test_copy_has_its_sign_until_all_is_there(place: Place, frame: Any, by_python: list[str]) -> None:
    copies._written.options = place.options  # type: ignore[attr-defined]
    folder = f"{place.url}/copy"
    assert copy_to(frame.sparkSession, frame, folder, storage_options=place.options) == 7
    assert by_python == [INCOMPLETE, "_attempt"] * 2
    storage = open_storage(folder, place.options)
    assert storage.names() == ["part-0.parquet", "part-1.parquet"]
    assert contents(storage) == Counter((n, f"value {n}") for n in range(7))
    with pytest.raises(InvalidUsageError, match=r"found \['part-0.parquet', 'part-1.parquet'\] in it"):
        copy_to(frame.sparkSession, frame, folder, storage_options=place.options)
    # Some tools leave an object for the folder itself.
    storage.write("empty/", b"")
    assert copy_to(frame.sparkSession, frame, f"{folder}/empty", storage_options=place.options) == 7


@pytest.mark.spark
@MOTO
def test_copy_that_dies_half_way_is_left_as_it_is(
    place: Place, frame: Any, by_python: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del by_python

    class Died(BaseException):
        """Nothing catches it: the process is gone."""

    write = copies._written
    write.options = place.options  # type: ignore[attr-defined]

    def half(*args: Any) -> None:
        write(*args)
        raise Died

    monkeypatch.setattr(copies, "_written", half)
    folder = f"{place.url}/copy"
    with pytest.raises(Died):
        copy_to(frame.sparkSession, frame, folder, storage_options=place.options)
    storage = open_storage(folder, place.options)
    before = storage.names()
    assert before[0] == INCOMPLETE
    assert [name[:9] for name in before] == [INCOMPLETE[:9], "_attempt-"]
    monkeypatch.setattr(copies, "_written", write)
    with pytest.raises(InvalidUsageError, match="found INCOMPLETE in it, of a copy by job 'timely-copy-"):
        copy_to(frame.sparkSession, frame, folder, storage_options=place.options)
    assert storage.names() == before
    # What the hint says, in part: the rest of the old job is no row of the new one.
    storage.delete(INCOMPLETE)
    assert copy_to(frame.sparkSession, frame, folder, storage_options=place.options) == 7
    assert storage.names() == ["part-0.parquet", "part-1.parquet"]
    assert contents(storage).total() == 7


@pytest.mark.spark
@MOTO
def test_names_of_a_copy_cost_a_request_each(place: Place, frame: Any, by_python: list[str]) -> None:
    """Beside what lists and reads footers: one that copies for each file, and few that delete."""
    del by_python
    copies._written.options = place.options  # type: ignore[attr-defined]
    with place.proxy.counting() as seen:
        copy_to(frame.sparkSession, frame, f"{place.url}/copy", storage_options=place.options)
    copied = [each for each in seen.requests if each.kind == "PUT" and each.key.endswith(".parquet")]
    tell(f"{seen.total} requests: {seen}")
    assert len(copied) == 2 + 2 + 1  # written, and named; and what a late task has written


def test_one_of_many_begins_a_copy(place: Place) -> None:
    def begun(_: int) -> bool:
        storage = open_storage(f"{place.url}/copy", place.options)
        try:
            return bool(begin(storage, "copy", {}).token)
        except InvalidUsageError:
            return False

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(begun, range(6))) == [False] * 5 + [True]


def test_sign_that_replaces_another_one_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: the sign is put without a condition, so that several begin."""
    own = CloudStorage.put
    monkeypatch.setattr(CloudStorage, "put", lambda self, path, content, **_: own(self, path, content, replace=True))
    with pytest.raises(AssertionError):
        test_one_of_many_begins_a_copy(place)


def test_lost_reply_of_the_sign_does_not_stop_its_copy(place: Place) -> None:
    storage = open_storage(f"{place.url}/copy", place.options)
    with place.proxy.breaking(Rule("lost", kind="PUT", key=INCOMPLETE, times=1)):
        own = begin(storage, "copy", {})
    assert place.proxy.broken
    assert finish(own, Written(0)) == 0
    assert storage.names() == []


@IGNORANT
def test_copy_is_refused_where_conditions_are_ignored(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "_excluding", set())
    storage = open_storage(f"{place.url}/copy", place.unsigned)
    with (
        place.proxy.breaking(Rule("strip", kind="PUT")),
        pytest.raises(StorageError, match="ignores conditional puts"),
    ):
        begin(storage, "copy", {})


@pytest.mark.parametrize("lost", [False, True])
def test_names_in_a_store_are_whole_copies(place: Place, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    """Also where a reply is lost, and of files that are larger than what a store copies by one request."""
    storage = open_storage(f"{place.url}/copy", place.options)
    own = begin(storage, "copy", {})
    sizes = [10, 20_000, 9_000_000]
    for number, size in enumerate(sizes):
        with storage.open_output(f"{own.folder}/part-{number}.parquet") as file:
            pq.write_table(pa.table({"v": ["x" * size]}), file)
    if lost:
        with place.proxy.breaking(Rule("lost", kind="PUT", key="copy/part-", times=2)):
            assert finish(own, Written(3)) == 3
        assert place.proxy.broken
    else:
        monkeypatch.setattr(cloud, "_COPIED_BYTES", 0)
        call = CloudStorage._call

        def refused(self: CloudStorage, what: str, how: str, *args: Any, **more: Any) -> Any:
            if how == "copy":
                raise StorageError("could not copy", determinate=True)
            return call(self, what, how, *args, **more)

        monkeypatch.setattr(CloudStorage, "_call", refused)
        assert finish(own, Written(3)) == 3
    assert storage.names() == [f"part-{number}.parquet" for number in range(3)]
    for number, size in enumerate(sizes):
        with storage.open_input(f"part-{number}.parquet") as file:
            assert pq.read_table(file)["v"].to_pylist() == ["x" * size]


def test_copy_that_lost_its_folder_takes_its_names_away(place: Place) -> None:
    storage = open_storage(f"{place.url}/copy", place.options)
    own = begin(storage, "copy", {})
    storage.write(f"{own.folder}/part-0.csv", b"a\n")
    storage.delete(INCOMPLETE)
    other = begin(storage, "copy", {})
    with pytest.raises(RolledBackError, match="INCOMPLETE was deleted or replaced"):
        finish(own, Written(0, frozenset({0})))
    assert storage.names() == [INCOMPLETE]
    assert storage.find(INCOMPLETE) == other.sign


@pytest.mark.spark
@MOTO
def test_store_without_a_connector_is_refused_by_name(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    world = World(place)
    world.move([0])
    with pytest.raises(InvalidOptionError, match=r"no file system of Hadoop for 's3'.*hadoop-aws"):
        spark_timely.sql(spark, "SELECT * FROM l", names={"l": world.log})
    with pytest.raises(InvalidOptionError, match=r"no file system of Hadoop for 's3'.*hadoop-aws"):
        copy_to(spark, world.log, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    near = spark_timely.create_log(tmp_path / "log", SCHEMA, minimum=(0,))
    near.writer(owner="tests").advance(1)
    with pytest.raises(InvalidOptionError, match=r"no file system of Hadoop for 's3'.*hadoop-aws"):
        copy_to(spark, near, f"{place.url}/copy", storage_options=place.options)
    assert open_storage(f"{place.url}/copy", place.options).names() == []


# By Spark, through S3A --------------------------------------------------------------------------------

EVERY_S3 = pytest.mark.parametrize("server", ["moto", "minio"], indirect=True)


@pytest.fixture
def spec(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Return what a job needs to come to the store: its credentials are in the environment."""
    try:
        settings = {"spark.jars": jars(), **s3a_settings(place.proxy.address)}
    except MissingError as error:  # Spark's own JARs for S3, which are downloaded: without a network there are none
        pytest.skip(str(error))
    for name, value in environment(place.options).items():  # a few
        monkeypatch.setenv(name, value)
    place.url = place.url.replace(" ", "-")
    # Spark's scheme, in which the library finds the same.
    root = place.url.replace("s3://", "s3a://")
    near = spark_timely.create_log(tmp_path / "near", SCHEMA, minimum=(0,), kind="collection")
    rows = {"_time": [0] * 4, "_diff": [1] * 4, "k": [0, 1, 2, 3], "v": ["zero", "one", 'two, "2"', ""]}
    near.writer(owner="tests").append(pa.table(rows), advance_to=5)
    return {"far": f"{root}/prices", "near": near.path, "folder": f"{root}/copy", "settings": settings, "die": None}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
@EVERY_S3
def test_sql_peeks_and_copies_over_both(place: Place, spec: dict[str, object], tmp_path: Path) -> None:
    world = World(place)
    for keys in ([0, 1, 2, 3, 4], [1, 2], [3, 4], [0, 5], [2, 3], [1, 4]):
        world.move(keys)
    said = Job("store_answers_job.py", spec, tmp_path / "runs").finish()
    found = json.loads(re.findall(r"^FOUND (.*)$", said, re.MULTILINE)[-1])
    words = ["zero", "one", 'two, "2"', ""]
    at = dict(world.at[4])  # the other log is complete before 5
    assert found["joined"] == [[k, v, words[k], 4] for k, v in sorted(at) if k < 4]
    assert [(row["k"], row["v"]) for row in found["peeked"]] == sorted(row for row in world.at[5] if row[0] > 2)
    assert found["copied"] == [world.at[5].total(), 3]
    assert "in it" in found["refused"]
    storage = open_storage(f"{place.url}/copy", place.server.options())
    assert contents(storage) == world.at[5]
    assert INCOMPLETE not in storage.names()
    near = open_storage(f"{place.url}/copy-near", place.server.options())
    (name,) = [name for name in near.names() if name.endswith(".csv")]
    assert sorted(bytes(near.read(name)).decode().splitlines()) == ["0,zero", '2,"two, ""2"""', '3,""', "k,v"]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.timeout(900)
@EVERY_S3
def test_copy_killed_while_it_writes_looks_unfinished(place: Place, spec: dict[str, object], tmp_path: Path) -> None:
    rng = random.Random(seed_of_run())
    tell(f"seed {seed_of_run()}")
    world = World(place)
    world.move(list(range(20_000)))
    unfinished = 0
    for number in range(4):
        die_s = rng.choice([0.0, rng.uniform(0.0, 0.2), rng.uniform(0.2, 1.0)])
        folder = f"copy-{number}"
        own = {"die": die_s, "folder": str(spec["folder"]).replace("copy", folder)}
        job = Job("store_answers_job.py", {**spec, **own}, tmp_path / f"runs-{number}")
        assert job.end_within(240), job.text()
        job.kill()
        assert "Traceback" not in job.text(), job.text()
        storage = open_storage(f"{place.url}/{folder}", place.server.options())
        names = storage.names()
        tell(f"killed {die_s:.3f} s after the first file: {len(names)} names, {INCOMPLETE in names=}")
        if INCOMPLETE in names:
            unfinished += 1
        else:
            assert contents(storage) == world.at[0]
    assert unfinished
