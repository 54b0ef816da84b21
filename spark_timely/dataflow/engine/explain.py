"""Explanation of a dataflow and its progress, for people: read from its logs alone, by any process.

`explain`, `progress` and `metrics` of a `Dataflow` (`spark_timely.spark.dataflows`) come from here, and what a notebook
shows of one. There are operators, inputs and outputs, each with its frontier; what an output keeps and looks into; and
why an output stopped. The dataflow need not run: nothing is asked of the process that runs it.
"""

from __future__ import annotations

import time as wall_clock
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_timely.dataflow.engine.arrangements import Arrangements
from spark_timely.dataflow.engine.cutting import paths_of
from spark_timely.dataflow.engine.outputs import newest_note, steps_of
from spark_timely.dataflow.engine.tracking import stuck_outputs
from spark_timely.dataflow.fingerprint import plans_of
from spark_timely.dataflow.history.base import HIDDEN
from spark_timely.dataflow.operators.joins import AsOfJoin
from spark_timely.dataflow.remembered import Look, looks_of, remembers
from spark_timely.dataflow.views import Replay, View, leaves_of, ordered
from spark_timely.errors import LogMissingError
from spark_timely.log.arrangements import folder_of
from spark_timely.log.log import open_log
from spark_timely.notebook import Node, bar, counted, graph, page, table
from spark_timely.protocol.note import OutputFailure, OutputNote
from spark_timely.time.antichain import Antichain
from spark_timely.trace.folder import newest_spine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_timely.dataflow.engine.cutting import Files
    from spark_timely.dataflow.history.base import HistoryOperator
    from spark_timely.dataflow.logs import Sink
    from spark_timely.dataflow.stream import Scope
    from spark_timely.dataflow.views import Names
    from spark_timely.log import Log

__all__ = ["OperatorMetrics", "OutputProgress", "OutputState", "explain", "html", "metrics", "outputs", "progress"]


@dataclass(frozen=True, slots=True)
class OutputState:
    """The state of an output: how far it is.

    Attributes
    ----------
    operator : str
        Name of the capture.
    log, stream : str
    upper : Antichain
        Everything not beyond it is in the log.
    frontier : Antichain
        Of the stream that is captured: everything not beyond it is complete.
    held_by : tuple of str
        Inputs that keep the frontier where it is: paths of their logs.
    failure : OutputFailure or None
        Why it stopped, if the dataflow failed there and nobody got past since.
    plan : str or None
        Fingerprint of what it is made by; None if a log that it is made from is missing.
    made_by : str or None
        Fingerprint in its log: what its newest rows were made by. None before the first step.
    stuck_before : Antichain or None
        How far its inputs would let it go, where nothing that the dataflow writes below it can move: an internal error.
    """

    operator: str
    log: str
    stream: str
    upper: Antichain
    frontier: Antichain
    held_by: tuple[str, ...]
    failure: OutputFailure | None
    plan: str | None
    made_by: str | None
    stuck_before: Antichain | None = None

    @property
    def lag(self) -> int | None:
        """From upper to frontier, in units of the time; None for several coordinates, or where one is complete."""
        if self.upper == self.frontier:
            return 0
        if self.upper.arity > 1 or self.upper.is_empty or self.frontier.is_empty:
            return None
        return self.frontier.elements[0][0] - self.upper.elements[0][0]


@dataclass(frozen=True, slots=True)
class OutputProgress:
    """The share of the complete times that an output has done; exact.

    Attributes
    ----------
    operator : str
        Name of the capture.
    done, total : int
        Rows of the inputs at complete times, those of them that are in the output and all; once for each delay by which
        they come.
    """

    operator: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class OperatorMetrics:
    """The rows and bytes that went through an operator for an output, as far as they are in the log.

    Attributes
    ----------
    operator : str
    output : str
        Name of the capture that it worked for.
    rows, size_bytes : int
        That it gave, in Arrow's form.
    times : int or None
        Distinct times of what was captured; None for other operators, and where a step had too many to tell.
    steps, tasks : int
    lag : int or None
        Of the output: see `OutputState`.
    failure : str or None
        Why the output stopped: see `OutputState`.
    """

    operator: str
    output: str
    rows: int
    size_bytes: int
    times: int | None
    steps: int
    tasks: int
    lag: int | None
    failure: str | None = None


