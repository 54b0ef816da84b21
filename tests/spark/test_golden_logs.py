"""What earlier versions wrote through Spark is read and continued to the same contents, or refused with the way on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.golden.lasting import Thing, continues
from tests.golden.lasting_spark import THINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: thing.name)
def test_golden_thing_continues_to_the_same_contents(spark: SparkSession, thing: Thing) -> None:
    continues(thing, spark)
