"""The operator that represents the body of a continual task: its inputs, and the schema of what it gives.

A continual task (`spark_timely.continual`) computes its output by a *body*: SQL, or a function of the user. For the
engine the task is a dataflow whose one output has this operator as its view, so that logs, plans and failures are those
of any output. `spark.tasks.continual` and `compute.drive.runners` make it.

No method of a stream makes a body, and no task of a dataflow evaluates one. `spark_timely.continual` has it evaluated
whole, at one time: it takes from its inputs the inserts at that time, and from its references the contents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_timely.dataflow.views import Names, Operator, View
from spark_timely.errors import TimelyInternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["Body"]


@dataclass(frozen=True, eq=False)
class Body(Operator):
    """The body of a continual task. The inputs of its view are the logs that the task reads, references among them.

    Attributes
    ----------
    identity : str
        Tells one body from another: what it computes, and which log has which name in it.
    deletes : bool
        Whether it takes rows away, so that the output is a collection.
    text : str
        The body in a few words, for people.
    """

    identity: str = ""
    deletes: bool = False
    text: str = ""

    # A body is evaluated at whole times.
    rowwise = False

    def gives_updates(self, inputs: Sequence[View]) -> bool:
        """Return whether the output is a collection; that of an input says nothing of it."""
        return self.deletes

    def describe(self) -> str:
        """Return the body in a few words."""
        return self.text

    def hashed(self, view: View) -> tuple[str, object]:
        """Return what tells it from others."""
        return "body", self.identity

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Refuse: no task of a dataflow evaluates a body."""
        msg = f"the body of task {view.name!r} was evaluated as an operator, invariant 1 of continual.engine"
        raise TimelyInternalError(msg)
