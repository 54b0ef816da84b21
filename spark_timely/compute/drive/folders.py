"""The folders of an instance's collections: whose they are, and deleting those that have a mark.

Invariants
----------
1. Nothing is deleted that was not looked at, and found to be what its mark says; on a disk under a name that nobody
   else knows, in a store within the files that were listed before the look.
2. A link is never followed.
3. A deletion that breaks off is taken up again: what is left is known by its mark, which goes last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from spark_timely.compute.drive.context import may_pass
from spark_timely.errors import LogMissingError, StorageError, TimelyError, described
from spark_timely.log.log import open_log
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import foreign_names, has_table, plain

if TYPE_CHECKING:
    from spark_timely.compute.command import Export
    from spark_timely.compute.drive.place import Place
    from spark_timely.compute.ledger import Ledger, Mark
    from spark_timely.log.log import Log
    from spark_timely.log.store.storage import TableStorage
    from spark_timely.protocol.note import Fence

__all__ = [
    "ASIDE",
    "FolderState",
    "Found",
    "Removal",
    "fence_of",
    "folders_of",
    "found_at",
    "is_anothers",
    "states_of",
    "unknown_of",
]

ASIDE: Final = ".gone"
"""Behind the name of a folder that is looked at to be deleted. No folder of a collection has such a name."""

_MAIN: Final = "main"
Verdict: TypeAlias = Literal["ours", "other", "gone"]


@dataclass(frozen=True)
class Found:
    """What is in a folder.

    Attributes
    ----------
    log_id : str or None
        Id of the log that is there; None: there is none.
    fence : Fence or None
        The newest start of an instance that wrote it.
    is_foreign : bool
        Whether somebody else writes it too, or there is no log but something else.
    """

    log_id: str | None = None
    fence: Fence | None = None
    is_foreign: bool = False


def fence_of(log: Log, /) -> Fence | None:
    """Return the newest start of an instance that wrote a log; None if none did."""
    state = log.stream(_MAIN)
    note = None if state is None else state.note.output
    return None if note is None else note.fence


def is_anothers(log: Log, instance: str, name: str, /) -> bool:
    """Return whether another instance, or another dataflow than the one of a name, has written a log.

    Folders may have been exchanged. Nobody has written a log that was made, and not claimed yet.
    """
    fence, state = fence_of(log), log.stream(_MAIN)
    if fence is None or state is None:
        return False
    own = f"dataflow {name} of instance {instance}", f"task {name} of instance {instance}"
    return fence.instance != instance or state.owner not in own


def found_at(path: str, options: dict[str, str], /) -> Found:
    """Return what is in a folder, as of a look now.

    Raises
    ------
    TimelyError
        If there is a log that cannot be read.
    """
    try:
        log = open_log(path, storage_options=options or None)
    except LogMissingError:
        storage = open_storage(path, options or None)
        # What a creation that was killed leaves behind has no entry of a table and no other names.
        return Found(is_foreign=has_table(storage) or bool(foreign_names(storage.names())))
    fence = fence_of(log)
    owned = [state for name, state in log.ends().items() if state.owner and name != _MAIN]
    main = log.stream(_MAIN)
    return Found(log.log_id, fence, bool(owned) or (main is not None and bool(main.owner) and fence is None))


@dataclass(frozen=True)
class FolderState:
    """What a folder of collections is.

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


def states_of(place: Place, exports: Iterable[Export], ledger: Ledger, /) -> list[FolderState]:
    """Return what the folders of collections are.

    Notes
    -----
    Cost: each log is opened.
    """
    of = {place.name_of(export): export.id for export in exports}
    states: list[FolderState] = []
    for name in folders_of(place):  # one turn per folder
        found, problem = Found(), None
        try:
            found = found_at(f"{place.collections}/{name}", dict(place.storage_options))
        except TimelyError as error:
            problem = described(error)
        mark = ledger.marks.get(name) or ledger.marks.get(name.removesuffix(ASIDE))
        state = "collection" if name in of else "unknown" if mark is None else mark.state
        fence = found.fence
        instance, epoch = (None, None) if fence is None else (fence.instance, fence.epoch)
        states.append(FolderState(name, state, of.get(name), found.log_id, instance, epoch, problem))
    return states


def folders_of(place: Place, /) -> list[str]:
    """Return the names of the folders in the folder of collections."""
    return open_storage(place.collections, dict(place.storage_options) or None).folders()


def unknown_of(place: Place, used: Set[str], ledger: Ledger, /) -> list[str]:
    """Return the names of the folders that neither a dataflow has nor a mark names."""
    return [
        name
        for name in folders_of(place)
        if name not in used and name not in ledger.marks and name.removesuffix(ASIDE) not in ledger.marks
    ]


class Removal:
    """Deletes folders that have a mark.

    Parameters
    ----------
    place : Place
    fence : Fence
        Of this start.
    """

    def __init__(self, place: Place, fence: Fence) -> None:
        self._place, self._fence = place, fence
        self._options = dict(place.storage_options)

    def look(self, mark: Mark) -> tuple[Verdict, str | None]:
        """Return whether what a mark names may be deleted, with the id of the log in it; on a disk it is put aside.

        Raises
        ------
        TimelyError, OSError
            If that cannot be told now.
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
            self._delete_far(mark, open_storage(path, self._options or None))

    @property
    def _is_local(self) -> bool:
        return self._place.is_local(self._place.directory)

    def _path(self, folder: str) -> str:
        return f"{self._place.collections}/{folder}"

    def _look(self, mark: Mark, path: str) -> tuple[Verdict, str | None]:
        """Return whether what is at a path is what a mark says, with the id of the log in it."""
        if not self._is_local and not open_storage(path, self._options or None).names():
            return "gone", None
        is_proven = mark.state == "proven"
        try:
            found = found_at(path, self._options)
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
        for entry in found:  # one turn per entry
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
    for name in storage.names(folder):  # one turn per file
        path = f"{folder}/{name}" if folder else name
        if name in below:
            yield from _files_below(storage, path)
        else:
            yield path
