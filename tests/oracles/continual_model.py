"""A continual task as a sequential program, and a world of replicas that must agree with it.

The sequential program (`changes_at`, `is_write_time`, `result_at`) looks at whole histories, one time after the other.
It uses nothing of the library. A `World` has logs that grow, an output whose appends succeed or fail and say so or not,
and replicas made of the library's sink and sources. Each append that happens is judged by the sequential program at
once.

Nothing here reads a clock or a file. Everything random comes from a generator that is passed in.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_timely.continual.sink import takes_snapshot
from spark_timely.time.antichain import Antichain
from tests.oracles import continual_rows as rows_model
from tests.oracles.continual_rows import RowSink, RowWrite, Source, kind_of
from tests.oracles.updates import Updates

MINIMUM = 0

Row = tuple[Any, ...]
Rows = Counter[Row]
History = Sequence[tuple[Row, int, int]]
"""Updates (row, time, diff)."""
# Of the replica's name, the changes of each input, the contents of the reference, and those of the output before.
Body = Callable[[str, Sequence[Rows], Rows, Rows], Rows]


@dataclass(frozen=True)
class Case:
    """A task and its logs.

    Attributes
    ----------
    inputs : histories
    reference : history
    body : callable
    snapshot : bool
    reads_output : bool
    deletes : tuple of bool
        For each input, whether the body sees the rows that went.
    """

    inputs: Sequence[History]
    body: Body
    reference: History = ()
    snapshot: bool = False
    reads_output: bool = False
    deletes: tuple[bool, ...] = ()

    @property
    def horizon(self) -> int:
        """A time after all changes, and after what takes the last inserts back."""
        return max((time for log in (*self.inputs, self.reference) for _, time, _ in log), default=0) + 3

    def sees_deletes(self, number: int) -> bool:
        return bool(self.deletes) and self.deletes[number]


# The sequential program -----------------------------------------------------------------------------


def nonzero(rows: Iterable[tuple[Row, int]]) -> Rows:
    """Sum rows, without those that sum to nothing."""
    found: Rows = Counter()
    for row, diff in rows:
        found[row] += diff
    return Counter({row: n for row, n in found.items() if n})


def contents_at(history: History, time: int) -> Rows:
    return nonzero((row, diff) for row, at, diff in history if at <= time)


def changes_at(case: Case, number: int, time: int, as_of: int) -> Rows:
    """Return what the body sees of an input at a time."""
    if time < as_of or (time == as_of and not case.snapshot):
        return Counter()
    log = case.inputs[number]
    changes = (
        contents_at(log, time) if time == as_of else nonzero((row, diff) for row, at, diff in log if at == time)
    )  # fmt: skip
    sign = -1 if case.sees_deletes(number) else 1
    return Counter({row: diff * sign for row, diff in changes.items() if diff * sign > 0})


def is_write_time(case: Case, time: int, as_of: int) -> bool:
    return any(changes_at(case, number, time, as_of) for number in range(len(case.inputs)))


def result_at(case: Case, time: int, as_of: int, name: str, output: Rows) -> Rows:
    """Return what a replica writes at a time if the output held these rows before."""
    if not is_write_time(case, time, as_of):
        return Counter()
    changes = [changes_at(case, number, time, as_of) for number in range(len(case.inputs))]
    return nonzero(case.body(name, changes, contents_at(case.reference, time), output).items())


# The world ------------------------------------------------------------------------------------------


class WrongError(AssertionError):
    """An append that happened is not what the sequential program does."""


class FailedError(Exception):
    """An append was reported as failed: whether it happened is not known."""


def cap(frontier: Antichain, horizon: int) -> int:
    """Return a frontier as a number; one of nothing more as the horizon."""
    return horizon if frontier.is_empty else frontier.elements[0][0]


@dataclass
class Output:
    """The task's output: appends if its upper is as expected, and says what happened or not.

    Attributes
    ----------
    lies : random.Random or None
        Decides what happens and what is reported, each by a coin of its own; None: all happens and is reported.
    calls : Counter of (happened, reported as done)
    """

    world: World
    lies: random.Random | None = None
    upper: Antichain = field(default_factory=lambda: Antichain.of(MINIMUM))
    as_of: int | None = None
    updates: list[tuple[Row, int, int]] = field(default_factory=list)
    calls: Counter[tuple[bool, bool]] = field(default_factory=Counter)

    def begin(self, as_of: int, upper: int) -> None:
        """Append nothing from the minimum to the start, with the note that the first one leaves."""
        self._try(self.as_of is None, lambda: self._begun(as_of, upper))

    def _begun(self, as_of: int, upper: int) -> None:
        self.as_of, self.upper = as_of, Antichain.of(upper)
        if upper > as_of:
            self.world.judge(RowWrite(self.upper), as_of, upper, "the first append")

    def append(self, name: str, expected: Antichain, write: RowWrite[Row]) -> None:
        """Append if the upper is as expected."""
        self._try(self.upper == expected, lambda: self._land(name, write))

    def _land(self, name: str, write: RowWrite[Row]) -> None:
        if not self.upper.less_than_frontier(write.upper):
            raise WrongError(f"{name} moves the upper from {self.upper} to {write.upper}")
        horizon = self.world.case.horizon
        self.world.judge(write, cap(self.upper, horizon), cap(write.upper, horizon), name)
        self.updates += [(row, write.time, diff) for row, diff in write.rows if write.time is not None]
        self.upper = write.upper

    def _try(self, matches: bool, act: Callable[[], None]) -> None:
        happens = self.lies is None or self.lies.random() < 0.6
        done = self.lies is None or self.lies.random() < 0.7
        if happens and matches:
            act()
        self.calls[happens, done] += 1
        if not done or (happens and not matches):
            raise FailedError

    def written(self) -> dict[int, Rows]:
        """Return the rows of each time."""
        found: dict[int, Rows] = {}
        for row, time, diff in self.updates:
            found.setdefault(time, Counter())[row] += diff
        return found

    def contents(self, time: int | None = None) -> Rows:
        """Return what it holds at a time; now unless given."""
        return contents_at(self.updates, self.world.case.horizon if time is None else time)


class World:
    """Logs that grow, one output, and the replicas of a task.

    Parameters
    ----------
    case : Case
    as_ofs : sequence of int
        What each replica would start at if it were the first.
    lies : random.Random, optional
        See `Output`.
    replica : type
        A `Replica`, or a wrong one.
    open_reference : bool
        Whether the reference is never complete, though it passes all write times in the end.
    """

    def __init__(
        self,
        case: Case,
        as_ofs: Sequence[int] = (0,),
        *,
        lies: random.Random | None = None,
        replica: type[Replica] | None = None,
        open_reference: bool = False,
    ) -> None:
        self.case = case
        self.open_reference = open_reference
        # Of each input, then of the reference: how far it is closed.
        self.closed = [Antichain.of(MINIMUM)] * (len(case.inputs) + 1)
        self.output = Output(self, lies)
        kind = replica or Replica
        self.replicas = [kind(self, f"replica {number}", as_of) for number, as_of in enumerate(as_ofs)]

    def judge(self, write: RowWrite[Row], lower: int, upper: int, name: str) -> None:
        """Check an append of the times in [lower, upper) against the sequential program."""
        as_of = self.output.as_of
        assert as_of is not None
        for time in range(max(lower, as_of), upper):
            early = not all(self._is_closed(number, time) for number in range(len(self.case.inputs)))
            if is_write_time(self.case, time, as_of):
                early = early or not self._is_closed(-1, time)
            if early:
                raise WrongError(f"{name} writes {time} before it is closed: {self.closed}")
            wanted = result_at(self.case, time, as_of, name, self.output.contents(time - 1))
            found = Counter(dict(write.rows)) if write.time == time else Counter()
            if found != wanted:
                raise WrongError(f"{name} writes at {time}: found {found}, wanted {wanted}, as_of={as_of}")
        if write.time is not None and not (lower <= write.time < upper and is_write_time(self.case, write.time, as_of)):
            raise WrongError(f"{name} writes at {write.time}, where no input changes, as_of={as_of}")

    def _is_closed(self, number: int, time: int) -> bool:
        return not self.closed[number].less_equal(time)

    def advance(self, number: int, by: int) -> None:
        """Close times of a log; at the horizon it is complete, unless it is a reference that stays open."""
        now = cap(self.closed[number], self.case.horizon)
        then = min(now + by, self.case.horizon)
        is_open = number in (-1, len(self.case.inputs)) and self.open_reference
        self.closed[number] = Antichain.of(then) if then < self.case.horizon or is_open else Antichain.empty()

    def finish(self) -> None:
        """Complete the logs, let the replicas run without failures, and expect the output to be complete."""
        self.output.lies = None
        for number in range(len(self.closed)):
            self.advance(number, self.case.horizon)
        for _ in range(4 * self.case.horizon):
            for replica in self.replicas:
                for act in replica.actions():
                    act()
        if not self.output.upper.is_empty:
            raise WrongError(f"the output is not complete: {self.output.upper}")

    def turn(self, rng: random.Random) -> None:
        """Do one thing."""
        if rng.random() < 0.2:
            self.advance(rng.randrange(len(self.closed)), rng.randint(1, 3))
            return
        replica = rng.choice(self.replicas)
        if rng.random() < 0.04:
            replica.restart()
        else:
            rng.choice(list(replica.actions()))()


class Replica:
    """A replica of the task: the library's sources and sink, and in between the body, time by time.

    What it knows of the logs and of the output lags behind them. It is killed between any two actions.
    """

    state_type: type[RowSink[Row]] = RowSink
    opening_step = 0

    def __init__(self, world: World, name: str, as_of: int) -> None:
        self.world, self.name, self.wish = world, name, as_of
        self.restart()

    # Where a wrong replica differs ---

    def snapshot_wanted(self, as_of: int, upper: Antichain) -> bool:
        return takes_snapshot(self.world.case.snapshot, as_of, upper)

    def first_read(self, as_of: int, upper: Antichain) -> int:
        """Return where reading starts: strictly before the output's upper, once it has passed the first as_of."""
        return max(as_of, cap(upper, self.world.case.horizon) - 1)

    def shown(self, source: Source, updates: Updates) -> tuple[Updates, Any]:
        return source.transform(updates)

    def output_before(self, time: int) -> Rows:
        """Return the output at the time before, from the log."""
        seen, _ = kind_of("out", inputs=(), output="out").transform(updates_of(self.world.output.updates))
        return nonzero(
            (row, int(diff)) for row, at, diff in zip(rows_in(seen), seen.times, seen.diffs, strict=True) if at <= time
        )

    def learn(self, write: RowWrite[Row], *, reported: bool) -> None:
        """Take the upper from the log after an append, whatever was reported."""
        self.look()

    # What it does ---

    def restart(self) -> None:
        """Forget everything."""
        self.state = self.state_type(MINIMUM)
        self.sources: list[Source] = []
        self.as_of: int | None = None

    def start(self) -> None:
        """Leave the first note if there is none, and begin as the note says."""
        output = self.world.output
        if self.as_of is not None:
            return
        with contextlib.suppress(FailedError):  # another was first, or nothing is known: the note says
            output.begin(self.wish, self.wish + self.opening_step)
        if output.as_of is None:
            return
        case = self.world.case
        names = [f"in {number}" for number in range(len(case.inputs))]
        snapshot = self.snapshot_wanted(output.as_of, output.upper)
        self.sources = [
            kind_of(name, inputs=names, output="out", with_snapshot=snapshot, deletes=case.sees_deletes(number))
            for number, name in enumerate(names)
        ]
        self.sources.append(kind_of("ref", inputs=names, output="out"))
        self.as_of = self.first_read(output.as_of, output.upper)
        self.known = [Antichain.of(MINIMUM)] * len(self.sources)
        self.seen: list[list[tuple[Row, int, int]]] = [[] for _ in self.sources]
        self.computed = self.as_of
        self.last: Rows = Counter()
        self.look()

    def look(self) -> None:
        """Learn the output's upper."""
        if self.as_of is not None:
            self.state.output_progress = self.world.output.upper

    def observe(self, number: int) -> None:
        """Read what is closed of a log."""
        closed = self.world.closed[number]
        if self.as_of is None or closed.less_equal(self.as_of):
            return  # as_of cannot be read yet
        history = (*self.world.case.inputs, self.world.case.reference)[number]
        begin, end = cap(self.known[number], 1 << 40), cap(closed, 1 << 40)
        source = self.sources[number]
        read = updates_of([update for update in history if begin <= update[1] < end])
        if begin <= self.as_of:
            read = source.snapshot(read, self.as_of)
        shown, times = self.shown(source, read)
        self.state.add_times(times)
        self.seen[number] += zip(rows_in(shown), shown.times.tolist(), shown.diffs.tolist(), strict=True)
        self.known[number] = closed
        inputs = self.known[: len(self.world.case.inputs)]
        self.state.append_times_progress = first_of(inputs)

    def compute(self) -> None:
        """Evaluate the body at each time at which all that it reads is known."""
        if self.as_of is None:
            return
        known = list(self.known)
        if self.world.case.reads_output and not self.state.output_progress.is_empty:
            ((upper,),) = self.state.output_progress.elements
            known.append(Antichain.of(upper + 1))  # known through T - 1, it is presented through T
        frontier = first_of(known)
        for time in range(self.computed, cap(frontier, self.world.case.horizon)):
            *changes, reference = (contents_at(each, time) for each in self.seen)
            output = self.output_before(time) if self.world.case.reads_output else Counter()
            result = nonzero(self.world.case.body(self.name, changes, reference, output).items())
            updates = [(row, diff) for row, diff in result.items()] + [(row, -diff) for row, diff in self.last.items()]
            self.state.add_updates((row, time, diff) for row, diff in nonzero(updates).items())
            self.last, self.computed = result, time + 1
        self.state.to_append_progress = frontier

    def write(self) -> None:
        """Append what the sink decides."""
        if self.as_of is None or (write := self.state.process()) is None:
            return
        try:
            self.world.output.append(self.name, self.state.output_progress, write)
        except FailedError:
            self.learn(write, reported=False)
        else:
            self.learn(write, reported=True)

    def actions(self) -> Iterator[Callable[[], None]]:
        """Return what it could do next."""
        yield self.start
        for number in range(len(self.world.closed)):
            yield lambda number=number: self.observe(number)
        yield self.compute
        yield self.write
        yield self.look


