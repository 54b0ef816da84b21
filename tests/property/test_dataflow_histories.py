"""Whatever is done to the logs of a dataflow, its output has what its input has, or it is refused by name."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import DataLossError
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from tests.property.test_dataflow import runner
from tests.support import examples

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 3)),
        st.tuples(st.just("run"), st.sampled_from([1, 2, None])),
        st.tuples(st.sampled_from(["save", "put back", "compact", "restart"]), st.just(0)),
        st.tuples(st.just("hand"), st.integers(0, 2)),
        st.tuples(st.just("append"), st.integers(1, 2)),
    ),
    min_size=4,
    max_size=14,
)


class World:
    """An input, an output, and a dataflow that runs between them."""

    def __init__(self, folder: Path) -> None:
        self.source, self.copy, self.out = (str(folder / name) for name in ("in", "copy", "out"))
        create_log(self.source, pa.schema([("n", pa.int64())]), minimum=(0,)).writer(owner="test")
        self.numbers = itertools.count()
        self.scope = Scope("flow")
        self.scope.replay(self.source).capture(self.out)
        self.engines: dict[int | None, Engine] = {}

    def rows(self, path: str, upper: object) -> list[tuple[int, int]]:
        found = open_log(path).messages(upper=upper)
        return sorted(zip(found["_time"].to_pylist(), found["n"].to_pylist(), strict=True))

    def do(self, what: str, number: int | None) -> None:
        match what:
            case "grow":
                writer = open_log(self.source).writer(owner="test")
                first = writer.state.frontier.elements[0][0]
                times = list(range(first, first + (number or 1)))
                rows = pa.table({"_time": times, "n": [next(self.numbers) for _ in times]})
                writer.append(rows, advance_to=times[-1] + 1)
            case "save":
                shutil.rmtree(self.copy, ignore_errors=True)
                shutil.copytree(self.source, self.copy)
            case "put back" if Path(self.copy).exists():
                shutil.rmtree(self.source)
                shutil.copytree(self.copy, self.source)
            case "compact":
                open_log(self.source).compact()
            case "restart":
                self.engines.clear()
            case "hand" if Path(self.out).exists():
                log = open_log(self.out)
                log.advance("main", [log.frontier().elements[0][0] + (number or 0)])
            case "append" if Path(self.out).exists():
                log = open_log(self.out)
                times = [log.frontier().elements[0][0]] * (number or 0)
                log.writer(owner="dataflow flow").append(pa.table({"_time": times, "n": [-1] * len(times)}))
            case "run":
                if number not in self.engines:
                    self.engines[number] = Engine(
                        "flow", self.scope.sinks, self.scope.storage, files_of=catalog_of, limits=Limits(times=number)
                    )
                self.engines[number].advance(runner(self.scope.storage))


@examples(8, long=300)
@given(STEPS)
def test_output_has_the_rows_of_its_input_or_is_refused_by_name(steps: list[tuple[str, int | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for what, number in [("grow", 1), ("run", None), *steps, ("restart", 0), ("grow", 3), ("run", None)]:
            before = world.rows(world.out, None) if Path(world.out).exists() else []
            try:
                world.do(what, number)
            except DataLossError:
                assert what == "run"
                assert world.rows(world.out, None) == before
                continue
            if what == "run":
                upper = open_log(world.out).frontier()
                assert upper == open_log(world.source).frontier()
                assert world.rows(world.out, None) == world.rows(world.source, upper)
