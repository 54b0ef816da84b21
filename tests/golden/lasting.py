"""Golden things: what lasts, as an earlier version wrote it, kept as archives that are continued and never rewritten.

A `Thing` says how it is written, what can be read of it as it is, and how it is continued. The archive, what was read
of it then, and what was read after it was continued then, are in `logs/`. `README.md` there says how one is added.

Invariants
----------
1. An archive that is there is never written again: what a new version writes otherwise is another thing beside it.
2. Everything is unpacked where it was written: checkpoints, command logs and mirrors know their places. A lock keeps
   others of this machine from the same thing meanwhile.
3. What is read is compared as plain values, made from the rows themselves as well as by the product's own hash.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from spark_timely.errors import TimelyError
from spark_timely.log.log import open_log
from spark_timely.trace.folder import newest_spine
from spark_timely.trace.run import mapped_run

LOGS: Final = Path(__file__).parent / "logs"
PLACES: Final = Path("/tmp/spark-timely-golden")

Facts = dict[str, Any]


@dataclass(frozen=True)
class Thing:
    """Something that lasts. Its functions take the folder where all of it is, those with Spark a session before it.

    Attributes
    ----------
    name : str
        Of its archive.
    write : callable or None
        Writes it, up to where it is kept; in the middle of a run where there is one. None where the product has lost
        what it was written by: the archive is all there is.
    read : callable
        Gives what can be read of it, as JSON has it.
    proceed : callable
        Continues it, with what its program would do next.
    """

    name: str
    write: Callable[..., None] | None
    read: Callable[..., Facts]
    proceed: Callable[..., None]


@dataclass(frozen=True)
class Refusal:
    """How a version that cannot continue a golden thing says so.

    Attributes
    ----------
    error : str
        Name of the class.
    hint : str
        What the error says of the way on.
    """

    error: str
    hint: str


REFUSED: Final[dict[str, Refusal]] = {}
"""Golden things that this version refuses, in place of continuing them; none today."""


RENEWED: Final = {("dataflow", "indexes")}
"""Golden things, and what of them this version builds again: it is compared before the thing goes on alone.

Indexes by the names of columns: `test_indexes_by_names_of_columns_are_built_again` says what becomes of them.
"""


def archive_of(name: str) -> Path:
    """Return where the archive of a thing is."""
    return LOGS / f"{name}.tar.gz"


def expected_of(name: str) -> dict[str, Facts]:
    """Return what was read of a thing: as it is (`stands`), and after it was continued (`after`)."""
    found: dict[str, Facts] = json.loads((LOGS / f"{name}.json").read_text(encoding="utf-8"))
    return found


@contextlib.contextmanager
def place_of(name: str) -> Iterator[Path]:
    """Give the empty place of a thing, and clear it away afterwards (invariant 2)."""
    PLACES.mkdir(exist_ok=True)
    with (PLACES / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = PLACES / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def unpack(name: str, folder: Path) -> None:
    """Put a thing at its place."""
    with tarfile.open(archive_of(name)) as archive:
        archive.extractall(folder, filter="data")


def pack(name: str, folder: Path) -> None:
    """Write the archive of a thing, the same for the same files but for their times."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for file in sorted(folder.rglob("*")):
            entry = archive.gettarinfo(file, str(file.relative_to(folder)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = int(entry.mtime)
            with file.open("rb") if file.is_file() else contextlib.nullcontext() as content:
                archive.addfile(entry, content)
    archive_of(name).write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))


# What is read -------------------------------------------------------------------------------------------


def rows_hash(rows: pa.Table) -> str:
    """Return a hash of rows in any order, made from their values as Python writes them."""
    lines = sorted(repr(sorted(row.items())) for row in rows.to_pylist())
    return f"{len(lines)} rows, {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"


def plain(value: object) -> Any:
    """Return a value as JSON has it."""
    return json.loads(json.dumps(value))