def first_of(frontiers: Sequence[Antichain]) -> Antichain:
    found = frontiers[0]
    for each in frontiers[1:]:
        found = found.meet(each)
    return found


def updates_of(history: History) -> Updates:
    """Return updates for the library: rows as texts, which tell all rows apart."""
    rows = pa.table(
        {
            "row": pa.array([repr(row) for row, _, _ in history], pa.string()),
            "_diff": pa.array([diff for _, _, diff in history], pa.int64()),
        }
    )
    return rows_model.updates_of([time for _, time, _ in history], rows)


def rows_in(updates: Updates) -> list[Row]:
    # Texts that `updates_of` made, of tuples of numbers and texts.
    return [eval(row, {"__builtins__": {}}) for row in updates.rows.column("row").to_pylist()]


# Bodies ---------------------------------------------------------------------------------------------


def audit(_name: str, changes: Sequence[Rows], _reference: Rows, _output: Rows) -> Rows:
    """INSERT INTO output SELECT * FROM input."""
    return sum(changes, Counter())


def enrich(_name: str, changes: Sequence[Rows], reference: Rows, _output: Rows) -> Rows:
    """INSERT INTO output SELECT k, v, w FROM input JOIN reference USING (k)."""
    return nonzero(
        ((k, v, w), n * m)
        for each in changes
        for (k, v), n in each.items()
        for (key, w), m in reference.items()
        if key == k
    )


