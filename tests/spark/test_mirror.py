"""A mirror is at each of its commits what the log contains at the upper that the commit records."""

from __future__ import annotations

import json
import random
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import spark_timely
from spark_timely import Log
from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    NegativeMultiplicityError,
    SchemaMismatchError,
    UpperMismatchError,
)
from spark_timely.log.cut import cut
from spark_timely.spark.answers import mirror as module
from spark_timely.spark.answers.mirror import Mirror, Position, mirror_to
from spark_timely.time.antichain import Antichain
from tests.faults.harness import long_lane

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.float64()), ("n", pa.int64())])

Row = tuple[Any, ...]
Update = tuple[int, int, Row]  # time, diff, row


class Changing:
    """A collection that changes at random, with what it holds by plain Python."""

    def __init__(self, folder: Path, seed: int, *, keyed: bool) -> None:
        self.log = spark_timely.create_log(folder / "log", SCHEMA, minimum=(0,), kind="collection")
        self.rng, self.keyed = random.Random(seed), keyed
        self.held: Counter[Row] = Counter()
        self.at: dict[int, Counter[Row]] = {0: Counter()}  # contents before an upper
        self.upper = 0

    def move(self, times: int = 1) -> None:
        """Append changes at some times, and close them."""
        updates: list[Update] = []
        for _ in range(times):
            for _ in range(self.rng.randrange(5)):
                updates += self._change()
            self.upper += 1
            self.at[self.upper] = Counter(self.held)
        append(self.log, updates, self.upper)

    def _change(self) -> list[Update]:
        rng, time = self.rng, self.upper
        row = (rng.choice(["a", "b", "ü", None, "it's"]), rng.choice([0.0, 1.5, float("inf"), None]), rng.randrange(3))
        if self.keyed:
            before = [each for each in self.held if each[0] == row[0]]
            new = [row] if not before or rng.random() < 0.6 else []
        else:
            before = [rng.choice(sorted(self.held, key=repr))] if self.held and rng.random() < 0.4 else []
            new = [row] if not before else []
        self.held.subtract(before)
        self.held.update(new)
        self.held = +self.held
        return [(time, -1, each) for each in before] + [(time, 1, each) for each in new]


def append(log: Log, updates: list[Update], upper: int) -> None:
    columns = {
        name: pa.array([row[at] for *_, row in updates], SCHEMA.field(name).type)
        for at, name in enumerate(SCHEMA.names)
    }
    times = {"_time": pa.array([time for time, *_ in updates], pa.int64())}
    diffs = {"_diff": pa.array([diff for _, diff, _ in updates], pa.int64())}
    log.writer(owner="tests").append(pa.table({**times, **diffs, **columns}), advance_to=upper)


def rows_of(path: Path, *, keyed: bool, version: int | None = None) -> Counter[Row]:
    """Return the rows of a table as another library than Spark reads them."""
    found: Counter[Row] = Counter()
    table = DeltaTable(str(path), version=version).to_pyarrow_table()
    assert table.schema.names == [*SCHEMA.names, *([] if keyed else ["_count"])]
    for row in table.to_pylist():
        values = tuple(row.values())
        assert keyed or values[:-1] not in found
        found[values if keyed else values[:-1]] += 1 if keyed else values[-1]
    return found


