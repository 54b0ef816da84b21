"""What an instance does with its folders: indexes forget what nobody asks for, what was dropped is deleted.

Invariants
----------
1. What is deleted has a mark in the command log, was looked at, and is said there to be proven; and no dataflow has it.
2. An index is never compacted past what is complete: a peek at the newest time is answered. A log that this instance
   does not write is not compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from spark_timely.compute.as_of import stepped_back
from spark_timely.compute.drive.folders import Removal, folders_of, unknown_of
from spark_timely.compute.drive.resuming import own_log
from spark_timely.compute.ledger import Mark
from spark_timely.errors import StorageError, TimelyError, shown
from spark_timely.masking import masked_logger

if TYPE_CHECKING:
    from spark_timely.compute.command import Export
    from spark_timely.compute.drive.context import Context
    from spark_timely.compute.drive.hosted import Hosted
    from spark_timely.compute.ledger import Ledger
    from spark_timely.time.antichain import Antichain

__all__ = ["Upkeep"]

_log = masked_logger("spark_timely.compute")

# How long what was dropped stays, for those who began to read it; and before what failed is tried again.
_GONE_S: Final = 60.0
_AGAIN_S: Final = 60.0


class Upkeep:
    """The upkeep of an instance's folders.

    Parameters
    ----------
    context : Context
    hosted : mapping of int to Hosted
        The dataflows that are hosted, by number, as they are at any time.
    store : callable
        Writes the command log, with another ledger.
    """

    def __init__(self, context: Context, hosted: Mapping[int, Hosted], store: Callable[[Ledger], None]) -> None:
        self._context, self._hosted, self._store = context, hosted, store
        self.gone: dict[str, float] = {}
        """Folders that have a mark and nobody uses, and when they are deleted."""
        self._compacted: dict[str, Antichain] = {}
        self._failed: set[str] = set()

    def begin(self) -> None:
        """Look at the folders, at a start: forget marks of what was left and is gone, and say what is unknown."""
        context = self._context
        there = set(folders_of(context.place))
        marks = context.ledger.marks
        gone = [folder for folder, mark in marks.items() if mark.stays and folder not in there]
        if gone:
            self._store(context.ledger.without(*gone))
        unknown = unknown_of(context.place, self.used(), context.ledger)
        if unknown:
            _log.warning(
                "the instance in %r does not know %d of its folders, which stay: %s",
                context.place.directory, len(unknown), shown(unknown),
            )  # fmt: skip

    def used(self, *, lasting: bool = False) -> set[str]:
        """Return the names of the folders that dataflows have.

        Parameters
        ----------
        lasting : bool
            Whether only those count that last, beside what is hosted.
        """
        context = self._context
        flows = [each.dataflow for each in context.runs() if each.dataflow.lasts or not lasting]
        flows += [each.dataflow for each in self._hosted.values()]
        names = (context.place.name_of(export) for flow in flows for export in flow.exports)
        return {name for name in names if name is not None}

    def sweep(self, *, ended: bool = False) -> None:
        """Have folders deleted that have a mark, and that no dataflow has any more.

        Parameters
        ----------
        ended : bool
            Whether dataflows that end with the process have ended.
        """
        context = self._context
        waiting = [mark for mark in context.ledger.marks.values() if not mark.stays and mark.folder not in self.gone]
        if not waiting:
            return
        used = self.used(lasting=ended)
        for mark in waiting:  # one turn per mark
            if mark.folder not in used:
                is_due = mark.state in ("asked", "proven")
                self.gone[mark.folder] = context.now() + (0.0 if is_due else _GONE_S)

    def forget(self, id_: str) -> None:
        """Know nothing any more of an export."""
        self._compacted.pop(id_, None)

    def compact(self) -> None:
        """Let the logs of indexes forget what nobody asks for any more."""
        for running in self._context.runs():  # one turn per dataflow
            for export in running.dataflow.exports:
                if export.kind == "index" and export.id in running.live:
                    self._compact(export, running.dataflow.name)

    def _compact(self, export: Export, name: str) -> None:
        context = self._context
        since, path = context.instance.since_of(export.id), context.place.path_of(export)
        if path is None or since.is_empty or self._compacted.get(export.id) == since:
            return
        try:
            log = own_log(context, path, name)
            if log is None:
                return  # not made yet, or another one in its place
            allowed = since.meet(stepped_back(log.frontier(), log.domain))
            reached = log.allow_compaction(allowed, by=f"instance {context.commands.instance}")
        except Exception as error:  # noqa: BLE001 - it is tried again in a second
            _log.debug("index %r is not compacted: %s", export.id, error)
            return
        if since.less_equal_frontier(reached):  # else somebody retains it, or it is not complete up to there yet
            self._compacted[export.id] = since

    def delete(self, *, all_of_them: bool = False) -> None:
        """Delete the folders whose time has come.

        Raises
        ------
        OwnershipError
            If another start has taken the instance over. Then nothing is deleted.
        """
        now = self._context.now()
        due = [folder for folder, at in self.gone.items() if all_of_them or at <= now]
        if not due:
            return
        try:
            self._context.check_held()
            removal = Removal(self._context.place, self._context.fence)
            proven = self._look(removal, due)
            for mark in proven:  # one turn per folder
                try:
                    removal.delete(mark)
                except (TimelyError, OSError) as error:
                    self._put_off(mark.folder, error)
            self._look(removal, [mark.folder for mark in proven if mark.folder in self.gone])
        except StorageError as error:
            _log.warning("what was dropped is not deleted yet: %s", error)

    def _look(self, removal: Removal, folders: list[str]) -> list[Mark]:
        """Look at folders that have a mark; write down what they are, and return those that may be deleted."""
        ledger, proven = self._context.ledger, []
        for folder in folders:  # one turn per folder
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
                    folder, self._context.place.directory,
                )  # fmt: skip
                ledger = ledger.put(Mark(folder, "left", log_id))
        if ledger.marks != self._context.ledger.marks:
            self._store(ledger)
        return proven

    def _put_off(self, folder: str, error: Exception) -> None:
        self.gone[folder] = self._context.now() + _AGAIN_S
        say = _log.debug if folder in self._failed else _log.warning
        self._failed.add(folder)
        say("what was dropped stays in %r for now: %s", folder, error)