def whole(_name: str, _changes: Sequence[Rows], reference: Rows, _output: Rows) -> Rows:
    """INSERT INTO output SELECT * FROM reference: a body that does not look at its input."""
    return Counter(reference)


def upsert(_name: str, changes: Sequence[Rows], _reference: Rows, output: Rows) -> Rows:
    """DELETE FROM output WHERE k IN (SELECT k FROM input); INSERT INTO output SELECT k, max(v) … GROUP BY k."""
    came = [row for each in changes for row in each]
    keys = {k for k, _ in came}
    gone = [(row, -n) for row, n in output.items() if row[0] in keys]
    return nonzero([*gone, *(((k, max(v for key, v in came if key == k)), 1) for k in keys)])


def running_sum(_name: str, changes: Sequence[Rows], reference: Rows, _output: Rows) -> Rows:
    """INSERT INTO output SELECT sum(v) FROM the input's contents."""
    if not any(changes):
        return Counter()
    return Counter({(sum(v * n for (v,), n in reference.items()),): 1})


def tally(name: str, changes: Sequence[Rows], _reference: Rows, output: Rows) -> Rows:
    """Write who writes, and a number made of what was there: replicas differ, so that a loser's memory is wrong."""
    if not any(changes):
        return Counter()
    return Counter({(name, zlib.crc32(repr(sorted(output.items())).encode())): 1})
