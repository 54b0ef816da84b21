"""The operator interface of a scope: reports of messages and capabilities out, movements of input frontiers in.

`Operate` is what a `subgraph.SubgraphBuilder` takes, as timely's trait of that name; `Operator` is a leaf that
implements it, to derive from, and a `Subgraph` is one that has operators inside. The operators of dataflows over logs
are others (`dataflow.operators`): no worker runs them.

The protocol of an operator
---------------------------
1. `get_internal_summary` is called once, when the operator joins a scope: what its inputs may do to
   its outputs, and the capabilities that it holds at the start, *for all peers together*: every peer
   enters the same numbers, and they are never exchanged.
2. `set_external_summary` is called once, when the scope is complete.
3. `push_external_progress` may come before any turn, and hands over how the frontiers of the inputs
   moved. All of it must be taken.
4. `pull_internal_progress` is a turn. The operator says what it consumed, how its capabilities
   changed and what it produced since the last turn: all that belongs together, in one turn. A new
   capability is reported no later than the consumption that gave it, and what was produced no later
   than the drop of the capability that was used.

A leaf speaks for this worker only (`local`); a nested scope for all peers, because what it says was
exchanged inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from spark_timely.progress.change_batch import PortChanges
from spark_timely.progress.reachability import Paths
from spark_timely.time.antichain import Time

__all__ = ["InternalSummary", "Operate", "Operator"]

InternalSummary: TypeAlias = Sequence[Paths] | None
"""What paths from each input do. None: from every input to every output, times stay as they are."""


class Operate(Protocol):
    """The interface of an operator to its scope; the module says in which order the methods are called.

    `Operator` has the usual answers.

    Notes
    -----
    Source: timely `progress/operate.rs`.
    """

    @property
    def name(self) -> str:
        """Name in errors, warnings and events."""

    @property
    def inputs(self) -> int:
        """Number of inputs."""

    @property
    def outputs(self) -> int:
        """Number of outputs."""

    @property
    def local(self) -> bool:
        """Whether it speaks for this worker only; a nested scope speaks for all peers."""

    @property
    def notify(self) -> bool:
        """Whether it receives changes of frontiers. One that does not is never shut down."""

    def get_internal_summary(self) -> tuple[InternalSummary, PortChanges]:
        """Return the paths from inputs to outputs, and the capabilities held at the start by all peers."""

    def set_external_summary(self, frontier: PortChanges) -> None:
        """Learn the frontiers of the inputs at the start; what is not taken comes with the first push."""

    def push_external_progress(self, changes: PortChanges) -> None:
        """Learn how the frontiers of the inputs moved; take all of it."""

    def pull_internal_progress(self, consumed: PortChanges, internal: PortChanges, produced: PortChanges) -> bool:
        """Do some work, and say what changed.

        Parameters
        ----------
        consumed : PortChanges
            To be filled with the number of messages taken, by input and time.
        internal : PortChanges
            To be filled with changes of the capabilities held, by output and time.
        produced : PortChanges
            To be filled with the number of messages sent, by output and time.

        Returns
        -------
        bool
            Whether it wants another turn although nobody can see why.
        """

    def close(self) -> None:
        """Let go of everything outside of itself; called once, when it is dropped."""


class Operator:
    """An operator with the usual answers, to be derived from.

    It is a leaf, receives changes of frontiers, passes times from every input to every output as
    they are, and holds one capability at the minimum at each output for each peer.

    Parameters
    ----------
    name : str
    inputs, outputs : int
    peers : int
        Number of workers.
    minimum : tuple of int
        Least time of the scope.
    summary : per input and output, the steps of each path; optional
    notify : bool

    Examples
    --------
    >>> class Sink(Operator):
    ...     def pull_internal_progress(self, consumed, internal, produced):
    ...         return False
    >>> Sink("sink", inputs=1, outputs=0).get_internal_summary()
    (None, PortChanges([]))
    """

    local = True

    def __init__(
        self,
        name: str,
        *,
        inputs: int,
        outputs: int,
        peers: int = 1,
        minimum: Time = (0,),
        summary: InternalSummary = None,
        notify: bool = True,
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.peers = peers
        self.minimum = minimum
        self.summary = summary
        self.notify = notify

    def get_internal_summary(self) -> tuple[InternalSummary, PortChanges]:
        """Return the paths from inputs to outputs, and a capability at the minimum per output and peer.

        Examples
        --------
        >>> Operator("source", inputs=0, outputs=1, peers=3).get_internal_summary()[1]
        PortChanges([(0, (0,), 3)])
        """
        capabilities = PortChanges(len(self.minimum))
        for output in range(self.outputs):
            capabilities.update(output, self.minimum, self.peers)
        return self.summary, capabilities

    def set_external_summary(self, frontier: PortChanges) -> None:
        """Leave the frontiers to the first push.

        Examples
        --------
        >>> Operator("sink", inputs=1, outputs=0).set_external_summary(PortChanges())
        """

    def push_external_progress(self, changes: PortChanges) -> None:
        """Take the changes and forget them.

        Examples
        --------
        >>> changes = PortChanges()
        >>> changes.update(0, 0, 1)
        >>> Operator("sink", inputs=1, outputs=0).push_external_progress(changes)
        >>> changes.is_empty()
        True
        """
        changes.clear()

    def pull_internal_progress(self, consumed: PortChanges, internal: PortChanges, produced: PortChanges) -> bool:
        """Do nothing.

        Examples
        --------
        >>> Operator("idle", inputs=0, outputs=0).pull_internal_progress(PortChanges(), PortChanges(), PortChanges())
        False
        """
        return False

    def close(self) -> None:
        """Do nothing: an operator that holds nothing outside of itself is freed by being forgotten.

        Examples
        --------
        >>> Operator("idle", inputs=0, outputs=0).close()
        """
