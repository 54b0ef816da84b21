"""How an instance gets its work done: what whoever has a session of Spark hands over to the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_timely.dataflow.engine.arranged import RunTasks
    from spark_timely.dataflow.engine.cutting import Files
    from spark_timely.dataflow.engine.steps import Retained
    from spark_timely.log.log import Log

__all__ = ["Copy", "Working"]

Copy = Callable[[str, str, object, Mapping[str, object]], int]
"""Copies the contents of a log at a time into a folder; takes path, folder, time, details; returns how many rows."""


@dataclass(frozen=True)
class Working:
    """How an instance gets its work done.

    Attributes
    ----------
    tasks : callable
        Gives what runs the tasks of a dataflow, by its name and the storage options of its logs.
    files_of : callable
        Gives what keeps account of a log's files.
    copy : callable, optional
        See `Copy`.
    job : callable, optional
        Answers a peek that has to read much: see `spark_timely.answers.peek.peek`.
    retain : callable, optional
        Gives what retains a log for a consumer.
    """

    tasks: Callable[[str, Mapping[str, Mapping[str, str]]], RunTasks]
    files_of: Callable[[Log], Callable[[], Files]]
    copy: Copy | None = None
    job: Callable[[Any], Any] | None = None
    retain: Callable[[Log, str], Retained] | None = None
