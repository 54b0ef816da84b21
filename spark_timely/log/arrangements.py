"""The arrangements of a log: its updates indexed by key in files beside it; which of them are of the log as it is.

A peek of some keys asks `Arranged.find` for one, and then reads of the log only what is newer. This module finds and
checks; `spark_timely.dataflow.engine.arrangements` makes and extends them, and `spark_timely.trace` has their format:
sorted runs of updates, and numbered *spines*, each of which lists the runs that count.

Each key and choice of columns has a folder of its own inside of the log's, `_spark_timely/key-…`, shared by all that
look into the log by that key. A dataflow asks for the folder of exactly its key and columns, and extends it; a peek
takes any folder that has the key and the columns that it needs. (Folders `by-…` have the arrangements of earlier
versions, whose hashes are of the names of columns too. They are not looked into, and go once they have a successor.)

Invariants
----------
1. An arrangement is never needed. It says what the log says; where it is missing, damaged, of another log, or of a
   history that the log no longer has, the log is read.
2. An arrangement has all that is complete in its log as of the newest commits that it names. It is not used for a log
   that lacks one of these, nor for one that has moved times up to the arrangement's upper: later times of the log could
   not be distinguished from those that it has.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_timely.errors import TimelyError
from spark_timely.log.machine.lost_commits import ACCEPTED, other_accepted, other_commits
from spark_timely.log.machine.since import may_read, needed_from
from spark_timely.masking import masked_logger
from spark_timely.time.antichain import Antichain
from spark_timely.trace.arrangement import Arrangement, OpenArrangement
from spark_timely.trace.folder import newest_spine
from spark_timely.trace.spine import Spine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.log.log import Log

__all__ = ["Arranged", "folder_of", "former_folder_of", "has_commits_of", "may_be_of"]

_log = masked_logger(__name__)


def folder_of(log: Log, key: Sequence[str], columns: Sequence[str]) -> str | None:
    """Return where the arrangement of a log is; None where it can have none: it is mapped from a disk."""
    return _folder(log, "key", key, columns) if log.core.storage.local else None


def former_folder_of(log: Log, key: Sequence[str], columns: Sequence[str]) -> str:
    """Return where an earlier version has the arrangement of a log on a disk."""
    return _folder(log, "by", key, columns)


def _folder(log: Log, kind: str, key: Sequence[str], columns: Sequence[str]) -> str:
    named = hashlib.sha256(json.dumps([key, columns]).encode()).hexdigest()[:16]
    return os.path.join(log.path, "_spark_timely", f"{kind}-{named}")


def may_be_of(spine: Spine, log: Log) -> bool:
    """Return whether an arrangement may be one of a log as it is, without a look at the log's commits."""
    if spine.log_id != log.core.log_id:
        return False
    ends = log.core.ends()
    if other_accepted(log.core.accepted, spine.commits):
        return False
    if any(name not in ends for name in spine.commits if name != ACCEPTED):
        return False
    if spine.upper is None:
        return log.frontier().is_empty
    if log.kind != "collection":
        return True
    # What the log has moved up to the arrangement's upper, or past it, would be found twice.
    return may_read(log.since(), needed_from("collection", Antichain.of(spine.upper), log.domain.minimum))


def has_commits_of(spine: Spine, log: Log) -> bool:
    """Return whether the newest commits that an arrangement has seen are those of a log (invariant 2)."""
    try:
        wanted = dict(spine.commits)
        found = log.core.commits_of({name: seq for name, (seq, _) in wanted.items()})
        return not other_commits(log.core, wanted) and all(name in found for name in wanted if name != ACCEPTED)
    except TimelyError as error:
        _log.warning("the index of log %r is not used: %s", log.path, error)
        return False


class Arranged:
    """The arrangements of logs, as they were found last.

    Notes
    -----
    Nothing of it leads back to a log: what is kept beside a handle ends with it. Cost of a look that finds nothing new:
    the names in a folder; of `find` the time of each folder.
    """

    def __init__(self) -> None:
        self._spines: dict[str, Spine | None] = {}
        self._checked: dict[str, tuple[object, ...]] = {}
        self._names: tuple[int, tuple[str, ...]] = (-1, ())
        self._opened: dict[str, tuple[tuple[int, int, int], OpenArrangement | None]] = {}

    def newest(self, log: Log, folder: str) -> Spine | None:
        """Return the newest spine in a folder, if it is one of a log as it is."""
        newest = self._spines[folder] = newest_spine(folder, self._spines.get(folder))
        if newest is None or not may_be_of(newest, log):
            return None
        state = newest.number, log.core.generation, log.core.version
        if self._checked.get(folder) != state:
            if not has_commits_of(newest, log):
                return None
            self._checked[folder] = state
        return newest

    def find(
        self, log: Log, key: Sequence[str], columns: Sequence[str], frontier: Antichain, *, forgets: bool
    ) -> tuple[OpenArrangement | None, str]:
        """Return an arrangement that can tell what keys have before a frontier, and why there is none, as text.

        Parameters
        ----------
        log : Log
        key : sequence of str
            Columns of the key, in any order.
        columns : sequence of str
            That are asked for.
        frontier : Antichain
        forgets : bool
            Whether the log has forgotten messages: an arrangement has them still.
        """
        if frontier.arity > 1:
            return None, "times of several coordinates have no index"
        wanted, why = frozenset(key), "the log has no index by these keys"
        root = f"{log.core.path}/_spark_timely"
        for name in self._folders(root) if log.core.storage.local else ():
            found = self._opened_now(log, f"{root}/{name}")
            if found is None or wanted != set(found.names.key):
                continue
            names = found.names
            if not found.columns.issuperset(columns):
                why = f"index {name!r} lacks columns"
            elif not names.may_tell(frontier):
                why = f"index {name!r} has forgotten the time: found since={names.since.elements[0][0]}"
            elif names.events and forgets:
                why = f"index {name!r} has messages that the log has forgotten"
            else:
                return found, ""
        return None, why

    def _folders(self, root: str) -> tuple[str, ...]:
        """Return the names of the folders of a log's arrangements."""
        try:
            changed = os.stat(root).st_mtime_ns
            if changed != self._names[0]:
                self._names = changed, tuple(sorted(name for name in os.listdir(root) if name.startswith("key-")))
        except OSError:
            return ()
        return self._names[1]

    def _opened_now(self, log: Log, folder: str) -> OpenArrangement | None:
        """Return an arrangement as it is now; None if it is none of this log as it is (invariant 1)."""
        try:
            state = os.stat(folder).st_mtime_ns, log.core.generation, log.core.version
        except OSError:
            return None
        known = self._opened.get(folder)
        if known is not None and known[0] == state:
            return known[1]
        found, spine = None, self.newest(log, folder)
        try:
            if spine is not None:
                names = Arrangement.of_spine(folder, spine, log.schema, events=log.kind == "stream")
                found = names.opened()
        except (OSError, ValueError, TypeError, pa.ArrowException) as error:
            _log.info("the index in %s is not used: %s", folder, error)
        self._opened[folder] = state, found
        return found
