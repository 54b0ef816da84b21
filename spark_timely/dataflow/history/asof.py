"""As-of join: joins events with a collection as of the time of each event.

`operators.joins.AsOfJoin` calls `join_as_of` for a range of times; it keeps no state of its own, and gets what the
collection holds before the range.

Of each row of the collection it is known from when until when it is there (`_Intervals`): an event finds the rows of
its key whose interval has its time. Later changes of the collection rewrite nothing.

Times are compared as *moments*, numbers from 0 on: how many of the distinct times at which the collection changes in
the range are at or before a time. So 0 is the moment of what the collection holds before the range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_timely.dataflow.history.base import Changes, Held, Names
from spark_timely.dataflow.history.contents import wrong_counts, wrong_number
from spark_timely.dataflow.history.keys import key_codes, ranks_of
from spark_timely.dataflow.history.runs import run_starts_of, sums_so_far, wide
from spark_timely.time.antichain import IntArray, ranges

__all__ = ["join_as_of"]

_LAST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Intervals of moments in which rows of a collection are there.

    Attributes
    ----------
    rows : ndarray of int64, shape (m,)
        Number of the row; of equal ones any.
    keys : ndarray of int64, shape (m,)
        Number of its key.
    counts : ndarray of int64, shape (m,)
        How often it is there: more than 0.
    begins, ends : ndarray of int64, shape (m,)
        Moments: the first one at which it is there, and the first one at which it is so no more, `endless` at most.
    endless : int
        A power of 2 that is greater than all moments.
    """

    rows: IntArray
    keys: IntArray
    counts: IntArray
    begins: IntArray
    ends: IntArray
    endless: int


def join_as_of(
    times: IntArray, facts: pa.Table, held: Held, changes: Changes, *, on: Names, how: str, strict: bool
) -> tuple[IntArray, pa.Table]:
    """Join each event with the rows of a collection that are there at its time and agree in some columns.

    Parameters
    ----------
    times : ndarray of int64, shape (n,)
        Encoded times of one coordinate.
    facts : pyarrow.Table
        n rows.
    held : Held
        What the collection holds of these keys before the range; other keys may be among them.
    changes : Changes
        Of the collection in the range; other keys may be among them.
    on : tuple of str
        Columns of both. A null agrees with nothing.
    how : {"inner", "left"}
    strict : bool
        Whether changes at the time of an event come too late for it.

    Returns
    -------
    times : ndarray of int64, shape (m,)
    rows : pyarrow.Table
        Columns of the events, then the others of the collection. A row that is there three times gives three.

    Raises
    ------
    OperatorError
        If a row of the collection would be there less than 0 times.

    Examples
    --------
    >>> rates = pa.table({"k": ["a"], "rate": [1.0]})
    >>> changed = Changes(np.array([5, 5]), np.array([-1, 1]), pa.table({"k": ["a", "a"], "rate": [1.0, 2.0]}))
    >>> events = pa.table({"k": ["a", "a", "b"], "n": [1, 2, 3]})
    >>> held = Held(None, np.array([1]), rates)
    >>> at, rows = join_as_of(np.array([4, 5, 5]), events, held, changed, on=("k",), how="left", strict=False)
    >>> at.tolist(), rows["rate"].to_pylist()
    ([4, 5, 5], [1.0, 2.0, None])
    """
    others = [name for name in held.rows.schema.names if name not in on]
    names = [*on, *others]
    rows = pa.concat_tables([held.rows.select(names), changes.rows.select(names)], promote_options="permissive")
    keys_of_facts, keys = key_codes([facts.select(on), rows.select(on)], on)
    change_times = np.unique(changes.times)
    moments = np.concatenate(
        [np.zeros(held.counts.shape[0], np.int64), np.searchsorted(change_times, changes.times, "right")]
    )
    diffs = np.concatenate(wide(held.counts, changes.diffs))
    # Of a key that no event has, what was before may be missing where its changes are not: they share a hash.
    mine = np.isin(keys, keys_of_facts)
    rows, keys, moments, diffs = rows.filter(pa.array(mine)), keys[mine], moments[mine], diffs[mine]

    ranks = ranks_of(rows, (), codes=keys, key=on)
    updates, counts = _after_each_change(ranks, moments, diffs)
    wrong = wrong_counts(counts)
    if wrong.shape[0]:
        row, count = int(updates[wrong[0]]), counts[wrong[0]]
        # Of what was before the range no time is known: all that is known is that it was before these.
        soonest = int(min(times.min(initial=_LAST), change_times.min(initial=_LAST)))
        when = f" at time={change_times[moments[row] - 1]}" if moments[row] else f" before time={soonest}"
        raise wrong_number(rows.select(on), row, count, when)
    endless = 1 << int(change_times.shape[0]).bit_length()
    intervals = _intervals(updates, counts.astype(np.int64), ranks, keys, moments, endless)

    agrees = np.ones(facts.num_rows, np.bool_)
    for name in on:
        agrees &= np.asarray(facts.column(name).is_valid().to_numpy())
    asked = np.flatnonzero(agrees)
    asked = asked[np.argsort(keys_of_facts[asked], kind="stable")]
    moment = np.searchsorted(change_times, times[asked], "left" if strict else "right")
    which, found = _containing(keys_of_facts[asked], moment, intervals)
    n_times = intervals.counts[found]
    fact, row_found = np.repeat(asked[which], n_times), pa.array(np.repeat(intervals.rows[found], n_times), pa.int64())
    if how == "left":
        alone = np.setdiff1d(np.arange(facts.num_rows), fact)
        fact = np.concatenate([fact, alone])
        row_found = pa.concat_arrays([row_found, pa.nulls(alone.shape[0], pa.int64())])
    joined, taken = facts.take(pa.array(fact)), rows.select(others).take(row_found)
    fields = [*joined.schema, *(field.with_nullable(nullable=True) for field in taken.schema)]
    return times[fact], pa.Table.from_arrays([*joined.columns, *taken.columns], schema=pa.schema(fields))


