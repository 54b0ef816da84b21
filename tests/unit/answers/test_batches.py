"""A subscription as a state machine, step by step: which interval comes next, when it has ended, what it needs."""

from __future__ import annotations

import itertools

import pytest

from spark_timely.answers.batches import Course, Interval, Progress, course_of, course_resumed
from spark_timely.errors import InvalidBoundsError, TimelyInternalError
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

at = Antichain.of
COMPLETE = Antichain.empty(1)


def walked(course: Course, *frontiers: Antichain) -> list[tuple[Antichain, Antichain, Antichain]]:
    """Let a log come to some frontiers; return lower and upper of each batch, and from where its rows come."""
    progress, found = Progress(course), []
    for frontier in frontiers:
        while (interval := progress.next_interval(frontier)) is not None:
            found.append((progress.take(interval.upper), interval.upper, interval.lower))
    return found


def test_batches_begin_at_the_minimum_and_are_contiguous() -> None:
    found = walked(course_of((0,), (5,), snapshot=True), at(3), at(5), at(6), at(6), at(9), COMPLETE)
    assert found == [(at(0), at(6), at(5)), (at(6), at(9), at(6)), (at(9), COMPLETE, at(9))]


def test_contents_come_when_as_of_is_complete_not_before() -> None:
    progress = Progress(course_of((0,), (5,), snapshot=True))
    assert progress.next_interval(at(5)) is None
    assert progress.next_interval(at(6)) == Interval(at(5), at(6))


def test_without_contents_the_first_batch_has_no_rows() -> None:
    found = walked(course_of((0,), (5,), snapshot=False), at(5), at(9))
    assert found == [(at(0), at(6), at(6)), (at(6), at(9), at(6))]


def test_resumed_begins_with_the_changes_at_the_progress() -> None:
    assert walked(course_resumed((0,), at(5)), at(5), at(7)) == [(at(0), at(5), at(5)), (at(5), at(7), at(5))]


def test_resumed_at_the_minimum_has_everything_to_give() -> None:
    progress = Progress(course_resumed((0,), at(0)))
    assert progress.has_begun
    assert progress.next_interval(at(0)) is None
    assert walked(course_resumed((0,), at(0)), at(4)) == [(at(0), at(4), at(0))]


def test_resumed_where_all_was_given_ends_with_one_batch() -> None:
    course = course_resumed((0,), COMPLETE)
    assert walked(course, at(9), COMPLETE) == [(at(0), COMPLETE, COMPLETE)]
    progress = Progress(course)
    progress.take(COMPLETE)
    assert progress.has_ended


@pytest.mark.parametrize("snapshot", [True, False])
def test_up_to_is_exclusive_and_the_last_upper(snapshot: bool) -> None:
    course = course_of((0,), (5,), snapshot=snapshot, up_to=(7,))
    found = walked(course, at(20))
    assert [upper for _, upper, _ in found] == [at(6), at(7)]
    progress = Progress(course)
    progress.take(at(6))
    assert not progress.has_ended
    progress.take(at(7))
    assert progress.has_ended
    assert progress.next_interval(COMPLETE) is None


@pytest.mark.parametrize("snapshot", [True, False])
def test_as_of_that_is_up_to_ends_without_a_batch(snapshot: bool) -> None:
    course = course_of((0,), (5,), snapshot=snapshot, up_to=(5,))
    assert course.is_empty
    assert Progress(course).has_ended
    assert walked(course, at(9), COMPLETE) == []


def test_up_to_right_after_as_of_gives_the_contents_alone() -> None:
    assert walked(course_of((0,), (5,), snapshot=True, up_to=(6,)), COMPLETE) == [(at(0), at(6), at(5))]


@pytest.mark.parametrize("domain", [None, TimeDomain(("long",), (0,))])
def test_up_to_before_as_of_is_refused_with_both(domain: TimeDomain | None) -> None:
    with pytest.raises(InvalidBoundsError, match=r"up to .*4.*as_of=.*5"):
        course_of((0,), (5,), snapshot=True, up_to=(4,), domain=domain)


