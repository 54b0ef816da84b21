"""The choice of one time for several inputs, from their frontiers, against all times tried one by one."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_timely
from spark_timely import Log
from spark_timely.errors import InvalidUsageError, LogMissingError, NotBeyondError, SinceViolationError
from spark_timely.log import timestamp
from spark_timely.log.timestamp import Input, check_complete, choose_time, explain_timestamp, input_of
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.faults.harness import long_lane

LONG = TimeDomain(("long",))
SCHEMA = pa.schema([("v", pa.int64())])


def one(since: int, upper: int | None, *, last: int = 0, name: str = "a", numbered_by: str = "") -> Input:
    frontier = Antichain.empty(1) if upper is None else Antichain.of(upper)
    return Input(name, f"/{name}", Antichain.of(since), frontier, None if upper else (last,), numbered_by)


def test_choice_is_what_trying_all_times_finds() -> None:
    """The newest time that all inputs answer at; else the first one that none has forgotten."""
    rng = random.Random(24)
    for _ in range(5000 if long_lane() else 500):
        inputs = []
        for _ in range(rng.randrange(1, 4)):
            upper = rng.choice([None, *range(1, 12)])
            since = rng.randrange(12 if upper is None else upper)
            inputs.append(one(since, upper, last=rng.randrange(since, 12)))
        least, known = rng.choice([None, *range(12)]), [each for each in inputs if each.upper]
        found = choose_time(LONG, inputs, as_of_at_least=least)
        readable = [t for t in range(40) if all(each.since.elements[0][0] <= t for each in inputs)]
        able = [t for t in readable if all(t < each.upper.elements[0][0] for each in known)]
        if least is not None:
            expected = next(t for t in readable if t >= least)
        elif able and known:
            expected = max(able)
        elif known:
            expected = readable[0]
        else:
            expected = max(readable[0], *(each.last[0] for each in inputs if each.last is not None))
        assert found.time == (expected,), f"{inputs=} {least=}"
        assert found.at_once == (expected in able)
        waited = {each.path for each in known if each.upper.elements[0][0] <= expected}
        assert {each.path for each in found.waits_for()} == waited
        complete = [t for t in range(12) if all(t < each.upper.elements[0][0] for each in known)]
        if known:
            assert found.newest == (
                (max(complete),) if max(complete) >= min(i.since.elements[0][0] for i in inputs) else None
            )


@pytest.mark.parametrize("coordinates", [1, 2])
def test_as_of_is_taken_as_it_is_or_refused_below_since(coordinates: int) -> None:
    domain = TimeDomain(("long",) * coordinates)
    since, upper = Antichain.of((2,) * coordinates), Antichain.of((5,) * coordinates)
    inputs = [Input("a", "/a", since, upper), Input("b", "/b", Antichain.of((0,) * coordinates), upper)]
    for time in itertools.product(range(7), repeat=coordinates):
        asked = time if coordinates > 1 else time[0]
        if not since.less_equal(time):
            with pytest.raises(SinceViolationError, match=r"'/a' as of .*found since=\[.*\] and upper=\[.*\]") as error:
                choose_time(domain, inputs, as_of=asked)
            assert error.value.context["path"] == "/a"
            continue
        found = choose_time(domain, inputs, as_of=asked)
        assert (found.time, found.why, found.at_once) == (time, "as_of", not upper.less_equal(time))


def test_product_times_have_no_newest_but_a_first() -> None:
    domain = TimeDomain(("long", "long"))
    inputs = [Input("a", "/a", Antichain.of((1, 2)), Antichain.of((5, 5)))]
    with pytest.raises(InvalidUsageError, match=r"since=\[\[1, 2\]\] and upper=\[\[5, 5\]\].*give as_of"):
        choose_time(domain, inputs)
    assert choose_time(domain, inputs, as_of_at_least=(0, 3)).time == (1, 3)
    several = [Input("a", "/a", Antichain.of((1, 2), (2, 1)), Antichain.of((5, 5)))]
    with pytest.raises(InvalidUsageError, match="give as_of"):
        choose_time(domain, several, as_of_at_least=(0, 0))
    closed = [Input("a", "/a", Antichain.of((1, 2), (2, 1)), Antichain.empty(2), (4, 4))]
    assert choose_time(domain, closed).time == (4, 4)


def test_times_that_number_different_queries_are_refused() -> None:
    same = [one(0, 5, name="a", numbered_by="q1"), one(0, 5, name="b", numbered_by="q1"), one(0, 4, name="c")]
    assert choose_time(LONG, same).time == (3,)
    other = [*same, one(0, 5, name="d", numbered_by="q2")]
    with pytest.raises(InvalidUsageError, match="'q1' in log '/a' and 'q2' in log '/d'"):
        choose_time(LONG, other, as_of=3)


def test_as_of_and_at_least_together_are_refused() -> None:
    with pytest.raises(InvalidUsageError, match="as_of=1 and as_of_at_least=2"):
        choose_time(LONG, [one(0, 5)], as_of=1, as_of_at_least=2)


# Logs -------------------------------------------------------------------------------------------------


def made(folder: Path, name: str, upper: int | None, *, times: tuple[int, ...] = ()) -> Log:
    log = spark_timely.create_log(folder / name, SCHEMA, minimum=(0,), kind="collection")
    table = pa.table(
        {
            "_time": pa.array(times, pa.int64()),
            "_diff": pa.array([1] * len(times), pa.int64()),
            "v": pa.array(times, pa.int64()),
        }
    )
    writer = log.writer(owner="tests")
    writer.append(table, advance_to=upper) if upper is not None else writer.append(table, advance_to=100)
    if upper is None:
        writer.close()
    return log


def test_explanation_of_logs_names_their_frontiers(tmp_path: Path) -> None:
    orders, rates = made(tmp_path, "orders", 9, times=(1, 4)), made(tmp_path, "rates", 7, times=(2,))
    orders.allow_compaction([3])
    found = explain_timestamp({"orders": orders, "rates": rates.path})
    assert (found.time, found.why, found.newest, found.at_once) == ((6,), "newest complete", (6,), True)
    expected = {
        "time": 6, "why": "newest complete", "at_once": True, "newest": 6, "since": [3], "upper": [7],
        "times": ["long"],
        "inputs": [
            {"name": "orders", "path": orders.path, "since": [3], "upper": [9], "at_once": True},
            {"name": "rates", "path": rates.path, "since": [0], "upper": [7], "at_once": True},
        ],
    }  # fmt: skip
    assert found.to_dict() == json.loads(json.dumps(found.to_dict())) == expected
    text = str(found)
    assert "6 (the newest that is complete in all inputs)" in text
    assert "input orders             [3, 9)" in text
    late = explain_timestamp([orders, rates], as_of=8)
    assert (late.at_once, [each.path for each in late.waits_for()]) == (False, [rates.path])
    assert "[0, 7), waited for" in str(late)


def test_log_that_is_complete_holds_nothing_back(tmp_path: Path) -> None:
    orders, rates = made(tmp_path, "orders", 9, times=(1, 4)), made(tmp_path, "rates", None, times=(2,))
    assert explain_timestamp([orders, rates]).time == (8,)
    only = explain_timestamp(rates)
    assert (only.time, only.why, only.at_once) == ((2,), "the end", True)
    assert "[0, the end]" in str(only)
    both = explain_timestamp([rates, made(tmp_path, "other", None, times=(30,))])
    assert (both.time, both.at_once) == ((30,), True)
    assert explain_timestamp(made(tmp_path, "empty", None)).time == (0,)


def test_log_where_nothing_is_complete_is_waited_for(tmp_path: Path) -> None:
    log = spark_timely.create_log(tmp_path / "log", SCHEMA, minimum=(5,))
    found = explain_timestamp(log)
    assert (found.time, found.why, found.newest, found.at_once) == ((5,), "since", None, False)
    assert input_of("x", log).last is None
    with pytest.raises(
        NotBeyondError, match=r"could not ask: found no time that is complete: since=\[5\], upper=\[5\]"
    ):
        check_complete("ask", found)
    for asked in ({"as_of": 5}, {"as_of_at_least": 5}):
        check_complete("ask", explain_timestamp(log, **asked))


@pytest.mark.parametrize(
    ("targets", "found"),
    [([], "no targets"), (7, "targets=7"), ([7], "found 7"), (b"x", "targets=b'x'"), ({}, "no targets")],
)
def test_targets_that_are_no_logs_are_refused(targets: object, found: str) -> None:
    with pytest.raises(InvalidUsageError, match=found):
        explain_timestamp(targets)  # type: ignore[arg-type]


def test_other_types_of_times_and_missing_logs_are_named(tmp_path: Path) -> None:
    orders = made(tmp_path, "orders", 9)
    days = spark_timely.create_log(tmp_path / "days", SCHEMA, times=("date",))
    with pytest.raises(InvalidUsageError, match=r"times=\['date'\] in log .*days.*times=\['long'\] in log .*orders"):
        explain_timestamp([orders, days])
    with pytest.raises(LogMissingError):
        explain_timestamp([orders, tmp_path / "nothing"])
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(LogMissingError, match=r"found a link to '.*gone', where nothing is"):
        explain_timestamp(tmp_path / "link")
    assert explain_timestamp(days).to_dict()["times"] == ["date"]


# Mutants ----------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def reduced_by(patch: Patch, one: object, other: Callable[..., Any]) -> None:
    """Let frontiers of several inputs be put together in another way."""
    own = timestamp.reduce
    patch.setattr(timestamp, "reduce", lambda how, values: own(other if how is one else how, values))


def takes_the_greatest_upper(patch: Patch) -> None:
    reduced_by(patch, Antichain.meet, Antichain.join)


def takes_the_least_since(patch: Patch) -> None:
    reduced_by(patch, Antichain.join, Antichain.meet)


def takes_the_since_of_the_first(patch: Patch) -> None:
    reduced_by(patch, Antichain.join, lambda first, _: first)


def takes_the_upper_itself(patch: Patch) -> None:
    own = timestamp._newest

    def mutant(domain: TimeDomain, inputs: Sequence[Input], upper: Antichain) -> Any:
        newest, why = own(domain, inputs, upper)
        return (upper.elements[0] if newest is not None and upper else newest), why

    patch.setattr(timestamp, "_newest", mutant)


def waits_for_complete_inputs(patch: Patch) -> None:
    """An input that is complete counts as complete before its last time only."""
    patch.setattr(
        timestamp,
        "input_of",
        lambda name, log: Input(name, log.path, log.since(), log.frontier() or Antichain.of(*timestamp._last_of(log))),
    )


def takes_the_least_of_the_ends(patch: Patch) -> None:
    """Of inputs that are all complete the first end: rows of the others are left out."""
    own = timestamp.np.array
    patch.setattr(
        timestamp,
        "np",
        SimpleNamespace(
            array=lambda values, kind: own([min(values)] if values and isinstance(values[0], tuple) else values, kind),
            int64=np.int64, asarray=np.asarray, concatenate=np.concatenate,
        ),
    )  # fmt: skip


def takes_any_as_of(patch: Patch) -> None:
    patch.setattr(timestamp, "check_since", lambda *_: None)


def compares_numbers_of_batches(patch: Patch) -> None:
    patch.setattr(timestamp, "_check_comparable", lambda _: None)


def answers_at_the_upper(patch: Patch) -> None:
    patch.setattr(
        Input, "answers_at", lambda self, time: self.since.less_equal(time) and not self.upper.less_than(time)
    )


def takes_the_first_of_several(patch: Patch) -> None:
    patch.setattr(timestamp, "_only", lambda domain, times, *_: times.elements[0])


Check = Callable[[Path], None]
NEWEST: Check = lambda _: test_choice_is_what_trying_all_times_finds()  # noqa: E731
ENDS: Check = lambda folder: test_log_that_is_complete_holds_nothing_back(folder)  # noqa: E731
MUTANTS: dict[Callable[[Patch], None], Check] = {
    takes_the_greatest_upper: NEWEST,
    takes_the_least_since: NEWEST,
    takes_the_since_of_the_first: NEWEST,
    takes_the_upper_itself: NEWEST,
    answers_at_the_upper: NEWEST,
    waits_for_complete_inputs: ENDS,
    takes_the_least_of_the_ends: ENDS,
    takes_any_as_of: lambda _: test_as_of_is_taken_as_it_is_or_refused_below_since(1),
    compares_numbers_of_batches: lambda _: test_times_that_number_different_queries_are_refused(),
    takes_the_first_of_several: lambda _: test_product_times_have_no_newest_but_a_first(),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_wrong_choice_is_found(mutant: Callable[[Patch], None], monkeypatch: Patch, tmp_path: Path) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        MUTANTS[mutant](tmp_path)
