"""A subscription gives the contents: its rows, folded, are what an oracle sums up, at each time, in whatever batches.

Random histories of collections and of stream logs, of times of one and of two coordinates. Between commits the log is
merged, allowed to forget, and rewritten; subscriptions begin at random times, with and without the contents, next to
each other, and are closed and resumed. `MUTANTS` are ways to get it wrong, each of which has to be found.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_timely.answers import batches, envelopes, follow, retainers, subscribe
from spark_timely.answers.batches import Batch, Interval, course_of
from spark_timely.answers.subscribe import Subscription
from spark_timely.errors import SinceViolationError, TimelyError
from spark_timely.log import Log, MemoryLog
from spark_timely.log.files import parquet
from spark_timely.log.log import create_log
from spark_timely.log.machine.since import needed_from
from spark_timely.time.antichain import Antichain
from spark_timely.trace.updates import Updates
from tests.faults.harness import long_lane
from tests.oracles import subscribe_model as model
from tests.oracles.subscribe_model import Row, Time, Update, plain
from tests.support import examples

PAYLOAD = pa.schema([("k", pa.int64()), ("w", pa.string()), ("v", pa.float64())])
VALUES = [0.0, -0.0, float("nan"), 1.5, None]
Patch = pytest.MonkeyPatch

some = settings(examples(25, long=3000), suppress_health_check=list(HealthCheck))


def frontier_of(antichain: Antichain) -> list[Time]:
    return [tuple(time) for time in antichain.times.tolist()]


def column_of(type_: pa.DataType, times: list[int]) -> pa.Array:
    return pa.array(times, pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)


class History:
    """A log that grows, and the list of all that went into it."""

    def __init__(
        self,
        rng: random.Random,
        *,
        kind: str,
        arity: int,
        keyed: bool | None = None,
        create: Callable[..., Log] = MemoryLog.create,
    ) -> None:
        self.rng, self.kind, self.arity, self.keyed = rng, kind, arity, bool(keyed)
        self.minimum = tuple(rng.choice([0, -3]) for _ in range(arity))
        types = [rng.choice(["long", "int", "date", "timestamp"]) if keyed is None else "long" for _ in range(arity)]
        self.log = create(
            PAYLOAD,
            times=types,  # type: ignore[arg-type]
            minimum=self.time(self.minimum),
            kind=kind,
            merge_every=rng.choice([2, 5, None]),
        )
        self.writer = self.log.writer(owner="me")
        self.updates: list[Update] = []
        # By row, the times at which a copy came that nothing has taken away: contents are never below zero.
        self.copies: dict[Row, list[Time]] = {}
        self.upper: Time = self.minimum

    def row(self) -> Row:
        return (self.rng.choice([1, 2, 3, None]), self.rng.choice(["a", None]), self.rng.choice(VALUES))

    def commit(self) -> None:
        """Append some updates at times that are open, and move the frontier."""
        made: list[Update] = []
        upper = tuple(u + self.rng.choice([0, 1, 1, 3]) for u in self.upper)
        for _ in range(self.rng.randrange(5)):
            time = tuple(u + self.rng.randrange(4) for u in self.upper)
            if self.keyed:
                made += self.key_updates(time, made)
                continue
            drawn = [(self.row(), 1 if self.kind == "stream" else self.rng.choice([1, 1, 2, -1]))]
            if self.kind == "collection" and self.rng.random() < 0.4:
                drawn.append((drawn[0][0], self.rng.choice([-1, 1])))
            there = [row for t, row, _ in self.updates if model.less_equal(t, time)]
            if self.kind == "collection" and there and self.rng.random() < 0.6:
                drawn.append((self.rng.choice(there), -1))
            made += [(time, row, diff) for row, diff in drawn if self.may_be(time, row, diff)]
        self.append(made, upper)

    def may_be(self, time: Time, row: Row, diff: int) -> bool:
        """Whether as many copies of a row are there as go; remembers those that come and go."""
        copies = self.copies.setdefault(tuple(map(plain, row)), [])
        if diff > 0:
            copies += [time] * diff
            return True
        earlier = [each for each in copies if model.less_equal(each, time)]
        if earlier:
            copies.remove(earlier[0])
        return bool(earlier)

    def key_updates(self, time: Time, made: list[Update]) -> list[Update]:
        """Change one key as of a time, so that at each time it has one row at most. Later updates of it come first."""
        key = self.rng.choice([1, 2, 3, None])
        mine = [u for u in (*self.updates, *made) if u[1][0] == key]
        if any(not model.less_equal(t, time) for t, _, _ in mine):
            return []
        went = [(time, row, -1) for row in model.contents(mine, time)]
        came = [(time, (key, *self.row()[1:]), 1)] if self.rng.random() < 0.7 else []
        plainly = [(t, tuple(map(plain, row)), d) for t, row, d in (*went, *came)]
        return plainly

    def append(self, made: list[Update], upper: Time) -> None:
        made = [(time, tuple(float("nan") if x == "NaN" else x for x in row), diff) for time, row, diff in made]
        columns: dict[str, pa.Array] = {
            name: column_of(self.log.domain.types[i].arrow, [time[i] for time, _, _ in made])
            for i, name in enumerate(self.log.domain.columns)
        }
        if self.kind == "collection":
            columns["_diff"] = pa.array([diff for _, _, diff in made], pa.int64())
        columns.update({f.name: pa.array([row[i] for _, row, _ in made], f.type) for i, f in enumerate(PAYLOAD)})
        self.writer.append(pa.table(columns), advance_to=self.time(upper))
        self.updates += [(time, tuple(map(plain, row)), diff) for time, row, diff in made]
        self.upper = upper

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.6:
            self.commit()
        elif what < 0.7:
            self.log.compact()
        elif what < 0.85:
            self.log.allow_compaction(Antichain.of(self.upper))
        else:
            self.log.compact(logical=True)

    def time(self, time: Time) -> Any:
        """A time in the library's own units, whatever its types."""
        return np.array(time, np.int64)


