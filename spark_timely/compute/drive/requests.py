"""Requests of other processes: what an instance is asked to do by those who do not run it.

A request is a file in the directory of the instance, given its name as a whole. The process that maintains it takes
requests in the order of their names, which begin with the time, and answers each by a file beside it. Nobody who asks
writes the command log.

Invariants
----------
1. A request is taken until it is answered: by the next start, if this one ends between, or is not the one that writes
   any more. What it created names it, so that it is known again and not refused as a repetition.
2. An answer is there as a whole, or not at all.
3. A request that fails of storage is tried again, but the others do not wait for it.
"""

from __future__ import annotations

import json
import time as clock
import uuid
from typing import TYPE_CHECKING, Final, Protocol

from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    LogDamagedError,
    OperatorError,
    StorageError,
    TimelyError,
    WaitTimeoutError,
    described,
    shown,
)
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_timely.compute.drive.place import Place

__all__ = ["Requests"]

_FOLDER: Final = "requests"
_ASKED: Final = ".json"
_ANSWERED: Final = ".answer"
_POLL_S: Final = 0.05
_KEPT_S: Final = 86_400.0
# A few looks in a second.
_MOST_TRIES: Final = 40

VERBS: Final = ("index", "maintain", "drop", "configure", "allow_compaction")
"""What can be asked for: methods of the handle that takes requests."""


class Taker(Protocol):
    """A handle that does what is asked for, by methods of the names in `VERBS`."""

    def request_of(self, id_: str, /) -> str | None:
        """Return which request an export was made for; None if there is no such export, or none was."""

    def may_write(self) -> bool:
        """Return whether this process is the one that maintains the instance, and has not ended."""


class Requests:
    """The requests of an instance.

    Parameters
    ----------
    place : Place
    """

    def __init__(self, place: Place) -> None:
        self._storage = open_storage(place.below(_FOLDER), dict(place.storage_options) or None)
        self._place = place
        self._failed: dict[str, int] = {}

    def ask(self, verb: str, arguments: Mapping[str, object], *, timeout_s: float = 30.0) -> None:
        """Ask for something, and wait for the answer.

        Parameters
        ----------
        verb : str
        arguments : mapping
            Of the method, as JSON has them; ``id`` is what comes first.
        timeout_s : float

        Raises
        ------
        OperatorError
            If it was refused.
        WaitTimeoutError
            If nobody answered. The request stays, for the process that maintains the instance next.
        """
        if verb not in VERBS:
            msg = f"could not ask the instance in {self._place.directory!r}: found verb {shown(verb)}"
            raise InvalidUsageError(msg, hint=f"choose among {', '.join(VERBS)}")
        name = f"{clock.time_ns():020d}-{uuid.uuid4().hex}"
        text = json.dumps({"verb": verb, "arguments": dict(arguments)})
        self._storage.write(f"{name}.new", b"")
        self._storage.delete(f"{name}.new")  # the folder is there from now on
        self._storage.put(f"{name}{_ASKED}", text.encode(), replace=False)
        found: list[bytes] = []

        def look(_: float) -> bool:
            answer = self._storage.find(f"{name}{_ANSWERED}")
            if answer is not None:
                found.append(answer)
            return answer is not None

        if not wait_until(look, timeout_s=timeout_s, poll_s=_POLL_S):
            msg = (
                f"could not wait for the instance in {self._place.directory!r}: found no answer after {timeout_s:g} "
                "seconds"
            )
            raise WaitTimeoutError(msg, hint="start the instance: it takes the request up then")
        self._storage.delete(f"{name}{_ANSWERED}")
        error = json.loads(found[0]).get("error")
        if error is not None:
            raise OperatorError(str(error["message"]), hint=error["hint"] or "nothing was changed")

    def take(self, handle: Taker) -> int:
        """Do what was asked and is not answered yet; return how many requests that were."""
        names = self._storage.names()
        asked = [name.removesuffix(_ASKED) for name in names if name.endswith(_ASKED)]
        for name in asked:  # one turn per request
            content = self._storage.find(f"{name}{_ASKED}")
            if content is None:
                continue
            try:
                error = self._done(handle, name, content)
            except (StorageError, OSError) as failure:
                tries = self._failed[name] = self._failed.get(name, 0) + 1
                if tries < _MOST_TRIES:
                    continue  # it may pass
                error = {"message": described(failure), "hint": getattr(failure, "hint", None)}
            if error is not None and not handle.may_write():
                return 0  # that is why; the process that writes does it
            self._failed.pop(name, None)
            answer = json.dumps({"error": error}).encode()
            self._storage.put(f"{name}{_ANSWERED}", answer, replace=True)
            self._storage.delete(f"{name}{_ASKED}")
        self._forget(names)
        return len(asked)

    def _done(self, handle: Taker, name: str, content: bytes) -> dict[str, str | None] | None:
        """Do one thing; return why it was refused."""
        try:
            asked = json.loads(content)
            verb, arguments = asked["verb"], dict(asked["arguments"])
            if verb not in VERBS:
                msg = f"could not do what was asked: found verb {shown(verb)}"
                raise InvalidUsageError(msg, hint=f"choose among {', '.join(VERBS)}")
            if verb in ("index", "maintain"):
                if handle.request_of(str(arguments["id"])) == name:
                    return None  # by a process that ended before it could say so
                arguments["request"] = name
            first = [arguments.pop(word) for word in ("id", "query", "into", "frontier") if word in arguments]
            getattr(handle, verb)(*first, **arguments)
        except (DataLossError, LogDamagedError) as error:
            return {"message": error.message, "hint": error.hint}
        except (StorageError, OSError):
            raise  # it may pass: the request is taken up once more
        except TimelyError as error:
            return {"message": error.message, "hint": error.hint}
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            return {"message": described(error), "hint": None}
        return None

    def _forget(self, names: list[str]) -> None:
        """Delete answers that nobody took for a day."""
        before = clock.time_ns() - int(_KEPT_S * 1e9)
        for name in names:  # one turn per file
            if name.endswith(_ANSWERED) and name[:20].isdigit() and int(name[:20]) < before:
                self._storage.delete(name)
