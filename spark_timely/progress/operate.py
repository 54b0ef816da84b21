"""What an operator reports to a scope, and what it gets: counts of messages and capabilities per port.

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from spark_timely.progress.change_batch import ChangeBatch
from spark_timely.time.arrays import DiffArray, IntArray, Time, TimesLike, as_diffs, as_times

if TYPE_CHECKING:
    import numpy.typing as npt

# Outputs for which an array is not worth while.
_FEW = 8

__all__ = ["InternalSummary", "Operate", "Operator", "Paths", "PortChanges", "Steps", "Time"]

Steps: TypeAlias = int | Sequence[int]
"""What a path does to a time: a step per coordinate; for one coordinate also a number."""

Paths: TypeAlias = Sequence[Iterable[Steps]] | Mapping[int, Iterable[Steps]]
"""What paths from one input do: for each output, or for those outputs that a path leads to."""

InternalSummary: TypeAlias = Sequence[Paths] | None
"""What paths from each input do. None: from every input to every output, times stay as they are."""


class PortChanges:
    """Changes of counts at the ports of one side of an operator.

    One multiset for all ports, not one for each: ports at which nothing happens cost nothing, and
    the scope keeps and reuses the same few for all its operators.

    Parameters
    ----------
    arity : int
        Number of coordinates of each time.

    Examples
    --------
    >>> changes = PortChanges()
    >>> changes.update(1, 7, 2)
    >>> changes.update(0, 5, -1)
    >>> list(changes)
    [(0, (5,), -1), (1, (7,), 2)]
    """

    __slots__ = ("_arity", "_batch")

    def __init__(self, arity: int = 1) -> None:
        self._arity = arity
        # The port is the first coordinate of each entry.
        self._batch = ChangeBatch(arity + 1)

    @property
    def arity(self) -> int:
        """Number of coordinates of each time."""
        return self._arity

    def update(self, port: int, time: int | Sequence[int], diff: int) -> None:
        """Change one count.

        Examples
        --------
        >>> changes = PortChanges(arity=2)
        >>> changes.update(0, (1, 2), 1)
        """
        self._batch.update((port, time) if isinstance(time, int) else (port, *time), diff)

    def extend(self, port: int, times: TimesLike, diffs: npt.ArrayLike) -> None:
        """Change many counts at one port.

        Parameters
        ----------
        port : int
        times : array-like of integers, shape (n, k)
        diffs : array-like of integers, shape (n,)

        Examples
        --------
        >>> changes = PortChanges()
        >>> changes.extend(0, [5, 6, 5], [1, 1, 1])
        >>> list(changes)
        [(0, (5,), 2), (0, (6,), 1)]
        """
        rows = as_times(times, self._arity)
        entries = np.empty((rows.shape[0], self._arity + 1), dtype=rows.dtype)
        entries[:, 0] = port
        entries[:, 1:] = rows
        self._batch.extend(entries, as_diffs(diffs, rows.shape[0]))

    def extend_rows(self, rows: IntArray, diffs: DiffArray) -> None:
        """Change many counts at many ports.

        Parameters
        ----------
        rows : ndarray of integers, shape (n, 1 + k)
            Port, and coordinates of the time.
        diffs : ndarray of int64, shape (n,)

        Examples
        --------
        >>> changes = PortChanges()
        >>> changes.extend_rows(np.array([[0, 5], [1, 5]]), np.array([1, 1]))
        >>> len(changes)
        2
        """
        self._batch.extend(rows, diffs)

    def is_empty(self) -> bool:
        """Tell whether no count changes.

        Examples
        --------
        >>> PortChanges().is_empty()
        True
        """
        return self._batch.is_empty()

    def __len__(self) -> int:
        """Return the number of (port, time) whose count changes."""
        return len(self._batch)

    def __iter__(self) -> Iterator[tuple[int, Time, int]]:
        """Iterate over (port, time, change), in order of ports and times."""
        for row, diff in self._batch.pairs():
            yield row[0], row[1:], diff

    def __repr__(self) -> str:
        """Return the changes."""
        return f"PortChanges({list(self)!r:.200})"

    def arrays(self) -> tuple[IntArray, IntArray, DiffArray]:
        """Return ports, times of shape (n, k) and changes as arrays, in order; copies.

        Examples
        --------
        >>> PortChanges().arrays()[1].shape
        (0, 1)
        """
        rows, diffs = self._batch.arrays()
        return rows[:, 0], rows[:, 1:], diffs

    def drain(self) -> list[tuple[int, Time, int]]:
        """Return (port, time, change) of all, and leave nothing.

        Examples
        --------
        >>> changes = PortChanges()
        >>> changes.update(0, 5, 1)
        >>> changes.drain(), changes.is_empty()
        ([(0, (5,), 1)], True)
        """
        return [(row[0], row[1:], diff) for row, diff in self._batch.drain_pairs()]

    def clear(self) -> None:
        """Forget all changes.

        Examples
        --------
        >>> PortChanges().clear()
        """
        self._batch.clear()


class Operate(Protocol):
    """What a scope needs of an operator; the module says who must call what when.

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
        """Whether it wants to be told about frontiers. One that does not is never told, and never shut down."""

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

    It is a leaf, wants to be told about frontiers, passes times from every input to every output as
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
        if self.outputs <= _FEW:
            for output in range(self.outputs):
                capabilities.update(output, self.minimum, self.peers)
        else:
            rows = np.empty((self.outputs, len(self.minimum) + 1), dtype=np.int64)
            rows[:, 0] = np.arange(self.outputs)
            rows[:, 1:] = self.minimum
            capabilities.extend_rows(rows, np.full(self.outputs, self.peers, dtype=np.int64))
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