class Consumer:
    """One subscription and what it was given, judged by the oracle as it comes; closed and resumed at random."""

    def __init__(self, history: History, **options: Any) -> None:
        # What is asked for is looked for, in a store too.
        self.history, self.options = history, {**options, "poll_s": 0}
        options = self.options
        self.as_of: Time = options.pop("as_of_")
        self.until: Time | None = options.pop("up_to_", None)
        self.snapshot: bool = options.get("snapshot", True)
        self.end = {} if self.until is None else {"up_to": history.time(self.until)}
        self.rows: list[Update] = []
        self.lower: Antichain | None = None
        self.subscription = subscribe.subscribe(history.log, as_of=history.time(self.as_of), **self.end, **options)

    def contents(self, at: Time) -> dict[Row, int]:
        return model.contents(self.history.updates, at)

    def updates_of(self, rows: pa.Table) -> list[Update]:
        times = self.history.log.domain.from_columns(rows).tolist()
        values = [tuple(plain(row[name]) for name in PAYLOAD.names) for row in rows.to_pylist()]
        return list(zip(map(tuple, times), values, rows["_diff"].to_pylist(), strict=True))

    def take(self) -> None:
        rng, subscription = self.history.rng, self.subscription
        if rng.random() < 0.5:
            found = self.updates_of(subscription.fetch(rng.choice([1, 3, None]), timeout_s=0))
            self.lower = None if subscription.position is None else subscription.position
            self.add(found)
        else:
            rest = subscription._rest is not None
            batch = subscription.next_batch(timeout_s=0)
            if batch is not None:
                if not rest:
                    self.check_bounds(batch)
                self.lower = batch.upper
                self.add(self.updates_of(batch.rows))
        if subscription.position is not None and subscription._rest is None:
            self.check_contents(subscription.position)

    def check_bounds(self, batch: Batch) -> None:
        lower, upper = frontier_of(batch.lower), frontier_of(batch.upper)
        assert batch.lower == (self.lower if self.lower is not None else Antichain.of(self.history.minimum))
        assert batch.lower.less_than_frontier(batch.upper)
        assert all(is_past(time, self.as_of) for time in upper)
        found = self.updates_of(batch.rows)
        assert len({(time, row) for time, row, _ in found}) == len(found)
        for time, _, diff in found:
            assert diff
            assert model.is_beyond(lower, time)
            assert not model.is_beyond(upper, time)
        assert [time for time, _, _ in found] == sorted(time for time, _, _ in found)

    def add(self, found: list[Update]) -> None:
        for time, _, diff in found:
            assert diff
            assert model.less_equal(self.as_of, time)
            assert self.until is None or not model.less_equal(self.until, time)
            # Nothing early.
            assert not model.is_beyond([self.history.upper], time)
        self.rows += found

    def check_contents(self, position: Antichain) -> None:
        """Fold what was given: it is the contents at each time that is complete by the position, and no more."""
        upper = frontier_of(position)
        before = {} if self.snapshot else self.contents(self.as_of)
        times = {self.as_of, *(tuple(map(max, time, self.as_of)) for time, _, _ in self.history.updates)}
        for time in times:
            if not model.is_beyond(upper, time):
                expected = model.difference(self.contents(time), before)
                assert model.contents(self.rows, time) == expected, (time, self.as_of, position)
        assert all(not model.is_beyond(upper, time) for time, _, _ in self.rows)

    def restart(self) -> None:
        position = self.subscription.position
        if position is None or self.subscription._rest is not None or self.subscription.has_ended:
            return
        as_of = {"as_of": self.history.time(self.as_of)} if self.history.arity > 1 else {}
        options = {name: value for name, value in self.options.items() if name != "snapshot"}
        # The one that is dropped keeps its place until the other has begun, as a name does.
        old = self.subscription
        self.subscription = subscribe.subscribe(
            self.history.log, resume_from=old.position, **as_of, **self.end, **options
        )
        old.close()
        self.lower = None
        assert self.subscription.position == position

    def close(self) -> None:
        self.subscription.close()


