"""Random graphs with repeated and shared parts: each output reaches its inputs' frontier, and equals the model.

Operators that are equal are one node, whether they are written once or twice; those that would keep in one folder and
are not equal are refused until they have names.
"""

from __future__ import annotations

import os
import random

import pytest

from spark_timely.errors import SinceViolationError
from tests.faults.harness import long_lane
from tests.oracles.graph_model import clashes
from tests.property.graphs import Drawn, GraphWorld, draw_graph, runner_here

FIRST_SEED = int(os.environ.get("SPARK_TIMELY_SEED", "0"))
N_GRAPHS = int(os.environ.get("SPARK_TIMELY_GRAPHS", 20_000 if long_lane() else 18))
DRAWN = Drawn(delays=True, minimums=True, begins=True, forgets=True)


def live(seed: int, drawn: Drawn) -> None:
    """Let a graph run through some rounds of news, with restarts between."""
    rng = random.Random(seed)
    graph = draw_graph(rng, drawn)
    world = GraphWorld(graph, rng, drawn)
    must, may = clashes(graph)
    with world.place.installed():
        world.grow()
        if drawn.forgets and rng.random() < 0.5:
            world.forget()
        assert world.refused() in ([True] if must else [False, may]), "two operators of one folder"
        try:
            run(world, rng)
        except SinceViolationError as error:  # in the first step, or once its inputs are where it begins
            if not world.may_not_begin() or "could not begin operator" not in str(error):
                raise


def run(world: GraphWorld, rng: random.Random) -> None:
    """Advance through some rounds of news, and look at the outputs after each."""
    engine = world.engine()
    engine.advance(runner_here)
    for _ in range(rng.randrange(1, 4)):
        engine.advance(runner_here)
        world.check()
        world.grow()
        if rng.random() < 0.6:
            engine = world.engine()
    engine.advance(runner_here)
    world.check()


@pytest.mark.timeout(36_000)
def test_outputs_of_random_graphs_equal_the_model() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + N_GRAPHS):
        try:
            live(seed, DRAWN)
        except BaseException as error:
            error.add_note(f"the graph of seed {seed}")
            raise
