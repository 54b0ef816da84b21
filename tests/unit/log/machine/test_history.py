"""Which commits of a log's past are all there, by the number of a commit."""

from __future__ import annotations

import pyarrow as pa

from spark_timely.log import MemoryLog
from spark_timely.log.machine.history import History

PAYLOAD = pa.schema([("v", pa.int64())])


def test_each_stream_is_far_enough_before_its_first_commit() -> None:
    log = MemoryLog.create(PAYLOAD, minimum=(0,), streams=2)
    log.writer(stream="a", owner="me").append(pa.table({"_time": [0], "v": [1]}))
    past = History(log.core.progress(), log.domain)
    assert past.reached("version", 1, None)
    assert past.reached("version", 1, ("a", "later"))
    assert not past.reached("version", 2, None)  # another one may be opened, and copies from a stream
    assert past.reached("version", 2, ("a",))
    assert not past.reached("version", 2, ("a", "later"))


def test_closed_log_has_come_as_far_as_it_ever_will() -> None:
    log = MemoryLog.create(PAYLOAD, minimum=(0,))
    log.writer(stream="a", owner="me").append(pa.table({"_time": [0], "v": [1]}))
    log.close("a")
    assert History(log.core.progress(), log.domain).reached("version", 99, None)
    assert History(log.core.progress(), log.domain).reached("version", 99, ("never",))
