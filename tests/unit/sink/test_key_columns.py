"""What the sink says of the key of a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_timely.conf.options import SINK_OPTIONS, SinkOptions, parse_options
from spark_timely.errors import InvalidOptionError
from spark_timely.log.log import open_log
from spark_timely.sink.columns import roles_of
from tests.unit.sink.driver import BOUNDED, SinkDriver, rows

DATA = StructType().add("t", "long").add("d", "long").add("Id", "long").add("x", "double")


def options(**given: Any) -> SinkOptions:
    return parse_options(SINK_OPTIONS, {"path": "log", "timeColumn": "t", "frontier": "hold", **given})


def test_new_log_gets_the_key_that_the_query_names() -> None:
    form = roles_of(DATA, options(diffColumn="d", keyColumns="id, t"), form=None).form
    assert form.key == ("Id", "t")
    # Without the option the log keeps its own.
    assert roles_of(DATA, options(diffColumn="d"), form=form).form.key == ("Id", "t")
    assert roles_of(DATA, options(diffColumn="d", keyColumns="ID,T"), form=form).form.key == ("Id", "t")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keyColumns": "Id"}, "could not order a log by key='Id': found a log of kind 'stream'"),
        ({"keyColumns": "no", "diffColumn": "d"}, "could not order a log by key='no': found no such column"),
        ({"keyColumns": "x", "diffColumn": "d"}, "could not order a log by key='x': found type 'double'"),
    ],
)
def test_key_that_a_log_cannot_have_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        roles_of(DATA, options(**given), form=None)
    assert said in str(caught.value)
    assert caught.value.context == {"option": "keyColumns"}


@pytest.mark.parametrize("made", ["Id", ""])
def test_other_key_than_the_log_has_is_refused(made: str) -> None:
    first = options(diffColumn="d", **({"keyColumns": made} if made else {}))
    form = roles_of(DATA, first, form=None).form
    with pytest.raises(InvalidOptionError, match=rf"'keyColumns' for a log whose key is '{made or 'none'}'"):
        roles_of(DATA, options(diffColumn="d", keyColumns="t"), form=form)


def test_capture_makes_a_log_with_its_key(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, diffColumn="id", keyColumns="t")
    driver.run([rows([1, 20])])
    found = open_log(driver.log_path).core.format
    assert (found.kind, found.key) == ("collection", ("t",))