def outputs(scope: Scope, /) -> list[OutputState]:
    """Return how far each output of a dataflow is.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> from spark_timely.dataflow.stream import Scope
    >>> from spark_timely.log.log import create_log
    >>> folder = tempfile.mkdtemp()
    >>> log = create_log(folder + "/in", pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> _ = log.writer(owner="me").advance(5)
    >>> flow = Scope("flow")
    >>> flow.replay(log).capture(folder + "/out")
    >>> [(out.operator, out.upper, out.frontier, out.lag) for out in outputs(flow)]
    [('capture_2', Antichain.of(0), Antichain.of(5), 5)]
    """
    # Before the frontiers of inputs: what is behind was not overtaken meanwhile.
    opened = {sink: _opened(scope, sink.path) for sink in scope.sinks}
    notes = {sink: OutputNote() if log is None else newest_note(log, sink) for sink, log in opened.items()}
    uppers = {sink: _upper(log, sink) for sink, log in opened.items()}
    logs = _inputs(scope)
    frontiers = _frontiers(scope, logs)
    plans = plans_of(scope.sinks, {path: log.core.log_id for path, log in logs.items() if log is not None})
    there = {path: log for path, log in logs.items() if log is not None}
    stopped = [sink for sink, note in notes.items() if note.failure is not None or opened[sink] is None]
    stuck = stuck_outputs(scope.sinks, uppers, frontiers, there, stopped)
    found = []
    for sink in scope.sinks:
        leaves = leaves_of(sink.view)
        front = sink.view.front({leaf: frontiers[leaf.path] for leaf in leaves})
        held = []
        for leaf in leaves:  # a log holds it if it would be elsewhere without that log
            others = {each: frontiers[each.path] for each in leaves}
            others[leaf] = Antichain.empty(front.arity)
            if sink.view.front(others) != front:
                held.append(leaf.path)
        upper, note = uppers[sink], notes[sink]
        ends = front.join(upper), tuple(held), note.failure, plans[sink].fingerprint if sink in plans else None
        found.append(OutputState(sink.name, sink.path, sink.stream, upper, *ends, note.plan, stuck.get(sink)))
    return found


def _fronts(scope: Scope) -> dict[View, Antichain]:
    """Return the frontier of each operator, inputs first."""
    frontiers = _frontiers(scope, _inputs(scope))
    known: dict[View, Antichain] = {}
    for sink in scope.sinks:
        for view in ordered(sink.view):
            if view in known:
                continue
            if isinstance(view, Replay):
                known[view] = frontiers[view.path]
            else:
                known[view] = view.operator.front_of([known[source] for source in view.inputs])
    return known


