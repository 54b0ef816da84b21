"""Which rows become messages: the sink and a writer against a model by loops, for any cut."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely import errors
from spark_timely.log import MemoryLog
from tests.support import examples
from tests.unit.sink.driver import SinkDriver

# By type: Arrow's, one unit of it, and times that are ordinary, after the type's end, before its beginning, of the far
# future. Numbers are written down here, apart from the library's.
DAY = 86_400_000_000
KINDS = {
    "long": (pa.int64(), 1, range(100, 120), [], [], []),
    "date": (pa.date32(), 1, range(15_000, 15_020), [2_932_897, 5_000_000], [-98_616, -700_000], [2_932_000]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        DAY,
        [day * DAY for day in range(15_000, 15_020)],
        [253_402_300_800_000_000, 2**60],
        [-98_615 * DAY - 1, -(2**61)],
        [253_300_000_000_000_000],
    ),
}


@dataclass
class Model:
    """A stream under ``frontier=bounded``, filled by loops over rows. Shares no code with the library."""

    kind: str
    late_data: str
    bad_time: str
    lateness: int
    skew: bool

    def __post_init__(self) -> None:
        _, _, _, self.over, self.below, self.future = KINDS[self.kind]
        self.frontier: int | None = None
        self.messages: Counter[tuple[int, int]] = Counter()
        self.dead: Counter[tuple[int, str]] = Counter()

    def batch(self, rows: list[tuple[int | None, int]]) -> bool:
        """Take one micro-batch; return False, with nothing taken, if it is refused."""
        messages: list[tuple[int | None, int]] = []
        dead: list[tuple[int, str]] = []
        tops: list[int] = []
        for time, number in rows:
            if time is None or time in self.over or (time in self.below and self.bad_time == "deadLetter"):
                if self.bad_time == "error":
                    return False
                dead.append((number, "no time" if time is None else "out of bounds"))
                continue
            late = time in self.below or (self.frontier is not None and time < self.frontier)
            skewed = self.skew and time in self.future and not late
            if (late or skewed) and self.late_data == "error":
                return False
            if (late or skewed) and self.late_data == "deadLetter":
                dead.append((number, "late" if late else "skewed"))
            elif late:
                messages.append((self.frontier, number))
            else:
                messages.append((time, number))
                tops += [] if skewed else [time]
        least = {"long": -(2**63), "date": -98_615, "timestamp": -98_615 * DAY}[self.kind]
        self.messages.update((least if time is None else time, number) for time, number in messages)
        self.dead.update(dead)
        # What moves the frontier, a message that was advanced included, never moves it back.
        reached = [top - self.lateness for top in tops]
        if reached:
            self.frontier = max(reached if self.frontier is None else [self.frontier, *reached])
            self.frontier = max(self.frontier, least)
        return True


@st.composite
def cases(draw: st.DrawFn) -> tuple[Model, list[list[tuple[int | None, int]]]]:
    kind = draw(st.sampled_from(sorted(KINDS)))
    _, unit, ordinary, over, below, future = KINDS[kind]
    times = st.sampled_from([*ordinary, None, *over, *below, *future])
    drawn = draw(st.lists(st.one_of(st.sampled_from(list(ordinary)), times), min_size=1, max_size=30))
    model = Model(
        kind,
        draw(st.sampled_from(["error", "deadLetter", "advance"])),
        draw(st.sampled_from(["error", "deadLetter", "deadLetter"])),
        draw(st.integers(0, 6)) * unit,
        draw(st.booleans()) and kind != "long",
    )
    rng = random.Random(draw(st.integers(0, 2**32)))
    batches: list[list[tuple[int | None, int]]] = [[]]
    for number, time in enumerate(drawn):
        if rng.random() < 0.3:
            batches.append([])
        batches[-1].append((time, number))
    return model, batches


def table(kind: str, rows: list[tuple[int | None, int]]) -> pa.Table:
    times = pa.array([time for time, _ in rows], pa.int32() if kind == "date" else pa.int64())
    return pa.table({"t": times.view(KINDS[kind][0]), "id": pa.array([number for _, number in rows], pa.int64())})


def numbers(column: pa.ChunkedArray) -> list[int | None]:
    array = column.combine_chunks()
    return array.view(pa.int32() if pa.types.is_date32(array.type) else pa.int64()).to_pylist()


def found(log: object) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, str]]]:
    messages, dead = log.messages(), log.dead()
    assert dead["_at"].null_count == dead["_time"].null_count == 0
    reasons = [reason.split(":")[0] for reason in dead["_reason"].to_pylist()]
    pairs = zip(numbers(messages["_time"]), messages["id"].to_pylist(), strict=True)
    return Counter(pairs), Counter(zip(dead["id"].to_pylist(), reasons, strict=True))


@examples(25, long=3000)
@given(case=cases())
def test_sink_and_writer_admit_what_the_model_does(
    case: tuple[Model, list[list[tuple[int | None, int]]]],
) -> None:
    model, batches = case
    given_ = {"lateData": model.late_data, "badTime": model.bad_time}
    unit = "" if model.kind == "long" else " days"
    lateness = f"{model.lateness // KINDS[model.kind][1]}{unit}"
    skew = {"maxFutureSkew": "1 day"} if model.skew else {}
    with tempfile.TemporaryDirectory() as folder:
        driver = SinkDriver(Path(folder), timeColumn="t", frontier="bounded", lateness=lateness, **given_, **skew)
        schema = pa.schema([("t", KINDS[model.kind][0]), ("id", pa.int64())])
        log = MemoryLog.create(schema, times=model.kind)
        writer = log.writer(
            owner="me",
            late_data=model.late_data,
            bad_time=model.bad_time,
            lateness=lateness,
            max_future_skew=skew.get("maxFutureSkew"),
        )
        for rows in batches:
            data = table(model.kind, rows)
            if not model.batch(rows):
                with pytest.raises((errors.LateDataError, errors.InvalidUsageError)):
                    driver.run([data])
                with pytest.raises((errors.LateDataError, errors.InvalidUsageError, errors.UnheldCapabilityError)):
                    writer.append(data, time_column="t")
                break
            split = len(rows) // 2
            driver.run([data.slice(0, split), data.slice(split)])
            writer.append(data, time_column="t")
        logs = [log, *([driver.log()] if (driver.log_path / "_delta_log").exists() else [])]
        for each in logs:
            assert found(each) == (model.messages, model.dead)
            if model.frontier is not None:
                assert each.frontier().elements == ((model.frontier,),)
            own = numbers(each.dead()["t"])
            by_number = {number: time for rows in batches for time, number in rows}
            assert own == [by_number[number] for number in each.dead()["id"].to_pylist()]
