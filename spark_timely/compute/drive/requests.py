"""Requests of other processes to an instance, passed as files in its directory.

The command line asks (`spark_timely.cli.instance`), and the `Handle` that runs the instance takes the requests in its
turns. A request is a file in the directory of the instance, which gets its name when it is complete. The process that
maintains it takes requests in the order of their names, which begin with the time in twenty digits, and answers each by
a file beside it. A process that asks never writes the command log. Of request ``NAME`` there are, in this order:

=================  ==================================================================================================
``NAME.json``      what is asked for
``NAME.begun``     what is to be changed, as it was before; not of what creates, nor where there is nothing to change
``NAME.answer``    what became of it
=================  ==================================================================================================

Invariants
----------
1. A request is taken until it is answered: by the next start, if this one ends between, or is replaced. The next start
   knows what was done, and neither refuses it nor does it once more: what the request created names it, and what it
   changed is not as ``NAME.begun`` says. Only a value that was set back meanwhile is set once more.
2. An answer is there as a whole, or not at all. As long as it is there, or was, its request is not taken: the client
   that takes the answer deletes the request first.
3. A request that fails because of storage is tried again, and the others do not wait for it.
4. An entry of the folder that cannot be read, or is no file at all, holds up no other one: it is passed over, with a
   warning once, until it can be read. Nothing but files is ever opened: to open a pipe would wait for a writer.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time as clock
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from spark_timely import errors
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
from spark_timely.masking import masked_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spark_timely.compute.drive.directory import Directory

__all__ = ["Requests"]

_log = masked_logger("spark_timely.compute")

_FOLDER: Final = "requests"
_ASKED: Final = ".json"
_BEGUN: Final = ".begun"
_ANSWERED: Final = ".answer"
# Of requests alone; a name with a dot was not given as a whole.
_OURS: Final = re.compile(r"\.?([0-9]{20}).*", re.DOTALL)
# Between two looks for an answer on a disk; a look into a store is paid for.
_POLL_S: Final = 0.05
_FAR_POLL_S: Final = 0.5
_KEPT_S: Final = 86_400.0
# A few looks in a second.
_MOST_TRIES: Final = 40

VERBS: Final = ("index", "maintain", "continual_task", "drop", "configure", "allow_compaction", "remove")
"""What can be asked for: methods of the handle that takes requests."""

_CREATE: Final = ("index", "maintain", "continual_task")
# What these methods take by its place, beside the id.
_FIRST: Final[Mapping[str, tuple[str, ...]]] = {
    "index": ("id", "query"),
    "maintain": ("id", "query", "into"),
    "continual_task": ("id", "query"),
    "allow_compaction": ("id", "frontier"),
    "configure": (),
}


class Taker(Protocol):
    """A handle that does what is asked for, by methods of the names in `VERBS`."""

    def request_of(self, id_: str, /) -> str | None:
        """Return which request an export was made for; None if there is no such export, or none was."""

    def write_down(self) -> None:
        """Have all that was done in the command log when this returns."""

    def description_of(self, id_: str, /) -> str | None:
        """Return what an export is, which no other one of its id is; None if there is none."""

    def state_of_folder(self, folder: str, /) -> str | None:
        """Return what a folder is; None if there is none of that name."""

    def configured(self, names: Iterable[str], /) -> Mapping[str, object]:
        """Return values of the configuration; None for what has none."""

    def warnings_of(self, id_: str, /) -> Sequence[str]:
        """Return what was warned of when a collection was created."""

    def may_write(self) -> bool:
        """Return whether this process is the one that maintains the instance, and has not ended."""


class Requests:
    """The requests of an instance.

    Parameters
    ----------
    directory : Directory
    """

    def __init__(self, directory: Directory) -> None:
        self._storage = open_storage(directory.below(_FOLDER), dict(directory.storage_options) or None)
        self._directory = directory
        self._failed: dict[str, int] = {}
        # Done, and not answered yet: storage failed between.
        self._done: dict[str, dict[str, object]] = {}
        # Entries that a warning was about.
        self._passed_over: set[str] = set()

    @property
    def local(self) -> bool:
        """Whether a look at them costs nothing."""
        return self._storage.local

    def ask(self, verb: str, arguments: Mapping[str, object], *, timeout_s: float = 30.0) -> list[str]:
        """Ask for something, and wait for the answer.

        Parameters
        ----------
        verb : str
        arguments : mapping
            Of the method, as JSON has them; ``id`` is what comes first.
        timeout_s : float

        Returns
        -------
        list of str
            What the answer warns of.

        Raises
        ------
        TimelyError
            If it was refused: of the class that was raised there, `OperatorError` if it is none of the library's.
        WaitTimeoutError
            If nobody answered. The request stays, for the process that maintains the instance next.
        """
        if verb not in VERBS:
            msg = f"could not ask the instance in {self._directory.path!r}: found verb {shown(verb)}"
            raise InvalidUsageError(msg, hint=f"choose among {', '.join(VERBS)}")
        name = f"{clock.time_ns():020d}-{uuid.uuid4().hex}"
        text = json.dumps({"verb": verb, "arguments": dict(arguments)})
        if self._storage.local:
            self._storage.write(f"{name}.new", b"")
            self._storage.delete(f"{name}.new")  # the folder is there from now on
        self._storage.put(f"{name}{_ASKED}", text.encode(), replace=False)
        found: list[bytes] = []

        def look(_: float) -> bool:
            answer = self._find(f"{name}{_ANSWERED}")
            if answer is not None:
                found.append(answer)
            return answer is not None

        if not wait_until(look, timeout_s=timeout_s, poll_s=_POLL_S if self._storage.local else _FAR_POLL_S):
            msg = (
                f"could not wait for the instance in {self._directory.path!r}: found no answer after {timeout_s:g} "
                "seconds"
            )
            raise WaitTimeoutError(msg, hint="start the instance: it takes the request up then")
        for end in (_ASKED, _ANSWERED):  # in this order: invariant 2
            self._storage.delete(f"{name}{end}")
        answer = json.loads(found[0])
        error = answer.get("error")
        if error is not None:
            raise _raised(error)
        return [str(warning) for warning in answer.get("warnings", ())]

    def take(self, handle: Taker) -> int:
        """Do what was asked and is not answered yet; return how many requests that were."""
        names = self._storage.names()
        there = set(names)
        asked = [name.removesuffix(_ASKED) for name in names if name.endswith(_ASKED) and _OURS.fullmatch(name)]
        for kept in (self._failed, self._done):  # of those that somebody took back, or answered
            for name in kept.keys() - set(asked):
                del kept[name]
        self._passed_over &= there
        taken, failed = 0, None
        for name in asked:
            if f"{name}{_ANSWERED}" in there:
                self._done.pop(name, None)
                self._close(name)  # the process that answered it ended before it could
                continue
            if name not in self._done:
                try:
                    content = self._find(f"{name}{_ASKED}")
                except Exception as failure:  # noqa: BLE001 - whatever it is, the others are taken (invariant 4)
                    self._pass_over(f"{name}{_ASKED}", failure)
                    continue
                if content is None:
                    continue
                warnings: list[str] = []
                try:
                    error = self._do(handle, name, content, warnings)
                except (StorageError, OSError) as failure:
                    tries = self._failed[name] = self._failed.get(name, 0) + 1
                    if tries < _MOST_TRIES:
                        taken += 1
                        continue  # it may pass
                    error = _said(failure)
                if error is not None and not handle.may_write():
                    return 0  # that is why; the process that writes does it
                self._failed.pop(name, None)
                self._done[name] = {"error": error} | ({"warnings": warnings} if warnings else {})
            taken += 1
            answer = json.dumps(self._done[name]).encode()
            try:
                self._storage.put(f"{name}{_ANSWERED}", answer, replace=True)
            except (StorageError, OSError) as failure:
                failed = failed or failure  # it is answered at another look, and the others now
                continue
            del self._done[name]
            self._close(name)
        self._sweep(names)
        if failed is not None:
            raise failed
        return taken

    def _find(self, name: str) -> bytes | None:
        """Return what is in a file; None if there is none.

        Raises
        ------
        StorageError
            If it is no file, or cannot be read.
        """
        if self._storage.local:
            path = self._storage.full(name)
            try:
                is_other = not stat.S_ISREG(os.stat(path).st_mode)  # a link is what it leads to
            except FileNotFoundError:
                is_other = os.path.islink(path)
            if is_other:
                msg = f"could not read {path!r}: found that it is no file"
                raise StorageError(msg, hint="delete it", determinate=True)
        return self._storage.find(name)

    def _pass_over(self, name: str, failure: Exception) -> None:
        """Warn, once, of an entry that can be neither taken nor deleted."""
        if name not in self._passed_over:
            self._passed_over.add(name)
            _log.warning(
                "entry %s of the requests in %r is passed over: %s",
                shown(name), self._directory.path, described(failure),
            )  # fmt: skip

    def _close(self, name: str) -> None:
        """Delete a request that is answered."""
        for end in (_ASKED, _BEGUN):
            self._delete(f"{name}{end}")

    def _delete(self, name: str) -> None:
        """Delete a file; of what is there and no file, the others do not wait for that (invariant 4)."""
        try:
            self._storage.delete(name)
        except (StorageError, OSError) as failure:
            if not self._storage.local:
                raise
            self._pass_over(name, failure)

    def _do(self, handle: Taker, name: str, content: bytes, warnings: list[str]) -> dict[str, str | None] | None:
        """Do one thing; return why it was refused. What it warns of is added."""
        try:
            asked = json.loads(content)
            verb, arguments = asked["verb"], dict(asked["arguments"])
            if verb not in VERBS:
                msg = f"could not do what was asked: found verb {shown(verb)}"
                raise InvalidUsageError(msg, hint=f"choose among {', '.join(VERBS)}")
            if verb in _CREATE:
                if handle.request_of(str(arguments["id"])) == name:
                    return None  # by a process that ended before it could say so
                arguments["request"] = name
            elif self._was_done(name, _found(handle, verb, arguments)):
                return None
            first = [arguments.pop(word) for word in _FIRST.get(verb, ("id",)) if word in arguments]
            getattr(handle, verb)(*first, **arguments)
            if verb in _CREATE:
                warnings += handle.warnings_of(str(first[0]))
            if verb == "allow_compaction":
                handle.write_down()  # answered, nobody says it again
        except (DataLossError, LogDamagedError) as error:
            return _said(error)
        except (StorageError, OSError):
            raise  # it may pass: the request is taken up once more
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            return _said(error)
        return None

    def _was_done(self, name: str, found: str | None) -> bool:
        """Return whether what a request is to change is not as it was when it was begun; say that it is begun now."""
        before = self._find(f"{name}{_BEGUN}")
        if before is None and found is not None:
            with suppress(FileExistsError):
                self._storage.put(f"{name}{_BEGUN}", found.encode(), replace=False)
                return False
            before = self._find(f"{name}{_BEGUN}")  # by another start, at the same moment
        return before is not None and before.decode() != found

    def _sweep(self, names: list[str]) -> None:
        """Delete what is left of requests that are answered, and answers that nobody took for a day."""
        before = clock.time_ns() - int(_KEPT_S * 1e9)
        there = set(names)
        for name in names:
            found = _OURS.fullmatch(name)
            if found is None:
                continue
            if name.endswith(_BEGUN) and f"{name.removesuffix(_BEGUN)}{_ASKED}" not in there:
                self._delete(name)
            if name.endswith((_ANSWERED, ".tmp", ".new")) and int(found[1]) < before:
                self._delete(name)


def _found(handle: Taker, verb: str, arguments: Mapping[str, object]) -> str | None:
    """Return what a request is to change, as it is now; None if it is not there."""
    if verb == "configure":
        return json.dumps(dict(handle.configured(arguments)), sort_keys=True)
    if verb == "remove":
        return handle.state_of_folder(str(arguments["id"]))
    return handle.description_of(str(arguments["id"]))


def _said(error: Exception) -> dict[str, str | None]:
    """Return an error as an answer has it."""
    return {"kind": type(error).__name__, "message": described(error), "hint": getattr(error, "hint", None)}


def _raised(said: Mapping[str, str | None]) -> TimelyError:
    """Return the error that an answer has; one without a class is of an earlier version."""
    kind = getattr(errors, str(said.get("kind")), None)
    found = kind if isinstance(kind, type) and issubclass(kind, TimelyError) else OperatorError
    return found(str(said["message"]), hint=said["hint"] or "nothing was changed")
