"""The state that the parts of a driver share: the directory, the instance, its logs, and the one lock.

The driver makes it; the worker, peeks, subscribes and the other parts get it. What the instance has decided is not
here, but in `spark_timely.compute.instance`.

Invariants
----------
1. A thread that looks at the instance, or changes it, has the lock.
2. A handle on a log is of the thread that asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from spark_timely.compute.command import CreateInstance, Dataflow, Export
from spark_timely.compute.drive.directory import fence_of, is_anothers
from spark_timely.compute.instance import Instance, Running
from spark_timely.compute.introspection import RELATIONS
from spark_timely.compute.ledger import Ledger
from spark_timely.compute.observation import ErrorCount
from spark_timely.errors import (
    DataLossError,
    LogDamagedError,
    LogMissingError,
    MissingError,
    OwnershipError,
    StorageError,
    described,
    shown,
)
from spark_timely.log.log import Log, keep_log

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_timely.compute.command_log import CommandLog
    from spark_timely.compute.drive.directory import Directory
    from spark_timely.compute.drive.runtime import Runtime
    from spark_timely.protocol.note import Fence
    from spark_timely.time.domain import TimeDomain, TimeLike

__all__ = ["FAR_POLL_S", "State", "may_pass", "written"]

FAR_POLL_S: Final = 1.0
"""Between two looks at what is in a store, each of which is a request; and before what failed is looked at again."""


class State:
    """The state that the parts of one driver share.

    Parameters
    ----------
    directory : Directory
    runtime : Runtime
    commands : CommandLog
    now : callable
        A clock in seconds that never goes back.
    follows : bool
        Whether this start writes nothing; see `follows`.

    Attributes
    ----------
    instance : Instance
    ledger : Ledger
        As it is in the command log; empty of a start that follows.
    lock : threading.RLock
    wake : threading.Event
        Set where the next turn has something to do.
    follows : bool
        Whether this start only follows what another one writes.
    wants : callable
        Whether the reader of a subscribe's batches, given by its id, has room for another one.
    errors : dict of int to str
        What is shown as the error of each dataflow; an empty text for none.
    failed : dict of int to BaseException
        Why each dataflow gives nothing more, as long as things are as they are; those not there may.
    """

    def __init__(
        self, directory: Directory, runtime: Runtime, commands: CommandLog, now: Callable[[], float], *, follows: bool
    ) -> None:
        self.directory, self.runtime, self.commands, self.now, self.follows = directory, runtime, commands, now, follows
        self.instance = Instance()
        self.ledger = Ledger()
        self.lock = threading.RLock()
        self.wake = threading.Event()
        self.wants: Callable[[str], bool] = lambda _: True
        self.errors: dict[int, str] = {}
        self.failed: dict[int, BaseException] = {}
        self._started: tuple[Running, ...] = ()
        self._of_kind: dict[str, tuple[tuple[Running, Export], ...]] = {}
        self._started_at = -1

    # Logs ----------------------------------------------------------------------------------------

    def opened(self, path: str) -> Log:
        """Return a log, opened or as it is now."""
        return keep_log(path, storage_options=self.directory.options(path) or None)

    def own_log(self, path: str, name: str) -> Log | None:
        """Return the log of an output as it is now, if it is there and the dataflow of a name has written it.

        Raises
        ------
        StorageError
            If it cannot be looked at.
        """
        try:
            log = self.opened(path)
        except LogMissingError:
            return None
        return None if fence_of(log) is None or is_anothers(log, self.commands.instance, name) else log

    def is_of_another(self, log: Log, id_: str) -> bool:
        """Return whether another one than the dataflow of an export has written a log; not where the export is gone."""
        flow = self.dataflow_of(id_)
        return flow is not None and is_anothers(log, self.commands.instance, flow.name)

    # Dataflows -----------------------------------------------------------------------------------

    def runs(self) -> tuple[Running, ...]:
        """Return all dataflows that are there."""
        return (*self.instance.running(), *self.instance.suspended())

    def started(self) -> tuple[Running, ...]:
        """Return the dataflows that started; asked for often, and seldom another answer."""
        if self._started_at != self.instance.version:
            self._started, self._started_at = self.instance.running(), self.instance.version
            self._of_kind.clear()
        return self._started

    def started_exports(self, kind: str) -> tuple[tuple[Running, Export], ...]:
        """Return the exports of a kind of the dataflows that started, with these; as cheap as `started`."""
        started = self.started()
        if kind not in self._of_kind:
            self._of_kind[kind] = tuple(
                (running, export)
                for running in started
                for export in running.dataflow.exports
                if export.kind == kind and export.id in running.live
            )
        return self._of_kind[kind]

    # Collections, for any thread -----------------------------------------------------------------

    def exports(self) -> dict[str, Export]:
        """Return the exports of all dataflows that are there, by id."""
        with self.lock:
            return {each.id: each for running in self.runs() for each in running.dataflow.exports}

    def relations(self) -> dict[str, str]:
        """Return the relations of the introspection by the id of their collection."""
        with self.lock:
            return {id_: name for name, id_ in self.created().introspection.items()}

    def readable(self) -> dict[str, Export]:
        """Return what a dataflow may import, by id: exports, and relations of the introspection."""
        return self.exports() | {id_: self.directory.export_of(id_, name) for id_, name in self.relations().items()}

    def created(self) -> CreateInstance:
        """Return the command that made the instance."""
        return next(
            (each for each in self.instance.history.commands if isinstance(each, CreateInstance)), CreateInstance()
        )

    def dataflow_of(self, id_: str) -> Dataflow | None:
        """Return the dataflow of an export that is there; None if there is none."""
        with self.lock:
            return next((each.dataflow for each in self.runs() if id_ in each.dataflow.export_ids), None)

    def path_of(self, id_: str) -> str | None:
        """Return the path of the log of an export; None if it keeps no rows, or is not there."""
        export = self.exports().get(id_)
        return None if export is None else self.directory.path_of(export)

    def domain_of(self, id_: str) -> TimeDomain:
        """Return what times a collection has.

        Raises
        ------
        MissingError
            If there is none.
        """
        with self.lock:
            self.instance.collection(id_)
            flow = self.dataflow_of(id_)
            return self.created().domain if flow is None else flow.domain

    def schema_of(self, id_: str) -> pa.Schema:
        """Return the columns of a collection that keeps rows."""
        with self.lock:
            self.instance.collection(id_)
            relation = self.relations().get(id_)
            if relation is not None:
                return RELATIONS[relation]
            path = self.path_of(id_)
            if path is None:
                msg = f"could not tell the columns of {id_!r}: found that it keeps no rows"
                raise MissingError(msg, hint="ask for an index, or a log")
            return self.opened(path).schema

    # This start ----------------------------------------------------------------------------------

    @property
    def fence(self) -> Fence | None:
        """The start that writes, which is this one; None where it follows."""
        return self.commands.fence

    def check_held(self, *, within_s: float = 0.0) -> None:
        """Raise if another start has taken the instance over.

        Parameters
        ----------
        within_s : float
            As of `CommandLog.is_mine`.

        Raises
        ------
        OwnershipError
        """
        if self.commands.is_mine(within_s=within_s):
            return
        holder = self.commands.holder()
        msg = f"could not continue the instance in {self.directory.path!r}: found it taken over by {shown(holder)}"
        raise OwnershipError(msg, hint="follow the newer start, or end this one")

    def tell_error(self, number: int, ids: Iterable[str], error: BaseException | None) -> None:
        """Show the error of a dataflow, or that it has none any more."""
        text = "" if error is None else described(error)
        if error is None:
            self.failed.pop(number, None)
        if self.errors.get(number, "") == text:
            return
        self.errors[number] = text
        for id_ in ids:
            self.instance.tell(ErrorCount(id_, number, int(bool(text)), text))


def may_pass(error: BaseException, /) -> bool:
    """Whether storage could not be reached, which may be another thing in a moment."""
    return isinstance(error, StorageError) and not isinstance(error, DataLossError | LogDamagedError)


def written(domain: TimeDomain, time: tuple[int, ...]) -> TimeLike:
    """Return a time as people write it, which is how readers of logs take it."""
    found: TimeLike = domain.time_to_json(time)
    return found
