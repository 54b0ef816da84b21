"""What the own writer of Delta entries costs, beside delta-rs alone: opening, looking for news, committing."""

from __future__ import annotations

import itertools
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.transaction import AddAction

import spark_timely as st

from .guard_cases import file_of_messages
from .report import Case, alternate, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_timely.log import Log
    from spark_timely.log.machine.state import DataFile

SCHEMA = pa.schema([("value", pa.int64())])
SIZES = ((100, 1_000), (100, 200_000), (10_000, 1_000), (10_000, 50_000), (60_000, 1_000), (60_000, 200_000))
"""Commits and live files of each table."""
ROUNDS, OPENS = 15, 5
CHECKPOINT_EVERY = 100
NAMES = ("open", "look", "commit")


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure a log beside a table of as many commits and files that delta-rs alone looks after."""
    cases = []
    for commits, files in SIZES:
        names = {name: f"writer_{name}_{commits}_commits_{files}_files_vs_delta_rs" for name in NAMES}
        if any(map(wanted, names.values())):
            cases += _measure(scratch / f"writer-{commits}-{files}", commits, files, names)
    return [case for case in cases if wanted(case.name)]


def _measure(folder: Path, commits: int, files: int, names: dict[str, str]) -> list[Case]:
    opened, looked, committed = (
        Case(names["open"], f"a log of {commits} commits and {files} files opened, and its files; peer: a table", None),
        Case(names["look"], f"news of one file in a log of {commits} commits and {files} files; peer: a table", None),
        Case(names["commit"], f"a file added to a log of {commits} commits and {files} files; peer: a table", None),
    )
    path = str(folder / "log")
    log = st.create_log(path, SCHEMA, minimum=(0,), merge_every=None)
    _fill(log, commits, files)
    table = _table(folder / "table", log, commits, files)

    def open_log() -> float:
        def ask() -> None:
            assert len(st.open_log(path).core.files()) == len(log.core.files())

        return seconds(ask)

    def open_table() -> float:
        def ask() -> None:
            assert DeltaTable(table).get_add_actions().num_rows >= files

        return seconds(ask)

    alternate(opened, open_log, open_table, OPENS, warm=1)

    seqs = itertools.count(10 * (commits + files))
    reader, plain = st.open_log(path), DeltaTable(table)
    writer, other = st.open_log(path), DeltaTable(table)

    def commit_log() -> float:
        file = file_of_messages(writer, "main", seq := next(seqs), 1)
        return seconds(lambda: (writer.core.store.transact([file], [("bench", seq)]), writer.refresh()))

    def commit_table() -> float:
        file = file_of_messages(log, "main", seq := next(seqs), 1)
        return seconds(lambda: (_commit(other, file, seq), other.update_incremental()))

    def look_log() -> float:
        commit_log()
        before = reader.core.version
        took = seconds(reader.refresh)
        assert reader.core.version > before
        return took

    def look_table() -> float:
        commit_table()
        before = plain.version()
        took = seconds(plain.update_incremental)
        assert plain.version() > before
        return took

    alternate(committed, commit_log, commit_table, ROUNDS)
    look_log()
    look_table()
    alternate(looked, look_log, look_table, ROUNDS)
    assert plain.get_add_actions().num_rows == len(plain.file_uris())
    return [opened, looked, committed]


def _fill(log: Log, commits: int, files: int) -> None:
    """Commit the files, most at first, then one at a time in place of another until there are enough commits."""
    store = log.core.store
    all_files = [file_of_messages(log, "main", seq, 1) for seq in range(files)]
    store.transact(all_files, [])
    log.refresh()
    for number in range(commits - 2):
        new = file_of_messages(log, "main", files + number, 1)
        store.transact([new], [], removes=[all_files[number % files]], data_change=False, exclusive=True)
        all_files[number % files] = new
        log.refresh()
        if store.is_due():
            log.core.tidy()


def _table(folder: Path, log: Log, commits: int, files: int) -> str:
    """Write a table with the entries of as many commits, and a checkpoint as delta-rs makes it; return where."""
    entries = folder / "_delta_log"
    entries.mkdir(parents=True)
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    form = DeltaTable(log.path)
    table = {
        "id": secrets.token_hex(16),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": form.schema().to_json(),
        "partitionColumns": ["_event"],
        "configuration": {},
    }
    adds = [_add(f"_event=message/main-{seq:012d}-{secrets.token_hex(8)}.parquet", seq) for seq in range(files)]
    _write(entries, 0, [protocol, {"metaData": table}, *adds])
    for version in range(1, commits):
        new = _add(f"_event=message/more-{version:012d}-{secrets.token_hex(8)}.parquet", files + version)
        old = adds[version % files]["add"]["path"]
        remove = {
            "path": old,
            "deletionTimestamp": version,
            "dataChange": False,
            "partitionValues": {"_event": "message"},
        }
        _write(entries, version, [new, {"remove": remove}])
        adds[version % files] = new
        if version == (commits - 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY:
            DeltaTable(str(folder)).create_checkpoint()
    return str(folder)


def _write(entries: Path, version: int, actions: list[dict[str, object]]) -> None:
    text = "\n".join(json.dumps(each) for each in actions)
    (entries / f"{version:020d}.json").write_text(text, encoding="utf-8")


def _add(path: str, seq: int) -> dict[str, dict[str, object]]:
    bounds = {"_stream": "main", "_seq": seq, "_time": seq}
    stats = json.dumps({"numRecords": 1, "minValues": bounds, "maxValues": bounds})
    return {
        "add": {
            "path": path,
            "size": 1000,
            "partitionValues": {"_event": "message"},
            "modificationTime": seq,
            "dataChange": True,
            "stats": stats,
        }
    }


def _commit(table: DeltaTable, file: DataFile, seq: int) -> None:
    stats = json.dumps({"numRecords": 1})
    table.create_write_transaction(
        [AddAction(file.path, 1000, {"_event": "message"}, seq, data_change=True, stats=file.stats or stats)],
        "append",
        table.schema(),
        ["_event"],
        commit_properties=CommitProperties(app_transactions=[Transaction("bench", seq)]),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
    )