@pytest.mark.parametrize("up_to", [(4,), (0,)])
def test_up_to_before_the_progress_is_refused(up_to: tuple[int, ...]) -> None:
    with pytest.raises(InvalidBoundsError, match="resume_from"):
        course_resumed((0,), at(5), up_to=up_to)
    assert course_resumed((0,), at(5), up_to=(5,)).is_empty


def test_greatest_time_has_nothing_after_it_but_the_end() -> None:
    domain = TimeDomain(("short",), (0,))
    course = course_of((0,), (32767,), snapshot=True, domain=domain)
    assert walked(course, at(32767), COMPLETE) == [(at(0), COMPLETE, at(32767))]


def test_product_times_are_moved_up_to_as_of() -> None:
    course = course_of((0, 0), (2, 5), snapshot=True)
    progress = Progress(course)
    assert progress.next_interval(at((2, 5))) is None
    # (2, 5) is complete, (3, 0) is not: so (3, 5), to which it would move, is not either.
    first = progress.next_interval(at((3, 0)))
    assert first == Interval(at((2, 5)), at((3, 5)))
    progress.take(first.upper)
    assert progress.next_interval(at((3, 4))) is None
    assert progress.next_interval(at((3, 6), (4, 0))) == Interval(at((3, 5)), at((3, 6), (4, 5)))


def test_product_contents_wait_until_as_of_is_complete() -> None:
    progress = Progress(course_of((0, 0), (2, 2), snapshot=True))
    assert progress.next_interval(at((1, 9), (9, 1))) is not None
    assert progress.next_interval(at((0, 2))) is None


def test_end_of_product_times_that_lies_beside_as_of() -> None:
    course = course_of((0, 0), (2, 5), snapshot=True, up_to=(4, 0))
    assert course.end == at((4, 5))
    assert walked(course, Antichain.empty(2)) == [(at((0, 0)), at((4, 5)), at((2, 5)))]


@pytest.mark.parametrize(
    ("course", "reached", "collection", "stream"),
    [
        (course_of((0,), (5,), snapshot=True), at(5), at(5), at(0)),
        (course_of((0,), (5,), snapshot=True), at(9), at(8), at(9)),
        (course_of((0,), (5,), snapshot=False), at(6), at(5), at(6)),
        (course_resumed((0,), at(5)), at(5), at(4), at(5)),
        (course_resumed((0,), at(0)), at(0), at(0), at(0)),
        (course_resumed((0,), at(0)), at(1), at(0), at(1)),
        (course_of((0,), (5,), snapshot=True), COMPLETE, COMPLETE, COMPLETE),
        (course_of((0, 0), (2, 5), snapshot=True), at((3, 5)), at((2, 5)), at((3, 0))),
        (course_of((0, 0), (2, 5), snapshot=True), at((3, 6)), at((2, 5)), at((3, 6))),
    ],
)
def test_needed_of_updates_is_the_time_before_of_messages_not(
    course: Course, reached: Antichain, collection: Antichain, stream: Antichain
) -> None:
    assert course.needed("collection", reached) == collection
    assert course.needed("stream", reached) == stream


def test_needed_only_moves_forward() -> None:
    for course in (course_of((0,), (5,), snapshot=True), course_resumed((0,), at(3))):
        for kind in ("collection", "stream"):
            found = [course.needed(kind, course.start), *(course.needed(kind, at(t)) for t in range(6, 12))]
            assert all(one.less_equal_frontier(other) for one, other in itertools.pairwise(found))


@pytest.mark.parametrize("upper", [at(6), at(4)])
def test_interval_empty_or_going_back_is_an_internal_error(upper: Antichain) -> None:
    progress = Progress(course_of((0,), (5,), snapshot=True))
    progress.take(at(6))
    with pytest.raises(TimelyInternalError):
        progress.take(upper)
