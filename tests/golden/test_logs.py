"""What earlier versions wrote is read and continued to the same contents, or refused with the way on: without Spark."""

from __future__ import annotations

import pytest

from tests.golden.lasting import Thing, continues, expected_of, place_of, unpack
from tests.golden.lasting_plain import THINGS, proceed_dataflow, read_dataflow


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: thing.name)
def test_golden_thing_continues_to_the_same_contents(thing: Thing) -> None:
    continues(thing)


def test_indexes_by_names_of_columns_are_built_again() -> None:
    with place_of("dataflow") as folder:
        unpack("dataflow", folder)
        proceed_dataflow(folder)
        found = read_dataflow(folder)["indexes"]
        wanted = expected_of("dataflow")["after"]["indexes"]
        assert sorted(where.rpartition("/by-")[::2] for where in wanted) == sorted(
            where.rpartition("/key-")[::2] for where in found
        )
        assert not set(found.values()) & set(wanted.values())
        assert not list(folder.rglob("by-*"))  # nobody has written there since the archive was made
