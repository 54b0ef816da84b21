"""The folder of a copy: one attempt owns it, and its files get their names when all are there.

`copy_to` begins an attempt here, writes the rows, and finishes the attempt here. The file ``INCOMPLETE`` has the token
of the attempt that owns the folder. Jobs write into ``_attempt-TOKEN/`` below it. See docs/internals/designs/copies.md.

Invariants
----------
1. A folder with files has ``INCOMPLETE`` from before the first of them until all of them are there, counted and on the
   disk. So whatever is killed, and when, no folder looks finished that is not.
2. ``INCOMPLETE`` is created exclusively, and the folder is looked into again after that: of several that copy into one
   folder at once exactly one continues, and none adds to what another has finished.
3. Only the attempt whose token is in ``INCOMPLETE`` names files in the folder: those of its own job, which has ended.
4. A job of an attempt that has ended otherwise writes below its own ``_attempt-TOKEN/`` alone, however late.
5. When ``INCOMPLETE`` goes, the folder has the files of its attempt, and no others.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

import pyarrow.parquet as pq

from spark_timely.errors import InvalidUsageError, RolledBackError, StorageError, shown
from spark_timely.log.files.parquet_reader import side_by_side
from spark_timely.log.store.cloud import CloudStorage
from spark_timely.spark.base.tags import way_to_end
from spark_timely.threads import at_once

if TYPE_CHECKING:
    from spark_timely.log.store.storage import TableStorage

__all__ = ["INCOMPLETE", "Attempt", "Written", "begin", "check_empty", "finish", "tag_of"]

INCOMPLETE: Final = "INCOMPLETE"
"""The file that a folder has while it is written, and after that was cut short."""

_ATTEMPT: Final = re.compile(r"_attempt-([0-9a-f]{32})")
# The number of the task that wrote a file, and which of its files it is, as Spark names them.
_PART: Final = re.compile(r"part-(\d+)-.*-c(\d+)\.[\w.]+")
# Names that are given between two looks at whose folder it is; and requests at a time, where it is a store.
_NAMED_AT_ONCE: Final = 64
_REQUESTS: Final = 16


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a copy, which owns a folder as long as `INCOMPLETE` has its token.

    Attributes
    ----------
    storage : TableStorage
        Of the folder.
    what : str
        What is attempted, for errors.
    token : str
        32 hex digits.
    sign : bytes
        What is in `INCOMPLETE`.
    """

    storage: TableStorage
    what: str
    token: str
    sign: bytes

    @property
    def folder(self) -> str:
        """The folder that its job writes into, relative to the folder of the copy."""
        return f"_attempt-{self.token}"

    @property
    def tag(self) -> str:
        """The tag of its job."""
        return tag_of(self.token)


@dataclass(frozen=True, slots=True)
class Written:
    """The counts that a job made of the rows that it wrote.

    Attributes
    ----------
    n_rows : int
    tasks : frozenset of int or None
        The numbers of the tasks that had rows, where files do not say how many rows they have.
    """

    n_rows: int
    tasks: frozenset[int] | None = None


def tag_of(token: str, /) -> str:
    """Return the tag of an attempt's job."""
    return f"timely-copy-{token}"


def check_empty(storage: TableStorage, what: str, *, own: bool = False) -> list[str]:
    """Refuse a folder with anything in it; return the tokens of dead attempts whose jobs have written there.

    Parameters
    ----------
    storage : TableStorage
    what : str
        What is attempted.
    own : bool
        Whether `INCOMPLETE` is the caller's.

    Raises
    ------
    InvalidUsageError
    """
    names = storage.names()
    attempts = _attempts(storage, names)
    others = [name for name in names if name not in attempts and not (own and name == INCOMPLETE)]
    if INCOMPLETE in others:
        _refuse_begun(storage, what)
    if not others and not (storage.local and os.path.lexists(storage.uri) and not os.path.isdir(storage.uri)):
        return [name.rpartition("-")[2] for name in attempts]
    other = f"a link to {shown(os.readlink(storage.uri))}" if os.path.islink(storage.uri) else "a file"
    msg = f"could not {what}: found {f'{shown(others[:5])} in it' if others else other}"
    raise InvalidUsageError(msg, hint="give a folder that is empty or not there", context={"path": storage.uri})


