"""Peek from an index by key: its sorted runs up to its upper, and the log's files past it.

An index is found beside its log, where dataflows that look into the log keep it. Its runs are mapped before anything is
looked up: from then on nobody who merges, replaces or deletes them takes them away.

Invariants
----------
1. An index is never needed: one that is damaged, of another log or history, or has forgotten the time, is passed over.
2. What its runs have is at times before its upper, and what is read of the log's files is not before it: each update
   counts once, and a time that is complete in the log is answered however far behind the index is.
3. An index by these keys answers only if it has all columns that are read, in the log's types.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from spark_timely.answers.finishing import Thinning
from spark_timely.answers.keys import same_keys
from spark_timely.answers.log_peek import counted_updates, matching, of_keys
from spark_timely.canonical.row_hash import RowHasher
from spark_timely.dataflow.engine.arranged import has_commits_of, may_be_of
from spark_timely.masking import masked_logger
from spark_timely.trace.folder import newest_spine
from spark_timely.trace.mapped import mapped_run
from spark_timely.trace.updates import Updates

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from spark_timely.answers.plan import PeekPlan
    from spark_timely.log.log import Log
    from spark_timely.trace.run import Run
    from spark_timely.trace.spine import Spine

__all__ = ["IndexNow", "Indexes", "look_up"]

_log = masked_logger(__name__)

# Keys that are looked up and counted at once: what is thinned comes in such pieces.
_KEYS_AT_ONCE: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class IndexNow:
    """An index as it was found, with its runs mapped.

    Attributes
    ----------
    name : str
        Of its folder.
    key : tuple of str
    named : frozenset of str
        The same, in no order.
    columns : frozenset of str
        Those that its runs have in the log's types.
    since : int
        It tells contents as of each time from it on; ignored where it is of messages.
    upper : int or None
        It has all updates at times before; None: all.
    runs : tuple of Run
    """

    name: str
    key: tuple[str, ...]
    named: frozenset[str]
    columns: frozenset[str]
    since: int
    upper: int | None
    runs: tuple[Run, ...]


class Indexes:
    """The indexes of a log, as a peek finds them.

    Parameters
    ----------
    log : Log

    Notes
    -----
    Cost of a look that finds nothing new: one look at the time of each index's folder.
    """

    def __init__(self, log: Log) -> None:
        # Not the log itself: a mapping from the log to this would keep the log alive.
        self._root = os.path.join(log.path, "_spark_timely") if log.core.storage.local else None
        self._names: tuple[int, tuple[str, ...]] = (-1, ())
        self._known: dict[str, tuple[tuple[int, int, int], Spine | None, IndexNow | None]] = {}

    def find(self, log: Log, plan: PeekPlan) -> tuple[IndexNow | None, str]:
        """Return an index of the log that answers a plan, and why there is none, as text."""
        if plan.keys is None:
            return None, "no keys were given"
        if len(plan.at) != 1:
            return None, "times of several coordinates have no index"
        wanted = frozenset(plan.keys.schema.names)
        why = "the log has no index by these keys"
        for name in self._folders():
            found = self._current(log, name)
            if found is None or found.named != wanted:
                continue
            if not all(name in found.columns for name in plan.read_columns):
                why = f"index {name!r} lacks columns"
            elif plan.form.kind == "collection" and plan.at[0] < found.since:
                why = f"index {name!r} has forgotten the time: found since={found.since}"
            elif plan.form.kind == "stream" and plan.since != plan.form.domain.minimum_frontier:
                why = f"index {name!r} has messages that the log has forgotten"
            else:
                return found, ""
        return None, why

    def _folders(self) -> tuple[str, ...]:
        """Return the names of the folders of indexes."""
        if self._root is None:
            return ()
        try:
            changed = os.stat(self._root).st_mtime_ns
            if changed != self._names[0]:
                names = sorted(name for name in os.listdir(self._root) if name.startswith("by-"))
                self._names = changed, tuple(names)
        except OSError:
            return ()
        return self._names[1]

    def _current(self, log: Log, name: str) -> IndexNow | None:
        """Return an index as it is now; None if it is none of this log as it is (invariant 1)."""
        folder = f"{self._root}/{name}"
        try:
            state = os.stat(folder).st_mtime_ns, log.core.generation, log.core.version
        except OSError:
            return None
        known = self._known.get(name)
        if known is not None and known[0] == state:
            return known[2]
        found = None
        spine = newest_spine(folder, None if known is None else known[1])
        if spine is not None and may_be_of(spine, log) and has_commits_of(spine, log):
            found = _mapped(name, folder, spine, log.schema)
        self._known[name] = state, spine, found
        return found


def _mapped(name: str, folder: str, spine: Spine, payload: pa.Schema) -> IndexNow | None:
    """Return an index with its runs mapped; None where one of them is damaged, or gone."""
    try:
        key, fields = json.loads(spine.columns)
        kinds = {field.name: str(field.type) for field in payload}
        columns = frozenset(column for column, kind in fields if kinds.get(column) == kind)
        runs = tuple(mapped_run(folder, run, spine.lineage) for run in spine.runs)
    except (OSError, ValueError, TypeError, pa.ArrowException) as error:
        _log.info("the index in %s is not used: %s", folder, error)
        return None
    if not columns.issuperset(key):
        return None
    return IndexNow(name, tuple(key), frozenset(key), columns, spine.since, spine.upper, runs)


def look_up(plan: PeekPlan, index: IndexNow, tail: Sequence[Updates]) -> pa.Table:
    """Return rows with their counts, of a plan's keys: what an index has of them, and what is past its upper.

    Parameters
    ----------
    plan : PeekPlan
        With keys, and times of one coordinate.
    index : IndexNow
    tail : sequence of Updates
        Updates that count at times not before the index's upper, of the keys alone, with the columns that are read.

    Notes
    -----
    Cost: a binary search in each run for each key, and what is found. Of many keys as many rows are kept as the answer
    needs.
    """
    keys = plan.keys
    assert keys is not None
    wanted = RowHasher(keys.schema).hash(keys)
    if wanted.shape[0] > 1:
        wanted = wanted[np.lexsort((wanted[:, 1], wanted[:, 0]))]
    if wanted.shape[0] <= _KEYS_AT_ONCE:
        return counted_updates(
            plan, [*_found(plan, index, wanted), *(matching(plan, each, keyed=True) for each in tail)]
        )
    return _thinned(plan, index, wanted, tail)


def _thinned(plan: PeekPlan, index: IndexNow, wanted: npt.NDArray[np.uint64], tail: Sequence[Updates]) -> pa.Table:
    """Look up many keys in pieces, and keep what the answer needs."""
    names = plan.keys.schema.names if plan.keys is not None else ()
    late = Updates.concat(tail) if tail else None
    late_hashes = None if late is None else RowHasher(list(names)).hash(late.rows.select(names))
    thinning = Thinning(plan)
    # Rows of other keys may be equal in the columns that count: they are counted key by key only if these have the key.
    apart = set(names) <= set(plan.columns)
    parts: list[Updates] = []
    first = 0
    while first < wanted.shape[0] and not thinning.done:
        stop = int(np.searchsorted(wanted[:, 0], wanted[min(first + _KEYS_AT_ONCE, wanted.shape[0]) - 1, 0], "right"))
        piece = wanted[first:stop]
        found = list(_found(plan, index, piece))
        if late is not None and late_hashes is not None:
            mine = late.where(same_keys(late_hashes, piece))
            found.append(matching(plan, mine, keyed=True))
        if apart:
            thinning.add(counted_updates(plan, found))
        else:
            parts += found
        first = stop
    if not apart:
        return counted_updates(plan, parts)
    rows = thinning.rows()
    return counted_updates(plan, []) if rows is None else rows


def _found(plan: PeekPlan, index: IndexNow, wanted: npt.NDArray[np.uint64]) -> list[Updates]:
    """Return what the runs of an index have of keys, of the updates that count."""
    names, keys = list(index.key), plan.keys
    assert keys is not None
    few = keys.num_rows == 1
    hashes = np.ascontiguousarray(wanted[:, 0])
    if hashes.shape[0] > 1:
        hashes = hashes[np.concatenate([[True], hashes[1:] != hashes[:-1]])]
    found = []
    for run in index.runs:
        for each in run.look_up(hashes):
            # Rows of other keys may have the same half of a hash.
            if few:
                mine = of_keys(each.rows, keys)
            else:
                mine = same_keys(RowHasher(names).hash(each.rows.select(names)), wanted)
            found.append(matching(plan, replace(each, hashes=None).where(mine), keyed=True))
    return found
