"""The command log: the lasting commands of a compute instance, kept as a collection of (number, command).

The driver of an instance writes it, and a start reads it (`spark_timely.compute.drive.recovery`). It knows rows only:
`spark_timely.compute.history` makes rows of commands, `spark_timely.compute.ledger` of marks of folders.

As a collection it can be reduced by one commit, of retractions and insertions: a reader finds the history before, or
the reduced one.

Invariants
----------
1. One start of the instance writes the log. Each start takes it over with a commit that moves nothing, by comparing the
   state that it read; from then on whatever an earlier start writes is refused (`Fence`).
2. A commit either happened or did not, and the writer knows which: where storage does not say, the log does. For no one
   else moves its frontier.
3. A log that is at another place than its newest start was is not taken over, unless the caller says that it was moved:
   a copy has the same id, and would write to the same outputs.
4. A start may look at the log before it takes it over, and refuse or correct it (`Judgement`). What is taken over is
   what was judged: in another state the log is judged again. What a judgement changes is in the commit that takes over.
"""

from __future__ import annotations

import os
import time as monotonic
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import (
    LogFormatError,
    OwnershipError,
    StorageError,
    UpperMismatchError,
    shown,
)
from spark_timely.log.log import Log, create_log, open_log
from spark_timely.log.store.urls import identity
from spark_timely.log.writer import StreamWriter
from spark_timely.protocol.note import Fence, Note, OutputNote
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_timely.compute.history import Row

__all__ = ["CommandLog", "Judge", "Judgement"]

