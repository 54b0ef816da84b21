"""What dataflows of an instance have in common, and what each of them is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from spark_timely.compute.drive.working import Functions

if TYPE_CHECKING:
    from spark_timely.compute.drive.place import Place
    from spark_timely.compute.drive.working import TaskBodies
    from spark_timely.continual.engine import TaskEngine
    from spark_timely.dataflow.engine.arranged import RunTasks
    from spark_timely.dataflow.engine.cutting import Files
    from spark_timely.dataflow.engine.steps import Engine, Retained
    from spark_timely.log.log import Log
    from spark_timely.protocol.note import Fence
    from spark_timely.time.antichain import Antichain

__all__ = ["Runner", "Surroundings"]


@dataclass(frozen=True)
class Surroundings:
    """What dataflows of an instance have in common.

    Attributes
    ----------
    place : Place
    fence : Fence or None
        Of this start; None while the instance may not write.
    files_of : callable
        Gives what keeps account of a log's files.
    retain : callable, optional
        Gives what retains a log for a consumer.
    task_bodies : callable, optional
        Makes continual tasks ready; without it there are none.
    functions : Functions
        Of Python, which interactive dataflows call.
    keyed_bytes : callable
        As of `Working`.
    is_of_another : callable
        Whether another one than the dataflow of an export, by its id, has written a log.
    """

    place: Place
    fence: Fence | None
    files_of: Callable[[Log], Callable[[], Files]]
    retain: Callable[[Log, str], Retained] | None = None
    task_bodies: TaskBodies | None = None
    functions: Functions = field(default_factory=Functions)
    keyed_bytes: Callable[[], int | None] = lambda: None
    is_of_another: Callable[[Log, str], bool] = lambda _log, _id: False


class Runner(Protocol):
    """What writes the exports of a dataflow that keep rows: operators, or a continual task.

    `check`, then `begin`, then `step` as often as there is something to do, then `end`; `check` may be left out.
    """

    @property
    def engine(self) -> Engine | TaskEngine | None:
        """What takes the steps; None before `begin`."""

    @property
    def consumer(self) -> str:
        """Name under which what is read is retained. There once it has begun."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all logs that the engine reads or writes."""

    def check(self, fence: Fence, /) -> None:
        """Refuse what cannot run as things are, before anything is made."""

    def begin(self, fence: Fence, /) -> dict[str, Log]:
        """Make the logs of the outputs, claim them for a start, and return them by export."""

    def step(self, run_tasks: RunTasks, max_bytes: int | None, /) -> bool:
        """Take a step if anything is ready; return whether there was."""

    def behind(self, frontiers: Mapping[str, Antichain], upper: Antichain, /) -> list[str]:
        """Return the imports for which an output at `upper` waits; none where it has work to do."""

    def sizes(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return (export, records, runs, bytes) of each index."""

    def end(self) -> None:
        """Let go of what is held beside the logs."""