def shown(value: object, indent: str = "", depth: int = 3) -> str:
    """Return a value as JSON text, its first levels a line for each part."""
    if not isinstance(value, dict) or not depth or not value:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    more = indent + " "
    parts = [f"{more}{json.dumps(name)}: {shown(value[name], more, depth - 1)}" for name in sorted(value)]
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


def log_facts(path: Path | str) -> Facts:
    """Return what can be read of a log: its frontier, its contents, rows that are open, and dead letters."""
    log = open_log(path)
    report = log.verify()
    assert report.legal, report.problems
    # Of a row itself: which commit it came with, and in which words it is a dead letter, is no part of the answer.
    columns = [*log.domain.columns, *(["_diff"] if log.kind == "collection" else []), *log.schema.names]
    return {
        "frontier": log.frontier().to_json(),
        "hash": report.digest,
        "messages": rows_hash(log.messages().select(columns)),
        "dead letters": rows_hash(log.dead().select(columns)),
        "streams": {name: [end.owner, end.frontier.to_json()] for name, end in log.core.ends().items()},
        "kind": f"{log.kind} {json.dumps(log.domain.to_json(), default=str)} {list(log.core.format.key)}",
    }


def kept_facts(path: Path | str) -> Facts:
    """Return how much of a log is kept, and for whom."""
    log = open_log(path)
    return {
        "since": log.since().to_json(),
        "retainers": {name: [each.owner, each.needed.to_json()] for name, each in log.retainers().items()},
        "keep": str(log.core.kept() and log.core.kept().length),  # type: ignore[union-attr]
    }


def logs_below(folder: Path) -> Facts:
    """Return what can be read of each log in a folder, those that operators keep for themselves among them."""
    found = sorted(entry.parent for entry in folder.rglob("_delta_log"))
    return {str(path.relative_to(folder)): log_facts(path) for path in found}


def indexes_below(folder: Path) -> Facts:
    """Return the lineages of the indexes in a folder, whose runs can all be looked into.

    An index that cannot be used is made again, and no answer shows it: so it is looked at here. One that is continued
    has the lineage that it began with.
    """
    found: Facts = {}
    for path in sorted({entry.parent for entry in folder.rglob("spine-*.json")}):
        spine = newest_spine(str(path), None)
        assert spine is not None, path
        for run in spine.runs:
            mapped_run(str(path), run, spine.lineage)
        found[str(path.relative_to(folder))] = spine.lineage
    return found


# What is compared ---------------------------------------------------------------------------------------


def differences(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    """Say where two values differ, a line each."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted({*found, *wanted}):
            here = f"{where} / {name}"
            if name not in found or name not in wanted:
                yield f"{here}: {'missing' if name in wanted else 'unexpected'}"
            else:
                yield from differences(found[name], wanted[name], here)
    elif found != wanted:
        yield f"{where}: expected {wanted}, found {found}"


def check(name: str, when: str, found: Facts) -> None:
    """Compare what is read of a thing with what was read when it was written."""
    wanted = expected_of(name)[when]
    if when == "after":
        found, wanted = (
            {what: facts for what, facts in each.items() if (name, what) not in RENEWED} for each in (found, wanted)
        )
    lines = list(differences(plain(found), wanted))
    assert not lines, "\n".join([f"golden thing {name!r} differs, {when}:", *lines])


def continues(thing: Thing, *session: Any) -> None:
    """Continue a thing as it was continued when it was written, and compare; or see that it is refused by name."""
    with place_of(thing.name) as folder:
        unpack(thing.name, folder)
        if thing.name in REFUSED:
            refusal = REFUSED[thing.name]
            with pytest.raises(TimelyError) as caught:
                thing.proceed(*session, folder)
            assert type(caught.value).__name__ == refusal.error
            assert refusal.hint in str(caught.value)
            return
        check(thing.name, "stands", thing.read(*session, folder))
        thing.proceed(*session, folder)
        check(thing.name, "after", thing.read(*session, folder))
