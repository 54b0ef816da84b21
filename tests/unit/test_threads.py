"""Threads that wait for the next call."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import InvalidStateError
from typing import TYPE_CHECKING

import pytest

from spark_timely import threads as threads_module
from spark_timely.threads import CachedThreads, ahead

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_thread_waits_again_before_its_result_is_there() -> None:
    threads = CachedThreads("test")
    idents = {threads.submit(threading.get_ident).result() for _ in range(100)}
    assert len(idents) == 1
    assert threads.n_waiting == 1
    threads.end()
    assert threads.n_waiting == 0


def test_call_waits_for_no_other_and_failures_are_results() -> None:
    threads, gate = CachedThreads("test"), threading.Event()
    first = threads.submit(gate.wait, 30)
    second = threads.submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        second.result()
    gate.set()
    assert first.result()
    threads.end()


def test_result_that_was_set_stays() -> None:
    threads, gate = CachedThreads("test"), threading.Event()
    future = threads.submit(gate.wait, 30)
    future.set_result(False)
    gate.set()
    assert threads.submit(int).result() == 0
    with pytest.raises(InvalidStateError):
        future.set_result(True)
    assert future.result() is False


def test_thread_that_is_ended_at_work_gives_its_result() -> None:
    threads, gate = CachedThreads("test"), threading.Event()
    future = threads.submit(gate.wait, 30)
    threads.end()
    gate.set()
    assert future.result()
    assert threads.n_waiting == 0


def test_idle_thread_ends_and_another_one_begins() -> None:
    threads = CachedThreads("test", idle_s=0.01)
    first = threads.submit(threading.current_thread).result()
    first.join(30)
    assert not first.is_alive()
    assert threads.submit(threading.current_thread).result() is not first


def test_child_that_was_forked_begins_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = CachedThreads("test")
    first = threads.submit(threading.get_ident).result()
    monkeypatch.setattr(threads_module.os, "getpid", lambda: -1)
    assert threads.submit(threading.get_ident).result() != first
    assert threads.n_waiting == 1


def test_what_is_made_ahead_comes_in_order_and_fails_in_its_turn() -> None:
    made: list[int] = []
    second_is_made, first_is_used = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        for item in range(3):
            made.append(item)
            if item == 1:
                second_is_made.set()
                assert first_is_used.wait(30)
            yield item
        msg = "no more"
        raise ValueError(msg)

    coming = ahead(items())
    assert next(coming) == 0
    assert second_is_made.wait(30)  # while the first one is in use
    assert made == [0, 1]
    first_is_used.set()
    assert [next(coming), next(coming)] == [1, 2]
    with pytest.raises(ValueError, match="no more"):
        next(coming)
    assert list(ahead(iter(()))) == []
    assert not [each for each in threading.enumerate() if each.name.startswith("spark_timely-ahead")]


def test_what_is_made_ahead_may_be_left() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.set()

    coming = ahead(items())
    assert next(coming) == 0
    del coming
    gc.collect()
    assert closed.wait(30)
    assert not [each for each in threading.enumerate() if each.name.startswith("spark_timely-ahead")]
