"""What says when micro-batches begin: one reader for every query."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from spark_timely.errors import InvalidOptionError
from spark_timely.spark.base.trigger import ending_of, parse_trigger

GIVEN: list[tuple[Any, dict[str, Any]]] = [
    (None, {}),
    ("availableNow", {"availableNow": True}),
    ("available_now", {"availableNow": True}),
    ("AVAILABLE NOW", {"availableNow": True}),
    ("once", {"once": True}),
    ("10 seconds", {"processingTime": "10 seconds"}),
    ("interval 10 seconds", {"processingTime": "10 seconds"}),
    ("1h 30m", {"processingTime": "1 hour 30 minutes"}),
    ("0 seconds", {"processingTime": "0 seconds"}),
    (timedelta(milliseconds=1500), {"processingTime": "1 second 500 milliseconds"}),
    ({"availableNow": True}, {"availableNow": True}),
    ({"once": True, "processingTime": None}, {"once": True}),
    ({"processingTime": "PT10S"}, {"processingTime": "10 seconds"}),
    ({"continuous": "1 second"}, {"continuous": "1 second"}),
    ({"realTime": timedelta(minutes=5)}, {"realTime": "5 minutes"}),
]


@pytest.mark.parametrize(("given", "found"), GIVEN, ids=repr)
def test_trigger_is_read_as_spark_takes_it(given: Any, found: dict[str, Any]) -> None:
    assert parse_trigger(given, attempt="could not start") == found
    assert ending_of(found) == next((word for word in ("availableNow", "once") if word in found), None)


WRONG: list[tuple[Any, str]] = [
    ("sometimes", "found trigger='sometimes' — hint: give 'availableNow', 'once', an interval such as '10 seconds'"),
    ("availablNow", "found trigger='availablNow' — hint: did you mean 'availableNow'"),
    ("10", "found trigger='10' — hint: give"),
    ("", "found trigger='' — hint: give"),
    ("1 month", "found trigger='1 month' — hint: give"),
    (5, "found trigger=5 — hint: give"),
    (True, "found trigger=True — hint: give"),
    ([], "found trigger=[] — hint: give"),
    (b"once", "found trigger=b'once' — hint: give"),
    (timedelta(seconds=-1), "found trigger=datetime"),
    ({}, "found trigger={} — hint: give one trigger"),
    ({"once": True, "availableNow": True}, "hint: give one trigger"),
    ({"availableNow": False}, "found trigger={'availableNow': False} — hint: give"),
    ({"availableNow": "yes"}, "found trigger={'availableNow': 'yes'} — hint: give"),
    ({"available_now": True}, "found trigger={'available_now': True} — hint: give"),
    ({"processingTime": 10}, "found trigger={'processingTime': 10} — hint: give"),
    ({"processingTime": "soon"}, "found trigger={'processingTime': 'soon'} — hint: give"),
    ({5: True}, "found trigger={5: True} — hint: give"),
]


@pytest.mark.parametrize(("given", "text"), WRONG, ids=repr)
def test_trigger_that_is_none_is_refused_with_a_hint(given: Any, text: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        parse_trigger(given, attempt="could not start dataflow 'a'")
    assert caught.value.message.startswith("could not start dataflow 'a': found trigger=")
    assert text in str(caught.value)
    assert caught.value.context == {"option": "trigger"}