def _refuse_begun(storage: TableStorage, what: str) -> NoReturn:
    """Refuse a folder that another copy owns, and say which job that is and how it is ended."""
    said: dict[str, str] = {}
    with suppress(ValueError, AttributeError, StorageError):
        found = json.loads(storage.find(INCOMPLETE) or b"")
        said = {str(name): str(value) for name, value in found.items()}
    tag, context = said.get("job"), {"path": storage.uri}
    if tag is None:  # of an earlier version, or a file of somebody's own
        msg = f"could not {what}: found {INCOMPLETE} in it"
        hint = "wait for the copy that runs; if it was cut short, delete the folder"
        raise InvalidUsageError(msg, hint=hint, context=context)
    where = next((f"{name} {said[name]!r}" for name in ("session", "application") if name in said), "")
    msg = f"could not {what}: found {INCOMPLETE} in it, of a copy by job {tag!r}{f' of {where}' if where else ''}"
    hint = f"wait for it; if its process has ended, end what is left of the job by {way_to_end(said, tag)}"
    raise InvalidUsageError(msg, hint=f"{hint}, then delete the folder", context={**context, "job": tag})


def _attempts(storage: TableStorage, names: Sequence[str]) -> list[str]:
    """Return the folders of attempts among some names: no files, and no links."""
    found = [name for name in names if _ATTEMPT.fullmatch(name)]
    if not found:
        return []
    folders = set(storage.folders())
    return [name for name in found if name in folders and not (storage.local and os.path.islink(storage.full(name)))]


def begin(storage: TableStorage, what: str, home: Mapping[str, str]) -> Attempt:
    """Create `INCOMPLETE`, as the only one who does (invariant 2).

    Parameters
    ----------
    storage : TableStorage
    what : str
        What is attempted.
    home : mapping
        Where the job will be found, as `spark_timely.spark.base.tags.home_of` gives it.

    Raises
    ------
    InvalidUsageError
        If another copy has the folder, or anything is in it.
    StorageError
        If it cannot be written.
    """
    token = uuid.uuid4().hex
    said = {
        "copy": token,
        "what": f"files are written here; it goes when all are there, until then in _attempt-{token}",
        "job": tag_of(token),
        **home,
    }
    attempt = Attempt(storage, what, token, json.dumps(said).encode())
    try:
        if storage.local:
            os.makedirs(storage.uri, exist_ok=True)
            with open(storage.full(INCOMPLETE), "xb") as file:
                file.write(attempt.sign)
            storage.flush([INCOMPLETE], always=True)
        else:
            storage.put(INCOMPLETE, attempt.sign, replace=False)
            if isinstance(storage, CloudStorage):
                storage.check_excludes(INCOMPLETE)
    except FileExistsError:
        _refuse_begun(storage, what)
    except OSError as error:
        msg = f"could not {what}: found {type(error).__name__}: {error.strerror or error}"
        raise StorageError(msg, hint="check the folder and its permissions", context={"path": storage.uri}) from error
    try:
        check_empty(storage, what, own=True)
    except InvalidUsageError:
        # Another one has finished between the look and now: what is there is its, and whole.
        storage.delete(INCOMPLETE)
        raise
    return attempt


# The end ----------------------------------------------------------------------------------------------


def finish(attempt: Attempt, written: Written) -> int:
    """Give the attempt's files their names, delete all else that jobs have written, then `INCOMPLETE`.

    Parameters
    ----------
    attempt : Attempt
        Whose job has ended.
    written : Written
        What the job counted.

    Returns
    -------
    int
        Rows that were written.

    Raises
    ------
    StorageError
        If files are missing, or cannot be named. `INCOMPLETE` stays, with what is there.
    RolledBackError
        If `INCOMPLETE` is not the attempt's any more, or the folder has other files.
    """
    storage = attempt.storage
    storage.forget()
    named: list[str] = []
    try:
        _check_owned(attempt)
        names = [name for name in storage.names(attempt.folder) if not name.startswith((".", "_"))]
        _check_all_there(attempt, names, written)
        # What is in files is on the disk before their names are.
        storage.flush([*(f"{attempt.folder}/{name}" for name in names), attempt.folder], always=True)
        for first in range(0, len(names), _NAMED_AT_ONCE):
            _check_owned(attempt)
            _name(attempt, names[first : first + _NAMED_AT_ONCE], named)
        _delete_attempts(storage)
        _check_alone(attempt, names)
        storage.flush([""], always=True)
        storage.flush_place()
        _check_owned(attempt)
    except RolledBackError:
        # The folder may be another's by now: nothing of this attempt stays in it.
        with suppress(StorageError, OSError):
            storage.delete_all(named)
            _delete_folder(storage, attempt.folder)
        raise
    storage.delete(INCOMPLETE)
    with suppress(StorageError):  # what comes back after a power cut is the sign, not its absence
        storage.flush([""], always=True)
    return written.n_rows


