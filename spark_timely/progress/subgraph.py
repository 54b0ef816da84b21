"""A scope of operators that runs as one operator, and tracks progress inside.

Child 0 is the outside: the scope's inputs are its outputs (sources), the scope's outputs its inputs
(targets). A turn has six steps:

1. harvest the counts of messages that entered the scope,
2. exchange statements with the peers,
3. give what was exchanged to the tracker; what concerns child 0 is reported as consumed and produced,
4. propagate,
5. give each child with a cause its turn,
6. report what is still possible at the scope's outputs as capabilities.

Invariants
----------
1. What children say takes effect in the next turn: what leaves say after it was exchanged, what nested
   scopes say without, for it was exchanged inside them. Children never see each other's statements of the
   same turn.
2. All that was exchanged is applied and reported in one turn: where the receipt of messages is reported,
   so are the capabilities and messages that came of them.
3. What the outside may still send is never reported as a capability of the scope: it would be waiting
   for itself, for ever.
4. Everything is propagated before any child gets a frontier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_timely.errors import InvalidUsageError, NegativeCountError, ProtocolError, TimelyInternalError
from spark_timely.progress.broadcast import Progcaster, ProgressMode
from spark_timely.progress.change_batch import ChangeBatch
from spark_timely.progress.child import Buffers, Child
from spark_timely.progress.frontier import MutableAntichain
from spark_timely.progress.location import Location, Target
from spark_timely.progress.operate import InternalSummary, PortChanges, Time
from spark_timely.progress.summary import Refines
from spark_timely.time.order import minimal_elements

if TYPE_CHECKING:
    from spark_timely.progress.reachability import Tracker

__all__ = ["Subgraph"]


class Subgraph:
    """A scope that is built; made by `SubgraphBuilder.build`.

    Parameters
    ----------
    name : str
    path : tuple of int
    inputs, outputs : int
    children : sequence of Child
        Child number i + 1 at place i.
    entries : sequence of ChangeBatch
        By input: where the data path counts messages that enter, by time inside.
    entry_edges : by input, the targets to which messages that enter go
    refines : Refines
        How times inside stand to those outside.
    tracker : Tracker
    scope_summary : by input and output, the minimal paths through the scope, in steps inside
    progcaster : Progcaster

    Notes
    -----
    Cost of a turn: that of the statements exchanged and the children that have a cause to run; children
    that have none cost nothing.
    Source: timely `progress/subgraph.rs`.
    """

    local = False
    notify = True

    def __init__(
        self,
        *,
        name: str,
        path: tuple[int, ...],
        inputs: int,
        outputs: int,
        children: Sequence[Child],
        entries: Sequence[ChangeBatch],
        entry_edges: Sequence[Sequence[Target]],
        refines: Refines,
        tracker: Tracker,
        scope_summary: Sequence[Mapping[int, Iterable[Time]]],
        progcaster: Progcaster,
    ) -> None:
        self.name = name
        self.path = path
        self.inputs = inputs
        self.outputs = outputs
        self._children = children
        self._entries = entries
        self._entry_edges = entry_edges
        self._refines = refines
        self._tracker = tracker
        self._scope_summary = scope_summary
        self._progcaster = progcaster
        arity = refines.inner_arity
        # Statements, as rows of node, port, side (1 for targets) and time: still to be exchanged, and
        # already exchanged.
        self._local = ChangeBatch(arity + 3)
        self._final = ChangeBatch(arity + 3)
        self._buffers = Buffers(arity)
        # By output: capabilities as the parent knows them.
        self._expressed: dict[int, MutableAntichain] = {}
        # What was exchanged, by statement; and by child, how many (target, time) have messages, and
        # (source, time) capabilities.
        self._counts: dict[tuple[int, ...], int] = {}
        self._outstanding: dict[int, int] = {}
        self._held: dict[int, int] = {}
        # Children that are to run because of their own last turn, or were told something.
        self._awake: set[int] = set()
        self._stage = 0

    # --- Before the first turn -------------------------------------------------------------------

    def get_internal_summary(self) -> tuple[InternalSummary, PortChanges]:
        """Return the paths through the scope, and the capabilities that operators inside give it.

        Capabilities are those of all peers, and are reported by this call only.

        Raises
        ------
        InvalidUsageError
            If it is called a second time.
        """
        self._advance(0, "get_internal_summary")
        for child in self._children:
            for port, time, count in child.initial:
                self._apply((child.index, port, 0, *time), count)
        self._tracker.propagate_all()
        capabilities = PortChanges(self._refines.outer_arity)
        self._report_outputs(capabilities)
        # Paths in steps outside; several may differ inside only.
        summarize = self._refines.summarize_steps
        summary = [
            {output: minimal_elements(map(summarize, paths)) for output, paths in row.items()}
            for row in self._scope_summary
        ]
        return summary, capabilities

    def set_external_summary(self, frontier: PortChanges) -> None:
        """Learn the frontiers of the scope's inputs, and tell all children theirs.

        Raises
        ------
        InvalidUsageError
            If it is called a second time, or before `get_internal_summary`.
        """
        self._advance(1, "set_external_summary")
        self._enter_frontiers(frontier)
        self._tracker.propagate_all()
        # The outside's capabilities are nobody's inside (invariant 3): they move no output.
        nothing = PortChanges(self._refines.outer_arity)
        self._report_outputs(nothing)
        if not nothing.is_empty():
            msg = f"scope {self.name!r}: frontiers of the inputs became capabilities of the outputs (invariant 3)"
            raise TimelyInternalError(msg, context={"changes": list(nothing)})
        self._send_frontiers()
        for child in self._children:
            child.begin()
        self._awake.update(range(1, len(self._children) + 1))

    def _advance(self, stage: int, what: str) -> None:
        if self._stage != stage:
            msg = f"could not call {what} of scope {self.name!r}: found stage={self._stage!r}"
            raise InvalidUsageError(
                msg, hint="get_internal_summary and set_external_summary are called once each, in this order"
            )
        self._stage = stage + 1

    # --- A turn ------------------------------------------------------------------------------------

    def push_external_progress(self, changes: PortChanges) -> None:
        """Learn how the frontiers of the scope's inputs moved; it takes effect in the next turn."""
        self._enter_frontiers(changes)

    def pull_internal_progress(self, consumed: PortChanges, internal: PortChanges, produced: PortChanges) -> bool:
        """Take a turn; the module lists its steps.

        Returns
        -------
        bool
            Whether any child called itself active, anything is tracked, or something waits to be sent.

        Raises
        ------
        InvalidUsageError
            If a buffer is not empty, or the scope has not learned its frontiers at the start.
        ProtocolError
            If a leaf, or a peer, breaks the rules.
        """
        if self._stage != 2:
            msg = f"could not run scope {self.name!r}: it has not been told its frontiers at the start, or is closed"
            raise InvalidUsageError(msg, hint="call set_external_summary first")
        if not (consumed.is_empty() and internal.is_empty() and produced.is_empty()):
            msg = f"could not run scope {self.name!r}: found buffers with something from another turn"
            raise InvalidUsageError(msg, hint="drain the buffers after each turn")
        self._harvest_entries()
        self._exchange()
        self._apply_exchanged(consumed, produced)
        self._tracker.propagate_all()
        active = self._run_children()
        self._report_outputs(internal)
        if active or self._tracker.tracking_anything() or self.has_unsent:
            return True
        # Whatever is still on its way is covered by something positive here, and there is nothing.
        self._check_counts()
        return False

    @property
    def has_unsent(self) -> bool:
        """Whether anything was said that has not been exchanged, or not been applied."""
        return not (self._local.is_empty() and self._final.is_empty())

    def _harvest_entries(self) -> None:
        """Step 1: messages that entered are at hand inside, and taken from outside.

        The second half is noted with the outside's capabilities, with a minus: so it pairs with the
        messages it belongs to in one batch. Step 3 turns it back.
        """
        for port, entry in enumerate(self._entries):
            for time, count in entry.drain_pairs():
                for target in self._entry_edges[port]:
                    self._local.update((target.node, target.port, 1, *time), count)
                self._local.update((0, port, 0, *time), -count)

    def _exchange(self) -> None:
        """Step 2: send all that was said, or nothing, and take in what arrived."""
        if self._progcaster.must_send(self._local, self._in_frontier):
            self._progcaster.send(self._local)
        self._progcaster.receive(self._final)

    def _in_frontier(self, node: int, port: int, side: int, time: Time) -> bool:
        return time in self._tracker.pointstamps(Location(node, port, bool(side))).elements

    def _apply_exchanged(self, consumed: PortChanges, produced: PortChanges) -> None:
        """Step 3: all that was exchanged, at once (invariant 2)."""
        outer = self._refines.to_outer_one
        for row, diff in self._final.drain_pairs():
            node, port, side = row[:3]
            if node:
                self._apply(row, diff)
            elif side:
                # Not tracked: nobody inside will ever say that it was consumed.
                produced.update(self._known(port, self.outputs, row), outer(row[3:]), diff)
            else:
                consumed.update(self._known(port, self.inputs, row), outer(row[3:]), -diff)

    def _run_children(self) -> bool:
        """Step 5: in the order of their numbers, those that have a cause to run."""
        self._send_frontiers()
        causes = sorted({*self._awake, *self._outstanding, *self._held})
        active = False
        for index in causes:
            # One by one: if a child's turn is refused, those after it still have their cause.
            self._awake.discard(index)
            child = self._children[index - 1]
            if child.operator is None:
                continue
            statements = self._local if child.local else self._final
            called_active = child.turn(
                outstanding=index in self._outstanding,
                held=index in self._held,
                buffers=self._buffers,
                statements=statements,
            )
            active = active or called_active
            if child.operator is not None and child.recently_active:
                self._awake.add(index)
        return active

    # --- The tracker ---------------------------------------------------------------------------------

    def _enter_frontiers(self, changes: PortChanges) -> None:
        inner = self._refines.to_inner_one
        for port, time, diff in changes.drain():
            self._tracker.update_source((0, port), inner(time), diff)

    def _apply(self, row: tuple[int, ...], diff: int) -> None:
        """Count a statement, and hand it to the tracker."""
        node, port, side = row[:3]
        child = self._children[node - 1] if 0 < node <= len(self._children) else None
        if child is None or side not in (0, 1) or not 0 <= port < (child.inputs if side else child.outputs):
            raise self._unknown(row)
        before = self._counts.get(row, 0)
        after = before + diff
        if after:
            self._counts[row] = after
        else:
            self._counts.pop(row, None)
        if (before > 0) != (after > 0):
            where = self._outstanding if side else self._held
            number = where.get(node, 0) + (1 if after > 0 else -1)
            if number:
                where[node] = number
            else:
                # Nothing is left: the child has one more turn in which it may be shut down.
                del where[node]
                self._awake.add(node)
        if side:
            self._tracker.update_target((node, port), row[3:], diff)
        else:
            self._tracker.update_source((node, port), row[3:], diff)

    def _known(self, port: int, ports: int, row: tuple[int, ...]) -> int:
        if not 0 <= port < ports:
            raise self._unknown(row)
        return port

    def _unknown(self, row: tuple[int, ...]) -> ProtocolError:
        node, port, side = row[:3]
        location = Location(node, port, bool(side))
        return ProtocolError(
            f"scope {self.name!r} {list(self.path)!r} received a statement about unknown {location}, time={row[3:]!r}",
            hint="all workers build the same scopes in the same order",
            context={"scope": self.name, "location": location, "time": row[3:]},
        )

    def _send_frontiers(self) -> None:
        """Pass on how frontiers moved, to those who want to know."""
        for node, moves in self._frontier_moves().items():
            child = self._children[node - 1]
            # A child that does not want frontiers gets none at all.
            if child.notify:
                child.receive_frontiers(moves)
                self._awake.add(node)

    def _frontier_moves(self) -> dict[int, list[tuple[int, Time, int]]]:
        """Return by child, how the frontiers of its inputs moved in the last propagation."""
        moves: dict[int, list[tuple[int, Time, int]]] = {}
        for (node, port, is_target), time, diff in self._tracker.drain_pushed():
            if node and is_target:
                moves.setdefault(node, []).append((port, time, diff))
        return moves

    def _output_changes(self) -> list[tuple[int, Time, int]]:
        """Return changes of what is possible at the scope's outputs, the outside's doings left out."""
        return self._tracker.drain_output()

    def _report_outputs(self, internal: PortChanges) -> None:
        """Step 6: several times inside may be one outside, so changes are filtered once more."""
        outer = self._refines.to_outer_one
        by_port: dict[int, list[tuple[Time, int]]] = {}
        for port, time, diff in self._output_changes():
            by_port.setdefault(port, []).append((outer(time), diff))
        for port, moves in by_port.items():
            expressed = self._expressed.get(port)
            if expressed is None:
                expressed = self._expressed[port] = MutableAntichain(self._refines.outer_arity)
            for time, sign in expressed.update_pairs(moves):
                internal.update(port, time, sign)

    # --- What others ask -----------------------------------------------------------------------------

    @property
    def children(self) -> Sequence[Child]:
        """The operators inside; number i + 1 at place i."""
        return self._children

    @property
    def mode(self) -> ProgressMode:
        """When this worker sends what it has to say."""
        return self._progcaster.mode

    @property
    def channel(self) -> int:
        """Number of the progress channel."""
        return self._progcaster.channel

    def check_quiescent(self) -> None:
        """Refuse counts below zero, when nothing is on its way any more.

        While batches are on their way a count may be negative: a message may have been consumed by
        one peer before another's announcement arrives here. When everything has arrived that is an
        error of some operator or transport.

        Raises
        ------
        NegativeCountError
            Naming the operator, the port and the time.
        """
        self._check_counts()
        for child in self._children:
            if isinstance(child.operator, Subgraph):
                child.operator.check_quiescent()

    def _check_counts(self) -> None:
        for row, count in self._counts.items():
            if count < 0:
                node, port, side = row[:3]
                child = self._children[node - 1]
                where = f"{child.label}, {'input' if side else 'output'} {port}"
                what = "messages" if side else "capabilities"
                msg = (
                    f"scope {self.name!r} {list(self.path)!r} came to rest with a negative count: "
                    f"{what} at {where}, time={row[3:]!r}, count={count!r}"
                )
                raise NegativeCountError(
                    msg,
                    hint="more was consumed or dropped there, by all peers together, than there ever was",
                    context={"operator": child.name, "index": node, "port": port},
                    location=where,
                    time=row[3:],
                    count=count,
                )

    def drop_child(self, index: int) -> None:
        """Drop an operator without its being finished.

        Nothing of it is left in this worker. What it held stays held as far as others know: frontiers
        downstream of it stop.

        Raises
        ------
        InvalidUsageError
            If there is no such child.
        """
        if not 1 <= index <= len(self._children):
            msg = f"could not drop child {index!r} of scope {self.name!r}: found {len(self._children)} children"
            raise InvalidUsageError(msg, hint="children are numbered from 1")
        self._children[index - 1].drop()

    def close(self) -> None:
        """Close the progress channel, and those of scopes inside: what still arrives is discarded."""
        if self._stage > 2:
            return
        self._stage = 3
        for child in self._children:
            child.drop()
        self._progcaster.close()
