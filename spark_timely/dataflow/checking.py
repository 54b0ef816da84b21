"""Test mode: whether a range gives the same rows when it is computed again, with everything in another order.

What a dataflow writes must be a function of its inputs alone, or copies, restarts and other cuts give other answers.
A function that looks at a clock, draws lots, keeps something from call to call, or depends on which rows come together
and in what order, is found here and named.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.dataflow.view import Names, Read, Replay, Step, View, Watch
from spark_timely.time.antichain import Antichain

__all__ = ["run_twice"]


def run_twice(
    view: View, read: Read, lo: Antichain, hi: Antichain, wanted: Names | None = None, *, watch: Watch | None = None
) -> pa.Table:
    """Run a view twice, and refuse an operator that gives other rows the second time.

    The second time the rows of the logs come in the opposite order, and each operator that goes row by row gets them in
    two parts.

    Parameters
    ----------
    view : View
    read : callable
    lo, hi : Antichain
    wanted : tuple of str, optional
    watch : callable, optional
        Is shown what operators gave the first time.

    Returns
    -------
    pyarrow.Table
        As of the first time.

    Raises
    ------
    OperatorError
        If an operator's function is not deterministic, or fails.

    Notes
    -----
    Cost: that of two runs, and a hash of each row that any operator gives.
    """
    first: dict[Step, tuple[int, int]] = {}
    second: dict[Step, tuple[int, int]] = {}

    def seen(step: Step, table: pa.Table) -> None:
        first[step] = _digest(table)
        if watch is not None:
            watch(step, table)

    def backwards(leaf: Replay, low: Antichain, high: Antichain, columns: Names) -> pa.Table:
        table = read(leaf, low, high, columns)
        return table.take(pa.array(np.arange(table.num_rows - 1, -1, -1)))

    table = view.run(read, lo, hi, wanted, watch=seen)
    view.run(backwards, lo, hi, wanted, watch=lambda step, rows: second.update({step: _digest(rows)}), in_parts=True)
    for step, digest in first.items():  # one turn per operator and range, inputs before what is made of them
        if digest != second[step]:
            at, low, high, _ = step
            found = f"other rows the second time: {digest[0]} rows, then {second[step][0]}"
            raise at.failure(
                found,
                low,
                high,
                hint="let its function depend on the rows alone that it is given: not on order, clocks or chance",
            )
    return table


def _digest(table: pa.Table) -> tuple[int, int]:
    """Return the number of rows, and a hash of them that does not depend on their order."""
    hashes = RowHasher(table.schema).hash(table)
    return table.num_rows, hash(tuple(hashes.sum(axis=0, dtype=np.uint64).ravel().tolist()))