_SCHEMA: Final = pa.schema([pa.field("number", pa.int64()), pa.field("command", pa.string())])
_OWNER: Final = "compute instance"
_STREAM: Final = "main"
_PLACE: Final = "at "
_MOST_TRIES: Final = 20
# To let the log forget is a commit of its own.
_STORED_BETWEEN: Final = 64


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict of a start on the command log that it takes over.

    Attributes
    ----------
    above : int
        The epoch is greater than this: than any that an output of the instance names.
    rows : sequence of (int, str) or None
        What the log has to hold from then on. None: what it holds.
    """

    above: int = 0
    rows: Sequence[Row] | None = None


Judge: TypeAlias = Callable[["Fence | None", "Sequence[Row]"], Judgement]
"""Is called with the start that holds the log and with its rows, and raises where they are not to be continued."""


class CommandLog:
    """The lasting commands of an instance.

    Parameters
    ----------
    log : Log
    now : callable
        A clock in seconds that never goes back.

    Notes
    -----
    Cost: a commit for each change, of as many rows as differ. A look at a log in a store is a request, which a
    caller that looks often may do without for a while (`within_s`): what an older start writes is refused all the same.

    Examples
    --------
    >>> import tempfile
    >>> commands = CommandLog.at(tempfile.mkdtemp() + "/commands")
    >>> commands.take_over().epoch
    1
    >>> commands.store([(0, "one"), (1, "two")])
    >>> commands.store([(0, "both")])
    >>> CommandLog.at(commands.log.path).rows()
    [(0, 'both')]
    """

    def __init__(self, log: Log, *, now: Callable[[], float] = monotonic.monotonic) -> None:
        self.log, self._now, self._looked_at = log, now, now()
        self.fence: Fence | None = None
        # As of a frontier of the log: a commit of this start that seemed to fail may be there at any later look.
        self._rows: dict[int, str] = {}
        self._frontier: Antichain | None = None
        self._stored = 0

    @classmethod
    def at(cls, path: str, *, storage_options: Mapping[str, str] | None = None, create: bool = True) -> CommandLog:
        """Open the command log at a place, or create it.

        Parameters
        ----------
        path : str
        storage_options : mapping of str to str, optional
        create : bool
            Whether to create it where there is none.

        Raises
        ------
        LogMissingError
            If there is none, and none is to be created.
        LogFormatError
            If another log is there.
        """
        if create:
            log = create_log(
                path, _SCHEMA, kind="collection", minimum=(0,), exist_ok=True, storage_options=storage_options
            )
        else:
            log = open_log(path, storage_options=storage_options)
        if log.kind != "collection" or log.schema.names != _SCHEMA.names or log.domain.arity != 1:
            msg = f"could not open command log {path!r}: found a {log.kind} with columns {shown(log.schema.names)}"
            raise LogFormatError(msg, hint="give the directory of a compute instance", context={"path": path})
        return cls(log)

    @property
    def instance(self) -> str:
        """Id of the instance: that of the log."""
        return self.log.core.log_id

    def holder(self) -> Fence | None:
        """Return the start that holds the log, as of a look at it now; None if none ever did."""
        self._look()
        return self._note().fence

    def is_mine(self, *, within_s: float = 0.0) -> bool:
        """Return whether nobody has taken the log over since this start did.

        Parameters
        ----------
        within_s : float
            A look into a store that is no older is good enough. On a disk a look costs nothing where nothing is new.
        """
        self._look(within_s)
        return self.fence is not None and self._note().fence == self.fence

    def version(self, *, within_s: float = 0.0) -> int:
        """Return a number that is another one where the log is: a look as of `is_mine`."""
        self._look(within_s)
        return self.log.core.version

    def rows(self) -> list[tuple[int, str]]:
        """Return the numbers and texts of the commands, as of a look at the log now, in order."""
        self.log.refresh()
        upper = self.log.frontier()
        if upper.is_empty or upper.elements[0][0] == self.log.domain.minimum[0]:
            return []
        found = self.log.snapshot(upper.elements[0][0] - 1).sort_by("number")
        numbers, texts = found["number"].to_pylist(), found["command"].to_pylist()
        if len(set(numbers)) < len(numbers) or pc.any(pc.not_equal(found["_diff"], 1)).as_py() or None in numbers:
            msg = f"could not read command log {self.log.path!r}: found numbers that are there more than once"
            raise LogFormatError(
                msg, hint="only the instance writes it: restore it to a version before", context={"path": self.log.path}
            )
        return list(zip(numbers, texts, strict=True))

    def take_over(self, *, judge: Judge | None = None, moved: bool = False) -> Fence:
        """Take the log over for a new start; commits of earlier ones are refused from then on (invariant 1).

        Parameters
        ----------
        judge : callable, optional
            Judges the log before it is taken over (invariant 4).
        moved : bool
            Whether the log was meant to be moved to where it is (invariant 3).

        Returns
        -------
        Fence

        Raises
        ------
        OwnershipError
            If the log was somewhere else when it was taken over last.
        StorageError
            If the log cannot be written.
        """
        path, local = self.log.path, self.log.core.storage.local
        place = os.path.realpath(path) if local else identity(path, self.log.core.storage_options)
        self.log.core.open_stream(_STREAM, owner=_OWNER)
        for number in range(_MOST_TRIES):
            self.log.refresh()
            note = self._note()
            before = note.outline.removeprefix(_PLACE) if note.outline else place
            if before != place and not moved:
                msg = f"could not take over command log {place!r}: found that it was {before!r}"
                raise OwnershipError(
                    msg,
                    hint="a copy would write to the outputs of the other; if it was moved, say moved=True",
                    context={"path": path},
                )
            rows = self.rows()
            state = self.log.core.stream(_STREAM)
            assert state is not None  # it was opened above
            if self._note() != note:
                continue  # another start, between the two looks
            judgement = Judgement() if judge is None else judge(note.fence, rows)
            wanted = dict(rows if judgement.rows is None else judgement.rows)
            epoch = max(judgement.above, 0 if note.fence is None else note.fence.epoch) + 1
            fence = Fence(self.instance, epoch, uuid.uuid4().hex)
            taken = Note(output=OutputNote(fence=fence, outline=f"{_PLACE}{place}"))
            reason = f"start {epoch}"
            try:
                if not self._append(state.frontier, dict(rows), wanted, reason, taken, fence):
                    StreamWriter(self.log.core, _STREAM, _OWNER).compare_and_append_files(
                        (), expected=state, upper=state.frontier, reason=reason, note=taken, fence=fence
                    )
            except (UpperMismatchError, OwnershipError):
                if number + 1 == _MOST_TRIES:
                    raise
                continue
            except StorageError as error:
                if error.determinate or self.holder() != fence:
                    raise
            self.fence = fence
            return fence
        msg = f"could not take over command log {place!r}: found that others take it over again and again"
        raise OwnershipError(msg, hint="end the other starts", context={"path": path})

    def _append(
        self,
        frontier: Antichain,
        before: Mapping[int, str],
        wanted: Mapping[int, str],
        reason: str,
        note: Note | None,
        fence: Fence,
    ) -> bool:
        """Bring the log to hold some rows, in one commit; return whether there was anything to do."""
        gone = [item for item in before.items() if wanted.get(item[0]) != item[1]]
        come = [item for item in wanted.items() if before.get(item[0]) != item[1]]
        changes = (*gone, *come)
        if not changes:
            return False
        at = frontier.elements[0][0]
        table = pa.table(
            {
                "_time": pa.array([at] * len(changes), pa.int64()),
                "_diff": pa.array([-1] * len(gone) + [1] * len(come), pa.int64()),
                "number": pa.array([number for number, _ in changes], pa.int64()),
                "command": pa.array([text for _, text in changes], pa.string()),
            }
        )
        StreamWriter(self.log.core, _STREAM, _OWNER).compare_and_append(
            table, expected=frontier, upper=at + 1, reason=reason, note=note, fence=fence
        )
        return True

    def store(self, rows: Iterable[tuple[int, str]]) -> None:
        """Bring the log to hold some commands and no others, in one commit; none where it does already.

        Parameters
        ----------
        rows : iterable of (int, str)
            Numbers, each once, and texts.

        Raises
        ------
        OwnershipError
            If this start does not hold the log, or not any more. Nothing was written.
        StorageError
            If the log cannot be written. Whether it was is known all the same: the next call goes from what is there.
        """
        wanted = dict(rows)
        if self.fence is None:
            msg = f"could not write command log {self.log.path!r}: found that it was not taken over"
            raise OwnershipError(msg, hint="take it over first", context={"path": self.log.path})
        state = self.log.core.stream(_STREAM)
        assert state is not None  # it was taken over
        if state.frontier != self._frontier:
            self._rows, self._frontier = dict(self.rows()), self.log.frontier()
        at = self._frontier.elements[0][0]
        try:
            if not self._append(self._frontier, self._rows, wanted, "commands", None, self.fence):
                return
        except StorageError as error:
            if error.determinate or not self._happened(at):
                raise
        except UpperMismatchError:
            # Nobody else moves it: a commit of this start that was said to have failed came after all.
            if not self.is_mine():
                self._raise_lost()
            self.store(wanted.items())
            return
        self._rows, self._frontier = wanted, Antichain.of(at + 1)
        self._stored += 1
        if self._stored % _STORED_BETWEEN == 0:
            # What commands were before interests nobody.
            self.log.allow_compaction(at)

    def add(self, rows: Iterable[tuple[int, str]]) -> None:
        """Have rows in the log beside those that are there; what `store` says holds here too."""
        state = self.log.core.stream(_STREAM)
        if state is None or state.frontier != self._frontier:
            self._rows, self._frontier = dict(self.rows()), self.log.frontier()
        self.store({**self._rows, **dict(rows)}.items())

    def _happened(self, at: int) -> bool:
        """Whether a commit that completes a time is there (invariant 2)."""
        if not self.is_mine():
            self._raise_lost()
        state = self.log.core.stream(_STREAM)
        return state is not None and not state.frontier.less_equal((at,))

    def _raise_lost(self) -> None:
        holder = self._note().fence
        msg = f"could not write command log {self.log.path!r}: found it taken over by {shown(holder)}"
        raise OwnershipError(msg, hint="follow the newer start, or end this one", context={"path": self.log.path})

    def _look(self, within_s: float = 0.0) -> None:
        if not self.log.core.storage.local:
            if self._now() - self._looked_at < within_s:
                return
        elif not self.log.core.has_news():
            return
        self.log.refresh()
        self._looked_at = self._now()  # not of a look that failed

    def _note(self) -> OutputNote:
        state = self.log.core.stream(_STREAM)
        note = None if state is None else state.note.output
        return OutputNote() if note is None else note
