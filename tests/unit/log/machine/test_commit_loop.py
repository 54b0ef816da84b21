"""The commit loop against a table that does, and says, what a script tells it to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from spark_timely.errors import LogFormatError, OwnershipError, StorageError
from spark_timely.log.machine.decide import MOST_ATTEMPTS, Attempt, LostRaceError, Settled, commit_loop

LOST = LostRaceError("could not commit: found another first")
UNCLEAR = StorageError("could not commit: found a timeout")
SURELY_NOT = StorageError("could not commit: found no room", determinate=True)
FORMAT = LogFormatError("could not commit: found a feature")


@dataclass
class Table:
    """For each attempt whether it happens, and what is said of it; commits are seen after a refresh."""

    script: list[tuple[bool, Exception | None]]
    overtakes: bool = False
    there: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    tried: list[int] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)

    def refresh(self, *, after_put: bool = False) -> bool:
        del after_put
        self.seen = set(self.there)
        return True


@dataclass
class Try(Attempt):
    table: Table
    number: int

    def put(self) -> None:
        happens, said = self.table.script[self.number] if self.number < len(self.table.script) else (False, LOST)
        self.table.tried.append(self.number)
        if happens:
            self.table.there.add(self.number)
        if said is not None:
            raise said

    def has_landed(self) -> bool:
        return self.number in self.table.seen

    def is_overtaken(self) -> bool:
        return self.table.overtakes

    def discard(self) -> None:
        assert self.number not in self.table.there, "part of the log"
        self.table.discarded.append(self.number)


def run(table: Table, decide: Callable[[int], Exception | str | None] = lambda _: None) -> str:
    """Commit; `decide` may refuse the n-th decision by an error, or settle it by a text."""

    def decided(_: object) -> Settled[str] | Try:
        found = decide(len(table.tried))
        if isinstance(found, Exception):
            raise found
        return Try(table, len(table.tried)) if found is None else Settled(found)

    return commit_loop("commit", context={"path": "x"}, store=table, decide=decided, done=lambda: "done")


@pytest.mark.parametrize(
    ("script", "tried", "discarded"),
    [
        ([(True, None)], 1, []),
        ([(False, LOST), (True, None)], 2, [0]),
        # What was reported as lost, or as unclear, and happened all the same is found.
        ([(True, LOST)], 1, []),
        ([(True, UNCLEAR)], 1, []),
        ([(False, UNCLEAR), (True, None)], 2, []),
        ([(False, UNCLEAR), (False, UNCLEAR), (True, UNCLEAR)], 3, []),
        ([(False, UNCLEAR), (False, LOST), (True, None)], 3, [1]),
        # A store that lies.
        ([(False, None), (True, None)], 2, []),
    ],
)
def test_a_commit_is_tried_until_it_is_there(
    script: list[tuple[bool, Exception | None]], tried: int, discarded: list[int]
) -> None:
    table = Table(script)
    assert run(table) == "done"
    assert (len(table.tried), table.discarded) == (tried, discarded)


def test_an_attempt_that_lands_late_settles_the_call() -> None:
    table = Table([(False, UNCLEAR), (False, LOST)])

    def land(n: int) -> None:
        if n == 1:
            table.there.add(0)  # the write that was under way

    assert run(table, land) == "done"
    assert table.discarded == []
    assert len(table.tried) == 2


def test_lost_races_end_after_the_limit_with_nothing_done() -> None:
    table = Table([])
    with pytest.raises(
        StorageError, match=rf"could not commit: found {MOST_ATTEMPTS} lost races, the last: "
    ) as raised:
        run(table)
    assert raised.value.determinate
    assert table.discarded == table.tried == list(range(MOST_ATTEMPTS))


def test_an_outcome_that_stays_unclear_is_reported_so() -> None:
    table = Table([(False, UNCLEAR)] * 9)
    with pytest.raises(StorageError) as raised:
        run(table)
    assert not raised.value.determinate
    assert (len(table.tried), table.discarded) == (3, [])


@pytest.mark.parametrize("error", [SURELY_NOT, FORMAT], ids=["storage", "format"])
def test_a_refusal_by_the_table_deletes_the_files(error: Exception) -> None:
    table = Table([(False, error)])
    with pytest.raises(type(error)) as raised:
        run(table)
    assert raised.value is error
    assert table.discarded == [0]


@pytest.mark.parametrize("error", [SURELY_NOT, FORMAT, LOST], ids=["storage", "format", "lost"])
def test_no_refusal_hides_an_attempt_that_may_land(error: Exception) -> None:
    table = Table([(False, UNCLEAR)] + [(False, error)] * MOST_ATTEMPTS)
    with pytest.raises(StorageError) as raised:
        run(table)
    assert not raised.value.determinate
    assert 0 not in table.discarded


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_refusal_keeps_its_type_unless_an_attempt_may_land(*, overtaken: bool) -> None:
    refusal = OwnershipError("could not append: found another owner")
    table = Table([(False, UNCLEAR)], overtakes=overtaken)
    with pytest.raises(OwnershipError if overtaken else StorageError) as raised:
        run(table, lambda n: refusal if n else None)
    assert overtaken or (not raised.value.determinate and raised.value.__cause__ is refusal)


def test_what_is_settled_is_not_tried() -> None:
    table = Table([(True, None)])
    assert run(table, lambda _: "there") == "there"
    assert table.tried == []