def html(scope: Scope, /, title: str, *, done: Mapping[str, OutputProgress] | None = None) -> str:
    """Return what a notebook shows of a dataflow: its graph with frontiers, and how far its outputs are.

    Parameters
    ----------
    scope : Scope
    title : str
    done : mapping of str to OutputProgress, optional
        By name of the capture, where that is to be shown.
    """
    nodes, writers = [], dict[str, list[str]]()
    for sink in scope.sinks:
        writers.setdefault(sink.path, []).append(sink.name)
    for view, frontier in _fronts(scope).items():
        said = [view.path] if isinstance(view, Replay) else [each for each in [view.operator.describe()] if each]
        before = writers.get(view.path, []) if isinstance(view, Replay) else [source.name for source in view.inputs]
        lines = (*said, f"frontier {view.domain.show_frontier(frontier)}")
        nodes.append(Node(view.name, lines, tuple(before), strong=isinstance(view, Replay)))
    rows, head = [], ["output", "log", "stream", "upper", "waits", "held by"]
    for state, sink in zip(outputs(scope), scope.sinks, strict=True):
        domain = sink.view.domain
        upper, front = domain.show_frontier(state.upper), domain.show_frontier(state.frontier)
        waits = "" if state.upper == state.frontier else f"{upper} to {front}"
        if state.failure is not None:
            waits = f"stopped: {state.failure.error}"
        elif state.stuck_before is not None:
            waits = f"stuck: its inputs are at {domain.show_frontier(state.stuck_before)}"
        rows.append([sink.name, sink.path, sink.stream, upper, waits, ", ".join(state.held_by)])
        nodes.append(Node(sink.name, (sink.path, f"upper {upper}"), (sink.view.name,), strong=True))
        if done is not None and (found := done.get(sink.name)) is not None:
            rows[-1] += [bar(found.done, found.total), f"{counted(found.done)} of {counted(found.total)}"]
    if done is not None:
        head += ["done", "rows of inputs"]
    return page(title, graph(nodes), table(head, rows))


def explain(scope: Scope, /) -> str:
    """Return the plan of a dataflow, operator by operator, with frontiers, uppers, what waits, and fingerprints.

    Of operators over all history it says what they keep, where, how large that is and since when, and how far the
    index by key is; of a join as of a time, which side holds it back.

    Notes
    -----
    Cost: the commits of each log, and the spine of each index; no data is read.
    """
    lines = []
    fronts = _fronts(scope)
    for view, front_of_view in fronts.items():
        below = f" of {', '.join(source.name for source in view.inputs)}" if view.inputs else ""
        frontier = view.domain.render_frontier(front_of_view)
        said = view.describe() if isinstance(view, Replay) else view.operator.describe()
        lines.append(f"{view.name}{below}: {said}".rstrip(": ") + f" | frontier {frontier}")
        if isinstance(view.operator, AsOfJoin):
            lines += _joined(scope, view, view.operator.on, fronts)
    for state, sink in zip(outputs(scope), scope.sinks, strict=True):
        domain = sink.view.domain
        upper, front = domain.render_frontier(state.upper), domain.render_frontier(state.frontier)
        held = f", held by {', '.join(state.held_by)}" if state.held_by else ""
        cut = "cut by rows" if sink.view.rowwise else "cut by whole times"
        waits = f"waits {upper} to {front}" if state.upper != state.frontier else "nothing waits"
        waits = waits if state.stuck_before is None else "stuck"
        place = f"{sink.path} {sink.stream}"
        plan = "plan unknown: an input is missing" if state.plan is None else f"plan {state.plan}"
        if state.made_by not in (None, state.plan):
            plan += f", its log was made by {state.made_by}"
        lines.append(f"{sink.name} of {sink.view.name}: {place} | {plan} | upper {upper}, {waits}{held} | {cut}")
        kept = remembers(sink.view)
        if kept is not None:
            lines += _kept(scope, sink, kept.history)
        if state.failure is not None:
            lines.append(f"  stopped: {state.failure.error}")
        if state.stuck_before is not None:
            lines.append(
                f"  error: its inputs are at {domain.render_frontier(state.stuck_before)}, nothing below can move"
            )
        if state.upper != state.frontier:
            for leaf, ranges in sink.view.pre(state.upper, state.frontier).items():
                parts = (f"{domain.render_frontier(lo)} to {domain.render_frontier(hi)}" for lo, hi in ranges)
                lines.append(f"  reads {leaf.name} {', '.join(parts)}")
    return "\n".join([f"dataflow {scope.name!r}", *(f"  {line}" for line in lines)])


