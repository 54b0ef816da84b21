"""Changes at the ports of operators, and operators and scopes with very many ports."""

from __future__ import annotations

import pytest

from spark_timely.errors import InvalidShapeError
from spark_timely.progress.change_batch import PortChanges
from spark_timely.progress.operate import Operator
from spark_timely.progress.reachability import Source, Target
from spark_timely.progress.worker import Worker
from tests.unit.progress.scripted import Scripted, filled


def test_changes_of_equal_port_and_time_are_summed() -> None:
    changes = filled(2, [(1, (5, 6), 1), (0, (5, 6), 2), (1, (5, 6), -1)])
    assert list(changes) == [(0, (5, 6), 2)]
    assert changes.drain() == [(0, (5, 6), 2)]
    assert changes.is_empty()


def test_a_time_of_another_arity_is_refused() -> None:
    changes = filled(2, [(3, (1, 2), 2)])
    changes.clear()
    assert changes.drain() == []
    with pytest.raises(InvalidShapeError):
        changes.update(0, (1, 2, 3), 1)


def test_unsigned_times_beyond_63_bits_are_kept() -> None:
    changes = PortChanges()
    changes.update(0, 2**63 + 5, 1)
    changes.update(0, (2**63 + 5,), 1)
    assert list(changes) == [(0, (2**63 + 5,), 2)]


def test_an_operator_starts_with_capabilities_for_all_peers() -> None:
    for outputs in (1, 8, 9, 20):
        _, capabilities = Operator("wide", inputs=0, outputs=outputs, peers=3, minimum=(2, 0)).get_internal_summary()
        assert list(capabilities) == [(output, (2, 0), 3) for output in range(outputs)]


def test_an_operator_may_have_very_many_ports() -> None:
    n = 20_000  # a table of inputs × outputs would have 4·10^8 entries
    worker = Worker()
    scope = worker.new_dataflow()
    wide, last = Scripted("wide", 0, n), Scripted("last", n, 0)
    scope.add_child(wide)
    scope.add_child(last)
    for port in range(n):
        scope.connect(Source(1, port), Target(2, port))
    number = worker.add(scope)
    worker.step()
    wide.say(internal=[(7, (0,), -1), (7, (3,), 1)])
    worker.step()
    last.told.clear()
    worker.step()
    assert last.told == [(7, (0,), -1), (7, (3,), 1)]
    assert worker.dataflow(number).children[1].frontier(7) == ((3,),)


def test_a_scope_may_have_very_many_inputs_and_outputs() -> None:
    # Sparse all the way: a table of inputs × outputs would have 10^8 entries.
    n = 10_000
    builder = Worker().new_dataflow().new_scope("wide")
    for port in range(n):
        builder.new_input()
        builder.new_output()
        builder.connect(Source(0, port), Target(0, port))
    summary, capabilities = builder.build().get_internal_summary()
    assert summary is not None
    assert [len(row) for row in summary[:3]] == [1, 1, 1]
    assert capabilities.is_empty()