def is_past(time: Time, as_of: Time) -> bool:
    return time != as_of and model.less_equal(as_of, time)


def begun(history: History) -> Consumer | None:
    """Begin a subscription at a random time, where the log can still tell it."""
    rng, log = history.rng, history.log
    as_of = tuple(rng.randint(m, u + 2) for m, u in zip(history.minimum, history.upper, strict=True))
    since = frontier_of(log.since())
    options: dict[str, Any] = {"as_of_": as_of, "snapshot": rng.random() < 0.6}
    if rng.random() < 0.3:
        options["up_to_"] = tuple(a + rng.randrange(5) for a in as_of)
    if rng.random() < 0.2:
        options["name"] = f"name-{rng.randrange(10**9)}"
    if history.kind == "collection":
        readable = any(model.less_equal(time, as_of) for time in since)
    elif options["snapshot"]:
        readable = since == [history.minimum]
    else:
        # What is not before as_of in one coordinate has to be there.
        needed = [
            tuple(a + 1 if i == j else m for j, (a, m) in enumerate(zip(as_of, history.minimum, strict=True)))
            for i in range(history.arity)
        ]
        readable = all(model.is_beyond(since, time) for time in needed)
    if not readable:
        try:
            Consumer(history, **options).close()
        except SinceViolationError as refused:
            error = str(refused)
        else:
            error = f"what since={since} has forgotten was not refused: {options}"
        assert re.search("since=.*upper=", error)
        return None
    return Consumer(history, **options)


def run(seed: int, create: Callable[..., Log] = MemoryLog.create) -> int:
    """Play one history, by random sizes of what is read at once; return how many updates were given."""
    rng = random.Random(seed)
    sizes = [
        (follow, "_SMALL_ROWS", -1),
        (follow, "_LEAST_ROWS", 2),
        (follow, "_CUT_BYTES", 1),
        (follow, "_KEPT_BYTES", 1),
        (parquet, "ROW_GROUP_ROWS", 2),
    ]
    with ExitStack() as stack:
        for module, name, small in sizes:
            if rng.random() < 0.5:
                stack.enter_context(mock.patch.object(module, name, small))
        return play(rng, create)


def play(rng: random.Random, create: Callable[..., Log]) -> int:
    history = History(rng, create=create, kind=rng.choice(["collection", "stream"]), arity=rng.choice([1, 1, 2]))
    consumers: list[Consumer] = []
    try:
        for _ in range(rng.randrange(5, 30)):
            history.step()
            if len(consumers) < 3 and rng.random() < 0.4:
                consumers += [one for one in [begun(history)] if one is not None]
            for consumer in consumers:
                if rng.random() < 0.6:
                    consumer.take()
                if rng.random() < 0.15:
                    consumer.restart()
                if consumer.subscription.name and consumer.subscription.position is not None and rng.random() < 0.5:
                    consumer.subscription.acknowledge(consumer.subscription.position)
        return sum(len(consumer.rows) for consumer in consumers)
    finally:
        for consumer in consumers:
            consumer.close()