def _check_all_there(attempt: Attempt, names: Sequence[str], written: Written) -> None:
    """Refuse files that do not have the rows that the job counted: of CSV, that lack the files of a task."""
    storage, found = attempt.storage, ""
    if written.tasks is None:
        n_rows = sum(side_by_side(storage, lambda name: _n_rows(storage, f"{attempt.folder}/{name}"), names))
        if n_rows != written.n_rows:
            found = f"{n_rows} of {written.n_rows} rows in its files"
    else:
        parts: dict[int, list[int]] = {}
        for part in map(_PART.fullmatch, names):
            if part is not None:
                parts.setdefault(int(part[1]), []).append(int(part[2]))
        lost = sorted(task for task in written.tasks if not _is_whole(parts.get(task, [])))
        if lost:
            found = f"no files, or not all, of {len(lost)} of {len(written.tasks)} tasks, {shown(lost[:5])}"
    if found:
        msg = f"could not {attempt.what}: found {found}"
        raise StorageError(
            msg,
            hint="give a folder that this process, Spark's driver and its executors share: a mounted directory, or a"
            f" cloud URL; delete this one, {INCOMPLETE} stays in it",
            determinate=True,
            context={"path": storage.uri},
        )


def _is_whole(numbers: Sequence[int]) -> bool:
    """Whether files of a task that are numbered from 0 are there, one or more, and none between them is missing."""
    return bool(numbers) and sorted(numbers) == list(range(len(numbers)))


def _n_rows(storage: TableStorage, path: str) -> int:
    with storage.open_input(path) as file:
        return int(pq.read_metadata(file).num_rows)


def _check_owned(attempt: Attempt) -> None:
    """Refuse to continue in a folder that is not the attempt's any more (invariant 3)."""
    if attempt.storage.find(INCOMPLETE) != attempt.sign:
        _lost(attempt, f"that {INCOMPLETE} was deleted or replaced while it was written")


def _lost(attempt: Attempt, found: str) -> NoReturn:
    msg = f"could not {attempt.what}: found {found}"
    raise RolledBackError(
        msg, hint="delete the folder, and copy again: another copy may be in it", context={"path": attempt.storage.uri}
    )


def _name(attempt: Attempt, names: Sequence[str], named: list[str]) -> None:
    """Give files of the attempt their names in the folder."""
    storage = attempt.storage

    def name(each: str) -> None:
        storage.give_name(f"{attempt.folder}/{each}", each)
        named.append(each)

    try:
        if storage.local:
            for each in names:
                name(each)
        else:
            at_once(name, names, _REQUESTS)
    except (FileExistsError, FileNotFoundError) as error:
        taken = isinstance(error, FileExistsError)
        _lost(attempt, f"a file's name {'taken' if taken else 'without its file'}: {shown(str(error))}")
    except OSError as error:
        msg = f"could not {attempt.what}: found {type(error).__name__}: {error.strerror or error}"
        hint = f"check space and permissions, then delete the folder: {INCOMPLETE} stays in it"
        raise StorageError(msg, hint=hint, context={"path": storage.uri}) from error


def _delete_attempts(storage: TableStorage) -> None:
    """Delete what jobs have written apart: nobody names any of it while `INCOMPLETE` is the caller's (invariant 3)."""
    for name in _attempts(storage, storage.names()):  # one, and one per dead attempt
        _delete_folder(storage, name)


def _delete_folder(storage: TableStorage, folder: str) -> None:
    if storage.local:
        # A late job may write in it at this very moment.
        shutil.rmtree(storage.full(folder), ignore_errors=True)
    else:
        storage.delete_all(list(_files_below(storage, folder)))


def _files_below(storage: TableStorage, folder: str) -> Iterator[str]:
    below = set(storage.folders(folder))
    for name in storage.names(folder):
        if name in below:
            yield from _files_below(storage, f"{folder}/{name}")
        else:
            yield f"{folder}/{name}"


def _check_alone(attempt: Attempt, names: Sequence[str]) -> None:
    """Refuse a folder that has other files than the attempt's, or lacks one (invariant 5)."""
    storage = attempt.storage
    found = storage.names()
    apart = {*_attempts(storage, found), INCOMPLETE, *names}
    others = [name for name in found if name not in apart]
    if others:
        _lost(attempt, f"{shown(others[:5])} beside its files")
    gone = [name for name in names if name not in set(found)]
    if gone:
        _lost(attempt, f"that {shown(gone[:5])} was deleted while it was written")
