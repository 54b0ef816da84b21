"""Bodies that are extended to many times, small data with gaps, and both ways to run them on Spark.

A body is made of four parts: where its rows come from, which of them it keeps, what it makes of them, and what it does
with the whole. `covering` chooses bodies so that each two parts of different kinds meet in one of them.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from spark_timely.continual.body import SqlBody, at_time
from spark_timely.continual.many_times import ManyStatement, many_times

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row: TypeAlias = tuple[str | None, int | None]
# A time, or the times from and to between which a row holds (None: for ever), and the row.
InputRow: TypeAlias = tuple[int, Row]
ReferenceRow: TypeAlias = tuple[int, int | None, Row]

INPUTS = ("i", "j")
REFERENCES = ("r", "s")
# The key is called the same everywhere, for USING and NATURAL.
COLUMNS = {"i": ("k", "n"), "j": ("k", "m"), "r": ("k", "f"), "s": ("k", "g")}
TIMES = (2, 3, 5, 8)


@dataclass(frozen=True)
class Data:
    """Rows of all tables, of some times."""

    inputs: Mapping[str, Sequence[InputRow]]
    references: Mapping[str, Sequence[ReferenceRow]]

    def at(self, alias: str, time: int) -> list[Row]:
        """Return the rows of a table that a body sees at a time."""
        if alias in self.inputs:
            return [row for when, row in self.inputs[alias] if when == time]
        return [row for begin, end, row in self.references[alias] if begin <= time and (end is None or time < end)]


def random_data(seed: int) -> Data:
    """Return few rows with nulls and duplicates. `i` has nothing at one time, `j` at another, `r` at a third."""
    rng = random.Random(seed)
    empty = dict(zip(("i", "j", "r"), rng.sample(TIMES, 3), strict=True))

    def row() -> Row:
        return rng.choice(["a", "a", "b", "b", None]), rng.choice([1, 1, 2, 2, 3, None])

    def some(alias: str) -> list[InputRow]:
        times = [time for time in TIMES if time != empty[alias]]
        rows = [(time, row()) for time in times for _ in range(4)]
        return [*rows, rows[-1]]

    def versions(alias: str) -> list[ReferenceRow]:
        found: list[ReferenceRow] = []
        for _ in range(8):
            begin = rng.choice([0, 0, 2, 3, 5])
            end = rng.choice([None, None, begin + 1, begin + 3])
            found.append((begin, end, row()))
        # Between two times, and after all: never seen.
        found += [(6, 8, row()), (9, None, row()), found[0]]
        gap = empty.get(alias)
        if gap is None:
            return found
        pieces: list[ReferenceRow] = []
        for begin, end, values in found:
            if begin <= gap and (end is None or gap < end):
                pieces += [(begin, gap, values)] if begin < gap else []
                pieces += [(gap + 1, end, values)] if end is None or gap + 1 < end else []
            else:
                pieces.append((begin, end, values))
        return pieces

    return Data({alias: some(alias) for alias in INPUTS}, {alias: versions(alias) for alias in REFERENCES})


# Parts -------------------------------------------------------------------------------------------------

# Where rows come from: FROM, a text, and a number.
FROM: dict[str, tuple[str, str, str]] = {
    "input": ("i", "k", "n"),
    "inner": ("i JOIN j ON i.k = j.k INNER JOIN r ON i.k = r.k AND f <= n", "i.k", "f + m"),
    "inner of a reference": ("r JOIN s ON f = g JOIN i ON i.k = r.k", "s.k", "f"),
    "left": ("i LEFT JOIN j ON i.k = j.k AND n < m LEFT OUTER JOIN r ON i.k = r.k", "i.k", "coalesce(m, f)"),
    "left of a reference": ("r LEFT JOIN i ON i.k = r.k LEFT JOIN s ON s.k = i.k AND g = n", "r.k", "g"),
    "right": ("r RIGHT OUTER JOIN i ON i.k = r.k RIGHT JOIN s ON s.k = i.k", "s.k", "f"),
    "full": ("i FULL JOIN j ON i.k = j.k LEFT JOIN r ON f = m", "coalesce(i.k, j.k)", "coalesce(n, 10 * m)"),
    "full of a reference": ("i FULL OUTER JOIN r ON i.k = r.k", "r.k", "n"),
    "semi": ("i LEFT SEMI JOIN j ON i.k = j.k OR n < m SEMI JOIN s ON n >= g", "k", "n"),
    "anti": ("i ANTI JOIN j ON i.k = j.k AND n = m LEFT ANTI JOIN r ON i.k = r.k AND n > f", "k", "n"),
    "cross": ("r CROSS JOIN i, j", "j.k", "n"),
    "using": ("i JOIN j USING (k) JOIN r USING (k)", "k", "f"),
    "outer using": ("i LEFT JOIN r USING (k) FULL JOIN j USING (k) JOIN s USING (k)", "k", "n"),
    "natural": ("i NATURAL JOIN r NATURAL RIGHT JOIN j", "k", "f"),
}

# Which rows are kept.
WHERE: dict[str, str] = {
    "where": " WHERE {b} > 1 OR {a} IS NULL",
    "in": " WHERE {a} IN (SELECT k FROM j q) OR {b} = 1",
    "in a reference": " WHERE {a} IN (SELECT q.k FROM r q WHERE q.f > 0)",
    "not in": " WHERE {b} NOT IN (SELECT m FROM j q WHERE m > 1 OR k = 'a')",
    "exists": " WHERE EXISTS (SELECT 1 FROM j q WHERE q.k = {a} OR q.m >= {b})",
    "not exists": " WHERE NOT EXISTS (SELECT 1 FROM r q WHERE q.f = {b})",
    "scalar": " WHERE {b} >= (SELECT avg(n) FROM i q) OR {a} = (SELECT max(k) FROM s q)",
    "scalar of each row": " WHERE {b} > (SELECT count(*) FROM j q WHERE q.k = {a})",
}

# What is made of the rows.
SELECT: dict[str, tuple[str, str]] = {
    "select": ("SELECT {a} AS a, {b} AS b", ""),
    "time": ("SELECT {a} AS a, {b} + :time AS b", ""),
    "distinct": ("SELECT DISTINCT {a} AS a, {b} AS b", ""),
    "group": ("SELECT {a} AS a, sum({b}) + count(*) AS b", " GROUP BY {a}"),
    "having": ("SELECT {a} AS a, count(DISTINCT {b}) AS b", " GROUP BY 1 HAVING count(*) > 1"),
    "window": ("SELECT {a} AS a, sum({b}) OVER (ORDER BY {b} NULLS LAST) AS b", ""),
    "window of parts": ("SELECT {a} AS a, rank() OVER (PARTITION BY {a} ORDER BY {b}) + count(*) OVER () AS b", ""),
    "scalar": ("SELECT {a} AS a, (SELECT count(*) FROM j q) + (SELECT coalesce(max(f), 0) FROM r q) AS b", ""),
}

# Nearly all rows that the other parts may give, many of them more than once: most meet one of them.
MANY = "SELECT l.k, p.n + d FROM i l CROSS JOIN i p, VALUES (0), (1), (2), (3), (4), (5), (6) AS v(d)"

# What is done with the whole.
WHOLE: dict[str, str] = {
    "union all": "{q} UNION ALL SELECT k, m FROM j",
    "union": "{q} UNION SELECT k, f FROM r",
    "except": f"{MANY} EXCEPT {{q}}",
    "except all": "({q}) EXCEPT ALL (SELECT k, g FROM s)",
    "intersect": f"{{q}} INTERSECT {MANY}",
    "intersect all": f"{MANY} INTERSECT ALL {{q}}",
    "derived": "SELECT d.*, g FROM ({q}) AS d LEFT JOIN s ON d.a = s.k",
    "with": "WITH c(u, v) AS ({q}) SELECT x.u, y.v FROM c x LEFT JOIN c y ON x.u = y.u WHERE x.u IN (SELECT u FROM c)",
}

Choice: TypeAlias = tuple[str, str, str, str]
KINDS = (FROM, WHERE, SELECT, WHOLE)


def text_of(choice: Choice) -> str:
    """Return the body with these parts."""
    tables, a, b = FROM[choice[0]]
    head, tail = SELECT[choice[2]]
    query = f"{head} FROM {tables}{WHERE[choice[1]]}{tail}".replace("{a}", a).replace("{b}", b)
    return WHOLE[choice[3]].replace("{q}", query)


def _runs(choice: Choice) -> bool:
    """Tell whether these parts are extended together: scalar subqueries in SELECT are not, beside set operations."""
    return choice[2] != "scalar" or choice[3] in ("derived", "with")


def pairs_of(choice: Choice) -> set[tuple[tuple[int, str], tuple[int, str]]]:
    """Return the pairs of parts that meet in a body."""
    return set(itertools.combinations(enumerate(choice), 2))


def covering() -> list[Choice]:
    """Return few bodies in which each two parts of different kinds meet: always the same ones."""
    rng = random.Random(23)
    wanted = {
        ((one, first), (two, second))
        for one, two in itertools.combinations(range(len(KINDS)), 2)
        for first in KINDS[one]
        for second in KINDS[two]
        if (one, two) != (2, 3) or _runs(("", "", first, second))
    }
    found: list[Choice] = []
    while wanted:
        first = min(wanted)  # surely one that is new
        best: tuple[int, Choice] | None = None
        for _ in range(30):
            drawn = [rng.choice(list(kind)) for kind in KINDS]
            for at, name in first:
                drawn[at] = name
            choice: Choice = (drawn[0], drawn[1], drawn[2], drawn[3])
            if not _runs(choice):
                continue
            new = len(pairs_of(choice) & wanted)
            if best is None or new > best[0]:
                best = new, choice
        assert best is not None
        found.append(best[1])
        wanted -= pairs_of(best[1])
    return found


def twice_each() -> list[Choice]:
    """Return fewer of them, in which each part is twice."""
    left = Counter({(place, part): 2 for place, kind in enumerate(KINDS) for part in kind})
    found = []
    for choice in covering():
        parts = Counter(enumerate(choice))
        if any(left[part] > 0 for part in parts):
            found.append(choice)
            left -= parts
    return found


# Both ways ---------------------------------------------------------------------------------------------


def read(text: str) -> SqlBody:
    return SqlBody.parse(text, task="t", inputs=INPUTS, references=REFERENCES)


def extended(text: str) -> ManyStatement:
    """Return the one statement of a body, over many times."""
    many = many_times(read(text), inputs=INPUTS)
    assert not isinstance(many, str), f"{text}: {many}"
    return many.statements[0]


@dataclass
class Both:
    """Runs bodies one by one and over many times, on views of the same data.

    Attributes
    ----------
    silent : list of str
        Those of the last bodies that gave no row at any time, and so show little.
    """

    spark: SparkSession
    data: Data

    def __post_init__(self) -> None:
        self.silent: list[str] = []
        self._views: dict[str, None] = {}
        for alias in (*INPUTS, *REFERENCES):
            for time in TIMES:
                self._view(f"{alias}_alone_{time}", COLUMNS[alias], self.data.at(alias, time))

    def _view(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        types = ["STRING", "INT", *["BIGINT"] * (len(columns) - 2)]
        cast = ", ".join(
            f"CAST(`{column}` AS {kind}) AS `{column}`" for column, kind in zip(columns, types, strict=True)
        )
        values = ", ".join(
            "(" + ", ".join("NULL" if value is None else repr(value) for value in row) + ")"
            for row in rows or [[None] * len(columns)]
        )
        names = ", ".join(f"`{column}`" for column in columns)
        some = "" if rows else " WHERE false"
        query = f"SELECT /*+ COALESCE(1) */ {cast} FROM VALUES {values} AS v({names}){some}"
        self.spark.sql(query).createOrReplaceTempView(name)
        self._views[name] = None

    def close(self) -> None:
        for name in self._views:
            self.spark.catalog.dropTempView(name)

    def plain(self, text: str, time: int) -> str:
        """Return a body's query at one time: the user's text over views of that time."""
        statement = read(text).statements[0]
        query = statement.bind({alias: f"{alias}_alone_{time}" for alias in statement.reads})
        return at_time(query, f"CAST({time} AS BIGINT)")

    def views(self, statement: ManyStatement) -> list[str]:
        """Return a view for each place of an extended statement."""
        names = []
        for place in statement.places:
            alias = place.alias
            name = "_".join([alias, place.shown, *(column.rpartition("_")[2] for column in place.columns)])
            if name not in self._views:
                if place.shown == "at":
                    rows: list[tuple[object, ...]] = [(*row, time) for time, row in self.data.inputs[alias]]
                elif place.shown == "between":
                    rows = [(*row, begin, end) for begin, end, row in self.data.references[alias]]
                else:
                    rows = [(*row, time) for time in TIMES for row in self.data.at(alias, time)]
                self._view(name, (*COLUMNS[alias], *place.columns), rows)
            names.append(name)
        return names

    def check(self, text: str, statement: ManyStatement) -> None:
        """Assert that the extended query has names and types of the plain one, and the time behind them."""
        plain = self.spark.sql(self.plain(text, TIMES[0]))
        found = self.spark.sql(statement.bind(self.views(statement)))
        assert found.dtypes == [*plain.dtypes, (statement.time, "bigint")], text

    def differing(self, bodies: Sequence[tuple[str, ManyStatement, str | None]]) -> Iterator[str]:
        """Yield how bodies differ over many times from themselves one by one.

        Parameters
        ----------
        bodies : sequence of (str, ManyStatement, str or None)
            Text, its extension, and another text to run in place of the bound extension.
        """
        one_by_one, together = [], []
        for at, (text, statement, other) in enumerate(bodies):
            one_by_one += [(at, str(time), "*", self.plain(text, time)) for time in TIMES]
            bound = other or statement.bind(self.views(statement))
            together.append((at, f"`{statement.time}`", f"* EXCEPT (`{statement.time}`)", bound))
        expected, actual = self._rows(one_by_one), self._rows(together)
        self.silent = [text for at, (text, _, _) in enumerate(bodies) if not expected[at]]
        for at, (text, _, _) in enumerate(bodies):
            only, more = expected[at] - actual[at], actual[at] - expected[at]
            if only or more:
                yield f"{text}\n  only one by one: {dict(only)}\n  only together: {dict(more)}"

    def _rows(self, queries: Sequence[tuple[int, str, str, str]]) -> dict[int, Counter[tuple[str, str]]]:
        """Return times and rows of many queries, by body: with one job and one last task, since each costs.

        A task is sent the whole plan: one for each query made a fifth of what all this takes.
        """
        whole = [
            f"SELECT {body} AS body, CAST({time} AS STRING) AS time, CAST(struct({columns}) AS STRING) AS row "
            f"FROM ({query})"
            for body, time, columns, query in queries
        ]
        # In pairs: Spark reads a long chain of unions slowly.
        while len(whole) > 1:
            whole = [f"({') UNION ALL ('.join(whole[at : at + 2])})" for at in range(0, len(whole), 2)]
        found: dict[int, Counter[tuple[str, str]]] = {body: Counter() for body, _, _, _ in queries}
        for body, time, row in self.spark.sql(whole[0]).coalesce(1).collect():
            found[body][time, row] += 1
        return found