def _kept(scope: Scope, sink: Sink, operator: HistoryOperator) -> list[str]:
    """Return what an operator over all history keeps, where, and what it looks into."""
    view, names = sink.view, sink.view.schema.names
    hidden = [name for name in names if name.startswith(HIDDEN)]
    columns = ", ".join(name for name in names if name not in hidden)
    by = f"key {', '.join(operator.by)}" if operator.by else "one key"
    more = f", hidden {', '.join(hidden)}" if hidden else ""
    place = "a log of its own" if sink.kept else "its own output"
    back = "" if operator.looks_back is None else f", looks back {operator.looks_back} units of its times"
    own = Replay(view.name, view.domain, view.schema, (), sink.path, view.rows_kind)
    lines = [f"  keeps {by}, columns {columns}{more}, in {place} {sink.path}{back}: {_size(scope, own)}"]
    log = _opened(scope, sink.path)
    if operator.why_apart and log is not None:
        n_dead = int(log.core.dead_files().rows.sum())
        lines.append(f"  set apart {n_dead:,} rows, as dead letters of {sink.path}: {operator.why_apart}")
    for look, leaf in looks_of(view, own).items():
        if leaf is not own:
            lines.append(f"  looks into its input {leaf.path} by {', '.join(look.key)}: {_size(scope, leaf)}")
        lines.append(f"    {_index(scope, look, leaf)}")
    return lines


def _joined(scope: Scope, view: View, on: Names, fronts: Mapping[View, Antichain]) -> list[str]:
    """Return what a join as of a time looks into, and whether that holds its rows back."""
    facts, dimension = view.inputs
    assert isinstance(dimension, Replay)
    lines = [f"  keeps nothing, looks into {dimension.path} by {', '.join(on)}: {_size(scope, dimension)}"]
    lines += [f"    {_index(scope, look, leaf)}" for look, leaf in looks_of(view, None).items() if look.key == on]
    behind, ahead = fronts[dimension], fronts[facts]
    if behind != ahead and behind.join(ahead) == ahead:
        mine, theirs = (view.domain.render_frontier(each) for each in (behind, ahead))
        roots = sorted(_roots(dimension.path, {state.log: state.held_by for state in outputs(scope)}))
        made = "" if roots == [dimension.path] else f", made from {', '.join(roots)},"
        lines.append(
            f"  dimension {dimension.path}{made} holds the facts back: its frontier is {mine}, theirs {theirs}; "
            "advance it where nothing changes"
        )
    return lines


