"""An alarm: set in one process, heard in another, once for each setting."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from spark_timely.datasource.clock import Alarm
from spark_timely.testing import ManualClock


class World:
    """Two processes with clocks of their own, and one wall clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "metadata").write_text("{}")
        self.here, self.there, self.wall = ManualClock(now=7.0), ManualClock(now=9_000.0), ManualClock(now=1e9)
        self.setter, self.heard = self.alarm(self.here), self.alarm(self.there)

    def alarm(self, now: ManualClock, run: str = "run") -> Alarm:
        return Alarm(str(self.folder), run, now=now, wall=self.wall)

    def pass_by(self, seconds: float) -> None:
        for clock in (self.here, self.there, self.wall):
            clock.advance(seconds)


def test_alarm_rings_when_it_is_due_and_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.heard.rung() == 0
    assert world.setter.set(3.0)
    assert world.heard.rung() == 0
    world.pass_by(2.5)
    assert world.heard.rung() == 0
    world.pass_by(0.5)
    assert [world.heard.rung(), world.heard.rung()] == [1, 1]
    assert world.setter.set(0.0)
    assert world.heard.rung() == 2
    assert sorted(os.listdir(tmp_path)) == ["metadata", "timely-clock"]


def test_alarm_that_stands_for_sooner_is_left_as_it_is(tmp_path: Path) -> None:
    world = World(tmp_path)
    for after in (3.0, 3.0, 60.0):
        assert world.setter.set(after)
    world.pass_by(3.0)
    assert world.heard.rung() == 1
    assert world.setter.set(9.0)
    assert world.setter.set(1.0)
    world.pass_by(1.0)
    assert world.heard.rung() == 3


@pytest.mark.parametrize("back", [-1e6, 1e6])
def test_wall_clock_that_is_set_does_not_silence_it(tmp_path: Path, back: float) -> None:
    world = World(tmp_path)
    assert world.setter.set(3.0)
    assert world.heard.rung() == 0
    world.wall.set(world.wall() + back)
    world.here.advance(3.0)
    world.there.advance(3.0)
    assert world.heard.rung() == 1


def test_alarm_of_another_run_or_without_sense_means_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.alarm(world.here, "before").set(0.0)
    assert world.heard.rung() == 0
    for text in ("", "{", "[]", "null", '{"version": 1}', '{"version": 2, "run": "run", "number": 5}'):
        (tmp_path / "timely-clock").write_text(text)
        assert world.heard.rung() == 0
    assert world.setter.set(0.0)
    assert world.heard.rung() == 1


def test_numbers_go_on_in_a_new_process_of_the_run(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.setter.set(0.0)
    again = pickle.loads(pickle.dumps(world.alarm(world.here)))
    assert again.set(0.0)
    assert json.loads((tmp_path / "timely-clock").read_text())["number"] == 2


@pytest.mark.parametrize("location", ["hdfs://nowhere/checkpoint", "dbfs:/checkpoint", "missing", "read only"])
def test_checkpoint_out_of_reach_is_one_warning(
    tmp_path: Path, location: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = location if ":" in location else str(tmp_path / location)
    if location == "read only":
        (tmp_path / location).mkdir()
        (tmp_path / location / "metadata").write_text("{}")

        def refused(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "replace", refused)
    alarm = Alarm(where, "run")
    assert [alarm.set(0.0), alarm.set(5.0)] == [False, False]
    assert Alarm(where, "run").rung() == 0
    assert caplog.text.count("could not set the alarm of a dataflow in checkpoint") == 1
    assert not (tmp_path / "missing").exists()
