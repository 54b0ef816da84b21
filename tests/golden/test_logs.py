"""What earlier versions wrote is read and continued to the same contents, or refused with the way on: without Spark."""

from __future__ import annotations

import pytest

from tests.golden.lasting import Thing, continues
from tests.golden.lasting_plain import THINGS


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: thing.name)
def test_golden_thing_continues_to_the_same_contents(thing: Thing) -> None:
    continues(thing)
