"""Sets of views of an instance whose queries repeat parts of each other, and of themselves, against plain Python.

A part that is written again is the same operator, wherever it stands; nearly the same ones are others. Each view must
reach its input's frontier, and give what its query says of the input.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import long_lane
from tests.unit.compute.instances import append, handle, orders

Rows = Counter[tuple[int, int]]
Query = tuple[str, Callable[[Rows], Rows]]

FIRST_SEED = int(os.environ.get("SPARK_TIMELY_SEED", "0"))
N_SETS = int(os.environ.get("SPARK_TIMELY_VIEW_SETS", 300 if long_lane() else 2))
WAIT_S = 60.0


def _per_key(rows: Rows, give: Callable[[list[int]], list[int]]) -> Rows:
    keys: dict[int, list[int]] = {}
    for (k, v), n in rows.items():
        keys.setdefault(k, []).extend([v] * n)
    return Counter((k, v) for k, values in keys.items() for v in give(sorted(values)))


def drawn_query(rng: random.Random, depth: int, parts: list[Query]) -> Query:
    """Draw a query; what was drawn before is often part of it once more."""
    if parts and rng.random() < 0.45:
        return rng.choice(parts)
    if not depth:
        return "SELECT k, v FROM src", lambda rows: rows
    text, of = drawn_query(rng, depth - 1, parts)
    n = rng.randrange(3)
    kind = rng.choice(["distinct", "where", "count", "sum", "latest", "top", "union", "union"])
    if kind == "distinct":
        found: Query = f"SELECT DISTINCT k, v FROM ({text}) a", lambda rows: Counter(dict.fromkeys(of(rows), 1))
    elif kind == "where":
        found = (
            f"SELECT k, v FROM ({text}) a WHERE v > {n}",
            lambda rows: Counter({row: m for row, m in of(rows).items() if row[1] > n}),
        )
    elif kind == "count":
        found = (
            f"SELECT k, COUNT(*) AS v FROM ({text}) a GROUP BY k",
            lambda rows: _per_key(of(rows), lambda values: [len(values)]),
        )
    elif kind == "sum":
        found = (
            f"SELECT k, SUM(v) AS v FROM ({text}) a GROUP BY k",
            lambda rows: _per_key(of(rows), lambda values: [sum(values)]),
        )
    elif kind in ("latest", "top"):
        most = 1 if kind == "latest" else n + 2
        rank = f"row_number() OVER (PARTITION BY k ORDER BY v DESC) {'=' if most == 1 else '<='} {most}"
        found = (
            f"SELECT k, v FROM ({text}) a QUALIFY {rank}",
            lambda rows: _per_key(of(rows), lambda values: values[-most:]),
        )
    else:
        other, of_other = drawn_query(rng, depth - 1, [*parts, (text, of)])
        found = (
            f"SELECT k, v FROM ({text}) a UNION ALL SELECT k, v FROM ({other}) b",
            lambda rows: of(rows) + of_other(rows),
        )
    parts.append(found)
    return found


def live(folder: Path, seed: int) -> None:
    """Create a set of views, let their input grow, restart the instance between, and compare."""
    rng = random.Random(seed)
    parts: list[Query] = []
    queries = {f"v{number}": drawn_query(rng, rng.randrange(1, 4), parts) for number in range(rng.randrange(1, 4))}
    there: Rows = Counter()

    def news(time: int) -> list[tuple[int, int, int, int]]:
        made = []
        for _ in range(rng.randrange(1, 6)):
            rows = sorted(there.elements())
            row, diff = (
                (rng.choice(rows), -1) if rows and rng.random() < 0.3 else ((rng.randrange(3), rng.randrange(4)), 1)
            )
            there[row] += diff
            made.append((time, diff, *row))
        return made

    log = orders(folder / "src", *news(0), upper=1)
    instance = handle(folder / "instance")
    try:
        for id_, (text, _) in queries.items():
            instance.index(id_, text, imports={"src": str(folder / "src")})
        for upper in range(1, rng.randrange(3, 5)):
            for id_, (text, give) in queries.items():
                instance.await_frontier(id_, upper - 1, timeout_s=WAIT_S)
                found: Rows = Counter()
                for row in instance.peek(id_, as_of=upper - 1, timeout_s=WAIT_S).to_pylist():
                    found[row["k"], row["v"]] += row["_diff"]
                assert +found == +give(+there), text
            append(log, *news(upper), upper=upper + 1)
            if rng.random() < 0.5:
                instance.close()
                instance = handle(folder / "instance")
    finally:
        instance.close()


@pytest.mark.timeout(7200)
def test_views_that_repeat_subqueries_equal_the_model(tmp_path: Path) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + N_SETS):
        try:
            live(tmp_path / str(seed), seed)
        except BaseException as error:
            error.add_note(f"the views of seed {seed}")
            raise
