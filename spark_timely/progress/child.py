"""One operator of a scope, as the scope sees it: when it runs, what it may say, when it is shut down.

Invariants
----------
1. An operator gets discrete changes of its input frontiers only, and all of them, in order.
2. What a leaf says is checked against its own statements before anything of it is passed on. The
   scope's counts would not do: they lag behind, and mix the statements of all peers.
3. A nested scope is not checked: it may speak of capabilities that come from messages which its
   parent never sees. The leaves inside are.
4. An operator that was shut down is gone, and never hears of progress again.
5. The buffers are empty before an operator's turn and after it, also where it fails: what one operator
   said is never taken for the word of the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_timely.errors import InvalidShapeError, ProtocolError, TimelyInternalError
from spark_timely.masking import masked_logger
from spark_timely.progress.change_batch import ChangeBatch
from spark_timely.progress.child_checks import LeafStatements, Report, unknown_port
from spark_timely.progress.events import EventStream, PushProgressEvent, ScheduleEvent
from spark_timely.progress.frontier import MutableAntichain
from spark_timely.progress.operate import Operate, Paths, PortChanges, Steps, Time

if TYPE_CHECKING:
    from spark_timely.progress.location import Target

__all__ = ["Buffers", "Child"]

logger = masked_logger(__name__)


class Buffers:
    """What operators fill in their turns: kept by the scope, used by one child after the other.

    Examples
    --------
    >>> Buffers(arity=1).consumed.is_empty()
    True
    """

    __slots__ = ("consumed", "internal", "produced")

    def __init__(self, arity: int) -> None:
        self.consumed = PortChanges(arity)
        self.internal = PortChanges(arity)
        self.produced = PortChanges(arity)

    def are_empty(self) -> bool:
        """Tell whether nothing is left from the last turn.

        Examples
        --------
        >>> Buffers(arity=1).are_empty()
        True
        """
        return self.consumed.is_empty() and self.internal.is_empty() and self.produced.is_empty()

    def drain(self) -> tuple[Report, Report, Report]:
        """Return what was consumed, gained or dropped, and produced; leave nothing.

        Examples
        --------
        >>> Buffers(arity=1).drain()
        ([], [], [])
        """
        return self.consumed.drain(), self.internal.drain(), self.produced.drain()


class Child:
    """An operator in a scope.

    Parameters
    ----------
    operator : Operate
        Asked once for its shape, its summary and its capabilities.
    index : int
        Number in the scope, from 1.
    identifier : int
        Number in the worker.
    arity : int
        Number of coordinates of times in the scope.
    peers : int
        Number of workers.
    events : EventStream, optional

    Raises
    ------
    InvalidShapeError
        If the summary has not one row per input and one column per output.
    ProtocolError
        If a leaf holds a capability at the start that is not held by every peer, or at no output.

    Examples
    --------
    >>> from spark_timely.progress.operate import Operator
    >>> child = Child(Operator("map", inputs=1, outputs=1), index=1, identifier=4, arity=1, peers=1)
    >>> child.name, child.recently_active
    ('map', True)
    """

    __slots__ = (
        "_events",
        "_external",
        "_leaf",
        "_peers",
        "arity",
        "dropped",
        "edges",
        "external_buffer",
        "identifier",
        "index",
        "initial",
        "inputs",
        "local",
        "name",
        "notify",
        "operator",
        "outputs",
        "recently_active",
        "summary",
    )

    def __init__(
        self,
        operator: Operate,
        *,
        index: int,
        identifier: int,
        arity: int,
        peers: int,
        events: EventStream | None = None,
    ) -> None:
        self.operator: Operate | None = operator
        self.name = operator.name
        self.index = index
        self.identifier = identifier
        self.arity = arity
        self.inputs = operator.inputs
        self.outputs = operator.outputs
        self.local = operator.local
        self.notify = operator.notify
        self._peers = peers
        self._events = events
        # A fresh child gets a first turn without cause.
        self.recently_active = True
        self.dropped = False
        # By output: where its messages go.
        self.edges: dict[int, list[Target]] = {}
        summary, capabilities = operator.get_internal_summary()
        self.initial: Sequence[tuple[int, Time, int]] = capabilities.drain()
        # By input and output, the steps of each path; None for paths everywhere without a step.
        self.summary = None if summary is None else self._read_summary(summary)
        # Frontiers of its inputs as it was or will be told, and what it has not been told yet. Made
        # when there is something to tell: most operators of a large scope have one input.
        self._external: dict[int, MutableAntichain] = {}
        self.external_buffer = PortChanges(arity)
        # Judges what a leaf says; made with its first statement, which not every operator makes soon.
        self._leaf: LeafStatements | None = None
        self._check_initial()

    @property
    def label(self) -> str:
        """Name and index, as errors and warnings show the operator."""
        return f"operator {self.name!r} [{self.index}]"

    def _read_summary(self, summary: Sequence[Paths]) -> list[dict[int, list[Time]]]:
        read: list[dict[int, list[Time]]] = []
        for paths in summary:
            by_output = dict(paths) if isinstance(paths, Mapping) else dict(enumerate(paths))
            fits = all(0 <= output < self.outputs for output in by_output)
            if not (fits and (isinstance(paths, Mapping) or len(paths) == self.outputs)):
                found = f"{len(paths)} columns in row {len(read)}"
                raise self._misshapen(found)
            read.append({output: [self._steps(steps) for steps in each] for output, each in by_output.items()})
        if len(read) != self.inputs:
            found = f"{len(read)} rows"
            raise self._misshapen(found)
        return read

    def _misshapen(self, found: str) -> InvalidShapeError:
        return InvalidShapeError(
            f"could not add {self.label}: its summary has {found}, inputs={self.inputs!r}, outputs={self.outputs!r}",
            hint="give one row per input, and in it one column per output, or a mapping from outputs",
        )

    def _steps(self, steps: Steps) -> Time:
        row = (int(steps),) if isinstance(steps, int) else tuple(map(int, steps))
        if len(row) != self.arity:
            msg = f"could not add {self.label}: found a path with steps={row!r}, arity={self.arity!r}"
            raise InvalidShapeError(msg, hint="a path has one step per coordinate of the time")
        return row

    def _check_initial(self) -> None:
        for output, time, count in self.initial:
            if not 0 <= output < self.outputs:
                raise unknown_port(self.label, "output", output, self.outputs, time)
            if self.local and (count < 0 or count % self._peers):
                msg = (
                    f"could not add {self.label}: found count={count!r} of capabilities at output {output!r}, "
                    f"time={time!r}, peers={self._peers!r}"
                )
                raise ProtocolError(
                    msg,
                    hint="capabilities at the start are never exchanged: every peer enters them for all peers, "
                    "so their count is a multiple of the number of peers",
                )

    def receive_frontiers(self, changes: Iterable[tuple[int, Time, int]]) -> None:
        """Note how frontiers of its inputs moved, for it to be told of the discrete changes.

        Raises
        ------
        ProtocolError
            If it was shut down.

        Examples
        --------
        >>> from spark_timely.progress.operate import Operator
        >>> child = Child(Operator("sink", inputs=1, outputs=0), index=1, identifier=4, arity=1, peers=1)
        >>> child.receive_frontiers([(0, (3,), 1), (0, (5,), 1)])
        >>> child.external_buffer
        PortChanges([(0, (3,), 1)])
        """
        if self.operator is None:
            if self.dropped:
                return
            moved = list(changes)
            if moved:
                msg = f"could not tell {self.label} of progress: it was shut down, changes={moved!r:.200}"
                raise ProtocolError(
                    msg,
                    hint="a frontier that was empty must not come back: some operator or peer used a time that "
                    "it could no longer use",
                )
            return
        by_port: dict[int, list[tuple[Time, int]]] = {}
        for port, time, diff in changes:
            if port in by_port:
                by_port[port].append((time, diff))
            else:
                by_port[port] = [(time, diff)]
        for port, moves in by_port.items():
            external = self._external.get(port)
            if external is None:
                external = self._external[port] = MutableAntichain(self.arity)
            for time, sign in external.update_pairs(moves):
                self.external_buffer.update(port, time, sign)

    def frontier(self, port: int) -> tuple[Time, ...]:
        """Return the frontier of an input: what the operator was told or will be told next.

        Examples
        --------
        >>> from spark_timely.progress.operate import Operator
        >>> child = Child(Operator("sink", inputs=1, outputs=0), index=1, identifier=4, arity=1, peers=1)
        >>> child.frontier(0)
        ()
        """
        external = self._external.get(port)
        return () if external is None else external.frontier.elements

    def begin(self) -> None:
        """Let the operator learn its frontiers at the start; warn where none of its inputs has any.

        Examples
        --------
        >>> from spark_timely.progress.operate import Operator
        >>> Child(Operator("source", inputs=0, outputs=1), index=1, identifier=4, arity=1, peers=1).begin()
        """
        if self.notify and self.inputs and self.external_buffer.is_empty():
            logger.warning(
                "%s wants to be told about frontiers, and no input of it can receive anything: "
                "found no capability upstream of its %d inputs",
                self.label,
                self.inputs,
            )
        if self.operator is not None:
            self.operator.set_external_summary(self.external_buffer)

    def turn(self, *, outstanding: bool, held: bool, buffers: Buffers, statements: ChangeBatch) -> bool:
        """Run the operator if there is a cause, and shut it down if there will be no more.

        A cause is any of: a frontier moved and it wants to know; it changed a count in its last
        turn, or called itself active; messages are outstanding at an input; it holds a capability.

        Parameters
        ----------
        outstanding : bool
            Whether messages are outstanding at any input, by all that was exchanged.
        held : bool
            Whether a capability is held at any output by any peer, by all that was exchanged.
        buffers : Buffers
            Empty, and left empty.
        statements : ChangeBatch
            Takes what the operator said, as rows of node, port, side and time.

        Returns
        -------
        bool
            Whether the operator called itself active.

        Raises
        ------
        ProtocolError
            If what a leaf says breaks the rules of the protocol; the message names operator, port
            and time.

        Examples
        --------
        >>> from spark_timely.progress.operate import Operator
        >>> child = Child(Operator("idle", inputs=0, outputs=0), index=1, identifier=4, arity=1, peers=1)
        >>> child.turn(outstanding=False, held=False, buffers=Buffers(1), statements=ChangeBatch(4))
        False
        >>> child.name
        'idle(tombstone)'
        """
        operator = self.operator
        if operator is None:
            return False
        moved = self.notify and not self.external_buffer.is_empty()
        active = False
        if moved or self.recently_active or outstanding or held:
            active = self._run(operator, buffers, statements, moved=moved)
        if not active and not held and self.notify and all(e.is_empty for e in self._external.values()):
            self._let_go()
            self.name = f"{self.name}(tombstone)"
        return active

    def _run(self, operator: Operate, buffers: Buffers, statements: ChangeBatch, *, moved: bool) -> bool:
        events = self._events
        if moved and events is not None:
            events.emit(PushProgressEvent(op_id=self.identifier))
        operator.push_external_progress(self.external_buffer)
        if not self.external_buffer.is_empty():
            msg = f"{self.label} left pushed changes unread: {list(self.external_buffer)!r:.200}"
            raise ProtocolError(msg, hint="push_external_progress must take all changes it is given")
        if events is not None:
            events.emit(ScheduleEvent(id=self.identifier, start=True))
        if not buffers.are_empty():
            msg = f"could not run {self.label}: found buffers with something of another turn (invariant 5)"
            raise TimelyInternalError(msg)
        try:
            active = operator.pull_internal_progress(buffers.consumed, buffers.internal, buffers.produced)
        except BaseException:
            # A scope has applied inside what it reports, and will not say it again; of a leaf's report nobody knows
            # whether it is whole: dropped, it holds the frontier back.
            if self.local:
                buffers.drain()
            else:
                self._harvest(buffers, statements)
            raise
        worked = self._harvest(buffers, statements)
        self.recently_active = worked or active
        if events is not None:
            events.emit(ScheduleEvent(id=self.identifier, start=False, activity=worked))
        return active

    def _harvest(self, buffers: Buffers, statements: ChangeBatch) -> bool:
        """Check what the operator said, and turn it into statements; return whether there were any."""
        consumed, internal, produced = buffers.drain()
        if not (consumed or internal or produced):
            return False
        self._check_report(consumed, internal, produced)
        worked = False
        for port, time, diff in produced:
            # Without an edge the messages vanish, and do not count as work.
            for target in self.edges.get(port, ()):
                statements.update((target.node, target.port, 1, *time), diff)
                worked = True
        for port, time, diff in internal:
            statements.update((self.index, port, 0, *time), diff)
        for port, time, diff in consumed:
            statements.update((self.index, port, 1, *time), -diff)
        return worked or bool(internal) or bool(consumed)

    def _check_report(self, consumed: Report, internal: Report, produced: Report) -> None:
        for side, report, ports in (
            ("input", consumed, self.inputs),
            ("output", internal, self.outputs),
            ("output", produced, self.outputs),
        ):
            for port, time, _ in report:
                if not 0 <= port < ports:
                    raise unknown_port(self.label, side, port, ports, time)
        if self.local:
            if self._leaf is None:
                own = [(port, time, count // self._peers) for port, time, count in self.initial]
                self._leaf = LeafStatements(self.name, self.index, self.arity, self.summary, own)
            self._leaf.check(consumed, internal, produced)

    # --- The end -------------------------------------------------------------------------------

    def drop(self) -> None:
        """Free the operator without its being finished; what it held stays held, as far as others know.

        Examples
        --------
        >>> from spark_timely.progress.operate import Operator
        >>> child = Child(Operator("source", inputs=0, outputs=1), index=1, identifier=4, arity=1, peers=1)
        >>> child.drop()
        >>> child.operator is None, child.dropped
        (True, True)
        """
        if self.operator is not None:
            self.dropped = True
            self._let_go()

    def _let_go(self) -> None:
        operator, self.operator = self.operator, None
        self._leaf = None
        self.external_buffer.clear()
        if operator is not None:
            operator.close()
