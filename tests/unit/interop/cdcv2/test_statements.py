"""CDCv2's statements, kept from micro-batch to micro-batch: the frontier is the reader's, and little is kept."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_timely.interop.cdcv2.reader import CdcReader, read_message
from spark_timely.interop.cdcv2.statements import Ledger, Statement
from spark_timely.time.antichain import Antichain, unique_times
from spark_timely.trace.updates import Updates
from tests.golden.test_cdcv2 import CASES, TIMES


class Kept:
    """What capturing keeps: the updates that the log has, and the ledger as text."""

    def __init__(self, arity: int) -> None:
        self.arity = arity
        self.updates: dict[tuple[Any, ...], int] = {}
        self.text = json.dumps(Ledger(Antichain.of((0,) * arity)).to_json())

    def take(self, messages: list[Updates | Statement]) -> Ledger:
        """Take a micro-batch; by sets of Python, nothing of the reader's."""
        ledger = Ledger.from_json(json.loads(self.text), arity=self.arity)
        ledger.take(message for message in messages if isinstance(message, Statement))
        for message in messages:
            if isinstance(message, Updates):
                words = message.rows.column(0).to_pylist()
                for word, time, diff in zip(words, message.times.tolist(), message.diffs.tolist(), strict=True):
                    if ledger.frontier.less_equal(tuple(time)):
                        self.updates[word, *time] = diff
        times = np.array([key[1:] for key in self.updates], np.int64).reshape(-1, self.arity)
        times = times[ledger.frontier.beyond(times) & ~ledger.known.beyond(times)]
        unique, counts = unique_times(times)
        ledger.advance(dict(zip(map(tuple, unique.tolist()), counts.tolist(), strict=True)))
        self.text = json.dumps(ledger.to_json())
        return ledger


@settings(max_examples=max(60, settings().max_examples // 4))
@given(st.data())
def test_copies_order_and_cuts_move_the_frontier_as_the_reader(data: st.DataObject) -> None:
    _, _, case = data.draw(st.sampled_from([each for each in CASES if each[2]["mode"] != "dup_inside_message"]))
    types = {"time": TIMES[case["time"]], "record": "string"}
    messages = [read_message(json.dumps(message), **types) for message in case["messages"]]
    order = data.draw(st.permutations(messages))
    order += data.draw(st.lists(st.sampled_from(messages), max_size=10))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(order)), max_size=5)))
    kept, reader = Kept(1 if case["time"] == "u64" else 2), CdcReader(**types)
    given_out = 0
    for low, high in zip([0, *cuts], [*cuts, len(order)], strict=True):
        output = reader.extend(order[low:high])
        given_out += 0 if output is None else len(output.updates.diffs)
        ledger = kept.take(order[low:high])
        assert ledger.frontier == reader.frontier
        # A repeated micro-batch changes nothing.
        text = kept.text
        assert kept.take(order[low:high]).frontier == reader.frontier
        assert kept.text == text
    done = [key for key in kept.updates if not reader.frontier.less_equal(key[1:])]
    assert len(done) == given_out
    if case["complete"]:
        assert ledger.frontier.is_empty
        assert ledger.size == 0


def test_waiting_copies_are_kept_once_and_a_chain_joins_at_once() -> None:
    ledger = Ledger(Antichain.of(0))
    chain = [Statement(Antichain.of(n), Antichain.of(n + 1), {(n,): 1}) for n in range(1, 3_000)]
    ledger.take([*chain[::-1], *chain])
    assert ledger.size == 2 * len(chain)
    ledger.take([Statement(Antichain.of(0), Antichain.of(1), {}), *chain])
    assert (ledger.waiting, ledger.known) == ([], Antichain.of(3_000))
    assert ledger.advance({(n,): 1 for n in range(1, 2_000)}) == Antichain.of(2_000)
    assert ledger.size == 1_000


@pytest.mark.parametrize("moved", [4, 12])
def test_frontier_moved_by_hand_completes_all_before_it(moved: int) -> None:
    ledger = Ledger(Antichain.of(0))
    ledger.take(
        [
            Statement(Antichain.of(0), Antichain.of(6), {(2,): 1, (5,): 1}),
            Statement(Antichain.of(9), Antichain.empty(), {}),
        ]
    )
    ledger.pass_over(Antichain.of(moved))
    assert ledger.known == Antichain.of(max(6, moved))
    ledger.take([Statement(Antichain.of(6), Antichain.of(9), {})])
    assert ledger.advance({}) == (Antichain.of(5) if moved < 6 else Antichain.empty())
