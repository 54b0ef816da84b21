"""The folders of an instance's collections: the owner of each, and deletion of those that were dropped.

Where a collection's folder is, `spark_timely.compute.drive.directory` says; here is what becomes of it. Each collection
of an instance has a folder below `collections/`. A folder that no live collection has is known by a mark in the command
log (`spark_timely.compute.ledger`). The driver marks folders as commands come (`marks_of`), and once a second deletes
those whose time has come (`sweep`, `delete`).

Invariants
----------
1. A folder is deleted only if no dataflow has it, it was looked at, and its mark in the command log is ``proven``,
   which is written after the look.
2. Nothing is deleted that was not found to be what its mark says. On a disk the folder gets a name first that nobody
   else knows; in a store only files are deleted that were listed before the look.
3. A link is never followed.
4. A deletion that breaks off is taken up again: what is left is known by its mark, which goes last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from spark_timely.compute.command import AllowCompaction, CreateDataflow
from spark_timely.compute.drive.directory import Found
from spark_timely.compute.drive.state import may_pass
from spark_timely.compute.ledger import FOLDER, Ledger, Mark
from spark_timely.errors import (
    InvalidUsageError,
    MissingError,
    OwnershipError,
    StorageError,
    TimelyError,
    described,
    shown,
)
from spark_timely.log.store.storage import foreign_names, plain
from spark_timely.masking import masked_logger

if TYPE_CHECKING:
    from spark_timely.compute.drive.directory import Directory
    from spark_timely.compute.drive.state import State
    from spark_timely.compute.drive.worker import Worker
    from spark_timely.log.log import Log
    from spark_timely.log.store.storage import TableStorage
    from spark_timely.protocol.note import Fence

__all__ = ["ASIDE", "FolderState", "Folders", "Removal"]

_log = masked_logger("spark_timely.compute")

ASIDE: Final = ".gone"
"""Behind the name of a folder that is looked at to be deleted. No folder of a collection has such a name."""

# How long what was dropped stays, for those who began to read it; and before what failed is tried again.
_GONE_S: Final = 60.0
_AGAIN_S: Final = 60.0
Verdict: TypeAlias = Literal["ours", "other", "gone"]


@dataclass(frozen=True)
class FolderState:
    """The state of a folder of collections.

    Attributes
    ----------
    folder : str
        Its name.
    state : str
        ``collection``, the state of its mark, or ``unknown``: neither a command nor a mark names it.
    export_id : str or None
        The collection that has it.
    log_id, instance : str or None
        Of the log in it: its id, and which instance wrote it.
    epoch : int or None
        The newest start of that instance.
    problem : str or None
        Why it cannot be looked at.
    """

    folder: str
    state: str
    export_id: str | None
    log_id: str | None
    instance: str | None
    epoch: int | None
    problem: str | None = None


class Folders:
    """The folders of the collections of one instance, for a thread that has the lock.

    Parameters
    ----------
    state : State
    worker : Worker
    store : callable
        Writes the command log, with another ledger.

    Attributes
    ----------
    gone : dict of str to float
        Folders that have a mark and nobody uses, and when they are deleted.
    """

    def __init__(self, state: State, worker: Worker, store: Callable[[Ledger], None]) -> None:
        self._state, self._worker, self._store = state, worker, store
        self.gone: dict[str, float] = {}
        self._failed: set[str] = set()

    # What they are -------------------------------------------------------------------------------

    def states(self) -> list[FolderState]:
        """Return what they are.

        Notes
        -----
        Cost: each log is opened.
        """
        directory, ledger = self._state.directory, self._written()
        of = {directory.name_of(export): export.id for export in self._state.exports().values()}
        states: list[FolderState] = []
        for name in directory.folders():
            found, problem = Found(), None
            try:
                found = directory.found_at(f"{directory.collections}/{name}")
            except TimelyError as error:
                problem = described(error)
            mark = ledger.marks.get(name) or ledger.marks.get(name.removesuffix(ASIDE))
            state = "collection" if name in of else "unknown" if mark is None else mark.state
            fence = found.fence
            instance, epoch = (None, None) if fence is None else (fence.instance, fence.epoch)
            states.append(FolderState(name, state, of.get(name), found.log_id, instance, epoch, problem))
        return states

    def unknown(self, ledger: Ledger | None = None) -> list[str]:
        """Return the names of the folders that neither a dataflow has nor a mark names, as the command log is now."""
        used, marks = self.used(), (self._written() if ledger is None else ledger).marks
        return [
            name
            for name in self._state.directory.folders()
            if name not in used and name not in marks and name.removesuffix(ASIDE) not in marks
        ]

    def _written(self) -> Ledger:
        return Ledger.read(self._state.commands.rows())

    def used(self, *, lasting: bool = False) -> set[str]:
        """Return the names of the folders that dataflows have.

        Parameters
        ----------
        lasting : bool
            Whether only those count that last, beside what runs here.
        """
        state = self._state
        flows = [each.dataflow for each in state.runs() if each.dataflow.lasts or not lasting]
        flows += [each.dataflow for each in self._worker.runners()]
        names = (state.directory.name_of(export) for flow in flows for export in flow.exports)
        return {name for name in names if name is not None}

    # What becomes of them ------------------------------------------------------------------------

    def begin(self) -> None:
        """Look at the folders, at a start: forget marks of what was left and is gone, and say what is unknown."""
        state = self._state
        there = set(state.directory.folders())
        marks = state.ledger.marks
        gone = [folder for folder, mark in marks.items() if mark.stays and folder not in there]
        if gone:
            self._store(state.ledger.without(*gone))
        unknown = self.unknown(state.ledger)
        if unknown:
            _log.warning(
                "the instance in %r does not know %d of its folders, which stay: %s",
                state.directory.path, len(unknown), shown(unknown),
            )  # fmt: skip

    def marks_of(self, command: CreateDataflow | AllowCompaction, *, lasts: bool) -> list[Mark]:
        """Return the marks of the folders that a command makes for a while, or drops (invariant 4 of the driver)."""
        directory, exports = self._state.directory, self._state.exports()
        match command:
            case CreateDataflow(dataflow) if not lasts:
                names = (directory.name_of(export) for export in dataflow.exports)
                return [] if self._state.follows else [Mark(name, "passing") for name in names if name is not None]
            case AllowCompaction(id_, frontier) if lasts and frontier.is_empty and id_ in exports:
                name, path = directory.name_of(exports[id_]), directory.path_of(exports[id_])
                return [] if name is None or path is None else [self._mark_of_dropped(id_, name, path)]
        return []

    def _mark_of_dropped(self, id_: str, folder: str, path: str) -> Mark:
        """Return the mark of the folder of an export that is dropped: what another dataflow has written there stays."""
        log = self._log_at(path)
        if log is None:
            return Mark(folder, "dropped")
        stays = self._state.is_of_another(log, id_)
        if stays:
            _log.warning("folder %r of %r stays: another dataflow has written what is in it", folder, id_)
        return Mark(folder, "left" if stays else "dropped", log.core.log_id)

    def _log_at(self, path: str) -> Log | None:
        """Return a log that is there, and can be looked at."""
        try:
            return self._state.opened(path)
        except TimelyError as error:
            _log.debug("log %r cannot be looked at: %s", path, error)
            return None

    def remove(self, name: str) -> None:
        """Have a folder deleted that no collection has: as somebody named it, whatever is in it.

        Raises
        ------
        MissingError
            If there is none of that name.
        InvalidUsageError
            If a collection has it.
        OwnershipError
            If this start only follows.
        """
        state = self._state
        what = f"could not remove folder {shown(name)} of the instance in {state.directory.path!r}"
        if state.follows:
            msg = f"{what}: found an instance that only follows"
            raise OwnershipError(msg, hint="ask the process that writes, or allow writes here")
        if not isinstance(name, str) or not FOLDER.fullmatch(name) or name not in state.directory.folders():
            msg = f"{what}: found none of this name"
            raise MissingError(msg, hint="spark-timely instance DIR status folders lists them")
        if name in self.used():
            msg = f"{what}: found that a collection has it"
            raise InvalidUsageError(msg, hint="drop the collection")
        log = self._log_at(f"{state.directory.collections}/{name}")
        ledger = state.ledger.put(Mark(name, "asked", None if log is None else log.core.log_id))
        state.commands.add(ledger.rows())
        state.ledger = ledger
        self.gone.pop(name, None)
        state.wake.set()

    def sweep(self, *, ended: bool = False) -> None:
        """Have folders deleted that have a mark, and that no dataflow has any more.

        Parameters
        ----------
        ended : bool
            Whether dataflows that end with the process have ended.
        """
        state = self._state
        waiting = [mark for mark in state.ledger.marks.values() if not mark.stays and mark.folder not in self.gone]
        if not waiting:
            return
        used = self.used(lasting=ended)
        for mark in waiting:
            if mark.folder not in used:
                is_due = mark.state in ("asked", "proven")
                self.gone[mark.folder] = state.now() + (0.0 if is_due else _GONE_S)

    def delete(self, *, all_of_them: bool = False) -> None:
        """Delete the folders whose time has come.

        Raises
        ------
        OwnershipError
            If another start has taken the instance over. Then nothing is deleted.
        """
        now = self._state.now()
        due = [folder for folder, at in self.gone.items() if all_of_them or at <= now]
        if not due:
            return
        try:
            self._state.check_held()
            assert self._state.fence is not None  # it is held
            removal = Removal(self._state.directory, self._state.fence)
            proven = self._look(removal, due)
            for mark in proven:
                try:
                    removal.delete(mark)
                except (TimelyError, OSError) as error:
                    self._put_off(mark.folder, error)
            self._look(removal, [mark.folder for mark in proven if mark.folder in self.gone])
        except StorageError as error:
            _log.warning("what was dropped is not deleted yet: %s", error)

    def _look(self, removal: Removal, folders: list[str]) -> list[Mark]:
        """Look at folders that have a mark; write down what they are, and return those that may be deleted."""
        ledger, proven = self._state.ledger, []
        for folder in folders:
            mark = ledger.marks.get(folder)
            if mark is None:
                del self.gone[folder]
                continue
            try:
                verdict, log_id = removal.look(mark)
            except (TimelyError, OSError) as error:
                self._put_off(folder, error)
                continue
            if verdict == "ours":
                # Of the rest of one that was proven the id is the one that it had.
                proven.append(Mark(folder, "proven", mark.log_id if mark.state == "proven" else log_id))
                ledger = ledger.put(proven[-1])
                continue
            del self.gone[folder]
            self._failed.discard(folder)
            ledger = ledger.without(folder)
            if verdict == "other":
                _log.warning(
                    "folder %r of the instance in %r was to be deleted and is another's: it stays",
                    folder, self._state.directory.path,
                )  # fmt: skip
                ledger = ledger.put(Mark(folder, "left", log_id))
        if ledger.marks != self._state.ledger.marks:
            self._store(ledger)
        return proven

    def _put_off(self, folder: str, error: Exception) -> None:
        self.gone[folder] = self._state.now() + _AGAIN_S
        say = _log.debug if folder in self._failed else _log.warning
        self._failed.add(folder)
        say("what was dropped stays in %r for now: %s", folder, error)


class Removal:
    """Deletes folders that have a mark.

    Parameters
    ----------
    directory : Directory
    fence : Fence
        Of this start.
    """

    def __init__(self, directory: Directory, fence: Fence) -> None:
        self._directory, self._fence = directory, fence

    def look(self, mark: Mark) -> tuple[Verdict, str | None]:
        """Return whether what a mark names may be deleted, with the id of the log in it; on a disk it is put aside.

        Raises
        ------
        TimelyError, OSError
            If that cannot be known now.
        """
        path = self._path(mark.folder)
        if not self._is_local:
            return self._look(mark, path)
        aside, is_proven = f"{path}{ASIDE}", mark.state == "proven"
        if not os.path.lexists(aside):
            if is_proven or not os.path.lexists(path):
                return "gone", None
            if os.path.islink(path):
                if mark.state != "asked":
                    return "other", None
            elif not os.path.isdir(path) or self._look(mark, path)[0] == "other":
                return "other", None
            os.rename(path, aside)
        if os.path.islink(aside):
            found: tuple[Verdict, str | None] = ("ours" if is_proven or mark.state == "asked" else "other"), None
        else:
            found = self._look(mark, aside)
        if found[0] == "other" and not os.path.lexists(path):
            os.rename(aside, path)
        return found

    def delete(self, mark: Mark) -> None:
        """Delete what a mark names, which is proven.

        Raises
        ------
        TimelyError, OSError
            If not all of it could be deleted.
        """
        path = self._path(mark.folder)
        if self._is_local:
            _delete_near(f"{path}{ASIDE}")
        else:
            self._delete_far(mark, self._directory.storage_at(path))

    @property
    def _is_local(self) -> bool:
        return self._directory.is_local(self._directory.path)

    def _path(self, folder: str) -> str:
        return f"{self._directory.collections}/{folder}"

    def _look(self, mark: Mark, path: str) -> tuple[Verdict, str | None]:
        """Return whether what is at a path is what a mark says, with the id of the log in it."""
        if not self._is_local and not self._directory.storage_at(path).names():
            return "gone", None
        is_proven = mark.state == "proven"
        try:
            found = self._directory.found_at(path)
        except TimelyError as error:
            # The rest of what was looked at, or what somebody named as it is.
            if not may_pass(error) and (is_proven or (mark.state == "asked" and mark.log_id is None)):
                return "ours", None
            raise
        return ("ours" if self._is_meant(mark, found) else "other"), found.log_id

    def _is_meant(self, mark: Mark, found: Found) -> bool:
        if found.log_id is None:
            return mark.state in ("proven", "asked") or not found.is_foreign
        if mark.state in ("proven", "asked"):
            return found.log_id == mark.log_id
        if found.is_foreign or found.log_id != (mark.log_id or found.log_id):
            return False
        own, fence = self._fence, found.fence
        # None: made, and not claimed yet.
        return fence is None or (fence.instance == own.instance and (fence == own or fence.epoch < own.epoch))

    def _delete_far(self, mark: Mark, storage: TableStorage) -> None:
        files = list(_files_below(storage, ""))
        if self._look(mark, storage.uri)[0] == "other":
            msg = f"could not delete folder {storage.uri!r}: found another log in it"
            raise StorageError(msg, hint="look what it is: spark-timely instance DIR status folders", determinate=True)
        # Entries last: they say whose it is.
        storage.delete_all([path for path in files if not path.startswith("_delta_log/")])
        storage.delete_all([path for path in files if path.startswith("_delta_log/")])


def _delete_near(folder: str) -> None:
    """Delete a folder on a disk that was put aside; of a link the link.

    What is no part of the log goes first, while it can be read; then its table's log by one rename, so that the rest
    is what a creation that was killed leaves behind. Whatever it breaks off at, the next look finds it the folder's.
    """
    try:
        if os.path.islink(folder):
            os.unlink(folder)
            return
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: not foreign_names([entry.name]))
        table, renamed = f"{folder}/_delta_log", f"{folder}/_event=gone"
        is_folder = os.path.isdir(table) and not os.path.islink(table)
        for entry in found:
            if is_folder and not foreign_names([entry.name]) and not os.path.lexists(renamed):
                os.rename(table, renamed)
            if is_folder and entry.path in (table, renamed):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        if os.path.isdir(renamed):
            shutil.rmtree(renamed)
        os.rmdir(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        msg = f"could not delete folder {folder!r}: found {plain(error)}"
        raise StorageError(msg, hint="check permissions; it is tried again", determinate=False) from error


def _files_below(storage: TableStorage, folder: str) -> Iterator[str]:
    """Give the paths of all files in a folder, and in those below it."""
    below = set(storage.folders(folder))
    for name in storage.names(folder):
        path = f"{folder}/{name}" if folder else name
        if name in below:
            yield from _files_below(storage, path)
        else:
            yield path