def _roots(path: str, held_by: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the logs of others that keep a log where it is, by what keeps each output of a dataflow where it is."""
    found: set[str] = set()
    seen = {path}
    waiting = [path]
    while waiting:
        at = waiting.pop()
        below = held_by.get(at, ())
        if not below:
            found.add(at)
        waiting += [each for each in below if each not in seen]
        seen.update(below)
    return found


def _size(scope: Scope, leaf: Replay) -> str:
    """Return how large a log is and since when it can be read, from its commits."""
    log = _opened(scope, leaf.path)
    if log is None:
        return "not there yet"
    files = log.core.files()
    what = "updates" if leaf.updates else "rows"
    rows = f"{int(files.rows.sum()):,}" if (files.rows >= 0).all() else "unknown"
    since = leaf.domain.render_frontier(log.since())
    now = wall_clock.time_ns() // 1000
    alive = sorted(name for name, each in log.retainers().items() if each.is_alive(now))
    retained = f", retained by {', '.join(alive)}" if alive else ""
    return f"{rows} {what}, {int(files.sizes.sum()):,} bytes, since {since}{retained}"


def _index(scope: Scope, look: Look, leaf: Replay) -> str:
    """Return how large an index is, and up to when it has everything."""
    log = _opened(scope, leaf.path)
    folder = None if log is None else folder_of(log, look.key, look.columns)
    if log is None or folder is None:
        return "no index"
    known = Arrangements({leaf.path: log}, {})
    rows, size = known.size_of(look, leaf)
    spine = newest_spine(folder, None) if size else None
    if spine is None:
        return "no index: the log is read"
    upper = Antichain.empty(leaf.domain.arity) if spine.upper is None else Antichain.of(spine.upper)
    since, end = (leaf.domain.render_frontier(each) for each in (Antichain.of(spine.since), upper))
    runs = f"{len(spine.runs)} run{'s' if len(spine.runs) > 1 else ''}"
    return f"index {folder}: {rows:,} rows, {size:,} bytes in {runs}, since {since}, upper {end}"


def metrics(scope: Scope, /) -> list[OperatorMetrics]:
    """Return what went through each operator for each output, since the output was made."""
    found = []
    for state, sink in zip(outputs(scope), scope.sinks, strict=True):
        log = _opened(scope, sink.path)
        steps: list[Mapping[str, Any]] = [] if log is None else list(steps_of(log, sink))
        ends = state.lag, None if state.failure is None else state.failure.message
        for view in ordered(sink.view):
            rows = sum(step["rows"].get(view.name, 0) for step in steps)
            size = sum(step["bytes"].get(view.name, 0) for step in steps)
            own = [step for step in steps if view.name in step["rows"]]
            tasks = sum(step["tasks"] for step in own)
            found.append(OperatorMetrics(view.name, sink.name, rows, size, None, len(own), tasks, *ends))
        times = [step["times"] for step in steps]
        last = sink.view.name
        whole = None if None in times else sum(times)
        rows = sum(step["rows"].get(last, 0) for step in steps)
        size = sum(step["bytes"].get(last, 0) for step in steps)
        tasks = sum(step["tasks"] for step in steps)
        found.append(OperatorMetrics(sink.name, sink.name, rows, size, whole, len(steps), tasks, *ends))
    return found


def progress(scope: Scope, files_of: Callable[[Replay], Files]) -> list[OutputProgress]:
    """Return how much of what is complete each output has done.

    Parameters
    ----------
    scope : Scope
    files_of : callable
        Gives the files of a log below.

    Notes
    -----
    Cost: exact times of each file are read once, from its footer; they are kept where `files_of` keeps them.
    """
    found = []
    for state, sink in zip(outputs(scope), scope.sinks, strict=True):
        done = total = 0
        for leaf, delays in paths_of(sink.view):
            upper, frontier = state.upper, state.frontier
            for delay in reversed(delays):
                upper, frontier = delay.back(upper), delay.back(frontier)
            files = files_of(leaf)
            done += _rows(files, upper)
            total += _rows(files, frontier)
        found.append(OutputProgress(sink.name, done, total))
    return found


def _rows(files: Files, upper: Antichain) -> int:
    """Return how many rows files have at times not beyond a frontier."""
    bounds = files.bounds
    numbers = np.flatnonzero(~bounds.known | ~upper.beyond(bounds.minima))
    found = 0
    for number in numbers:
        (counts,) = files.counts(np.array([number]))
        found += int(counts.rows[~upper.beyond(counts.times)].sum())
    return found


def _inputs(scope: Scope) -> dict[str, Log | None]:
    """Return the logs that are read, by path; None for one that is missing."""
    paths = {leaf.path: None for sink in scope.sinks for leaf in leaves_of(sink.view)}
    return {path: _opened(scope, path) for path in paths}


def _frontiers(scope: Scope, logs: Mapping[str, Log | None]) -> Mapping[str, Antichain]:
    found = {}
    for sink in scope.sinks:
        for leaf in leaves_of(sink.view):
            if leaf.path not in found:
                log = logs[leaf.path]
                found[leaf.path] = leaf.domain.minimum_frontier if log is None else log.frontier()
    return found


def _upper(log: Log | None, sink: Sink) -> Antichain:
    state = None if log is None else log.core.stream(sink.stream)
    if state is not None:
        return state.frontier
    return sink.view.front({leaf: leaf.domain.minimum_frontier for leaf in leaves_of(sink.view)})


def _opened(scope: Scope, path: str) -> Log | None:
    try:
        return open_log(path, storage_options=scope.storage[path] or None)
    except LogMissingError:
        return None
