"""Contents of each key after each time at which it changes, for inputs whose rows may be taken away.

`best`, `reduce` and `totals` compute by it over a collection: its `Boundaries` give the rows of a key at each of its
times, and from these they compute the result. The errors for a row that is there less than zero times are here too.

Keys are taken together, each at its first time, then each at its second: as many turns as the key that changes most
often has times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.dataflow.history.base import Changes, Held, Names
from spark_timely.dataflow.history.keys import key_codes, key_text, ranks_of
from spark_timely.dataflow.history.runs import run_starts_of, spread, sums_so_far, wide
from spark_timely.errors import OperatorError
from spark_timely.time.antichain import IntArray, ranges
from spark_timely.trace.updates import Updates

__all__ = ["Boundaries", "consolidated", "wrong_counts", "wrong_number"]

_MOST = (1 << 63) - 1

# Times of a key that are gone through with one choice of rows, at least.
_TURNS = 64


def wrong_counts(counts: IntArray) -> IntArray:
    """Return where numbers of rows are less than 0, or beyond 64 bits."""
    return np.flatnonzero(np.asarray((counts < 0) | (counts > _MOST), np.bool_))


def wrong_number(keys: pa.Table, row: int, count: int, when: str = "") -> OperatorError:
    """Return the error of a row that would be there as often as no row can be."""
    hint = "more is taken away there than was added" if count < 0 else "a row can be there 2^63 - 1 times at most"
    msg = f"a row of {key_text(keys, row)} that is there {count} times{when}"
    return OperatorError(msg, hint=f"correct the input: {hint}")


def consolidated(times: IntArray, numbers: IntArray, diffs: IntArray, rows: pa.Table) -> Changes:
    """Return updates with those of equal rows and times summed, without those that sum to 0.

    Parameters
    ----------
    times, numbers, diffs : ndarray of int64, shape (n,)
        Rows are equal where their numbers are.
    rows : pyarrow.Table

    Examples
    --------
    >>> found = consolidated(np.array([1, 1]), np.array([7, 7]), np.array([-1, 1]), pa.table({"v": [5, 5]}))
    >>> found.rows.num_rows
    0
    """
    found = Updates(rows, times[:, None], diffs).consolidated(group=numbers)
    return Changes(found.times[:, 0], found.diffs, found.rows)


@dataclass(frozen=True, eq=False)
class Boundaries:
    """The contents of keys over a range of times.

    Attributes
    ----------
    rows : pyarrow.Table
        The distinct rows of all keys that change, in the order of their keys.
    codes : ndarray of int64, shape (rows,)
        Number of the key of each.
    base : ndarray of int64, shape (rows,)
        How often each is there before the range; Python's numbers where sums may be beyond 64 bits, as of `by`.
    keys, times, turns : ndarray of int64, shape (boundaries,)
        Each time at which anything of a key changes, and the how manieth of this key it is; in this order.
    changed, at, by : ndarray of int64, shape (updates,)
        Row, boundary and difference of each update, in the order of turns.
    """

    rows: pa.Table
    codes: IntArray
    base: IntArray
    keys: IntArray
    times: IntArray
    turns: IntArray
    changed: IntArray
    at: IntArray
    by: IntArray
    key: Names

    @classmethod
    def of(cls, changes: Changes, contents: Held, key: Names) -> Boundaries:
        """Put together what a key holds before a range, and what changes in it.

        Parameters
        ----------
        changes : Changes
        contents : Held
            Other keys may be among them.
        key : tuple of str
        """
        codes, before = key_codes([changes.rows.select(key), contents.rows.select(key)], key)
        known = np.zeros(1 + max(int(codes.max(initial=-1)), int(before.max(initial=-1))), np.bool_)
        known[codes] = True
        mine = known[before]
        rows = pa.concat_tables(
            [changes.rows, contents.rows.filter(pa.array(mine)).select(changes.rows.schema.names)],
            promote_options="permissive",
        )
        all_codes = np.concatenate([codes, before[mine]])
        numbers = ranks_of(rows, (), codes=all_codes, key=key)
        order = np.argsort(numbers)
        starts = run_starts_of(numbers[order])
        # Equal rows are one: the number of it for each row that was given.
        place: IntArray = np.empty(rows.num_rows, np.int64)
        place[order] = spread(np.arange(starts.shape[0]), starts, rows.num_rows)
        n = changes.times.shape[0]
        counts, diffs = wide(contents.counts[mine], changes.diffs)
        base: IntArray = np.zeros(starts.shape[0], counts.dtype)
        np.add.at(base, place[n:], counts)
        wrong = wrong_counts(base)
        if wrong.shape[0]:
            raise wrong_number(rows.select(key), int(order[starts[wrong[0]]]), base[wrong[0]])
        sequence = np.lexsort((changes.times, codes))
        begins = run_starts_of(codes[sequence], changes.times[sequence])
        keys, times = codes[sequence][begins], changes.times[sequence][begins]
        first_of_key = run_starts_of(keys)
        turns = np.arange(keys.shape[0]) - spread(first_of_key, first_of_key, keys.shape[0])
        of_update: IntArray = np.empty(n, np.int64)
        of_update[sequence] = spread(np.arange(begins.shape[0]), begins, n)
        by_turn = np.argsort(turns[of_update], kind="stable")
        first = order[starts]
        return cls(
            rows.take(pa.array(first)), all_codes[first], base, keys, times, turns,
            place[:n][by_turn], of_update[by_turn], diffs[by_turn], key,
        )  # fmt: skip

    def steps(self, orders: Sequence[IntArray] = (), n: int = 0) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """Give the contents of keys after each of their times, turn by turn.

        Parameters
        ----------
        orders : sequence of ndarray of int64, shape (rows,)
            Where only the n best rows of a key are wanted, in any of some orders: places, of which the greatest is the
            best. Rows that are surely not among them are left out.
        n : int

        Yields
        ------
        boundaries, rows, counts : ndarray of int64, shape (m,)
            Which time of which key, a row that is there then, and how often.

        Raises
        ------
        OperatorError
            If a row would be there less than 0 times, or more often than 64 bits can say.

        Notes
        -----
        Cost: with orders, of t times of a key that has r rows O(r √t + t (√t + n)); without, O(r t).
        """
        counts = self.base.copy()
        turn_of_update = self.turns[self.at]
        by_turn = np.argsort(self.turns, kind="stable")
        n_turns = int(self.turns.max(initial=-1)) + 1
        cuts = np.searchsorted(turn_of_update, np.arange(n_turns + 1))
        ends = np.searchsorted(self.turns[by_turn], np.arange(n_turns + 1))
        # A key with many rows that changes at many times would be looked at whole at each of them: for some turns only
        # rows are looked at that change in these, and the best of those that do not.
        together = max(_TURNS, math.isqrt(n_turns))
        sequences = [np.lexsort((-each, self.codes)) for each in orders] if n_turns > 1 else []
        for first in range(0, n_turns, together):
            last = min(first + together, n_turns)
            keys = np.unique(self.keys[by_turn[ends[first] : ends[last]]])
            kept = self._looked_at(counts, keys, np.unique(self.changed[cuts[first] : cuts[last]]), sequences, n)
            of_code = np.searchsorted(self.codes[kept], np.arange(int(self.keys.max(initial=-1)) + 2))
            for turn in range(first, last):
                mine = slice(cuts[turn], cuts[turn + 1])
                np.add.at(counts, self.changed[mine], self.by[mine])
                wrong = wrong_counts(counts[self.changed[mine]])
                if wrong.shape[0]:
                    row, boundary = int(self.changed[mine][wrong[0]]), self.at[mine][wrong[0]]
                    when = f" at time={int(self.times[boundary])}"
                    raise wrong_number(self.rows.select(self.key), row, counts[row], when)
                active = by_turn[ends[turn] : ends[turn + 1]]
                first_row = of_code[self.keys[active]]
                n_rows = of_code[self.keys[active] + 1] - first_row
                rows, boundaries = kept[ranges(first_row, n_rows)], np.repeat(active, n_rows)
                there = np.asarray(counts[rows] > 0, np.bool_)
                yield boundaries[there], rows[there], counts[rows[there]].astype(np.int64)

    def _looked_at(
        self, counts: IntArray, keys: IntArray, changed: IntArray, sequences: Sequence[IntArray], n: int
    ) -> IntArray:
        """Return the rows of some keys that change, and of the others those that may be among the n best."""
        mine: npt.NDArray[np.bool_] = np.zeros(int(self.codes.max(initial=-1)) + 1, np.bool_)
        mine[keys] = True
        if not sequences:
            return np.flatnonzero(mine[self.codes])
        changes: npt.NDArray[np.bool_] = np.zeros(self.codes.shape[0], np.bool_)
        changes[changed] = True
        remains = changes.copy()
        for sequence in sequences:
            order = sequence[
                mine[self.codes[sequence]] & ~changes[sequence] & np.asarray(counts[sequence] > 0, np.bool_)
            ]
            starts = run_starts_of(self.codes[order])
            better = sums_so_far(counts[order], starts) - counts[order]
            remains[order[np.asarray(better < n, np.bool_)]] = True
        return np.flatnonzero(remains)

    def until(self, boundaries: IntArray) -> tuple[IntArray, IntArray]:
        """Return the next time of the key of each boundary, and whether there is one."""
        following = np.minimum(boundaries + 1, self.keys.shape[0] - 1)
        more = (following != boundaries) & (self.keys[following] == self.keys[boundaries])
        return self.times[following], more

    def changes_of(self, given: Sequence[tuple[IntArray, pa.Table, IntArray]], held: Held) -> Changes:
        """Return what changes in a result from what it is after each time of each key.

        Parameters
        ----------
        given : sequence of (boundaries, rows, counts)
            What the result holds after a time of a key; nothing where it is not among them.
        held : Held
            What the result holds before the range; other keys may be among them.
        """
        first = self.turns == 0
        names = held.rows.schema.names
        of_held, of_first = key_codes([held.rows.select(self.key), self._keys_of(np.flatnonzero(first))], self.key)
        begins: IntArray = np.full(1 + int(max(of_held.max(initial=-1), of_first.max(initial=-1))), -1, np.int64)
        begins[of_first] = np.flatnonzero(first)
        mine = begins[of_held] >= 0
        times, diffs = [self.times[begins[of_held[mine]]]], [-held.counts[mine]]
        tables = [held.rows.filter(pa.array(mine))]
        for boundaries, rows, counts in given:  # as many as the key with the most times has
            after, more = self.until(boundaries)
            tables += [rows.select(names), rows.select(names).filter(pa.array(more))]
            times += [self.times[boundaries], after[more]]
            diffs += [counts, -counts[more]]
        rows = pa.concat_tables(tables, promote_options="permissive")
        (codes,) = key_codes([rows], self.key)
        numbers = ranks_of(rows, (), codes=codes, key=self.key)
        return consolidated(np.concatenate(times), numbers, np.concatenate(diffs), rows)

    def _keys_of(self, boundaries: IntArray) -> pa.Table:
        """Return the keys of boundaries."""
        places = np.searchsorted(self.codes, self.keys[boundaries])
        # All columns, lest of a key without columns no rows are left.
        return self.rows.take(pa.array(places)).select(self.key)
