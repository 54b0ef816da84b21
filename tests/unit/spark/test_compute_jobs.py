"""Jobs of an instance without Spark: sessions that are lost, pools that are clones, interruptions, and the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spark_timely.errors import CanceledError, OperatorError
from spark_timely.spark.instance import jobs as compute_jobs
from spark_timely.spark.instance.jobs import POOLS, Jobs, Pools, says_lost
from spark_timely.testing import ManualClock

WAIT_S = 30.0


class Conf:
    def __init__(self, session: Session, values: dict[str, str]) -> None:
        self._session, self.values = session, values

    def get(self, name: str, default: str | None = None) -> str | None:
        self._session.answer()
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self._session.answer()
        self.values[name] = value


class Client:
    def __init__(self, session: Session) -> None:
        self._session = session

    def release_session(self) -> None:
        self._session.released.set()

    def close(self) -> None:
        self._session.is_stopped = True


class Session:
    """A session of Connect, as far as an instance sees one."""

    def __init__(self, values: dict[str, str] | None = None) -> None:
        self.conf = Conf(self, {"spark.scheduler.mode": "FAIR"} if values is None else values)
        self.is_stopped, self.expired = False, False
        self.client, self.released = Client(self), threading.Event()
        self.clones: list[Session] = []
        self.interrupted = threading.Event()
        self._here = threading.local()

    def answer(self) -> None:
        if self.expired:
            msg = "[INVALID_HANDLE.SESSION_CLOSED] The handle a is invalid. Session was closed. SQLSTATE: HY000"
            raise RuntimeError(msg)

    def cloneSession(self) -> Session:
        self.answer()
        clone = Session(dict(self.conf.values))
        self.clones.append(clone)
        return clone

    def addTag(self, tag: str) -> None:
        self._here.tags = {*self.getTags(), tag}

    def removeTag(self, tag: str) -> None:
        self._here.tags = self.getTags() - {tag}

    def getTags(self) -> set[str]:
        found: set[str] = getattr(self._here, "tags", set())
        return found

    def interruptTag(self, tag: str) -> list[str]:
        del tag
        self.interrupted.set()
        return []


Session.__module__ = "tests.connect.session"  # by which one of Connect is known


def jobs_of(session: Any, **options: Any) -> Jobs:
    return Jobs(session, "/data/instance", **options)


def pool_of(session: Any) -> str | None:
    found: str | None = session.conf.values.get("spark.scheduler.pool")
    return found


# Pools ----------------------------------------------------------------------------------------------


def test_dataflow_has_a_pool_of_its_own_while_there_are_enough() -> None:
    pools = Pools(3)
    taken = [pools.take(name) for name in "abc"]
    assert sorted(taken) == [0, 1, 2]
    assert pools.take("d") in taken  # all have jobs: one is shared
    assert pools.take("a") == taken[0]


def test_pool_of_a_dataflow_without_jobs_is_used_again() -> None:
    pools = Pools(2)
    first, second = pools.take("a"), pools.take("b")
    pools.give(first)
    assert pools.take("a") == first  # created again: the same
    pools.give(first)
    pools.give(second)
    assert pools.take("c") == second  # of the one whose job is longest ago
    assert pools.take("a") == first


def test_shared_pool_is_given_back_as_often_as_taken() -> None:
    pools = Pools(1)
    assert [pools.take("a"), pools.take("b")] == [0, 0]
    pools.give(0)
    pools.give(0)
    assert pools.take("b") == 0
    assert list(pools._of) == ["b"]


def test_jobs_of_a_dataflow_are_in_a_pool_of_their_own() -> None:
    session = Session()
    jobs = jobs_of(session)
    seen = {name: jobs.run(name, lambda spark: (pool_of(spark), spark.getTags())) for name in ("a", "b", "a")}
    assert len({pool for pool, _ in seen.values()}) == 2
    assert [len(tags) for _, tags in seen.values()] == [1, 1]
    assert len(session.clones) == 2
    assert pool_of(session) is None
    assert jobs.keyed_bytes() == 4 << 20
    assert not session.getTags()
    assert not jobs.run("a", lambda spark: spark).getTags()
    jobs.end()
    assert all(clone.released.wait(WAIT_S) for clone in session.clones)
    assert not session.released.is_set()


def test_no_more_pools_than_there_may_be() -> None:
    session = Session()
    jobs = jobs_of(session)
    for number in range(5 * POOLS):
        jobs.run(f"subscribe-{number}", lambda _: None)
    assert len(session.clones) == POOLS
    assert not any(jobs._pools._jobs)  # all are given back


def test_copy_sees_the_settings_of_now_in_a_clone() -> None:
    session = Session()
    jobs = jobs_of(session)
    jobs.run("copies", lambda _: None, fresh=True)
    session.conf.values["spark.sql.ansi.enabled"] = "false"
    found, pool = jobs.run(
        "copies", lambda spark: (spark.conf.get("spark.sql.ansi.enabled"), pool_of(spark)), fresh=True
    )
    assert found == "false"
    assert pool is not None
    assert pool.endswith("-copies")
    assert [clone.released.wait(WAIT_S) for clone in session.clones] == [True, True]


@pytest.mark.parametrize(
    "values", [{}, {"spark.scheduler.mode": "FIFO"}, {"spark.scheduler.mode": "FAIR", "spark.scheduler.pool": "mine"}]
)
def test_without_fair_scheduling_or_with_a_user_s_pool_no_pools(values: dict[str, str]) -> None:
    session = Session(values)
    assert jobs_of(session).run("a", lambda spark: spark) is session
    assert jobs_of(session).run("a", lambda spark: spark, fresh=True) is session
    assert session.conf.values == values
    jobs = jobs_of(session)
    jobs.run("a", lambda _: None)
    assert jobs.keyed_bytes() is None


def test_client_that_cannot_clone_has_no_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Session, "cloneSession")
    session = Session()
    assert jobs_of(session).run("a", lambda spark: spark) is session


def test_own_session_of_a_job_is_in_its_pool_and_interrupted() -> None:
    session, own = Session(), Session()
    jobs = jobs_of(session)

    def act(spark: Any) -> tuple[Any, ...]:
        with jobs.joined(own):  # type: ignore[arg-type]
            found = pool_of(own), own.getTags(), own in jobs._interruptible
        return *found, pool_of(spark), own.getTags(), own in jobs._interruptible

    pool, tags, known, outer, after, still = jobs.run("a", act)
    assert pool == outer is not None
    assert len(tags) == 1
    assert known
    assert not after
    assert not still


# Lost sessions --------------------------------------------------------------------------------------


def test_clone_that_expired_is_made_again() -> None:
    session = Session()
    jobs = jobs_of(session)
    jobs.run("a", lambda _: None)
    session.clones[0].expired = True
    with pytest.raises(CanceledError, match="found its session lost") as caught:
        jobs.run("a", lambda spark: spark.conf.get("x"))
    assert "INVALID_HANDLE.SESSION_CLOSED" in str(caught.value)
    assert jobs.run("a", lambda spark: spark) is session.clones[1]
    jobs.check()


def test_lost_session_is_made_anew_once() -> None:
    session, made, looked = Session(), list[Session](), list[Any]()
    renewed = threading.Event()
    meet = threading.Barrier(8)

    def new_session() -> Session:
        time.sleep(0.05)  # all others come meanwhile
        made.append(Session())
        return made[-1]

    jobs = jobs_of(session, new_session=new_session, check=looked.append, on_renewed=renewed.set)
    for name in "abcdefgh":
        jobs.run(name, lambda _: None)
    session.expired = True
    for clone in session.clones:
        clone.expired = True

    def step(name: str) -> str:
        def act(spark: Any) -> Any:
            meet.wait(WAIT_S)
            return spark.conf.get("x")

        with pytest.raises(CanceledError, match="found its session lost"):
            jobs.run(name, act)
        found: Any = jobs.run(name, lambda spark: spark)
        return "new" if found in made[0].clones else "old"

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(step, "abcdefgh")) == {"new"}
    assert looked == made
    assert len(made) == 1
    assert renewed.wait(WAIT_S)


def test_session_that_cannot_be_made_is_tried_again() -> None:
    session, tries, clock = Session(), list[float](), ManualClock()

    def new_session() -> Session:
        tries.append(clock())
        if len(tries) < 3:
            msg = "no server"
            raise RuntimeError(msg)
        return Session()

    jobs = jobs_of(session, new_session=new_session, now=clock)
    session.is_stopped = True
    jobs.check()  # one will be made
    for seconds in (0.0, 0.1, 0.5, 0.5):
        clock.advance(seconds)
        with pytest.raises(CanceledError, match=r"another session .*: no server"):
            jobs.run("a", lambda _: None)
    assert tries == pytest.approx([0.0, 0.6])
    clock.advance(0.6)
    assert jobs.run("a", lambda spark: spark) is not session
    assert len(tries) == 3


@pytest.mark.parametrize("how", ["stopped", "refused"])
def test_session_that_is_of_no_use_is_not_taken(how: str) -> None:
    session, other = Session(), Session()
    session.is_stopped = True
    other.is_stopped = how == "stopped"

    def check(_: Any) -> None:
        msg = "sees other storage"
        raise OperatorError(msg)

    jobs = jobs_of(session, new_session=lambda: other, check=check)
    with pytest.raises(CanceledError, match="found it stopped" if how == "stopped" else "sees other storage"):
        jobs.run("a", lambda _: None)
    assert jobs._spark is session


def test_session_without_successor_stays_stopped() -> None:
    session = Session()
    jobs = jobs_of(session)
    session.is_stopped = True
    for ask in (jobs.check, jobs.session):
        with pytest.raises(OperatorError, match="found the session of Spark stopped") as caught:
            ask()
        assert "use_session" in str(caught.value)
    with pytest.raises(CanceledError, match="found the session of Spark stopped"):
        jobs.run("a", lambda _: None)
    other = Session()
    jobs.use(other)  # type: ignore[arg-type]
    jobs.check()
    assert jobs.run("a", lambda spark: spark) is other.clones[0]


def test_session_that_expired_is_said_to_be_lost() -> None:
    session = Session({})
    jobs = jobs_of(session)
    session.expired = True
    with pytest.raises(CanceledError, match="found its session lost"):
        jobs.run("a", lambda spark: spark.conf.get("x"))
    with pytest.raises(OperatorError, match="found the session of Spark lost"):
        jobs.check()


def test_peek_is_answered_again_and_copy_asks_first() -> None:
    session, other = Session({}), Session({})
    jobs = jobs_of(session, new_session=lambda: other)
    begun: list[Any] = []

    def copy(spark: Any) -> Any:
        begun.append(spark)
        return spark.conf.get("x", "copied")

    session.expired = True
    assert jobs.run("copies", copy, fresh=True) == "copied"
    assert begun == [other]
    third = Session({})
    jobs._new_session = lambda: third  # type: ignore[assignment, return-value]

    def peek(spark: Any) -> Any:
        if spark is other:
            other.expired = True  # while it reads
        return spark.conf.get("x", "peeked")

    assert jobs.run("peeks", peek, fresh=True, again=True) == "peeked"


def test_error_of_a_job_is_its_own_where_the_session_answers() -> None:
    session, made = Session(), list[Session]()
    jobs = jobs_of(session, new_session=lambda: made.append(Session()))

    def act(_: Any) -> None:
        msg = "row ['INVALID_HANDLE.SESSION_CLOSED'] is not a number"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="is not a number"):
        jobs.run("a", act)
    jobs.run("a", lambda _: None)
    assert not made
    assert len(session.clones) == 1


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("[INVALID_HANDLE.SESSION_CHANGED] The existing Spark server driver instance has restarted.", True),
        ("[INVALID_HANDLE.SESSION_NOT_FOUND] The handle is invalid.", True),
        ("[RESPONSE_ALREADY_RECEIVED] … INVALID_HANDLE.SESSION_NOT_FOUND …", True),
        ("[NO_ACTIVE_SESSION] No active Spark session found.", True),
        ("[INVALID_HANDLE.OPERATION_NOT_FOUND] The handle is invalid.", False),
        ("[DIVIDE_BY_ZERO] Division by zero.", False),
    ],
)
def test_errors_that_say_that_a_session_is_lost(text: str, lost: bool) -> None:
    session: Any = Session()
    outer = RuntimeError("could not copy")
    outer.__cause__ = RuntimeError(text)
    assert says_lost(session, RuntimeError(text)) is lost
    assert says_lost(session, outer) is lost
    session.is_stopped = True
    assert says_lost(session, RuntimeError("anything"))


# The end --------------------------------------------------------------------------------------------


def waiting(jobs: Jobs, act: Callable[[Any], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Ask for a job in a thread, as a step does; return it with what it raises."""
    found: list[BaseException] = []

    def ask() -> None:
        try:
            jobs.run("a", act)
        except CanceledError as error:
            found.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread, found


