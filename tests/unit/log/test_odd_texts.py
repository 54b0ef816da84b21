"""Texts that are none in UTF-8, and clocks that are no number: refused by name, wherever a log takes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_timely
from spark_timely import Log
from spark_timely.conf.kinds import in_utf8
from spark_timely.errors import TimelyError
from tests.support import examples

SCHEMA = pa.schema([("k", pa.string())])

# Public functions that take a text of the user's, wherever in it the odd character is.
TAKES: dict[str, Callable[[Log, str], Any]] = {
    "create_log": lambda log, text: spark_timely.create_log(f"{log.path}-{text}", SCHEMA),
    "open_log": lambda log, text: spark_timely.open_log(f"{log.path}-{text}"),
    "an owner": lambda log, text: log.writer("other", owner=f"o{text}").advance(1),
    "a stream": lambda log, text: log.writer(f"s{text}", owner="o").advance(1),
    "a reason": lambda log, text: log.writer(owner="t").advance(2, reason=f"r{text}"),
    "a consumer": lambda log, text: log.retain(f"c{text}", [1], owner="o"),
    "an owner of a retainer": lambda log, text: log.retain("c", [1], owner=f"o{text}"),
    "a release": lambda log, text: log.release(f"c{text}"),
    "a condition": lambda log, text: spark_timely.peek(log, where=f"k > '{text}'"),
    "a name in a condition": lambda log, text: spark_timely.peek(log, where=f"`{text}` > 'a'"),
    "a selected column": lambda log, text: spark_timely.peek(log, select=[f"c{text}"]),
    "a key": lambda log, text: spark_timely.peek(log, keys={"k": [f"c{text}"]}),
    "a time": lambda log, text: spark_timely.peek(log, as_of=text),
    "an option": lambda log, text: spark_timely.open_log(log.path, storage_options={"aws_region": f"r{text}"}),
    "an age": lambda log, text: log.vacuum(older_than=f"1{text}"),
}


@examples(12, long=400)
@given(data=st.data())
def test_texts_that_are_none_in_utf8_are_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    log = spark_timely.create_log(folder / "log", SCHEMA, minimum=(0,), streams=2)
    log.writer(owner="t").append(pa.table({"_time": [0], "k": ["a"]}), advance_to=1)
    half = data.draw(st.characters(categories=["Cs"]))
    text = data.draw(st.text("ab é", max_size=3)) + half + data.draw(st.text("ab é", max_size=3))
    version = log.core.version
    for name, call in TAKES.items():
        with pytest.raises(TimelyError) as error:
            call(log, text)
        assert in_utf8(str(error.value)), name
        assert error.value.hint, name
    assert (log.refresh(), log.core.version) == (False, version)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, "now", None])
def test_clock_that_is_no_number_is_refused_by_name(tmp_path: Path, seconds: Any) -> None:
    spark_timely.create_log(tmp_path / "log", SCHEMA, minimum=(0,))
    log = spark_timely.open_log(tmp_path / "log", clock=lambda: seconds)
    with pytest.raises(TimelyError, match=r"found clock\(\)=.* — hint: give a clock that returns seconds"):
        log.writer(owner="t").advance(2)
