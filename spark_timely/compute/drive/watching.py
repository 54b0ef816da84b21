"""Logs that somebody waits for news of, and who does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from spark_timely.compute.drive.context import FAR_POLL_S, Context
from spark_timely.log.log import Log, open_log
from spark_timely.masking import masked_logger

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

__all__ = ["Watches"]

_log = masked_logger("spark_timely.compute")


class _Watched:
    """A log that somebody waits for news of."""

    def __init__(self, log: Log, now: Callable[[], float]) -> None:
        self.log, self._now, self._looked_at = log, now, now()
        self._failed = False

    def has_news(self) -> bool:
        """Return whether there may be news; what is far, or cannot be looked at, is asked once a second."""
        if self._failed or not self.log.storage.local:
            if self._now() - self._looked_at < FAR_POLL_S:
                return False
        elif not self.log.has_news():
            return False
        self._looked_at = self._now()
        before = self.log.version
        failed, self._failed = self._failed, True
        self.log.refresh()
        self._failed = False
        return failed or self.log.version != before


class Watches:
    """The logs that dataflows read, by path, with the numbers of these; and those that peeks wait for.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._watched: dict[str, _Watched] = {}
        self._readers: dict[str, set[int]] = {}
        self._asked: set[str] = set()

    def open(self, paths: Iterable[str]) -> Mapping[str, _Watched]:
        """Return what watches logs, opened where nobody watches them yet.

        Raises
        ------
        TimelyError
            If one cannot be opened. Then nothing is watched that was not.
        """
        return {path: self._watched.get(path) or self._new(path) for path in paths}

    def _new(self, path: str) -> _Watched:
        log = open_log(path, storage_options=self._context.place.options(path) or None)
        return _Watched(log, self._context.now)

    def add(self, number: int, opened: Mapping[str, _Watched]) -> None:
        """Watch logs for a dataflow."""
        for path, watched in opened.items():  # one turn per import
            self._readers.setdefault(path, set()).add(number)
            self._watched.setdefault(path, watched)

    def remove(self, number: int) -> None:
        """Watch nothing for a dataflow any more."""
        for readers in self._readers.values():
            readers.discard(number)
        for path in [path for path, readers in self._readers.items() if not readers]:
            del self._readers[path]
            if path not in self._asked:
                self._watched.pop(path, None)

    def readers(self, path: str) -> AbstractSet[int]:
        """Return which dataflows read a log."""
        return self._readers.get(path, set())

    def look(self) -> tuple[bool, dict[int, None]]:
        """Return whether any log has news, and which dataflows read those that have."""
        news, found = False, dict[int, None]()
        for path, watched in self._watched.items():  # one turn per log
            try:
                if not watched.has_news():
                    continue
            except Exception as error:  # noqa: BLE001 - those who read it say so
                _log.debug("log %r cannot be looked at: %s", path, error)
            news = True
            found |= dict.fromkeys(self.readers(path))
        return news, found

    def version_for_peek(self, path: str) -> object:
        """Return what changes where a log has news that a peek waits for; it is watched from now on."""
        self._asked.add(path)
        watched = self._watched.get(path)
        if watched is None:
            try:
                watched = self._watched[path] = self._new(path)
            except Exception as error:  # noqa: BLE001 - it is the answer, once it is asked for there
                return str(error)
        return watched.log.version

    def keep_for_peeks(self, paths: AbstractSet[str]) -> None:
        """Watch logs no longer that no peek waits for, except these."""
        for path in self._asked - paths:
            self._asked.remove(path)
            if not self._readers.get(path):
                self._watched.pop(path, None)

    @property
    def only_far(self) -> bool:
        """Whether all logs are in stores, where each look is a request."""
        return all(not watched.log.storage.local for watched in self._watched.values())