def _after_each_change(rows: IntArray, moments: IntArray, diffs: IntArray) -> tuple[IntArray, IntArray]:
    """Return how often each row is there after each moment at which it changes.

    Parameters
    ----------
    rows, moments, diffs : ndarray of int64, shape (n,)
        Updates: rows are equal where their numbers are; diffs may be Python's numbers.

    Returns
    -------
    updates, counts : ndarray, shape (m,)
        Sorted by row and moment: the number of an update of these, and how often the row is there from then on.
    """
    order = np.lexsort((moments, rows))
    starts = run_starts_of(rows[order], moments[order])
    updates = order[starts]
    summed = np.add.reduceat(diffs[order], starts) if starts.shape[0] else diffs
    return updates, sums_so_far(summed, run_starts_of(rows[updates]))


def _intervals(
    updates: IntArray, counts: IntArray, rows: IntArray, keys: IntArray, moments: IntArray, endless: int
) -> _Intervals:
    """Return the intervals between the changes of a row: from each on, to the next one of the same row.

    Parameters
    ----------
    updates, counts : ndarray of int64, shape (m,)
        As `_after_each_change` gives them.
    rows, keys, moments : ndarray of int64, shape (n,)
        Of each update.
    endless : int
    """
    row, begins = rows[updates], moments[updates]
    ends = np.full(updates.shape[0], endless)
    changes_again = row[1:] == row[:-1]
    ends[:-1][changes_again] = begins[1:][changes_again]
    is_there = counts > 0
    updates = updates[is_there]
    return _Intervals(updates, keys[updates], counts[is_there], begins[is_there], ends[is_there], endless)


def _containing(keys: IntArray, moments: IntArray, intervals: _Intervals) -> tuple[IntArray, IntArray]:
    """Find the intervals of a key that contain a moment.

    Moments are the leaves of a binary tree. An interval is cut into few whole subtrees, at most two of each height; it
    contains a moment if and only if one of these is above that leaf. So no pair is looked at that does not fit,
    however many moments and intervals a key has.

    Parameters
    ----------
    keys, moments : ndarray of int64, shape (n,)
        From 0 on; what is asked for.
    intervals : _Intervals

    Returns
    -------
    asked, found : ndarray of int64, shape (pairs,)
        Places in `keys`, and in the intervals.
    """
    width = intervals.endless
    left, right, nodes = intervals.begins + width, intervals.ends + width, moments + width
    n_keys = 1 + max(int(keys.max(initial=0)), int(intervals.keys.max(initial=0)))
    none: IntArray = np.zeros(0, np.int64)
    asked, found = [none], [none]
    while width:  # the logarithm of the number of times
        takes_left, takes_right = (left < right) & (left & 1 == 1), (left < right) & (right & 1 == 1)
        owners = np.concatenate([np.flatnonzero(takes_left), np.flatnonzero(takes_right)])
        if owners.shape[0]:
            subtrees = np.concatenate([left[takes_left], right[takes_right] - 1])
            has_subtree = np.zeros(n_keys, np.bool_)
            has_subtree[intervals.keys[owners]] = True
            asking = np.flatnonzero(has_subtree[keys])
            wanted = keys[asking] * (2 * width) + nodes[asking]
            of_asking, of_owners = _equal_pairs(wanted, intervals.keys[owners] * (2 * width) + subtrees)
            asked.append(asking[of_asking])
            found.append(owners[of_owners])
        is_open = left < right
        left = np.where(is_open, (left + takes_left) >> 1, left)
        right = np.where(is_open, (right - takes_right) >> 1, right)
        nodes >>= 1
        width >>= 1
    return np.concatenate(asked), np.concatenate(found)


def _equal_pairs(left: IntArray, right: IntArray) -> tuple[IntArray, IntArray]:
    """Return the places of all pairs of equal numbers.

    Examples
    --------
    >>> [places.tolist() for places in _equal_pairs(np.array([3, 5]), np.array([5, 7, 5]))]
    [[1, 1], [0, 2]]
    """
    order = np.argsort(right)
    ordered = right[order]
    first = np.searchsorted(ordered, left, "left")
    n = np.searchsorted(ordered, left, "right") - first
    return np.repeat(np.arange(left.shape[0]), n), order[ranges(first, n)]
