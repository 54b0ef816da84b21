"""What an instance does with its folders: indexes forget what nobody asks for, what was dropped is deleted.

Invariants
----------
1. A folder of what is there is never deleted: its name is given once, and it is looked for before.
2. An index is never compacted past what is complete: a peek at the newest time is answered.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from spark_timely.compute.as_of import stepped_back
from spark_timely.log.store.cloud import open_storage
from spark_timely.masking import masked_logger

if TYPE_CHECKING:
    from spark_timely.compute.command import Export
    from spark_timely.compute.drive.context import Context
    from spark_timely.time.antichain import Antichain

__all__ = ["Upkeep"]

_log = masked_logger("spark_timely.compute")

# How long what was dropped stays, for those who began to read it.
_GONE_S: Final = 60.0


class Upkeep:
    """The upkeep of an instance's folders.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.gone: deque[tuple[float, str]] = deque()
        self._compacted: dict[str, Antichain] = {}

    def sweep(self) -> None:
        """Have folders deleted that no command names: of what was dropped, or never got its command."""
        context = self._context
        place = context.place.collections
        found = open_storage(place, dict(context.place.storage_options) or None).folders()
        # Looked for before this: what a newer start makes is not among them.
        if not context.commands.is_mine():
            return
        used = {context.place.path_of(each) for each in context.exports().values()}
        for folder in found:  # one turn per folder
            if f"{place}/{folder}" not in used:
                self.drop(f"{place}/{folder}")

    def drop(self, folder: str) -> None:
        """Have a folder deleted, in a minute."""
        self.gone.append((self._context.now() + _GONE_S, folder))

    def forget(self, id_: str) -> None:
        """Know nothing any more of an export."""
        self._compacted.pop(id_, None)

    def compact(self) -> None:
        """Let the logs of indexes forget what nobody asks for any more."""
        for running in self._context.runs():  # one turn per dataflow
            for export in running.dataflow.exports:
                if export.kind == "index" and export.id in running.live:
                    self._compact(export)

    def _compact(self, export: Export) -> None:
        context = self._context
        since, path = context.instance.since_of(export.id), context.place.path_of(export)
        if path is None or since.is_empty or self._compacted.get(export.id) == since:
            return
        try:
            log = context.opened(path)
            allowed = since.meet(stepped_back(log.frontier(), log.domain))
            log.allow_compaction(allowed, by=f"instance {context.commands.instance}")
        except Exception as error:  # noqa: BLE001 - it is tried again in a second
            _log.debug("index %r is not compacted: %s", export.id, error)
            return
        self._compacted[export.id] = since

    def delete(self, *, all_of_them: bool = False) -> None:
        """Delete the folders whose time has come."""
        while self.gone and (all_of_them or self.gone[0][0] <= self._context.now()):
            self._delete(self.gone.popleft()[1])

    def _delete(self, folder: str) -> None:
        context = self._context
        lasting = [each for running in context.runs() if running.dataflow.lasts for each in running.dataflow.exports]
        if folder in {context.place.path_of(each) for each in lasting}:
            return
        try:
            context.place.delete(folder)
        except Exception as error:  # noqa: BLE001 - it is only in the way
            _log.warning("what was dropped stays in %r: %s", folder, error)
