"""The progress log of the real timely, played back into scopes of ours.

What each worker received is delivered batch by batch, turn by turn as it was there, to dataflows built from
the events that describe them. The operators do nothing; so whatever they are told comes from the tracking.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from spark_timely.progress.broadcast import ChannelTable, ProgressBatch
from spark_timely.progress.change_batch import PortChanges
from spark_timely.progress.events import PushProgressEvent
from spark_timely.progress.operate import Operator
from spark_timely.progress.reachability import Source, Target
from spark_timely.progress.subgraph import SubgraphBuilder
from spark_timely.progress.worker import InputHandle, Worker
from tests.oracles.golden import as_row, vectors

pytestmark = pytest.mark.golden


@dataclass
class Recorded:
    """One worker's log of one dataflow."""

    peers: int
    operates: list[dict[str, Any]] = field(default_factory=list)
    channels: list[dict[str, Any]] = field(default_factory=list)
    summaries: dict[int, list[Any]] = field(default_factory=dict)
    # Turns of the dataflow: what was received, and who was told of progress.
    turns: list[tuple[list[dict[str, Any]], set[int]]] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)


def recordings() -> dict[tuple[str, int], Recorded]:
    found: dict[tuple[str, int], Recorded] = {}
    peers: dict[str, int] = {}
    for line in vectors("progress_log.jsonl"):
        name = line["dataflow"]
        if "info" in line:
            peers[name] = line["info"]["workers"]
            continue
        log = found.setdefault((name, line["worker"]), Recorded(peers[name]))
        ((kind, event),) = line["event"].items()
        if kind == "Operates":
            log.operates.append(event)
        elif kind == "Channels":
            log.channels.append(event)
        elif kind == "OperatesSummary":
            log.summaries[event["id"]] = event["summary"]
        elif kind == "Schedule" and event == {"id": 0, "start_stop": "Start"}:
            log.turns.append(([], set()))
        elif kind == "PushProgress":
            log.turns[-1][1].add(event["op_id"])
        elif kind == "TimelyProgress":
            if event["is_send"]:
                log.sent.append(event)
            else:
                log.turns[-1][0].append(event)
    return found


def time_of(text: str) -> tuple[int, ...]:
    value = ast.literal_eval(text)
    return (value,) if isinstance(value, int) else as_row(value)


def rows_of(event: dict[str, Any]) -> dict[tuple[int, ...], int]:
    rows: dict[tuple[int, ...], int] = {}
    for side, entries in ((1, event["messages"]), (0, event["internal"])):
        for node, port, time, diff in entries:
            row = (node, port, side, *time_of(time))
            rows[row] = rows.get(row, 0) + diff
    return rows


class Playback:
    """A transport on which only recorded batches arrive."""

    def __init__(self, index: int, peers: int) -> None:
        self.index, self.peers = index, peers
        self.channels = ChannelTable()
        self.sent: list[ProgressBatch] = []
        self.open, self.close, self.receive = self.channels.open, self.channels.close, self.channels.receive

    def send(self, batch: ProgressBatch) -> None:
        self.sent.append(batch)


def build(log: Recorded, worker: Worker) -> dict[int, int]:
    """Build the recorded dataflow; return identifiers here by identifiers there."""
    edges: dict[tuple[int, ...], list[Any]] = defaultdict(list)
    for channel in log.channels:
        edges[tuple(channel["scope_addr"])].append((Source(*channel["source"]), Target(*channel["target"])))
    operators = {tuple(event["addr"]): event for event in log.operates}
    known: dict[int, int] = {}
    root = worker.new_dataflow(operators[0,]["name"])
    fill(root, (0,), operators, edges, log, known)
    worker.add(root)
    return known


def fill(
    builder: SubgraphBuilder,
    addr: tuple[int, ...],
    operators: dict[tuple[int, ...], dict[str, Any]],
    edges: dict[tuple[int, ...], list[Any]],
    log: Recorded,
    known: dict[int, int],
) -> None:
    known[operators[addr]["id"]] = builder.identifier
    for _, target in edges[addr]:
        if target.node == 0:
            builder.new_output()
    for port in {source.port for source, _ in edges[addr] if source.node == 0}:
        assert builder.new_input().port == port
    for number in sorted(a[-1] for a in operators if a[:-1] == addr):
        there = operators[(*addr, number)]
        if any(a[:-1] == (*addr, number) for a in operators):
            inner = builder.new_scope(there["name"], nested=True)
            assert inner.index == number
            fill(inner, (*addr, number), operators, edges, log, known)
            builder.add_scope(inner)
            continue
        summary = log.summaries[there["id"]]
        outputs = {output for row in summary for output, _ in row}
        outputs |= {source.port for source, _ in edges[addr] if source.node == number}
        # A probe has an output that leads nowhere.
        operator = Operator(
            there["name"],
            inputs=len(summary),
            outputs=len(outputs),
            peers=builder.peers,
            minimum=builder.minimum,
            summary=[{output: [as_row(s) for s in paths] for output, paths in row} for row in summary],
        )
        known[there["id"]] = next(builder.worker.identifiers)
        builder.add_child(operator, index=builder.allocate_child_id(), identifier=known[there["id"]])
    for source, target in edges[addr]:
        builder.connect(source, target)


