"""Detection of outputs that can never move, because nothing that feeds them can move.

A log that others write too may wait for them, for as long as they like. In one that a dataflow keeps for itself nobody
else writes: where it lets nobody past what its writers have done, that is an internal error, and is reported as one
instead of a wait without end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.dataflow.views import Replay, leaves_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from spark_timely.dataflow.logs import Sink
    from spark_timely.log import Log
    from spark_timely.time.antichain import Antichain

__all__ = ["stuck_outputs"]


def stuck_outputs(
    sinks: Sequence[Sink],
    uppers: Mapping[Sink, Antichain],
    frontiers: Mapping[str, Antichain],
    logs: Mapping[str, Log],
    excused: Collection[Sink] = (),
) -> dict[Sink, Antichain]:
    """Return the outputs that can never move, each with how far its inputs would let it go.

    Parameters
    ----------
    sinks : sequence of Sink
        Of one dataflow.
    uppers : mapping of Sink to Antichain
        How far outputs are, read before `frontiers`; one without is not judged, nor is what is made from it.
    frontiers : mapping of str to Antichain
        Of the logs that are read, by path.
    logs : mapping of str to Log
        As of then.
    excused : collection of Sink
        Outputs that stopped, which is reported as it is.

    Notes
    -----
    Cost: two walks over each output's operators.
    """
    writers: dict[str, list[Sink]] = {}
    for sink in sinks:
        writers.setdefault(sink.path, []).append(sink)
    goals: dict[Sink, Antichain] = {}
    moving: set[Sink] = set()
    found: dict[Sink, Antichain] = {}
    for sink, leaves in _each_after_its_inputs(sinks, writers):
        below = [other for leaf in leaves for other in writers.get(leaf.path, ())]
        known = sink in uppers and all(leaf.path in frontiers for leaf in leaves)
        if not known or sink in excused or any(other in moving for other in below):
            moving.add(sink)  # or will, or says itself why not
            continue
        now = sink.view.front({leaf: frontiers[leaf.path] for leaf in leaves})
        if not now.less_equal_frontier(uppers[sink]):
            moving.add(sink)
            continue
        far: dict[Replay, Antichain] = {}
        for leaf in leaves:
            far[leaf] = frontiers[leaf.path]
            mine = writers.get(leaf.path, [])
            if mine and all(other.kept for other in mine):
                others = _held_by_others(logs[leaf.path], {other.stream for other in mine})
                far[leaf] = far[leaf].join(_meet([*(goals[other] for other in mine), *others]))
        goals[sink] = sink.view.front(far).join(uppers[sink])
        if goals[sink] != uppers[sink]:
            found[sink] = goals[sink]
    return found


def _held_by_others(log: Log, streams: Collection[str]) -> list[Antichain]:
    """Return how far streams of a log are that others write."""
    states = (log.core.stream(name) for name in log.streams() if name not in streams)
    return [state.frontier for state in states if state is not None]


def _meet(frontiers: Sequence[Antichain]) -> Antichain:
    first, *others = frontiers
    for other in others:
        first = first.meet(other)
    return first


def _each_after_its_inputs(
    sinks: Sequence[Sink], writers: Mapping[str, Sequence[Sink]]
) -> list[tuple[Sink, list[Replay]]]:
    found: dict[Sink, list[Replay]] = {}
    leaves = {sink: leaves_of(sink.view) for sink in sinks}
    waiting = [(sink, False) for sink in reversed(sinks)]
    while waiting:  # at most twice per output and use
        sink, ready = waiting.pop()
        if sink in found:
            continue
        if ready:
            found[sink] = leaves[sink]
        else:
            waiting.append((sink, True))
            waiting += [(other, False) for leaf in leaves[sink] for other in writers.get(leaf.path, ())]
    return list(found.items())
