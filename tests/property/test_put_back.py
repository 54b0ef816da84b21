"""Replays that stop and start while their log is copied, put back and grows: right, or refused, and never in between.

What a query has delivered is compared with the log as it is whenever it continues. That it was refused is compared with
what the log has lost: nothing else may stop it.
"""

from __future__ import annotations

import json
import random
from collections import Counter

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_timely.errors import DataLossError
from spark_timely.log import MemoryLog
from spark_timely.testing.driver import Checkpoint, MicroBatch
from tests.unit.datasource.support import copy_of, drive
from tests.unit.datasource.test_planner import make_log

some = settings(suppress_health_check=list(HealthCheck), max_examples=max(25, settings.default.max_examples // 4))

STREAMS = ("a", "b")


class Query:
    """A query with its checkpoint, what it delivered, and by which commits."""

    def __init__(self, delivery: str) -> None:
        self.delivery = delivery
        self.checkpoint = Checkpoint()
        self.delivered: dict[int, list[int]] = {}
        self.commits: dict[str, tuple[int, str]] = {}

    def is_of(self, log: MemoryLog) -> bool:
        """Return whether a log has what the query was made from."""
        found = {name: log.core.commits_of({name: seq}).get(name) for name, (seq, _) in self.commits.items()}
        return all(state is not None and state.identity == self.commits[name][1] for name, state in found.items())

    def run(self, log: MemoryLog, *, fail_after: int | None = None, **limits: str) -> None:
        driver = drive(log, checkpoint=self.checkpoint, delivery=self.delivery, **limits)
        for batch in driver.available_now(fail_after=fail_after):
            known = self.delivered.get(batch.number)
            self.delivered[batch.number] = sorted(batch.rows["v"].to_pylist())
            assert known in (None, self.delivered[batch.number]), "a repeated micro-batch has other rows"
            if known is None:
                self.note(log, batch)

    def note(self, log: MemoryLog, batch: MicroBatch) -> None:
        end = json.loads(batch.end)
        if "frontier" in end:
            self.commits = {name: (state.seq, state.identity) for name, state in log.core.ends().items()}
        for name, seq in end.get("seqs", {}).items():
            state = log.core.commits_of({name: seq - 1}).get(name)
            assert state is not None
            self.commits[name] = state.seq, state.identity

    @property
    def rows(self) -> Counter[int]:
        return Counter(value for rows in self.delivered.values() for value in rows)


def all_rows(log: MemoryLog, *, closed: bool = False) -> Counter[int]:
    return Counter(log.messages(upper=log.frontier() if closed else None)["v"].to_pylist())


@some
@given(st.randoms(use_true_random=False), st.sampled_from(["complete", "arrival"]))
def test_replay_of_a_log_that_is_put_back_is_right_or_refused(rng: random.Random, delivery: str) -> None:
    log = make_log(streams=len(STREAMS), merge_every=rng.choice([3, None]))
    saved = [copy_of(log)]
    query, number = Query(delivery), 0
    for _ in range(rng.randrange(5, 40)):
        what = rng.random()
        if what < 0.4:
            stream = rng.choice(STREAMS)
            writer = log.writer(stream, owner=stream)
            low = writer.state.frontier.elements[0][0]
            times = [low + rng.randrange(4) for _ in range(rng.randrange(4))]
            values = list(range(number, number + len(times)))
            number += len(times)
            table = pa.table({"_time": pa.array(times, pa.int64()), "v": pa.array(values, pa.int64())})
            writer.append(table, advance_to=low + rng.randrange(3))
        elif what < 0.5:
            saved.append(copy_of(log))
        elif what < 0.6:
            log = copy_of(rng.choice(saved))
        elif what < 0.65:
            log.compact()
        else:
            limits = {"maxRowsPerTrigger": "1"} if rng.random() < 0.4 else {}
            fits = query.is_of(log)
            try:
                query.run(log, fail_after=rng.choice([None, None, 0, 1]), **limits)
            except DataLossError:
                assert not fits, "a log that has all that was delivered is refused"
                query = Query(delivery)
                continue
            assert fits, "a log without what was delivered is continued"
            assert query.rows <= all_rows(log), "what was delivered is no part of the log"
    if not query.is_of(log):
        query = Query(delivery)
    query.run(log)
    assert query.rows == all_rows(log, closed=delivery == "complete")
