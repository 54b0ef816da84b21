"""The commit loop of a log: refresh the snapshot, decide, attempt the commit, settle an unclear outcome, repeat.

Whatever a log commits - rows of a stream, a merge of files, a new column - is decided from a snapshot, which others
may overtake. A lost race throws the decision away. An error of the storage says nothing of whether the commit
happened: the next snapshot does, and an attempt that may still happen is remembered until it cannot any more.

What a store does to put one attempt behind commits of others that do not conflict with it is part of that attempt.

Invariants
----------
1. The snapshot does not move between a decision and its attempt.
2. No error says that nothing happened, once an attempt was made that may have happened: callers would delete files
   that are part of the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from spark_timely.errors import DataLossError, LogFormatError, StorageError, described, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


MOST_ATTEMPTS: Final = 100
"""Lost races after which a commit is given up."""

_MOST_UNCLEAR: Final = 3

R = TypeVar("R")


class LostRaceError(StorageError):
    """A commit was not accepted from this snapshot. Refresh, decide again, commit again.

    Never seen by callers of a log.
    """


class Refreshed(Protocol):
    """Anything with a snapshot that is refreshed."""

    def refresh(self, *, after_put: bool = False) -> bool:
        """Move the snapshot to the newest version, or, straight after a commit, to that; return whether it moved."""


class Attempt(ABC):
    """One try at a commit. What it needs is written, and not yet part of the log."""

    __slots__ = ()

    @abstractmethod
    def put(self) -> None:
        """Commit from the snapshot; raises as `spark_timely.log.store.base.Store.transact`."""

    @abstractmethod
    def has_landed(self) -> bool:
        """Return whether the log has it for good, whatever was reported about it."""

    def is_shown(self) -> bool:
        """Return whether the snapshot, refreshed after a commit that was reported as done, has it."""
        return self.has_landed()

    def is_overtaken(self) -> bool:
        """Return whether it cannot happen any more, because others took its place."""
        return False

    def discard(self) -> None:  # noqa: B027 - some have no files of their own
        """Delete what was written for it alone: it did not happen, and will not."""


A = TypeVar("A", bound=Attempt)


@dataclass(frozen=True, slots=True)
class Settled(Generic[R]):
    """A decision that there is nothing to commit.

    Parameters
    ----------
    answer
        What the call returns.
    """

    answer: R


def commit_loop(
    what: str,
    *,
    context: Mapping[str, object],
    store: Refreshed,
    decide: Callable[[Sequence[A]], Settled[R] | A],
    done: Callable[[], R],
) -> R:
    """Commit what is decided, until it is in the log or there is nothing to commit.

    Parameters
    ----------
    what : str
        What is attempted, for errors: ``commit to stream 'main' of log '/log'``.
    context : mapping
        For errors: the log's path, and more.
    store : Store
        Its `refresh` moves the snapshot to the newest version.
    decide : callable
        Decides from the snapshot. Is given the attempts before that may still happen.
    done : callable
        Returns the answer, once an attempt is in the snapshot.

    Raises
    ------
    StorageError
        If the log cannot be reached, or others were first `MOST_ATTEMPTS` times. Unless `determinate`, the commit may
        have happened.
    TimelyError
        What `decide` refuses, if no attempt before it may have happened.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> import pyarrow as pa
    >>> store = MemoryLog.create(pa.schema([("v", pa.int64())])).core.store
    >>> commit_loop("commit", context={"path": "/log"}, store=store, decide=lambda _: Settled(7), done=lambda: 0)
    7
    """
    tried: list[A] = []
    unclear, last = 0, ""
    try:
        for _ in range(MOST_ATTEMPTS):
            store.refresh()
            if any(attempt.has_landed() for attempt in tried):
                return done()
            tried = [attempt for attempt in tried if not attempt.is_overtaken()]
            try:
                found = decide(tried)
            except DataLossError:
                # A file that was replaced since the look, and deleted: the next look does not name it.
                if not store.refresh():
                    raise
                continue
            if isinstance(found, Settled):
                return found.answer
            tried.append(found)
            try:
                found.put()
            except StorageError as error:
                lost = isinstance(error, LostRaceError)
                if error.determinate and not lost:
                    tried.pop()
                    found.discard()
                    raise
                last = f", the last: {shown(str(error.__cause__ or error))}"
                if lost and error.determinate:
                    # Nothing was put: what the next look refuses, such as another log in its place, is then certain.
                    tried.pop()
                    found.discard()
                    continue
                store.refresh()
                # A lost race may be that with an earlier attempt of this very commit.
                if any(attempt.has_landed() for attempt in tried):
                    return done()
                if lost:
                    tried.pop()
                    found.discard()
                    continue
                # A write that is still under way may yet land: nothing is deleted. To try again is safe, because
                # all attempts exclude each other.
                unclear += 1
                if unclear == _MOST_UNCLEAR:
                    raise
            except LogFormatError:
                tried.pop()
                found.discard()
                raise
            else:
                store.refresh(after_put=True)
                # Reported as done, and not there: merged meanwhile, or a store that reports falsely.
                if found.is_shown() or any(attempt.has_landed() for attempt in tried):
                    return done()
        msg = f"could not {what}: found {MOST_ATTEMPTS} lost races{last}"
        raise StorageError(
            msg,
            hint="try again: too many others commit at once",
            context=context,
            determinate=not tried,
        )
    except Exception as error:
        stored = error if isinstance(error, StorageError) else None
        if not tried or (stored is not None and not stored.determinate):
            raise
        said = shown(described(error))
        message = f"could not tell whether a commit to log {context['path']!r} happened: found {said}"
        raise StorageError(
            message if stored is None else stored.message,
            hint="read the log to see whether the commit happened",
            context=context,
        ) from error
