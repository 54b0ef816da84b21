"""An arrangement: a log's updates by key, as names of files; opened, the one look-up by key.

`Arrangement` is the value that tasks get; `OpenArrangement` has its runs mapped into memory, and its `before` looks
keys up. `dataflow.engine.lookups` and `answers.peek` ask it. The state of an index as it is on disk is a `spine`, a
list of runs: an arrangement is made of one, with the log's columns.

Invariants
----------
1. An arrangement has all updates at times not beyond its upper. Those of a collection at times before its since may
   have been moved up to that.
2. Once it is opened its runs can be read, also where another process replaces and deletes them.
3. A look finds rows of the keys alone: rows of others that share a hash are left out by their values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_timely.time.antichain import Antichain
from spark_timely.trace.folder import newest_spine
from spark_timely.trace.keys import KeySet
from spark_timely.trace.run import Run, mapped_run
from spark_timely.trace.spine import RunFile, Spine
from spark_timely.trace.updates import Updates

__all__ = ["Arrangement", "OpenArrangement", "columns_text"]


def columns_text(key: Sequence[str], schema: pa.Schema) -> str:
    """Return key and columns as a spine has them.

    Examples
    --------
    >>> columns_text(["k"], pa.schema([("k", pa.int64())]))
    '[["k"], [["k", "int64"]]]'
    """
    return json.dumps([list(key), [[field.name, str(field.type)] for field in schema]])


@dataclass(frozen=True, slots=True)
class Arrangement:
    """An arrangement by its names: what tasks are given.

    Attributes
    ----------
    folder : str
    key : tuple of str
        Columns, in the order in which their hash is made.
    schema : pyarrow.Schema
        Columns of the rows that the log has in the same types.
    events : bool
        Whether times are those of events, which are never moved.
    since : Antichain
        Contents are known as of each time from it on.
    upper : Antichain
        Empty where it has all.
    runs : tuple of RunFile
    number : int
        Of its spine.
    lineage : str
    """

    folder: str
    key: tuple[str, ...]
    schema: pa.Schema
    events: bool
    since: Antichain
    upper: Antichain
    runs: tuple[RunFile, ...]
    number: int = 0
    lineage: str = ""

    @classmethod
    def of_spine(cls, folder: str, spine: Spine, payload: pa.Schema, *, events: bool) -> Arrangement:
        """Return the arrangement of which a spine is a state.

        Parameters
        ----------
        folder : str
        spine : Spine
        payload : pyarrow.Schema
            Columns of the log.
        events : bool

        Raises
        ------
        ValueError
            If the spine names no columns, or the log has others by the key's names.
        """
        key, fields = json.loads(spine.columns)
        kinds = {field.name: field for field in payload}
        same = [kinds[name] for name, kind in fields if name in kinds and str(kinds[name].type) == kind]
        schema = pa.schema([field.with_nullable(True) for field in same])  # noqa: FBT003 - as Arrow has it
        if not set(key) <= set(schema.names):
            msg = f"found key {key} of other types"
            raise ValueError(msg)
        return cls(
            folder, tuple(key), schema, events, Antichain.of(spine.since), _frontier(spine.upper), spine.runs,
            spine.number, spine.lineage,
        )  # fmt: skip

    def newest(self) -> Arrangement | None:
        """Return it as it is by now; None where nothing has followed that has come from it."""
        found = newest_spine(self.folder, None)
        if found is None or found.number <= self.number or found.lineage != self.lineage:
            return None
        since, upper = Antichain.of(found.since), _frontier(found.upper)
        return replace(self, runs=found.runs, since=since, upper=upper, number=found.number)

    def may_tell(self, frontier: Antichain) -> bool:
        """Return whether it can tell what is before a frontier.

        Examples
        --------
        >>> made = Arrangement("/folder", (), pa.schema([]), False, Antichain.of(5), Antichain.of(9), ())
        >>> [made.may_tell(Antichain.of(time)) for time in (5, 6, 20)]
        [False, True, True]
        """
        # As of the times before it.
        return self.events or all(self.since.less_than(element) for element in frontier.elements)

    def opened(self) -> OpenArrangement:
        """Return it with its runs mapped.

        Raises
        ------
        OSError
            If a run is not there, or is damaged: then its file is deleted, so that it is made once more.
        """
        runs = tuple(mapped_run(self.folder, run, self.lineage) for run in self.runs)
        return OpenArrangement(self, runs, frozenset(self.schema.names))


@dataclass(frozen=True, slots=True)
class OpenArrangement:
    """An arrangement that can be looked into.

    Attributes
    ----------
    names : Arrangement
    runs : tuple of Run
    columns : frozenset of str
        Of the rows.
    """

    names: Arrangement
    runs: tuple[Run, ...]
    columns: frozenset[str]

    def before(self, keys: KeySet, frontier: Antichain, columns: list[str]) -> Updates:
        """Return the updates of some keys at times not beyond a frontier, with their times (invariant 3).

        Parameters
        ----------
        keys : KeySet
            By the columns of the key, in its order and types.
        frontier : Antichain
            For which it `may_tell`.
        columns : list of str
            Of the rows.

        Notes
        -----
        Cost: a binary search in each run for each key, and what is found.
        """
        found = [part for run in self.runs for part in run.look_up(keys.hashes)]
        if not found:
            rows = self.names.schema.empty_table().select(columns)
            return Updates(rows, np.empty((0, frontier.arity), np.int64), np.empty(0, np.int64))
        every = Updates.concat(found)
        mine = keys.among(every.rows)
        if not self.names.upper.less_equal_frontier(frontier):  # else all that it has is before (invariant 1)
            mine &= ~frontier.beyond(every.times)
        return Updates(every.rows.select(columns), every.times, every.diffs).where(mine)


def _frontier(upper: int | None) -> Antichain:
    return Antichain.empty(1) if upper is None else Antichain.of(upper)
