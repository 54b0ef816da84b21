"""Vacuum of a log: deletes the files that merges and compaction have replaced, once no reader can need them.

`Log.vacuum` and ``spark-timely vacuum`` call `vacuum`, which gives a `VacuumReport`; upkeep after commits (`core`)
deletes what is due by itself (`Sweep`). Which files are replaced is up to `compaction` and `forgetting`; entries of the
table's log are deleted by `spark_timely.log.store.checkpoints`.

Invariants
----------
1. Only files are deleted that the table's log names as taken out, long enough ago, and that are not part of a snapshot
   which was read right before: a table that was put back to an earlier version may have them again. Files that no entry
   names may belong to a job that has not committed yet: they are deleted only where a call by hand asks for them, and
   only when they are a week old.
2. Nothing that a log says changes by it, whatever is deleted and whatever is not: it may end between any two files.
3. What is due is deleted before the checkpoint is written that does not name it any longer.
4. A file is not deleted before what replaced it outlasts a power cut: it is on the disk for an hour, or flushed.
5. Only names are touched that commits of a log give: whatever else the table's log says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_timely.errors import LogFormatError, StorageError
from spark_timely.log.files.format import EVENTS

if TYPE_CHECKING:
    from spark_timely.log.store.base import Store
    from spark_timely.log.streams import StreamStates


HOUR_MS: Final = 3_600_000
PLANNED_MS: Final = HOUR_MS
"""A plan of a reader may be this old while it needs the files that it names; then it fails, and is made once more."""

_UNKNOWN_MS: Final = 7 * 24 * HOUR_MS
_SOON_MS: Final = 20_000
_MOST_WAITING: Final = 100_000
_EVER: Final = 1 << 62  # a clock may be ahead
_OURS: Final = re.compile(rf"_event=({'|'.join(EVENTS)})/[^/]+\.parquet")
# With a commit: so few that an append next to it hardly notices. Where requests are journeys, ten of them, in a thread.
_MOST_NEAR: Final = 1_000
_MOST_FAR: Final = 10_000
# Between two looks at whether the files are part of the log again.
_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """The report of a vacuum: what it did, or would do.

    Parameters
    ----------
    files, bytes : int
        Deleted.
    young_files, young_bytes : int
        Replaced too lately: left where they are.
    gone_at : int or None
        When the last of these may be deleted, microseconds since 1970; None where there are none.
    unknown_files, unknown_bytes : int
        On the disk for a week, and named by no entry: left where they are, unless they were asked for; then they count
        among the deleted ones.
    dry_run : bool
        Whether nothing was deleted.
    """

    files: int
    bytes: int
    young_files: int
    young_bytes: int
    gone_at: int | None
    unknown_files: int
    unknown_bytes: int
    dry_run: bool


def vacuum(
    states: StreamStates, *, age_ms: int | None, unknown: bool, dry_run: bool, now_ms: int, has_readers: bool
) -> VacuumReport:
    """Delete all files that were replaced long enough ago.

    Parameters
    ----------
    states : StreamStates
    age_ms : int or None
        How long ago at least; None: as long as the table keeps them. At least an hour in that case, and where the log
        has registered readers.
    unknown : bool
        Whether files go too that no entry names and that are a week old.
    dry_run : bool
        Whether nothing is deleted.
    now_ms : int
        Wall clock.
    has_readers : bool
        Whether anybody retains the log.

    Notes
    -----
    Cost: the folders of the log are listed, its newest checkpoint is read; one call per file, or per thousand in a
    store.
    """
    states.refresh()
    store = states.store
    age = store.replaced_kept_ms if age_ms is None else age_ms
    if age_ms is None or has_readers:
        age = max(age, PLANNED_MS)
    there = _on_disk(store)
    replaced = {path: said for path, said in store.replaced(_EVER).items() if path in there}
    due = {path for path, (at, _) in replaced.items() if at <= now_ms - age and path not in store.live}
    young = {path: at for path, (at, _) in replaced.items() if path not in due and path not in store.live}
    strays = {
        path
        for path, (_, written) in there.items()
        if path not in replaced and path not in store.live and written * 1000 <= now_ms - max(age, _UNKNOWN_MS)
    }
    if unknown:
        due, strays = due | strays, set()
    if due and not dry_run:
        states.look_into()  # before the files go that show what others did
        store.check_writable()
        if age < PLANNED_MS:
            # Other engines do not flush what they write: neither the files that replace others, nor their entries.
            _flush_all(states)
            store.flush()
        _delete(states, sorted(path for path in due if path not in store.live))
    return VacuumReport(
        files=len(due),
        bytes=sum(there[path][0] for path in due),
        young_files=len(young),
        young_bytes=sum(there[path][0] for path in young),
        gone_at=(max(young.values()) + age) * 1000 if young else None,
        unknown_files=len(strays),
        unknown_bytes=sum(there[path][0] for path in strays),
        dry_run=dry_run,
    )


def _flush_all(states: StreamStates) -> None:
    """Flush the files that are part of the log."""
    while True:  # once more where others commit meanwhile
        live = states.store.live
        try:
            states.store.storage.flush(sorted(path for event in EVENTS for path in live.index(event).paths.tolist()))
        except StorageError:
            # One that was replaced since, and deleted by another vacuum.
            if not states.refresh():
                raise
        else:
            return


def _on_disk(store: Store) -> dict[str, tuple[int, float]]:
    found: dict[str, tuple[int, float]] = {}
    for event in EVENTS:
        folder = f"_event={event}"
        sizes = store.storage.sizes(folder).items()
        found |= {f"{folder}/{name}": said for name, said in sizes if _OURS.fullmatch(f"{folder}/{name}")}
    return found


class Sweep:
    """The deletions of one handle's upkeep: files that are due, and those that will be.

    Attributes
    ----------
    waiting : dict of str to int
        Files that are due, or will be soon, and when they were replaced, in milliseconds.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, int] = {}
        # Of those that the table's log still names.
        self._gone: set[str] = set()

    def run(self, states: StreamStates, *, now_ms: int) -> None:
        """Delete what is due, a bounded number of files; the rest is left for the next time.

        Called with upkeep, before a checkpoint is written.

        Parameters
        ----------
        states : StreamStates
        now_ms : int
            Wall clock.

        Notes
        -----
        Cost: reads the newest checkpoint, as the one that is written behind it does. What is deleted is what commits
        have replaced, some files each, so the cost per commit is flat.
        """
        store = states.store
        before = now_ms - max(store.replaced_kept_ms, PLANNED_MS)
        if store.is_due():
            try:
                # Those too that will be due when the checkpoint is written, which names them no longer.
                replaced = store.replaced(before + _SOON_MS)
            except LogFormatError:
                return  # nobody knows who needs them
            self._gone &= replaced.keys()
            found = {path: at for path, (at, _) in replaced.items() if _OURS.fullmatch(path)}
            self.waiting |= {path: at for path, at in found.items() if path not in self._gone}
            # Where nothing may be deleted there would be more and more.
            self.waiting = dict(list(self.waiting.items())[-_MOST_WAITING:])
        due = sorted(path for path, at in self.waiting.items() if at <= before)
        due = due[: _MOST_NEAR if store.storage.local else _MOST_FAR]
        if due:
            _delete(states, due)
            self._gone |= set(due)
            self.waiting = {path: at for path, at in self.waiting.items() if path not in self._gone}


def _delete(states: StreamStates, paths: Sequence[str]) -> None:
    """Delete files that are not part of the log, as of a snapshot of this moment."""
    store = states.store
    for first in range(0, len(paths), _AT_ONCE):
        states.refresh()
        store.storage.delete_all([path for path in paths[first : first + _AT_ONCE] if path not in store.live])
