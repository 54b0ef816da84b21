"""The directory of an instance: the command log, a log for each collection that it maintains, and who wrote these.

All parts of the driver ask a `Directory` for paths, and what is found there. What becomes of folders whose collection
was dropped is in `spark_timely.compute.drive.folders`.

Invariants
----------
1. A collection's folder has a name of its own that is never given twice: what was dropped, and is being deleted, is
   never in the way of another one of the same id.
2. Paths below the directory are kept relative to it, so that an instance can be moved as a whole.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_timely.compute.command import Export
from spark_timely.errors import InvalidUsageError, LogMissingError, shown
from spark_timely.log.log import open_log
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import foreign_names, has_table, normal_path

if TYPE_CHECKING:
    from spark_timely.compute.command import Dataflow, Import
    from spark_timely.log.log import Log
    from spark_timely.log.store.storage import TableStorage
    from spark_timely.protocol.note import Fence

__all__ = ["Directory", "Found", "check_described", "details_of", "fence_of", "is_anothers"]

_COMMANDS: Final = "commands"
_COLLECTIONS: Final = "collections"
_INTROSPECTION: Final = "introspection"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_FOLDER: Final = re.compile(rf"{_COLLECTIONS}/[A-Za-z0-9_-]+")
_MAIN: Final = "main"


def details_of(export: Export) -> dict[str, object]:
    """Return what is said of an export, beside its id and kind."""
    found = json.loads(export.details)
    if not isinstance(found, dict):
        msg = f"could not read the details of export {export.id!r}: found {shown(found)}"
        raise InvalidUsageError(msg, hint="give an object")
    return found


@dataclass(frozen=True)
class Directory:
    """The directory of an instance.

    Attributes
    ----------
    path : str
        A path or a cloud URL.
    storage_options : mapping of str to str
        Of the directory.
    options_of : mapping of str to mapping
        Of logs elsewhere, by path.

    Examples
    --------
    >>> directory = Directory("/data/instance")
    >>> directory.commands, directory.new_folder("totals é").startswith("collections/totals_-")
    ('/data/instance/commands', True)
    """

    path: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    options_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Bring paths to the form in which they are compared."""
        object.__setattr__(self, "path", normal_path(self.path))
        options = {normal_path(path): dict(given) for path, given in self.options_of.items()}
        object.__setattr__(self, "options_of", options)

    @property
    def commands(self) -> str:
        """Path of the command log."""
        return self.below(_COMMANDS)

    def below(self, path: str) -> str:
        """Return the path of a folder of the instance."""
        return f"{self.path.rstrip('/')}/{path}"

    def new_folder(self, id_: str) -> str:
        """Return a folder for a collection, relative to the directory, that nothing has or had."""
        return f"{_COLLECTIONS}/{_UNSAFE.sub('_', id_)[:60]}-{uuid.uuid4().hex[:12]}"

    @property
    def collections(self) -> str:
        """Path of the folder that has the collections' logs."""
        return self.below(_COLLECTIONS)

    def folders(self) -> list[str]:
        """Return the names of the folders in the folder of collections."""
        return self.storage_at(self.collections).folders()

    def name_of(self, export: Export) -> str | None:
        """Return the name that an export's folder has among the collections; None if it has no folder of its own."""
        folder = details_of(export).get("folder")
        return None if folder is None else str(folder).removeprefix(f"{_COLLECTIONS}/")

    def path_of(self, export: Export) -> str | None:
        """Return the path of the log that an export is written into; None if it has none yet, or needs none."""
        details = details_of(export)
        folder, path = details.get("folder"), details.get("path")
        if folder is not None:
            return self.below(str(folder))
        return None if export.kind != "log" or path is None else normal_path(str(path))

    def export_of(self, id_: str, relation: str) -> Export:
        """Return a relation of the introspection as what a dataflow may import."""
        return Export(id_, "log", json.dumps({"folder": f"{_INTROSPECTION}/{relation}"}))

    def options(self, path: str) -> dict[str, str]:
        """Return the storage options of a log."""
        path = normal_path(path)
        if self.has(path):
            return dict(self.storage_options)
        return dict(self.options_of.get(path, {}))

    def open_log(self, path: str) -> Log:
        """Return a log, opened with its storage options."""
        return open_log(path, storage_options=self.options(path) or None)

    def storage_at(self, path: str) -> TableStorage:
        """Return what reads and writes files in a folder of the instance, or in the directory itself."""
        return open_storage(path, dict(self.storage_options) or None)

    def found_at(self, path: str) -> Found:
        """Return what is in a folder, as of a look now.

        Raises
        ------
        TimelyError
            If there is a log that cannot be read.
        """
        try:
            log = self.open_log(path)
        except LogMissingError:
            storage = open_storage(path, self.options(path) or None)
            # What a creation that was killed leaves behind has no entry of a table and no other names.
            return Found(is_foreign=has_table(storage) or bool(foreign_names(storage.names())))
        fence = fence_of(log)
        owned = [state for name, state in log.core.ends().items() if state.owner and name != _MAIN]
        main = log.core.stream(_MAIN)
        return Found(log.core.log_id, fence, bool(owned) or (main is not None and bool(main.owner) and fence is None))

    def has(self, path: str) -> bool:
        """Return whether a normal path is of the directory, or below it."""
        return _is_below(path, self.path)

    def check(self, attempt: str, *, create: bool = True) -> None:
        """Refuse a directory in which there can be no instance, or none is; write nothing.

        Parameters
        ----------
        attempt : str
            What could not be done, for the error: ``follow``, ``run`` or ``ask``.
        create : bool
            Whether one may be made there.

        Raises
        ------
        InvalidUsageError
            If the directory is that of a log.
        LogMissingError
            If there is no instance, and none may be made.

        Notes
        -----
        Cost: a look at one directory, and without `create` at another one.
        """
        what = f"could not {attempt} the instance in {self.path!r}"
        if has_table(self.storage_at(self.path)):
            msg = f"{what}: found a Delta table, such as a log is"
            raise InvalidUsageError(msg, hint="choose an empty folder, or a new one", context={"path": self.path})
        if not create and not self.has_commands():
            msg, hint = f"{what}: found none there", f"start one: spark-timely instance {self.path} run"
            raise LogMissingError(msg, hint=hint, context={"path": self.path})

    def has_commands(self) -> bool:
        """Return whether there is a command log."""
        return has_table(self.storage_at(self.commands))

    @staticmethod
    def is_local(path: str) -> bool:
        """Return whether a normal path is on a disk of this machine."""
        return "://" not in path

    def source_of(self, reads: Import, exports: Mapping[str, Export]) -> str:
        """Return the path of the log that an import reads.

        Parameters
        ----------
        reads : Import
        exports : mapping of str to Export
            Of the instance, by id.
        """
        if reads.path is not None:
            return normal_path(reads.path)
        assert reads.export is not None
        path = None if reads.export not in exports else self.path_of(exports[reads.export])
        if path is None:
            msg = f"could not read import {reads.name!r}: found that export {reads.export!r} keeps no rows"
            raise InvalidUsageError(msg, hint="import an index, or a log")
        return path


