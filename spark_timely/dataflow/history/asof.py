"""As-of join: joins events with a collection as of the time of each event.

Of each row of the collection it is known from when until when it is there: an event finds the rows of its key whose
interval has its time. Later changes of the collection rewrite nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_timely.dataflow.history.base import Changes, Held, Names
from spark_timely.dataflow.history.contents import BEYOND, NEGATIVE
from spark_timely.dataflow.history.keys import key_codes, key_text, ranks_of, run_starts_of, wide
from spark_timely.errors import OperatorError

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_timely.time.arrays import IntArray

__all__ = ["join_as_of"]

_LAST = (1 << 63) - 1


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
    wanted = [*on, *others]
    rows = pa.concat_tables([held.rows.select(wanted), changes.rows.select(wanted)], promote_options="permissive")
    of_facts, of_rows = key_codes([facts.select(on), rows.select(on)], on)
    n_held = held.counts.shape[0]
    # Of a key that no event has, what was before may be missing where its changes are not: they share a hash.
    mine = np.isin(of_rows, of_facts)
    rows, of_rows = rows.filter(pa.array(mine)), of_rows[mine]
    same = ranks_of(rows, (), codes=of_rows, key=on)
    later: IntArray = np.concatenate([np.zeros(n_held, np.int64), np.ones(changes.times.shape[0], np.int64)])[mine]
    at: IntArray = np.concatenate([np.zeros(n_held, np.int64), changes.times])[mine]
    diffs: IntArray = np.concatenate(wide(held.counts, changes.diffs))[mine]
    order = np.lexsort((at, later, same))
    starts = run_starts_of(same[order], later[order], at[order])
    if starts.shape[0]:
        summed = np.add.reduceat(diffs[order], starts)
    else:
        summed = diffs
    first = order[starts]
    of_row = run_starts_of(same[first])
    length = np.diff(of_row, append=first.shape[0])
    total = np.cumsum(summed)
    there = total - np.repeat(total[of_row] - summed[of_row], length)
    wrong = np.flatnonzero(np.asarray((there < 0) | (there > (1 << 63) - 1), np.bool_))
    if wrong.shape[0]:
        row, often = int(first[wrong[0]]), there[wrong[0]]
        # Of what was before the range no time is known: all that is known is that it was before these.
        soonest = int(min(times.min(initial=_LAST), changes.times.min(initial=_LAST)))
        when = f"at time={at[row]}" if later[row] else f"before time={soonest}"
        msg = f"a row of {key_text(rows.select(on), row)} that is there {often} times {when}"
        raise OperatorError(msg, hint=NEGATIVE if often < 0 else BEYOND)
    there = there.astype(np.int64)
    # From its time to the next change of the same row.
    last = np.append(same[first][1:] != same[first][:-1], [True])[: first.shape[0]]
    until: IntArray = np.append(at[first][1:], [0])[: first.shape[0]]
    present = there > 0
    first, last, until, there = first[present], last[present], until[present], there[present]
    # Times as numbers of changes up to them: an interval has those from `low` on and below `high`.
    known = np.unique(changes.times)
    width = 1 << int(known.shape[0]).bit_length()
    low = np.where(later[first] == 0, 0, np.searchsorted(known, at[first]) + 1)
    high = np.where(last, width, np.searchsorted(known, until) + 1)
    agree = np.ones(facts.num_rows, np.bool_)
    for name in on:
        agree &= np.asarray(facts.column(name).is_valid().to_numpy())
    asked = np.flatnonzero(agree)
    asked = asked[np.argsort(of_facts[asked], kind="stable")]
    moment = np.searchsorted(known, times[asked], "left" if strict else "right")
    fact, place = _found(of_facts[asked], moment, of_rows[first], low, high, width)
    fact = asked[fact]
    often = there[place]
    fact, place = np.repeat(fact, often), np.repeat(first[place], often)
    found = pa.array(place)
    if how == "left":
        alone = np.setdiff1d(np.arange(facts.num_rows), fact)
        fact = np.concatenate([fact, alone])
        found = pa.concat_arrays([found.cast(pa.int64()), pa.nulls(alone.shape[0], pa.int64())])
    joined = facts.take(pa.array(fact))
    taken = rows.select(others).take(found)
    columns = [*joined.columns, *taken.columns]
    fields = [*joined.schema, *(field.with_nullable(True) for field in taken.schema)]  # noqa: FBT003 - as Arrow has it
    return times[fact], pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _found(
    keys: IntArray, moments: IntArray, of_intervals: IntArray, low: IntArray, high: IntArray, width: int
) -> tuple[IntArray, IntArray]:
    """Find the intervals that have a moment of their key.

    Moments are the leaves of a binary tree. An interval is cut into few whole subtrees, at most two of each height; it
    has a moment if and only if one of these is above that leaf. So no pair is looked at that does not fit, however
    many moments and intervals a key has.

    Parameters
    ----------
    keys, moments : ndarray of int64, shape (n,)
        From 0 on; moments below `width`.
    of_intervals, low, high : ndarray of int64, shape (m,)
        Key, and moments from `low` on and below `high`, which is at most `width`.
    width : int
        A power of 2.

    Returns
    -------
    asked, intervals : ndarray of int64, shape (pairs,)
        Places in the first and in the second three.
    """
    left, right, nodes = low + width, high + width, moments + width
    every = np.arange(low.shape[0])
    n_keys = 1 + max(int(keys.max(initial=0)), int(of_intervals.max(initial=0)))
    asked: list[IntArray] = []
    answers: list[IntArray] = []
    while width:  # the logarithm of the number of times
        begins, ends = (left < right) & (left & 1 == 1), (left < right) & (right & 1 == 1)
        owners = np.concatenate([every[begins], every[ends]])
        if owners.shape[0]:
            subtrees = np.concatenate([left[begins], right[ends] - 1])
            numbers = of_intervals[owners] * (2 * width) + subtrees
            order = np.argsort(numbers)
            numbers, owners = numbers[order], owners[order]
            some: npt.NDArray[np.bool_] = np.zeros(n_keys, np.bool_)
            some[of_intervals[owners]] = True
            mine = np.flatnonzero(some[keys])
            wanted = keys[mine] * (2 * width) + nodes[mine]
            start, end = np.searchsorted(numbers, wanted, "left"), np.searchsorted(numbers, wanted, "right")
            n = end - start
            asked.append(np.repeat(mine, n))
            answers.append(owners[np.arange(int(n.sum())) - np.repeat(np.cumsum(n) - n, n) + np.repeat(start, n)])
        open_ = left < right
        left = np.where(open_, (left + begins) >> 1, left)
        right = np.where(open_, (right - ends) >> 1, right)
        nodes >>= 1
        width >>= 1
    none: IntArray = np.zeros(0, np.int64)
    return np.concatenate([*asked, none]), np.concatenate([*answers, none])