@pytest.mark.parametrize(("name", "index"), list(recordings()))
def test_progress_log_tells_operators_what_timely_told_them(name: str, index: int) -> None:
    log = recordings()[name, index]
    told: set[int] = set()
    worker = Worker(
        transport := Playback(index, log.peers),
        events=lambda event: told.add(event.op_id) if isinstance(event, PushProgressEvent) else None,
    )
    known = build(log, worker)
    # Progress channels there and here are both numbered in the order of building: inner scopes first.
    there = sorted({event["channel"] for event in log.sent})
    here = {channel: number for number, channel in enumerate(there)}
    scopes = {known[event["id"]] for event in log.operates if is_scope(log, event)}
    probes = {known[event["id"]] for event in log.operates if event["name"] == "Probe"}
    assert probes
    pending: set[int] = set()
    for number, (received, pushed) in enumerate(log.turns):
        for event in received:
            rows = rows_of(event)
            transport.channels.deliver(
                ProgressBatch(
                    event["source"],
                    here[event["channel"]],
                    event["seq_no"],
                    np.array(list(rows)).reshape(len(rows), -1),
                    np.array(list(rows.values())),
                )
            )
        told.clear()
        worker.step()
        wanted = {known[op] for op in pushed}
        if number == 0:
            # Here a scope takes its frontiers at the start before its first turn, and is not told them again.
            wanted -= scopes
        # Newer versions of timely wake only some operators for a push, as they wake a probe; the others get it
        # when they run for another cause. Here all are woken: nobody was told there without being told here.
        assert told & probes == wanted & probes, f"turn {number}"
        pending |= told
        assert wanted <= pending, f"turn {number}"
        pending -= wanted
    assert not pending
    # Its operators said nothing, so neither did it; and what was received took it to its end.
    assert not transport.sent
    assert worker.dataflows == []


def is_scope(log: Recorded, event: dict[str, Any]) -> bool:
    return any(tuple(other["addr"][:-1]) == tuple(event["addr"]) for other in log.operates)


@pytest.mark.parametrize("name", ["pipeline", "exchange", "iterate"])
def test_batches_are_sent_and_received_alike_and_sum_to_the_end(name: str) -> None:
    logs = {index: log for (dataflow, index), log in recordings().items() if dataflow == name}
    sent = {(e["source"], e["channel"], e["seq_no"]): rows_of(e) for log in logs.values() for e in log.sent}
    totals: Counter[tuple[int, ...]] = Counter()
    for key, rows in sent.items():
        for row, diff in rows.items():
            totals[key[1], *row] += diff
    for log in logs.values():
        received = {(e["source"], e["channel"], e["seq_no"]): rows_of(e) for turn, _ in log.turns for e in turn}
        assert received == sent
    # What is left of a finished dataflow: the capabilities at the start, which are never exchanged (000.21).
    # Messages to and from a scope stay, for what it says is not exchanged outside of it (000.39).
    peers = len(logs)
    nested = any(is_scope(logs[0], event) and len(event["addr"]) > 1 for event in logs[0].operates)
    for (channel, node, _port, side, *time), total in totals.items():
        if total and node and not (side and nested):
            assert (side, total, set(time)) == (0, -peers, {0}), (channel, node)


class Mapper(Operator):
    """Takes what its queue holds and passes it on; lets go of its first capability at once."""

    def __init__(self, name: str) -> None:
        super().__init__(name, inputs=1, outputs=1)
        self.queue: list[int] = []
        self.next: Mapper | None = None
        self.held = True
        self.counts: Counter[tuple[int, ...]] = Counter()

    def push_external_progress(self, changes: PortChanges) -> None:
        for _, time, diff in changes.drain():
            self.counts[time] += diff

    def passed(self, time: int) -> bool:
        return not self.held and all(other > (time,) for other, count in self.counts.items() if count)

    def pull_internal_progress(self, consumed: PortChanges, internal: PortChanges, produced: PortChanges) -> bool:
        if self.held:
            internal.update(0, 0, -1)
            self.held = False
        for time in self.queue:
            consumed.update(0, time, 1)
            if self.next is not None:
                produced.update(0, time, 1)
                self.next.queue.append(time)
        self.queue.clear()
        return False


def test_own_operators_give_the_progress_log_of_the_pipeline() -> None:
    # The recorded program, run here: input, map and probe on one worker, steps after each epoch until the probe
    # has passed it. Newer versions of timely run operators as soon as messages reach them; here they run when
    # the messages were announced. So statements are cut into other batches: they are compared in sum.
    log = recordings()["pipeline", 0]
    said: Counter[tuple[int, ...]] = Counter()
    wanted: Counter[tuple[int, ...]] = Counter()
    for event in log.sent:
        wanted.update(rows_of(event))
    worker = Worker(transport := Playback(0, 1))

    def send(batch: ProgressBatch) -> None:
        for row, diff in zip(batch.rows.tolist(), batch.diffs.tolist(), strict=True):
            said[tuple(row)] += diff
        transport.channels.deliver(batch)

    transport.send = send  # type: ignore[method-assign]
    scope = worker.new_dataflow()
    handle, first, probe = InputHandle(), Mapper("map"), Mapper("probe")
    first.next = probe
    source = handle.join(scope)
    one, two = scope.add_child(first), scope.add_child(probe)
    scope.connect(source, Target(one, 0))
    scope.connect(Source(one, 0), Target(two, 0))
    worker.add(scope)
    last = max(row[-1] for row in wanted)
    for epoch in range(last + 1):
        handle.send(epoch % 3)
        first.queue += [epoch] * (epoch % 3)
        if epoch < last:
            handle.advance_to(epoch + 1)
        else:
            handle.close()
        while worker.dataflows and not probe.passed(epoch):
            worker.step()
    while worker.step():
        pass
    assert {row: diff for row, diff in said.items() if diff} == {row: diff for row, diff in wanted.items() if diff}