def test_interrupted_job_ends_and_no_other_one_begins() -> None:
    session = Session()
    jobs = jobs_of(session)
    begun = threading.Event()

    def act(spark: Any) -> None:
        begun.set()
        assert spark.interrupted.wait(WAIT_S)
        msg = "[OPERATION_CANCELED] Operation has been canceled."
        raise RuntimeError(msg)

    thread, found = waiting(jobs, act)
    assert begun.wait(WAIT_S)
    assert jobs.interrupt() == []
    thread.join(WAIT_S)
    assert "found it closed" in str(found[0])
    with pytest.raises(CanceledError, match="found it closed"):
        jobs.run("a", lambda _: None)


def test_job_that_ignores_it_is_left_behind_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_jobs, "_INTERRUPT_S", 0.01)
    jobs = jobs_of(Session())
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def act(_: Any) -> None:
        begun.set()
        goes_on.wait(WAIT_S)
        ended.set()

    thread, found = waiting(jobs, act)
    assert begun.wait(WAIT_S)
    assert jobs.interrupt(wait_s=0.05) == ["a"]
    thread.join(WAIT_S)
    assert "found it closed" in str(found[0])
    assert not ended.is_set()
    goes_on.set()
    assert ended.wait(WAIT_S)


def test_threads_are_used_again_and_end() -> None:
    jobs = jobs_of(Session())
    threads = {jobs.run("a", lambda _: threading.current_thread()) for _ in range(20)}
    assert len(threads) == 1
    jobs.end()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
