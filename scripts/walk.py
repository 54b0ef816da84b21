"""Count through how many files the library goes for one unit of work: ``bash scripts/run.sh scripts/walk.py``.

Four walks are taken: one micro-batch of three rows through the sink (prepared, written by a task, committed), one step
of a dataflow (a filter and a count over one log), one step of a continual task (a function of tables over one stream),
and a peek by key, by an index and where there is none. Counted are the product's files in which a function was called,
and the moves from one file to another. The second of each is counted, in a process in which everything is imported.
`-v` lists the files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from spark_timely import functions as tf

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pyarrow as pa  # noqa: E402
import pytest  # noqa: E402

import spark_timely  # noqa: E402
from spark_timely.answers.peek import peek  # noqa: E402
from spark_timely.dataflow.engine.steps import Engine  # noqa: E402
from spark_timely.dataflow.stream import Scope  # noqa: E402
from spark_timely.spark.base.schema import spark_schema  # noqa: E402
from spark_timely.spark.dataflows.tasks import catalog_of  # noqa: E402
from tests.property.test_continual import idle  # noqa: E402
from tests.property.test_dataflow import runner  # noqa: E402
from tests.unit.answers.support import SCHEMA, append, index  # noqa: E402
from tests.unit.continual.test_engine_rules import Story  # noqa: E402
from tests.unit.sink.driver import SinkDriver, rows  # noqa: E402

PRODUCT = tuple(f"{ROOT / name}/" for name in ("spark_timely", "datasource", "sink", "conf"))


class Walk:
    """The files of the product that were gone through, and the moves between them."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.moves = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Count what runs within."""
        stack: list[str] = []

        def note(frame: FrameType, event: str, _: object) -> None:
            file = frame.f_code.co_filename
            if not file.startswith(PRODUCT) or frame.f_code.co_name.startswith("<"):
                return
            if event == "call":
                self.moves += bool(stack) and stack[-1] != file
                self.calls[file] += 1
                stack.append(file)
            elif event == "return" and stack:
                stack.pop()

        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def __str__(self) -> str:
        return f"{len(self.calls)} files, {self.moves} moves"


def through_the_sink(folder: Path) -> dict[str, Walk]:
    """Take a micro-batch of three rows through the sink, after another one."""
    driver = SinkDriver(folder, timeColumn="t", frontier="bounded", lateness="5")
    driver.run([rows([1, 2, 3])])
    walks = {name: Walk() for name in ("prepare", "write", "commit")}
    table = rows([4, 5, 6], 3)
    (driver.checkpoint / "offsets" / "1").write_text('v1\n{"batchTimestampMs": 1}\n0')
    with walks["prepare"].taken():
        writer = driver.writer(spark_schema(table.schema))
    with walks["write"].taken():
        message = writer.write(iter(table.to_batches()))
    with walks["commit"].taken():
        writer.commit([message], 1)
    return walks


def through_a_dataflow(folder: Path) -> dict[str, Walk]:
    """Take one step of a dataflow, after another one."""
    log = spark_timely.create_log(folder / "in", pa.schema([("n", pa.int64())]), minimum=(0,))
    writer = log.writer(owner="me")
    flow = Scope("walk")
    flow.replay(log.path).filter("n > 1").aggregate(n=tf.count()).capture(str(folder / "out"))
    engine = Engine(flow.name, flow.sinks, flow.storage, files_of=catalog_of)
    walk = Walk()
    for time in (1, 2):
        writer.append(pa.table({"_time": [time] * 3, "n": [1, 2, 3]}), advance_to=time + 1)
        if time == 1:
            engine.advance(runner(flow.storage))
        else:
            engine.begin()
            with walk.taken():
                engine.step()
    return {"step": walk}


def through_a_task(folder: Path) -> dict[str, Walk]:
    """Take one step of a continual task, after another one."""
    walk = Walk()
    with pytest.MonkeyPatch.context() as patch:
        story = Story(folder, patch, ("stream", "inserts"))
        replica = story.replica()
        for time in (1, 2):
            story.write(0, (time, ("a", time), 1), to=time + 1)
            if time == 1:
                idle(replica)
            else:
                replica.engine.begin()
                with walk.taken():
                    replica.engine.step()
    return {"step": walk}


def through_a_peek(folder: Path) -> dict[str, Walk]:
    """Ask for one key, after another one: with an index, and without."""
    walks = {}
    for name in ("by an index", "in the log"):
        log = spark_timely.create_log(folder / name, SCHEMA, kind="collection", minimum=(0,))
        append(log, [(1, 1, 1, "a"), (1, 2, 2, "b")], 2)
        if name == "by an index":
            index(log, ["k"])
        walks[name] = Walk()
        peek(log, keys={"k": [2]})
        with walks[name].taken():
            peek(log, keys={"k": [1]})
    return walks


def main() -> int:
    """Take the walks and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="", help="take the walks alone that have this word in their names")
    parser.add_argument("-v", "--verbose", action="store_true", help="list the files")
    given = parser.parse_args()
    walks: dict[str, Callable[[Path], dict[str, Walk]]] = {
        "a micro-batch of three rows through the sink": through_the_sink,
        "a step of a dataflow": through_a_dataflow,
        "a step of a continual task": through_a_task,
        "a peek by key": through_a_peek,
    }
    for what, take in ((what, take) for what, take in walks.items() if given.what in what):
        with tempfile.TemporaryDirectory() as folder:
            parts = take(Path(folder))
        files = {file for walk in parts.values() for file in walk.calls}
        print(f"{what}: {len(files)} files, {sum(walk.moves for walk in parts.values())} moves")
        for name, walk in parts.items():
            print(f"  {name}: {walk}")
            for file, n in walk.calls.most_common() if given.verbose else ():
                print(f"    {n:5} {Path(file).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
