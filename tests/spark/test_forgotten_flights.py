"""The demo's flights, half a year of them, in a log that keeps 30 days: reports of these days are as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas as pd
import pyarrow as pa
import pytest

from spark_timely.cli import main
from spark_timely.errors import SinceViolationError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log

START = pd.Timestamp("2013-01-01", tz="UTC")
LATENESS = pd.Timedelta(hours=12)
SCHEMA = pa.schema([("origin", pa.string()), ("arr_delay", pa.int32())])


@pytest.fixture(scope="module")
def days(example: Callable[[str], ModuleType]) -> list[pd.DataFrame]:
    """Return what became known on each day of half a year; not what is late by more than the log waits."""
    flights = example("flights_data").load_flights()
    flights = flights[flights.known_at < pd.Timestamp("2013-07-01", tz="UTC")]
    flights = flights[flights.known_at - flights.hour <= LATENESS]
    return [day for _, day in flights.groupby(flights.known_at.dt.floor("D"))]


def captured(path: Path, days: list[pd.DataFrame], hours: int, **options: object) -> Log:
    """Capture a commit for so many hours each, at the wall clock of that day."""
    now = [START]
    made = {"times": ("timestamp",), "minimum": "2013-01-01", "clock": lambda: now[0].timestamp()}
    log = create_log(path, SCHEMA, **made, **options)  # type: ignore[arg-type]
    writer = log.writer(owner="demo")
    for day in days:
        for hour in range(hours, 25, hours):
            until = day.known_at.iloc[0].floor("D") + pd.Timedelta(hours=hour)
            part = day[(day.known_at < until) & (day.known_at >= until - pd.Timedelta(hours=hours))]
            now[0] = until
            rows = {"_time": part.hour, "origin": part.origin, "arr_delay": part.arr_delay}
            table = pa.table({name: pa.Array.from_pandas(column) for name, column in rows.items()})
            writer.append(table, advance_to=max(until - LATENESS, START).to_pydatetime())
    return log


def report(log: Log, start: pd.Timestamp) -> pd.DataFrame:
    """Return flights and their mean delay by hour and airport."""
    rows = log.messages(lower=start.to_pydatetime(), columns=["_time", "origin", "arr_delay"]).to_pandas()
    found = rows.groupby(["_time", "origin"]).arr_delay.agg(["size", "mean"])
    return found.sort_index()


def test_half_a_year_of_flights_is_forgotten(
    days: list[pd.DataFrame], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # What nothing is forgotten of is the same however it was cut.
    plain, kept = captured(tmp_path / "plain", days, 24), captured(tmp_path / "kept", days, 6, keep="30 days")
    start = plain.behind("30 days")
    assert plain.domain.show_frontier(start) == "2013-05-31T12:00Z"
    first = pd.Timestamp(start.elements[0][0], unit="us", tz="UTC")
    # The commits have moved it, by about every hundredth of them.
    assert 0 <= start.elements[0][0] - kept.since().elements[0][0] < 27 * 86_400_000_000
    assert main(["forget", kept.path, "--keep", "30 days", "--purge", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["reached"]
    assert facts["since"] == ["2013-05-31T12:00:00Z"]
    kept = open_log(kept.path)
    pd.testing.assert_frame_equal(report(kept, first), report(plain, first))
    known = pd.concat(days)
    assert kept.messages().num_rows == int((known.hour >= first).sum()) == report(kept, first)["size"].sum()
    assert plain.messages().num_rows == len(known) > 5 * kept.messages().num_rows
    assert kept.verify(since=start).digest == plain.verify(since=start).digest
    with pytest.raises(SinceViolationError):
        kept.messages(lower="2013-03-01")