@some
@given(st.integers(0, 2**40))
def test_a_folded_subscription_is_the_contents_at_each_time(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("place", ["local", "cloud"])
def test_a_subscription_is_the_same_on_a_disk_and_in_a_store(place: str, tmp_path: Path) -> None:
    root = str(tmp_path) if place == "local" else f"memory://{tmp_path}"
    for seed in range(300 if long_lane() else 5):
        given_here = run(seed, lambda schema, number=seed, **more: create_log(f"{root}/{number}", schema, **more))
        assert given_here == run(seed)


# Envelopes --------------------------------------------------------------------------------------------


def run_envelope(seed: int) -> None:
    """Subscribe to a collection in all three forms; compare each time and key with the oracle, and fold."""
    rng = random.Random(seed)
    keyed = rng.random() < 0.6
    history = History(rng, kind="collection", arity=1, keyed=keyed)
    as_of = history.minimum[0] + rng.randrange(4)
    key = ["k"] if keyed or rng.random() < 0.5 else ["k", "w"]
    n_key, values = len(key), [name for name in PAYLOAD.names if name not in key]
    found: dict[str, list[dict[str, Any]]] = {"upsert": [], "debezium": []}
    subscriptions: dict[str, Subscription] = {
        envelope: subscribe.subscribe(history.log, as_of=as_of, envelope=envelope, key=key)  # type: ignore[arg-type]
        for envelope in found
    }
    try:
        for _ in range(rng.randrange(3, 15)):
            history.step()
            for envelope, subscription in subscriptions.items():
                if rng.random() < 0.7:
                    found[envelope] += subscription.fetch(timeout_s=0).to_pylist()
        while history.upper[0] <= as_of:
            history.commit()
        for envelope, subscription in subscriptions.items():
            found[envelope] += subscription.fetch(timeout_s=0).to_pylist()
    finally:
        for subscription in subscriptions.values():
            subscription.close()
    complete = [u for u in history.updates if u[0] < history.upper]
    expected = model.key_changes(complete, n_key, (as_of,))
    for envelope, rows in found.items():
        assert [row["_time"] for row in rows] == sorted(row["_time"] for row in rows)
        told = {}
        for row in rows:
            place = (row["_time"],), tuple(plain(row[name]) for name in key)
            assert place not in told
            told[place] = row
        assert told.keys() == {place for place, (went, came) in expected.items() if went or came}
        for place, row in told.items():
            went, came = expected[place]
            word = model.word_of(envelope, went, came)
            assert row["_state"] == word
            nothing = (None,) * len(values)
            after = came[0] if came and word != "key_violation" else nothing
            before = went[0] if went and word != "key_violation" else nothing
            if envelope == "upsert":
                assert tuple(plain(row[name]) for name in values) == after
            else:
                assert tuple(plain(row[f"after_{name}"]) for name in values) == after
                assert tuple(plain(row[f"before_{name}"]) for name in values) == before
        if keyed:
            check_folded(history, envelope, rows, values, as_of)


def check_folded(history: History, envelope: str, rows: list[dict[str, Any]], values: list[str], as_of: int) -> None:
    side = "" if envelope == "upsert" else "after_"
    there: dict[Row, Row] = {}
    for time in range(as_of, history.upper[0]):
        for row in rows:
            if row["_time"] == time:
                key = (row["k"],)
                if row["_state"] == "delete":
                    del there[key]
                else:
                    there[key] = tuple(plain(row[f"{side}{name}"]) for name in values)
        assert there == model.by_key(model.contents(history.updates, (time,)), 1)


@some
@given(st.integers(0, 2**40))
def test_folded_envelopes_are_the_contents_at_each_time(seed: int) -> None:
    run_envelope(seed)


# Mutants ----------------------------------------------------------------------------------------------


def resumes_at_the_progress(patch: Patch) -> None:
    """As of the progress itself, without the contents: what changed at it is lost."""
    own = batches.course_resumed

    def mutant(minimum: Time, progress: Antichain, **more: Any) -> Any:
        if progress.arity > 1 or progress.is_empty:
            return own(minimum, progress, **more)
        return course_of(minimum, progress.elements[0], snapshot=False, up_to=more["up_to"], domain=more["domain"])

    patch.setattr(subscribe, "course_resumed", mutant)


def retains_nothing(patch: Patch) -> None:
    patch.setattr(retainers.Positions, "cover", lambda *_: None)


def retains_what_was_reached(patch: Patch) -> None:
    """Without the time before: updates before it, moved by since, are taken for changes."""

    def mutant(course: Any, kind: str, reached: Antichain) -> Antichain:
        return needed_from("stream", reached, course.minimum) if kind == "collection" else needs(course, kind, reached)

    needs = batches.Course.needed
    patch.setattr(batches.Course, "needed", mutant)


def leaves_times_before_as_of(patch: Patch) -> None:
    own = follow.read_interval

    def mutant(log: Any, course: Any, interval: Interval) -> pa.Table:
        if len(course.origin) > 1 or interval.lower != Antichain.of(course.origin):
            return own(log, course, interval)
        low = Antichain.of(course.minimum)
        other = batches.Course(course.minimum, course.minimum, low, course.first, course.end)
        return own(log, other, Interval(low, interval.upper))

    patch.setattr(follow, "read_interval", mutant)


def gives_the_open_time(patch: Patch) -> None:
    own = batches.Progress.next_interval
    patch.setattr(
        batches.Progress,
        "next_interval",
        lambda self, frontier: own(self, Antichain.from_times(frontier.times + 1, frontier.arity)),
    )


def sums_nothing(patch: Patch) -> None:
    patch.setattr(Updates, "consolidated", lambda updates, **_: updates)


def shares_whatever_the_origin(patch: Patch) -> None:
    own = follow.Follower._key

    def mutant(subscriber: Any, interval: Interval) -> Any:
        return (interval.lower, None) if interval.lower.arity == 1 else own(subscriber, interval)

    patch.setattr(follow.Follower, "_key", staticmethod(mutant))


def chooses_by_times_that_are_not_moved(patch: Patch) -> None:
    patch.setattr(
        follow,
        "_may_hold",
        lambda interval, least, greatest, _: interval.lower.beyond(greatest) & ~interval.upper.beyond(least),
    )


def shares_past_the_end(patch: Patch) -> None:
    patch.setattr(follow, "_fits", lambda *_: True)


def moves_with_the_first_row(patch: Patch) -> None:
    own = Subscription._give

    def mutant(self: Subscription, batch: Batch, n_rows: int | None) -> None:
        own(self, batch, n_rows)
        self._position = batch.upper
        self._rest = None

    patch.setattr(Subscription, "_give", mutant)


def gives_contents_unasked(patch: Patch) -> None:
    own = batches.course_of
    patch.setattr(subscribe, "course_of", lambda *args, snapshot, **more: own(*args, snapshot=True, **more))


def ends_behind_up_to(patch: Patch) -> None:
    own = batches.course_of

    def mutant(*args: Any, up_to: Time | None = None, **more: Any) -> Any:
        return own(*args, up_to=None if up_to is None else tuple(u + 1 for u in up_to), **more)

    patch.setattr(subscribe, "course_of", mutant)


# Each with the seed of a history near those that find it: some take a rare one.
MUTANTS: dict[Callable[[Patch], None], int] = {
    resumes_at_the_progress: 0,
    retains_nothing: 0,
    retains_what_was_reached: 113,
    leaves_times_before_as_of: 2,
    gives_the_open_time: 0,
    sums_nothing: 3,
    shares_whatever_the_origin: 11,
    chooses_by_times_that_are_not_moved: 3,
    shares_past_the_end: 68,
    moves_with_the_first_row: 0,
    gives_contents_unasked: 0,
    ends_behind_up_to: 8,
}


def counts_of_states(patch: Patch, change: Callable[[Any], Any]) -> None:
    own = np.select

    class Numbers:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        @staticmethod
        def select(conditions: Any, choices: Any, default: Any) -> Any:
            return change(own(conditions, choices, default))

    patch.setattr(envelopes, "np", Numbers())


def calls_no_violation(patch: Patch) -> None:
    counts_of_states(patch, lambda states: np.where(states == envelopes._BROKEN, envelopes._CHANGED, states))


def calls_a_change_an_insert(patch: Patch) -> None:
    counts_of_states(patch, lambda states: np.where(states == envelopes._CHANGED, envelopes._CAME, states))


def puts_after_before(patch: Patch) -> None:
    own = np.lexsort

    class Numbers:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        @staticmethod
        def lexsort(keys: Any) -> Any:
            return own((~keys[0], *keys[1:]))

    patch.setattr(envelopes, "np", Numbers())


def forgets_the_time_of_a_key(patch: Patch) -> None:
    own = envelopes.RowHasher
    patch.setattr(envelopes, "RowHasher", lambda columns: own([name for name in columns if name != "_time"]))


ENVELOPE_MUTANTS: list[Callable[[Patch], None]] = [
    calls_no_violation,
    calls_a_change_an_insert,
    puts_after_before,
    forgets_the_time_of_a_key,
]


def is_found(run_one: Callable[[int], object], first: int = 0) -> bool:
    for seed in range(first, first + 400):
        try:
            run_one(seed)
        except (AssertionError, TimelyError, ArithmeticError, LookupError):
            return True
    return False


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_mutant_of_a_subscription_is_found(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    assert is_found(run, MUTANTS[mutate])


@pytest.mark.parametrize("mutate", ENVELOPE_MUTANTS, ids=lambda mutate: mutate.__name__)
def test_mutant_of_an_envelope_is_found(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    assert is_found(run_envelope)