@dataclass(frozen=True)
class Found:
    """The finding in a folder: whose log is there.

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
    state = log.core.stream(_MAIN)
    note = None if state is None else state.note.output
    return None if note is None else note.fence


def is_anothers(log: Log, instance: str, name: str, /) -> bool:
    """Return whether another instance, or another dataflow than the one of a name, has written a log.

    Folders may have been exchanged. Nobody has written a log that was made, and not claimed yet.
    """
    fence, state = fence_of(log), log.core.stream(_MAIN)
    if fence is None or state is None:
        return False
    own = f"dataflow {name} of instance {instance}", f"task {name} of instance {instance}"
    return fence.instance != instance or state.owner not in own


def check_described(dataflow: Dataflow, directory: Directory, exports: Mapping[str, Export]) -> None:
    """Refuse a dataflow that would read or write where it must not.

    Parameters
    ----------
    dataflow : Dataflow
    directory : Directory
    exports : mapping of str to Export
        Of the instance, by id, without its own.

    Raises
    ------
    InvalidUsageError
    """
    what = f"could not create dataflow {dataflow.name!r}"
    used = {path: id_ for id_, each in exports.items() if (path := directory.path_of(each)) is not None}
    own = {directory.path_of(each): id_ for id_, each in exports.items() if "folder" in details_of(each)}
    reads = set()
    for each in dataflow.imports:
        if each.export in dataflow.export_ids:
            msg = f"{what}: found import {each.name!r} of its own export {each.export!r}"
            raise InvalidUsageError(msg, hint="make two dataflows, one of which imports the other")
        if each.path is None:
            continue
        path = normal_path(each.path)
        reads.add(path)
        if directory.has(path):
            msg = f"{what}: found import {each.name!r} of a path in the directory of the instance, {path!r}"
            raise InvalidUsageError(
                msg, hint=f"import it by its id{'' if path not in own else f': {own[path]!r}'}", context={"path": path}
            )
    for export in dataflow.exports:
        details = details_of(export)
        folder = details.get("folder")
        if folder is not None and not _FOLDER.fullmatch(str(folder)):
            msg = f"{what}: found folder {shown(folder)} for export {export.id!r}"
            raise InvalidUsageError(msg, hint="take one from Directory.new_folder")
        if export.kind == "copy-to" and not isinstance(details.get("to"), str):
            msg = f"{what}: found no folder to copy to for export {export.id!r}"
            raise InvalidUsageError(msg, hint='name it in the details: {"to": …}')
        path_of = directory.path_of(export)
        if path_of is None:
            continue
        if folder is None and (directory.has(path_of) or _is_below(directory.path, path_of)):
            msg = f"{what}: found the directory of the instance in the way of export {export.id!r} into {path_of!r}"
            raise InvalidUsageError(msg, hint="choose a path apart from it", context={"path": path_of})
        if path_of in used:
            msg = f"{what}: found that export {used[path_of]!r} is written into {path_of!r}"
            raise InvalidUsageError(msg, hint="choose another path", context={"path": path_of})
        if path_of in reads:
            msg = f"{what}: found export {export.id!r} into {path_of!r}, which it imports"
            raise InvalidUsageError(msg, hint="choose another path", context={"path": path_of})
        used[path_of] = export.id


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")
