"""Fingerprints of plans: equal for equal plans however they are written down, and different for any other plan."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given
from hypothesis import strategies as s

from spark_timely.dataflow.aggregates import count, max_of, min_of, sum_of
from spark_timely.dataflow.delays import ceil_to, plus, windows
from spark_timely.dataflow.fingerprint import FINGERPRINT, plans_of
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.dataflow.views import Operator, Replay
from spark_timely.time.domain import TimeDomain
from tests.modules import operators
from tests.oracles.dataflow_model import Spec, below_of
from tests.property import test_dataflow
from tests.property.test_dataflow import SCHEMA, specs
from tests.support import examples

IDS = {"/a": "id of a", "/b": "id of b", "/spool": "id of the spool"}


class Paper(Scope):
    """A dataflow that nobody runs: its logs are names."""

    times: Sequence[str] = ("long",)
    columns = SCHEMA

    def replay(self, log: Any, /) -> Stream:
        path = str(log)
        if path not in self._leaves:
            self._leaves[path] = Replay(self.next_name("replay"), TimeDomain(tuple(self.times)), self.columns, (), path)
        return Stream(self, self._leaves[path])


def fingerprint(scope: Scope, ids: dict[str, str] = IDS) -> str:
    """Return the fingerprint of the output that was added last."""
    return plans_of(scope.sinks, ids)[scope.sinks[-1]].fingerprint


# Plans that are drawn ---------------------------------------------------------------------------------------


def written(spec: Spec, rng: random.Random) -> str:
    """Write a plan down: with other numbers in names, operators in another order, and other outputs around it."""
    scope = Paper(rng.choice(["flow", "other"]))
    known: dict[Spec, Stream] = {}
    build = test_dataflow.built

    def built(scope: Scope, spec: Spec, logs: Any) -> Stream:
        """Build an operator once, or once for each use."""
        for _ in range(rng.randrange(3)):
            scope.next_name("nothing")
        if spec not in known or rng.random() < 0.3:
            known[spec] = build(scope, spec, logs)
        stream = known[spec]
        for hint in rng.sample([stream.inspect, None, None, None], 1):
            stream = stream if hint is None else hint(lambda *_: None)
        return stream

    with patch.object(test_dataflow, "built", built):
        parts = below(spec)
        rng.shuffle(parts)
        for part in parts[: rng.randrange(4)]:
            stream = built(scope, part, ["/a", "/b"])
            if rng.random() < 0.5:
                stream.capture(f"/beside {len(scope.sinks)}")
        built(scope, spec, ["/a", "/b"]).capture("/out")
        mine = scope.sinks[-1]
        if rng.random() < 0.5:
            scope.replay("/b").capture("/after")
    return plans_of(scope.sinks, IDS)[mine].fingerprint


def below(spec: Spec) -> list[Spec]:
    return [spec, *(found for each in below_of(spec) for found in below(each))]


def normal(spec: Spec) -> Spec:
    """Return one of the ways to write a plan: a step forward is a delay by one."""
    parts = tuple(normal(each) if each in below_of(spec) else each for each in spec)
    return ("plus", parts[1], (1,)) if spec[0] == "step" else parts


def changed(spec: Spec, rng: random.Random) -> Spec:
    """Change one thing of a plan: a number, a flag, an input, a kind."""
    kind, *rest = spec
    inner = [i for i, each in enumerate(rest) if each in below_of(spec)]
    if inner and rng.random() < 0.6:
        at = rng.choice(inner)
        rest[at] = changed(rest[at], rng)
    elif len(inner) > 1 and rng.random() < 0.5:
        rest.reverse()
    elif kind == "plus":
        rest[-1] = (rest[-1][0] + 1,)
    elif rest and isinstance(rest[-1], int):
        rest[-1] = not rest[-1] if isinstance(rest[-1], bool) else rest[-1] + 1 if kind != "replay" else 1 - rest[-1]
    else:
        kinds = [("concat", "pairs", "join"), ("double", "flat", "step", "spread", "times", "sums", "counts")]
        kind = rng.choice([each for group in kinds if kind in group for each in group if each != kind] or [kind])
    return (kind, *rest)


@examples(60)
@given(specs(1), s.randoms(use_true_random=False), s.randoms(use_true_random=False))
def test_plan_has_one_fingerprint_however_it_is_written_down(
    spec: Spec, one: random.Random, other: random.Random
) -> None:
    assert written(spec, one) == written(spec, other)


@examples(60)
@given(specs(1), specs(1), s.integers(0, 2), s.randoms(use_true_random=False))
def test_other_plans_have_other_fingerprints(spec: Spec, other: Spec, changes: int, rng: random.Random) -> None:
    for _ in range(changes):
        other = changed(spec if changes == 1 else other, rng)
    assume(normal(spec) != normal(other))
    assert written(spec, rng) != written(other, rng)


# One thing at a time ----------------------------------------------------------------------------------------


def one(rows: pa.Table) -> pa.Table:
    return rows.select(["n"])


def two(rows: pa.Table) -> pa.Table:
    return rows.select(["n"])


def with_place(rows: pa.Table, places: Sequence[int] = ()) -> pa.Table:
    return rows.select(["n"]).append_column("_row", pa.array(np.arange(rows.num_rows)))


def of_time(_: object, *rows: pa.Table) -> pa.Table:
    return rows[0].select(["n"])


class Callable1:
    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def __call__(self, rows: pa.Table) -> pa.Table:
        return rows.select(["n"])


class Callable2(Callable1):
    pass


n = pc.field("n")
many = list(range(100))
Built = Callable[[Paper, Stream], Stream]

# Each pair is one plan and another.
DIFFERENT: dict[str, tuple[Built, Built]] = {
    "input": (lambda f, a: a, lambda f, a: f.replay("/b")),
    "SQL": (lambda f, a: a.filter("n > 1"), lambda f, a: a.filter("n > 2")),
    "column of SQL": (lambda f, a: a.filter("n > 1"), lambda f, a: a.filter("v > 1")),
    "SQL or an expression": (lambda f, a: a.filter("n > 1"), lambda f, a: a.filter(n > 1)),
    "expression": (lambda f, a: a.filter(n > 1), lambda f, a: a.filter(n > 2)),
    "operator of an expression": (lambda f, a: a.filter(n > 1), lambda f, a: a.filter(n >= 1)),
    "field of an expression": (lambda f, a: a.filter(n > 1), lambda f, a: a.filter(pc.field("v") > 1)),
    "type of a literal": (
        lambda f, a: a.select(x=pc.scalar(pa.scalar(1, pa.int8())).cast(pa.int64())),
        lambda f, a: a.select(x=pc.scalar(pa.scalar(1, pa.int16())).cast(pa.int64())),
    ),
    "middle of a long list": (
        lambda f, a: a.filter(n.isin(many)),
        lambda f, a: a.filter(n.isin([*many[:50], 1000, *many[51:]])),
    ),
    "digit of a float": (
        lambda f, a: a.filter(pc.field("v") > 0.1),
        lambda f, a: a.filter(pc.field("v") > 0.10000000000000002),
    ),
    "option of a function": (
        lambda f, a: a.select(x=pc.round(pc.field("v"), ndigits=1)),
        lambda f, a: a.select(x=pc.round(pc.field("v"), ndigits=2)),
    ),
    "side of a branch": (lambda f, a: a.branch("n > 1")[0], lambda f, a: a.branch("n > 1")[1]),
    "branch or filter": (lambda f, a: a.branch("n > 1")[0], lambda f, a: a.filter("n > 1")),
    "column": (lambda f, a: a.select("k"), lambda f, a: a.select("n")),
    "order of columns": (lambda f, a: a.select("k", "n"), lambda f, a: a.select("n", "k")),
    "name of a computed column": (lambda f, a: a.select(x=n), lambda f, a: a.select(y=n)),
    "function": (lambda f, a: a.map(one), lambda f, a: a.map(two)),
    "class that is called": (lambda f, a: a.map(Callable1()), lambda f, a: a.map(Callable2())),
    "columns of a map": (lambda f, a: a.map(one), lambda f, a: a.map(one, columns=["n"])),
    "more columns of a map": (
        lambda f, a: a.map(one, columns=["n", "k"]),
        lambda f, a: a.map(one, columns=["n"]),
    ),
    "columns of a flat_map": (
        lambda f, a: a.flat_map(with_place),
        lambda f, a: a.flat_map(with_place, columns=["n"]),
    ),
    "what a function gives": (
        lambda f, a: a.map(lambda rows: rows.select(["n"])),
        lambda f, a: a.map(lambda rows: rows.select(["k"])),
    ),
    "map or flat_map": (lambda f, a: a.map(with_place), lambda f, a: a.flat_map(with_place)),
    "order of concat": (lambda f, a: a.concat(f.replay("/b")), lambda f, a: f.replay("/b").concat(a)),
    "number of inputs": (lambda f, a: a.concat(a), lambda f, a: a.concat(a, a)),
    "wiring": (
        lambda f, a: a.filter("n > 1").select("n").filter("n > 2"),
        lambda f, a: a.filter("n > 2").select("n").filter("n > 1"),
    ),
    "step of a delay": (lambda f, a: a.delay(plus(1)), lambda f, a: a.delay(plus(2))),
    "width of a delay": (lambda f, a: a.delay(ceil_to(10)), lambda f, a: a.delay(ceil_to(20))),
    "kind of a delay": (lambda f, a: a.delay(ceil_to(10)), lambda f, a: a.delay(plus(10))),
    "windows": (lambda f, a: a.delay(windows(10)), lambda f, a: a.delay(windows(20))),
    "windows that overlap": (lambda f, a: a.delay(windows(10)), lambda f, a: a.delay(windows(10, every=5))),
    "key": (lambda f, a: a.aggregate(by="k", m=count()), lambda f, a: a.aggregate(by="n", m=count())),
    "keys": (lambda f, a: a.aggregate(by="k", m=count()), lambda f, a: a.aggregate(m=count())),
    "aggregation": (lambda f, a: a.aggregate(m=min_of("n")), lambda f, a: a.aggregate(m=max_of("n"))),
    "column of an aggregation": (lambda f, a: a.aggregate(m=max_of("n")), lambda f, a: a.aggregate(m=max_of("v"))),
    "name of an aggregation": (lambda f, a: a.aggregate(m=sum_of("n")), lambda f, a: a.aggregate(x=sum_of("n"))),
    "one more aggregation": (lambda f, a: a.aggregate(m=count()), lambda f, a: a.aggregate(m=count(), x=count())),
    "columns of a join": (
        lambda f, a: a.select("k", "n").join(f.replay("/b").select("k", "n"), on=["k", "n"]),
        lambda f, a: a.select("k", "n").join(f.replay("/b").select("k", m=n), on="k").select("k", "n"),
    ),
    "kind of a join": (
        lambda f, a: a.join(f.replay("/b").select("k", x=n), on="k"),
        lambda f, a: a.join(f.replay("/b").select("k", x=n), on="k", how="left"),
    ),
    "function of a time": (lambda f, a: a.unary_notify(of_time), lambda f, a: a.unary_notify(lambda _, r: one(r))),
    "columns of a notify": (
        lambda f, a: a.unary_notify(of_time),
        lambda f, a: a.unary_notify(of_time, columns=["n"]),
    ),
    "columns of the second side": (
        lambda f, a: a.binary_notify(f.replay("/b"), of_time),
        lambda f, a: a.binary_notify(f.replay("/b"), of_time, columns=(None, ["k"])),
    ),
    "rows at later times": (
        lambda f, a: a.unary_notify(of_time),
        lambda f, a: a.unary_notify(of_time, later=True),
    ),
    "unary or binary": (lambda f, a: a.unary_notify(of_time), lambda f, a: a.binary_notify(a, of_time)),
    "times_extract": (lambda f, a: a.times_extract()[1], lambda f, a: a.times_extract(diff="n")[1]),
}

SAME: dict[str, tuple[Built, Built]] = {
    "code of a function": (lambda f, a: a.map(lambda rows: one(rows)), lambda f, a: a.map(lambda rows: two(rows))),
    "what a function is given beforehand": (
        lambda f, a: a.flat_map(with_place),
        lambda f, a: a.flat_map(functools.partial(with_place, places=(1, 2))),
    ),
    "what a callable object holds": (lambda f, a: a.map(Callable1(1)), lambda f, a: a.map(Callable1(2))),
    "inspect": (lambda f, a: a.filter("n > 1"), lambda f, a: a.inspect(lambda *_: None).filter("n > 1")),
    "units of a delay": (lambda f, a: a.step_forward(), lambda f, a: a.delay(plus(1))),
    "order of the columns of a join": (
        lambda f, a: a.join(f.replay("/b").select("k", "n"), on=["k", "n"]),
        lambda f, a: a.join(f.replay("/b").select("k", "n"), on=["n", "k"]),
    ),
    "one input twice": (lambda f, a: a.concat(a), lambda f, a: a.concat(f.replay("/a"))),
}


def of(build: Built, name: str = "flow") -> str:
    scope = Paper(name)
    build(scope, scope.replay("/a")).capture("/out", stream=name)
    return fingerprint(scope)


@pytest.mark.parametrize("what", DIFFERENT)
def test_each_part_of_a_plan_counts(what: str) -> None:
    one, other = DIFFERENT[what]
    assert of(one) == of(one)
    assert of(one) != of(other)


@pytest.mark.parametrize("what", SAME)
def test_what_is_no_part_of_a_plan_does_not_count(what: str) -> None:
    one, other = SAME[what]
    assert of(one) == of(other, "another")


def test_types_of_times_and_of_columns_count() -> None:
    found = set()
    for times in (("long",), ("int",), ("date",), ("long", "long")):
        for type_ in (pa.int64(), pa.int32(), pa.string()):
            scope = Paper("flow")
            scope.times, scope.columns = times, pa.schema([("n", type_)])
            scope.replay("/a").capture("/out")
            found.add(fingerprint(scope))
    assert len(found) == 12


def test_input_counts_by_its_id_and_not_by_its_path() -> None:
    def plan(path: str, ids: dict[str, str]) -> str:
        scope = Paper("flow")
        scope.replay(path).filter("n > 1").capture("/out")
        return fingerprint(scope, ids)

    assert plan("/a", {"/a": "x"}) == plan("/b", {"/b": "x"})
    assert plan("/a", {"/a": "x"}) != plan("/a", {"/a": "y"})
    scope = Paper("flow")
    scope.replay("/nowhere").capture("/out")
    scope.replay("/out").capture("/below")
    assert plans_of(scope.sinks, IDS) == {}
    assert len(plans_of(scope.sinks, {"/nowhere": "x"})) == 2


@pytest.mark.parametrize("first", [True, False])
def test_spool_counts_by_what_it_is_made_from(first: bool) -> None:
    def plan(path: str, n: int, *, more: int | None = None, id_: str = "x", swapped: bool = False) -> str:
        scope = Paper("flow")
        steps = [
            lambda: scope.replay("/a").filter(f"n > {n}").capture(path),
            lambda: None if more is None else scope.replay("/b").filter(f"n > {more}").capture(path, stream="more"),
            lambda: scope.replay(path).aggregate(by="k", m=count()).capture("/out"),
        ]
        if swapped:
            steps[:2] = steps[1::-1]
        for step in steps if first else reversed(steps):
            step()
        plans = plans_of(scope.sinks, {**IDS, path: id_})
        return next(plan.fingerprint for sink, plan in plans.items() if sink.path == "/out")

    assert plan("/one", 1) == plan("/other", 1, id_="y")
    assert plan("/one", 1, more=2) == plan("/one", 1, more=2, swapped=True)
    found = [plan("/one", 1), plan("/one", 2), plan("/one", 1, more=1), plan("/one", 1, more=2)]
    assert len(set(found)) == len(found)


def test_plan_of_hundreds_of_operators_is_not_too_deep() -> None:
    scope = Paper("flow")
    for number in range(60):
        scope.replay("/a" if not number else f"/spool {number - 1}").filter("n > 1").capture(f"/spool {number}")
    stream = scope.replay("/spool 59")
    for _ in range(1100):
        stream = stream.filter("n > 1")
    stream.capture("/out")
    assert len(plans_of(scope.sinks, IDS)) == 61


def test_every_kind_of_operator_has_a_place_in_the_scheme() -> None:
    computing = [each for each in operators() if {"apply", "apply_range"} & {*vars(each)}]
    assert len(computing) > 15
    assert [each.__name__ for each in computing if each.hashed is Operator.hashed] == []


def test_scheme_does_not_change_unnoticed() -> None:
    """With another hash, outputs of all dataflows are refused after an upgrade: that is another scheme, and number."""
    scope = Paper("flow")
    a = scope.replay("/a").filter("n > 1").filter(n.isin([1, 2])).select("k", "n", v=pc.field("v") * 2)
    a = a.map(one, columns=["n"]).flat_map(copies_of).delay(windows(10, every=5), plus(1))
    b = scope.replay("/b").aggregate(by="n", m=count()).unary_notify(of_time)
    a.join(b, on="n").capture("/out")
    found = fingerprint(scope)
    assert FINGERPRINT.fullmatch(found)
    assert found == "1:bf5c7cb7d0be4b115a2089fffef13347"


def copies_of(rows: pa.Table) -> pa.Table:
    return rows.append_column("_row", pa.array(np.arange(rows.num_rows))).drop_columns(["_time"])
