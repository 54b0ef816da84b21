"""A world of workers for progress tracking: random dataflows, random operators, random delays.

Operators obey the protocol and otherwise do as they like. Messages of theirs are real: the world keeps
them, so that an oracle can tell at any moment what is still possible, whatever anybody was told.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_timely.progress.change_batch import ChangeBatch, PortChanges
from spark_timely.progress.operate import InternalSummary, Operator
from spark_timely.progress.reachability import Source, Target
from spark_timely.progress.subgraph import SubgraphBuilder
from spark_timely.progress.worker import InputHandle, Worker
from tests.oracles.progress_model import FlatGraph, LeafPlan, Place, ScopePlan, Time, minima, not_after
from tests.unit.progress.network import MemoryNetwork

# Beyond this, in any coordinate, operators produce nothing more.
LIMIT = 6

Leaf = tuple[tuple[int, ...], int]


class SafetyViolation(AssertionError):
    """Somebody was told that a time is complete that is not."""


class LivenessViolation(AssertionError):
    """Somebody was never told that a time is complete."""


def random_plan(rng: random.Random) -> ScopePlan:
    """Return a dataflow: a few handles and operators, nested scopes, loops."""
    budget = [rng.randint(2, 8)]
    return _random_scope(rng, budget, arity=1, depth=0, inputs=0, outputs=0, nested=False)


def _random_scope(
    rng: random.Random, budget: list[int], *, arity: int, depth: int, inputs: int, outputs: int, nested: bool
) -> ScopePlan:
    scope = ScopePlan(inputs, outputs, nested)
    if depth == 0:
        for _ in range(rng.randint(1, 2)):
            scope.children.append(LeafPlan(0, 1, {}, handle=True))
    feedback: list[int] = []
    for _ in range(rng.randint(1, 4)):
        if budget[0] <= 0:
            break
        budget[0] -= 1
        kind = rng.random()
        if depth < 3 and kind < 0.35:
            deeper = rng.random() < 0.7 and arity < 3
            scope.children.append(
                _random_scope(
                    rng,
                    budget,
                    arity=arity + deeper,
                    depth=depth + 1,
                    inputs=rng.randint(0, 2) if rng.random() < 0.3 else 1,
                    outputs=rng.randint(0, 2) if rng.random() < 0.3 else 1,
                    nested=deeper,
                )
            )
        elif kind < 0.5:
            steps = (0,) * (arity - 1) + (1,)
            scope.children.append(LeafPlan(1, 1, {(0, 0): [steps]}, notify=rng.random() < 0.9))
            feedback.append(len(scope.children))
        else:
            scope.children.append(_random_leaf(rng, arity))
    _random_edges(rng, scope, feedback)
    return scope


def _random_leaf(rng: random.Random, arity: int) -> LeafPlan:
    inputs, outputs = rng.choice([(1, 1), (1, 1), (2, 1), (1, 2), (0, 1), (1, 0), (2, 2)])
    paths: dict[tuple[int, int], list[Time]] = {}
    for i in range(inputs):
        for o in range(outputs):
            kind = rng.random()
            if kind < 0.65:
                paths[i, o] = [(0,) * arity]
            elif kind < 0.85:
                paths[i, o] = sorted(minima(tuple(rng.randint(0, 1) for _ in range(arity)) for _ in range(2)))
    return LeafPlan(inputs, outputs, paths, notify=rng.random() < 0.9)


def _random_edges(rng: random.Random, scope: ScopePlan, feedback: list[int]) -> None:
    """Connect outputs to later inputs, and those of feedback operators to any: every loop advances times."""
    sources = [(0, i) for i in range(scope.inputs)]
    targets = [(0, o) for o in range(scope.outputs)]
    for number, child in enumerate(scope.children, start=1):
        sources += [(number, o) for o in range(child.outputs)]
        targets += [(number, i) for i in range(child.inputs)]
    for target in targets:
        before = [s for s in sources if s[0] in feedback or target[0] == 0 or s[0] < target[0]]
        if target[0] in feedback:
            # What a loop's end takes may come from anywhere in the scope, itself included.
            before = sources
        for source in rng.sample(before, min(len(before), rng.choice([1, 1, 1, 2]))):
            edge = (*source, *target)
            if edge not in scope.edges:
                scope.edges.append(edge)


class RandomOperator(Operator):
    """Does what the protocol allows, at random."""

    def __init__(self, world: World, peer: int, leaf: Leaf, minimum: Time) -> None:
        plan = world.graph.leaves[leaf]
        summary: InternalSummary = [
            {o: plan.paths[i, o] for o in range(plan.outputs) if (i, o) in plan.paths} for i in range(plan.inputs)
        ]
        super().__init__(
            f"leaf {leaf}",
            inputs=plan.inputs,
            outputs=plan.outputs,
            peers=world.peers,
            minimum=minimum,
            summary=summary,
            notify=plan.notify,
        )
        self.world, self.peer, self.leaf, self.plan = world, peer, leaf, plan
        self.told: list[Counter[Time]] = [Counter() for _ in range(plan.inputs)]
        self.queues: list[list[Time]] = [[] for _ in range(plan.inputs)]
        self.held: list[list[Time]] = [[minimum] for _ in range(plan.outputs)]
        # Most operators let go of what they hold at the start at once, as those that only answer do.
        self.prompt = world.rng.random() < 0.7
        # Before it is told anything it knows nothing to be complete.
        self.ignorant = True

    def push_external_progress(self, changes: PortChanges) -> None:
        self.ignorant = False
        for port, time, diff in changes.drain():
            self.told[port][time] += diff

    def frontier(self, port: int) -> set[Time]:
        return {time for time, count in self.told[port].items() if count}

    def pull_internal_progress(self, consumed: PortChanges, internal: PortChanges, produced: PortChanges) -> bool:
        rng = self.world.rng
        if self.world.frozen:
            return False
        usable: list[list[Time]] = [[] if self.prompt else list(held) for held in self.held]
        self.prompt = False
        for port, queue in enumerate(self.queues):
            while queue and (self.world.finishing or rng.random() < 0.5):
                time = self.take(port, queue)
                if not self.world.is_beyond(self, port, time):
                    raise SafetyViolation(f"{self.name} got {time} at input {port}, told {self.frontier(port)}")
                consumed.update(port, time, 1)
                for output in range(self.outputs):
                    for steps in self.plan.paths.get((port, output), ()):
                        usable[output].append(tuple(a + b for a, b in zip(time, steps, strict=True)))
        for output in range(self.outputs):
            self.use(output, usable[output], internal, produced)
        return not self.world.finishing and rng.random() < 0.1

    def take(self, port: int, queue: list[Time]) -> Time:
        return queue.pop(self.world.rng.randrange(len(queue)))

    def use(self, output: int, usable: list[Time], internal: PortChanges, produced: PortChanges) -> None:
        """Produce, and hold on to, whatever the usable times allow; let go of some or all that was held."""
        rng, world = self.world.rng, self.world
        before = Counter(self.held[output])
        after: list[Time] = []
        for time in usable:
            alive = not world.finishing and max(time) < LIMIT
            if max(time) < LIMIT and rng.random() < (0.5 if alive else 0.3) and world.spend():
                later = self.later(time)
                produced.update(output, later, 1)
                world.send(self.peer, self.leaf, output, later)
            if alive and rng.random() < 0.7:
                after.append(self.later(time) if rng.random() < 0.6 else time)
        del after[4:]
        self.held[output] = after
        changes = Counter(after)
        changes.subtract(before)
        for time, diff in changes.items():
            if diff:
                internal.update(output, time, diff)

    def later(self, time: Time) -> Time:
        return tuple(t + (self.world.rng.random() < 0.3) for t in time)


@dataclass
class Options:
    """What a world is made of; mutants change it."""

    operator: type[RandomOperator] = RandomOperator
    network: Callable[[int, random.Random], MemoryNetwork] = field(
        default=lambda peers, _: MemoryNetwork(peers, automatic=False)
    )
    peers: int | None = None


class World:
    """Workers, the network between them, and all that really waits anywhere."""

    def __init__(self, seed: int, options: Options | None = None) -> None:
        options = options or Options()
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.peers = options.peers or rng.choice([1, 2, 2, 3, 3, 4, 5, 8])
        # How much of what happens is the arrival of statements; the less, the longer they are on their way.
        self.pace = rng.choice([0.04, 0.1, 0.3])
        self.plan = random_plan(rng)
        self.graph = FlatGraph(self.plan)
        self.options = options
        self.network = options.network(self.peers, rng)
        self.budget = 40 + 10 * self.peers
        self.frozen = False
        self.finishing = False
        self.operators: dict[tuple[int, Leaf], RandomOperator] = {}
        self.handles: dict[tuple[int, Leaf], InputHandle] = {}
        self.entries: dict[tuple[int, tuple[int, ...], int], ChangeBatch] = {}
        # Messages before the input of a scope, by worker and place.
        self.waiting: list[tuple[int, Place, Time]] = []
        # Per edge whether it exchanges between workers.
        self.exchanges: dict[Place, bool] = {}
        self.workers = [Worker(t) for t in self.network.transports]
        for worker in self.workers:
            builder = worker.new_dataflow(minimum=(0,))
            self._fill(builder, self.plan, (0,), worker)
            worker.add(builder)

    # --- Building ------------------------------------------------------------------------------

    def _fill(self, builder: SubgraphBuilder, plan: ScopePlan, path: tuple[int, ...], worker: Worker) -> None:
        for port in range(plan.inputs):
            builder.new_input()
            self.entries[worker.index, path, port] = builder.entry(port)
        for _ in range(plan.outputs):
            builder.new_output()
        for number, child in enumerate(plan.children, start=1):
            leaf = (path, number)
            if isinstance(child, ScopePlan):
                inner = builder.new_scope(f"scope {leaf}", nested=child.nested)
                self._fill(inner, child, (*path, number), worker)
                builder.add_scope(inner)
            elif child.handle:
                handle = InputHandle(builder.minimum)
                if self.rng.random() < 0.3:
                    handle.advance_to(self.rng.randint(0, 2))
                if worker.index and self.rng.random() < 0.7:
                    handle.close()
                handle.join(builder)
                self.handles[worker.index, leaf] = handle
            else:
                operator = self.options.operator(self, worker.index, leaf, builder.minimum)
                self.operators[worker.index, leaf] = operator
                builder.add_child(operator)
        for node, port, to, at in plan.edges:
            builder.connect(Source(node, port), Target(to, at))

    # --- The data path ---------------------------------------------------------------------------

    def spend(self) -> bool:
        self.budget -= 1
        return self.budget >= 0

    def send(self, peer: int, leaf: Leaf, output: int, time: Time) -> None:
        """A message of an operator goes out on every edge of an output."""
        self._out(peer, (leaf[0], leaf[1], output, False), time)

    def _out(self, peer: int, place: Place, time: Time) -> None:
        path, node, port, _ = place
        for from_node, from_port, to, at in self.graph.scopes[path].edges:
            if (from_node, from_port) == (node, port):
                target = (path, to, at, True)
                exchanged = self.exchanges.setdefault(target, self.rng.random() < 0.6)
                self._arrive(self.rng.randrange(self.peers) if exchanged and to else peer, target, time)

    def _arrive(self, peer: int, place: Place, time: Time) -> None:
        path, node, port, _ = place
        if node == 0:
            # Leaves the scope.
            nested = self.graph.scopes[path].nested
            self._out(peer, (path[:-1], path[-1], port, False), time[:-1] if nested else time)
        elif (path, node) in self.graph.leaves:
            self.operators[peer, (path, node)].queues[port].append(time)
        else:
            self.waiting.append((peer, place, time))

    def enter(self, number: int) -> None:
        """A message that waits before a scope enters it."""
        peer, (path, node, port, _), time = self.waiting.pop(number)
        inside = (*path, node)
        if self.graph.scopes[inside].nested:
            time = (*time, 0)
        self.entries[peer, inside, port].update(time, 1)
        self._out(peer, (inside, 0, port, False), time)

    # --- The truth -------------------------------------------------------------------------------

    def present(self) -> list[tuple[Place, Time]]:
        """Return all messages that wait and all capabilities that are held, on all workers."""
        found: list[tuple[Place, Time]] = [(place, time) for _, place, time in self.waiting]
        for (_, (path, node)), operator in self.operators.items():
            for port, queue in enumerate(operator.queues):
                found += [((path, node, port, True), time) for time in queue]
            for port, held in enumerate(operator.held):
                found += [((path, node, port, False), time) for time in held]
        for (_, (path, node)), handle in self.handles.items():
            if not handle.closed:
                found.append(((path, node, 0, False), handle.time))
        return found

    def is_beyond(self, operator: RandomOperator, port: int, time: Time) -> bool:
        return not operator.notify or operator.ignorant or any(not_after(f, time) for f in operator.frontier(port))

    def check_safety(self) -> None:
        """No operator was told that a time is complete which can still appear."""
        possible = self.graph.possible(set(self.present()))
        for (peer, (path, node)), operator in self.operators.items():
            if not operator.notify or operator.ignorant:
                continue
            for port in range(operator.inputs):
                told = operator.frontier(port)
                for time in possible.get((path, node, port, True), ()):
                    if not any(not_after(f, time) for f in told):
                        raise SafetyViolation(
                            f"seed {self.seed}: worker {peer}, {operator.name}, input {port} was told {told}, "
                            f"but {time} can still appear"
                        )

    def check_caught_up(self) -> None:
        """Every operator knows exactly what is possible. To be called at rest."""
        possible = self.graph.possible(set(self.present()))
        for (peer, (path, node)), operator in self.operators.items():
            if not operator.notify:
                continue
            for port in range(operator.inputs):
                told, truth = operator.frontier(port), set(possible.get((path, node, port, True), ()))
                if told != truth:
                    raise LivenessViolation(
                        f"seed {self.seed}: worker {peer}, {operator.name}, input {port} was told {told}, "
                        f"possible is {truth}"
                    )

    # --- Running ---------------------------------------------------------------------------------

    def act(self) -> None:
        """Let one thing happen, anywhere."""
        rng = self.rng
        kind = rng.random()
        links = self.network.links()
        if kind < 0.45 and links:
            sender, receiver = rng.choice(links)
            for _ in range(rng.choice([1, 1, 2, 5])):
                self.network.deliver(sender, receiver)
        elif kind < 0.6 and self.waiting:
            self.enter(rng.randrange(len(self.waiting)))
        elif kind < 0.7 and self.handles:
            self._use_handle(rng)
        else:
            rng.choice(self.workers).step()

    def _use_handle(self, rng: random.Random) -> None:
        (peer, leaf), handle = rng.choice(list(self.handles.items()))
        if handle.closed:
            return
        if rng.random() < 0.5 and self.spend():
            handle.send()
            self.send(peer, leaf, 0, handle.time)
        elif rng.random() < 0.98 and handle.time[0] < LIMIT:
            handle.advance_to(handle.time[0] + 1)
        else:
            handle.close()
        if rng.random() < 0.7:
            self.workers[peer].step()

    def rest(self) -> None:
        """Let nothing new happen until everybody knows everything."""
        self.frozen = True
        quiet = 0
        for _ in range(200):
            self.network.deliver_all()
            for worker in self.workers:
                worker.step()
            quiet = 0 if self.network.links() else quiet + 1
            # A statement passes one scope per turn, and as many scopes as are nested.
            if quiet > 8:
                break
        else:
            raise LivenessViolation(f"seed {self.seed}: statements without end")
        for worker in self.workers:
            worker.check_quiescent()
        self.frozen = False

    def finish(self) -> None:
        """Let operators end, and everything be delivered, until all is complete."""
        self.finishing = True
        for handle in self.handles.values():
            handle.close()
        for _ in range(400):
            if not any(worker.dataflows for worker in self.workers):
                return
            while self.waiting:
                self.enter(len(self.waiting) - 1)
            for sender, receiver in self.network.links():
                for _ in range(self.rng.choice([0, 0, 1, 1, 2, 4])):
                    self.network.deliver(sender, receiver)
            for worker in self.rng.sample(self.workers, self.rng.randint(1, self.peers)):
                worker.step()
            self.check_safety()
        raise LivenessViolation(f"seed {self.seed}: not complete, {self.present()} held")

    def run(self, actions: int = 150) -> None:
        """Run to the end, and check all the way."""
        for number in range(actions):
            self.act()
            if number % 2 == 0:
                self.check_safety()
            if number % 50 == 49:
                self.rest()
                self.check_safety()
                self.check_caught_up()
        self.finish()
        assert not self.present()