def positions(path: Path) -> Iterator[tuple[int, Position]]:
    """Yield the versions of a table that a mirror made, and what they record."""
    for entry in sorted((path / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            info = json.loads(line).get("commitInfo")
            if info is not None:
                found = Position.from_text(info.get("userMetadata"))
                if found is not None:
                    yield int(entry.stem), found


def upper_of(position: Position) -> int:
    ((upper,),) = position.cut.frontier.elements
    return upper


@pytest.mark.parametrize("seed", range(10 if long_lane() else 1))
@pytest.mark.parametrize("key", ["k", None])
def test_each_commit_is_the_contents_at_its_upper(
    spark: SparkSession, tmp_path: Path, seed: int, key: str | None
) -> None:
    world, table = Changing(tmp_path, seed, keyed=key is not None), tmp_path / "a table"
    mirror = mirror_to(spark, world.log, table, key=key)
    how = []
    for step in range(5):
        world.move(world.rng.randrange(1, 4))
        if step == 3:
            world.log.compact()
            mirror = mirror_to(spark, world.log.path, table, key=key)  # a restart
        done = mirror.step()
        how.append(done.how)
        assert done.upper == world.log.frontier()
        assert mirror.step().how == "nothing"
    assert how == ["created", *["merged"] * 4]
    seen = list(positions(table))
    assert [position.number for _, position in seen] == list(range(5))
    for version, position in seen:
        found = rows_of(table, keyed=key is not None, version=version)
        assert found == world.at[upper_of(position)], f"{seed=} {version=}"


def test_mirror_of_a_log_that_forgot_is_replaced_whole(spark: SparkSession, tmp_path: Path) -> None:
    world, table = Changing(tmp_path, 3, keyed=False), tmp_path / "table"
    mirror = mirror_to(spark, world.log, table, expiry=None)
    world.move(3)
    mirror.step()
    world.move(3)
    world.log.allow_compaction([5])
    world.log.compact()
    assert mirror.step().how == "replaced"
    assert rows_of(table, keyed=False) == world.at[6]
    world.move()
    assert mirror.step().how == "merged"
    assert rows_of(table, keyed=False) == world.at[7]


def test_log_keeps_what_the_table_does_not_have_yet(spark: SparkSession, tmp_path: Path) -> None:
    world, table = Changing(tmp_path, 4, keyed=True), tmp_path / "table"
    mirror = mirror_to(spark, world.log, table, key=["k"])
    world.move(3)
    mirror.step()
    assert list(world.log.retainers()) == [mirror.consumer]
    world.move(3)
    world.log.allow_compaction([6])
    world.log.compact()
    assert mirror.step().how == "merged"
    assert rows_of(table, keyed=True) == world.at[6]
    world.log.writer(owner="tests").close()
    assert mirror.step().upper.is_empty
    assert not world.log.retainers()
    assert [each.how for each in mirror.follow()] == []


def test_new_columns_of_the_log_replace_the_table(spark: SparkSession, tmp_path: Path) -> None:
    world, table = Changing(tmp_path, 5, keyed=True), tmp_path / "table"
    mirror = mirror_to(spark, world.log, table, key="k")
    world.move(2)
    mirror.step()
    world.log.add_columns(pa.schema([("more", pa.date32())]))
    world.move(2)
    mirror = mirror_to(spark, world.log.path, table, key="k")
    assert mirror.step().how == "replaced"
    found = DeltaTable(str(table)).to_pyarrow_table()
    assert found.schema.names == [*SCHEMA.names, "more"]
    assert Counter(tuple(row.values())[:-1] for row in found.to_pylist()) == world.at[4]


def test_several_mirrors_of_one_table_make_each_step_once(spark: SparkSession, tmp_path: Path) -> None:
    world, table = Changing(tmp_path, 6, keyed=False), tmp_path / "table"
    mirrors = [mirror_to(spark, world.log.path, table) for _ in range(2)]
    failures: list[BaseException] = []

    def step(mirror: Mirror) -> None:
        try:
            mirror.step()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(error)

    for _ in range(3):
        world.move(2)
        threads = [threading.Thread(target=step, args=(mirror,)) for mirror in mirrors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert rows_of(table, keyed=False) == world.at[world.upper]
    numbers = [position.number for _, position in positions(table)]
    assert numbers == sorted(set(numbers))


def test_one_who_plans_from_what_is_old_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another mirror makes the same step between the plan and the commit: then the table has it, once."""
    world, table = Changing(tmp_path, 7, keyed=False), tmp_path / "table"
    one, two = (mirror_to(spark, world.log.path, table) for _ in range(2))
    append(world.log, [(0, 1, ("a", 1.0, 1))], 1)
    one.step()
    append(world.log, [(1, 2, ("a", 1.0, 1)), (1, 1, ("b", None, 2))], 2)
    merge = one._merge

    def late(*args: Any) -> None:
        monkeypatch.undo()
        assert two.step().how == "merged"
        merge(*args)

    monkeypatch.setattr(one, "_merge", late)
    assert one.step().how == "nothing"
    assert rows_of(table, keyed=False) == Counter({("a", 1.0, 1): 3, ("b", None, 2): 1})
    assert [position.number for _, position in positions(table)] == [0, 1]


@pytest.mark.parametrize("key", ["k", None] if long_lane() else ["k"])
def test_late_step_into_a_table_made_again_is_replaced(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    key: str | None,
) -> None:
    """A step's client died and the table was deleted: its job commits into the table that was made in its place."""
    world, table = Changing(tmp_path, 9, keyed=True), tmp_path / "table"
    one, two = (mirror_to(spark, world.log.path, table, key=key) for _ in range(2))
    append(world.log, [(0, 1, ("a", 1.0, 1))], 1)
    one.step()
    # What the table that is made again takes too, and is wrong by only where rows are counted.
    changes: list[Update] = [(1, 1, ("b", None, 2))]
    if key is not None:
        changes = [(1, -1, ("a", 1.0, 1)), (1, 1, ("a", 2.0, 1))]
    append(world.log, changes, 2)
    merge = one._merge

    def late(*args: Any) -> None:
        monkeypatch.undo()
        shutil.rmtree(table)
        assert two.step().how == "created"
        merge(*args)

    monkeypatch.setattr(one, "_merge", late)
    assert one.step().how == "replaced"
    assert "found step 1 of another table that was in its place: it is replaced whole" in caplog.text
    assert f"jobs that write to it have the tag {two.tag!r}" in caplog.text
    assert two.step().how == "nothing"
    held = [("a", 1.0, 1), ("b", None, 2)] if key is None else [("a", 2.0, 1)]
    assert rows_of(table, keyed=key is not None) == Counter(held)


def test_late_first_step_without_its_files_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    """The table was deleted between the files of a step and its commit."""
    world, table = Changing(tmp_path, 10, keyed=True), tmp_path / "a table"
    append(world.log, [(0, 1, ("a", 1.0, 1))], 1)
    mirror_to(spark, world.log, table, key="k").step()
    assert mirror_to(spark, world.log, table, key="k").step().how == "nothing"
    for file in table.glob("*.parquet"):
        file.unlink()
    mirror = mirror_to(spark, world.log, table, key="k")
    with pytest.raises(DataLossError, match="found 1 of 1 files gone") as found:
        mirror.position()
    assert f"end jobs that have the tag {mirror.tag!r}, then make a step" in str(found.value.hint)
    assert mirror.step().how == "replaced"
    assert rows_of(table, keyed=True) == Counter({("a", 1.0, 1): 1})
    append(world.log, [(1, 1, ("b", None, 2))], 2)
    assert [mirror.step().how, mirror_to(spark, world.log, table, key="k").step().how] == ["merged", "nothing"]
    assert rows_of(table, keyed=True) == Counter({("a", 1.0, 1): 1, ("b", None, 2): 1})


def test_late_commit_behind_versions_that_are_gone_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    world, table = Changing(tmp_path, 11, keyed=True), tmp_path / "table"
    append(world.log, [(0, 1, ("a", 1.0, 1))], 1)
    mirror = mirror_to(spark, world.log, table, key="k")
    mirror.step()
    append(world.log, [(1, 1, ("b", None, 2))], 2)
    mirror.step()
    away = tmp_path / "away"
    table.rename(away)
    (table / "_delta_log").mkdir(parents=True)
    shutil.copy(away / "_delta_log" / f"{1:020d}.json", table / "_delta_log")
    with pytest.raises(DataLossError, match="log that lacks entries") as found:
        mirror_to(spark, world.log, table, key="k").step()
    assert mirror.tag in str(found.value.hint)


def test_position_of_an_earlier_version_follows_anything(tmp_path: Path) -> None:
    world = Changing(tmp_path, 12, keyed=True)
    position = Position(cut([world.log]), 0, -1, ("k",), "columns", "attempt")
    earlier = json.loads(position.to_text())
    del earlier["follows"]
    assert Position.from_text(json.dumps(earlier)) == position


def test_harmless_commits_of_others_are_let_be(spark: SparkSession, tmp_path: Path) -> None:
    world, table = Changing(tmp_path, 8, keyed=True), tmp_path / "table"
    mirror = mirror_to(spark, world.log, table, key="k")
    for _ in range(3):
        world.move(2)
        mirror.step()
        spark.sql(f"OPTIMIZE delta.`{table}`")
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('by' = 'people')")
    assert rows_of(table, keyed=True) == world.at[6]


@pytest.mark.parametrize(
    ("statement", "error", "found"),
    [
        ("DELETE FROM delta.`{}` WHERE true", DataLossError, "version 1 of the table by DELETE of others"),
        ("INSERT INTO delta.`{}` VALUES ('z', 0.0, 1)", DataLossError, "by WRITE of others"),
        ("ALTER TABLE delta.`{}` ADD COLUMNS (more INT)", (DataLossError, SchemaMismatchError), "of others|columns"),
        ("RESTORE TABLE delta.`{}` TO VERSION AS OF 0", DataLossError, "by RESTORE of others"),
    ],
)
def test_table_that_others_changed_is_refused(
    spark: SparkSession, tmp_path: Path, statement: str, error: Any, found: str
) -> None:
    table = tmp_path / "table"
    log = spark_timely.create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    append(log, [(0, 1, ("a", 1.0, 1))], 1)
    mirror = mirror_to(spark, log, table, key="k")
    mirror.step()
    if "RESTORE" in statement:
        append(log, [(1, 1, ("b", 1.0, 1))], 2)
        mirror.step()
    spark.sql(statement.format(table))
    before = list((table / "_delta_log").glob("*.json"))
    for _ in range(2):
        append(log, [(2, 1, ("c", 1.0, 1))], 3) if log.frontier().less_equal((2,)) else None
        with pytest.raises(error, match=found):
            mirror.step()
    assert list((table / "_delta_log").glob("*.json")) == before


def test_change_of_others_within_a_step_is_found_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    log = spark_timely.create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    append(log, [(0, 1, ("a", 1.0, 1))], 1)
    mirror = mirror_to(spark, log, table, key="k")
    mirror.step()
    append(log, [(1, 1, ("b", 1.0, 1))], 2)
    merge = mirror._merge

    def late(*args: Any) -> None:
        spark.sql(f"INSERT INTO delta.`{table}` VALUES ('z', 0.0, 1)")
        merge(*args)

    monkeypatch.setattr(mirror, "_merge", late)
    with pytest.raises(DataLossError, match="by WRITE of others"):
        mirror.step()
    with pytest.raises(DataLossError, match="by WRITE of others"):
        mirror_to(spark, log.path, table, key="k").step()


def test_two_rows_of_one_key_are_named(spark: SparkSession, tmp_path: Path) -> None:
    log = spark_timely.create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    append(log, [(0, 1, ("a", 1.0, 1))], 1)
    mirror = mirror_to(spark, log, tmp_path / "table", key="k")
    mirror.step()
    append(log, [(1, 1, ("a", 2.0, 1)), (1, 1, ("b", 1.0, 1))], 2)
    for _ in range(2):
        with pytest.raises(InvalidUsageError, match=r"found two rows or more of key \['k'\]=.*a"):
            mirror.step()
    assert rows_of(tmp_path / "table", keyed=True) == Counter([("a", 1.0, 1)])
    with pytest.raises(InvalidUsageError, match="found two rows or more of key"):
        mirror_to(spark, log, tmp_path / "other", key="k").step()
    append(log, [(2, -1, ("a", 2.0, 1))], 3)
    assert mirror.step().how == "merged"
    assert rows_of(tmp_path / "table", keyed=True) == Counter([("a", 1.0, 1), ("b", 1.0, 1)])
    append(log, [(3, 1, ("c", 1.0, 1)), (3, 1, ("c", 2.0, 1))], 4)
    with pytest.raises(InvalidUsageError, match="found two rows or more of key"):
        mirror.step()


@pytest.mark.parametrize("key", ["k", None])
def test_row_that_was_never_added_is_named(spark: SparkSession, tmp_path: Path, key: str | None) -> None:
    log = spark_timely.create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    append(log, [(0, 1, ("a", 1.0, 1))], 1)
    mirror = mirror_to(spark, log, tmp_path / "table", key=key)
    mirror.step()
    append(log, [(1, -1, ("b", 2.0, 1))], 2)
    with pytest.raises(NegativeMultiplicityError, match=r"found row=.*b.* with count=-1"):
        mirror.step()
    assert len(list(positions(tmp_path / "table"))) == 1


def test_only_a_mirror_of_this_very_log_is_continued(spark: SparkSession, tmp_path: Path) -> None:
    world, table = Changing(tmp_path, 9, keyed=True), tmp_path / "table"
    world.move()
    mirror_to(spark, world.log, table, key="k").step()
    with pytest.raises(InvalidUsageError, match=r"found a mirror with key=\['k'\]"):
        mirror_to(spark, world.log, table).step()
    other = spark_timely.create_log(tmp_path / "other", SCHEMA, minimum=(0,), kind="collection")
    append(other, [], 5)
    with pytest.raises((DataLossError, InvalidUsageError), match="this one is not among them"):
        mirror_to(spark, other, table, key="k").step()
    spark.range(3).write.format("delta").save(str(tmp_path / "foreign"))
    with pytest.raises(InvalidUsageError, match="found a table that is no mirror"):
        mirror_to(spark, world.log, tmp_path / "foreign").step()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("")
    with pytest.raises(InvalidUsageError, match=r"letter.txt.* and no table"):
        mirror_to(spark, world.log, tmp_path / "full").step()


@pytest.mark.parametrize(
    ("options", "found"),
    [({"key": "nobody"}, "no column 'nobody'"), ({"key": ["k", "k"]}, "key=")],
)
def test_key_that_is_none_is_refused(spark: SparkSession, tmp_path: Path, options: Any, found: str) -> None:
    log = spark_timely.create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    with pytest.raises(InvalidUsageError, match=found):
        mirror_to(spark, log, tmp_path / "table", **options)


def test_logs_that_have_no_mirror_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    stream = spark_timely.create_log(tmp_path / "stream", SCHEMA, minimum=(0,))
    with pytest.raises(InvalidUsageError, match="found a stream log"):
        mirror_to(spark, stream, tmp_path / "table")
    log = spark_timely.create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    with pytest.raises(InvalidUsageError, match="found the log itself"):
        mirror_to(spark, log, log.path)


def test_who_loses_again_and_again_says_so(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Changing(tmp_path, 10, keyed=False)
    world.move()
    mirror = mirror_to(spark, world.log, tmp_path / "table")

    def lost(*_: object) -> None:
        raise RuntimeError("[DELTA_CONCURRENT_APPEND] somebody")

    monkeypatch.setattr(mirror, "_write", lost)
    with pytest.raises(UpperMismatchError, match="others were first 20 times"):
        mirror.step()


# Mutants ----------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch
Check = Callable[[SparkSession, Path, Patch], None]


def trusts_others(patch: Patch) -> None:
    """Commits of others are not looked at."""
    own = Mirror._history
    patch.setattr(Mirror, "_history", lambda self: [each for each in own(self) if each[2] is not None])


def looks_from_its_own_commit_on(patch: Patch) -> None:
    """What others did while a step was under way is passed over."""
    own = Mirror._own

    def mutant(self: Mirror, row: Any) -> Position | None:
        found = own(self, row)
        return None if found is None else replace(found, planned_on=int(row["version"]))

    patch.setattr(Mirror, "_own", mutant)


def continues_any_mirror(patch: Patch) -> None:
    patch.setattr(Mirror, "_check_ours", lambda *_: None)


def believes_that_changes_are_told(patch: Patch) -> None:
    patch.setattr(Mirror, "_tells_changes", lambda *_: True)


def retains_nothing(patch: Patch) -> None:
    patch.setattr(Mirror, "_retain", lambda *_: None)


def numbers_no_transaction(patch: Patch) -> None:
    """Each attempt is another application to Delta: two of one step both count."""
    patch.setattr(Mirror, "_app", lambda _: f"timely-mirror {uuid.uuid4().hex}")


def merges_from_the_beginning(patch: Patch) -> None:
    own = module.rows_between
    patch.setattr(module, "rows_between", lambda spark, log, _, upper: own(spark, log, None, upper))


def leaves_out_the_last_time(patch: Patch) -> None:
    own = module.rows_between

    def mutant(spark: SparkSession, log: Log, lower: Any, upper: Any) -> Any:
        return own(spark, log, lower, Antichain.from_times(upper.times - 1, upper.arity) if lower else upper)

    patch.setattr(module, "rows_between", mutant)


def each_commit(spark: SparkSession, folder: Path, _: Patch) -> None:
    test_each_commit_is_the_contents_at_its_upper(spark, folder, 0, None)


MUTANTS: dict[Callable[[Patch], None], Check] = {
    trusts_others: test_change_of_others_within_a_step_is_found_by_the_next,
    looks_from_its_own_commit_on: test_change_of_others_within_a_step_is_found_by_the_next,
    continues_any_mirror: lambda spark, folder, _: test_only_a_mirror_of_this_very_log_is_continued(spark, folder),
    believes_that_changes_are_told: lambda spark, folder, _: test_mirror_of_a_log_that_forgot_is_replaced_whole(
        spark, folder
    ),
    retains_nothing: lambda spark, folder, _: test_log_keeps_what_the_table_does_not_have_yet(spark, folder),
    numbers_no_transaction: test_one_who_plans_from_what_is_old_changes_nothing,
    merges_from_the_beginning: each_commit,
    leaves_out_the_last_time: each_commit,
}


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_wrong_mirror_is_found(
    spark: SparkSession, tmp_path: Path, monkeypatch: Patch, mutant: Callable[[Patch], None]
) -> None:
    with Patch.context() as patch:  # a test may undo its own
        mutant(patch)
        # The last is what a mirror says that misses rows which are taken away later.
        with pytest.raises((AssertionError, pytest.fail.Exception, DataLossError, NegativeMultiplicityError)):
            MUTANTS[mutant](spark, tmp_path, monkeypatch)
