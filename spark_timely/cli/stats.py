"""The verb ``stats``: how much a log keeps, which consumers hold it back, and how large it is.

``forget`` and the retainers' verbs (`forgetting`) print how much a log keeps in the same words, and ``ls``
(`log_verbs`) counts sizes by `sizes_of`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.cli.arguments import asked_log
from spark_timely.cli.output import (
    Console,
    aligned,
    count_text,
    frontier_facts,
    frontier_text,
    moment,
    seconds,
    size_text,
)
from spark_timely.time.text import Duration

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from spark_timely.cli.verb_table import Run
    from spark_timely.log import Log
    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.machine.state import StreamState
    from spark_timely.time.domain import TimeDomain

__all__ = ["RUNS", "keep_text", "since_json", "sizes_of"]


def _stats(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    with log.core.as_it_is():  # shown also where other programs changed rows
        return _show_stats(log, console)


def _show_stats(log: Log, console: Console) -> bool:
    if console.json_mode:
        console.answer(_facts(log))
        return True
    domain = log.domain
    times = ", ".join(type_.value for type_ in domain.types)
    pairs = [
        ("log", f"{log.path} ({log.kind}, format {log.core.format.version}, table version {log.core.version})"),
        ("time", f"{times}, from {domain.render_time(domain.minimum)}"),
        ("frontier", frontier_text(domain, log.frontier())),
        *_since_facts(log),
        ("messages", _sizes_text(log.core.files())),
        ("dead letters", _sizes_text(log.core.dead_files())),
        ("columns", ", ".join(f"{field.name} {field.type}" for field in log.schema)),
        *(("warning", problem) for problem in log.core.upkeep_problems()),
    ]
    for line in aligned(pairs):
        console.line(line)
    console.line()
    streams = log.streams()
    if streams:
        console.table(
            ["stream", "frontier", "commits", "micro-batch", "owner", "last commit", "reason"],
            [
                [
                    state.stream,
                    frontier_text(domain, state.frontier),
                    state.seq + 1,
                    state.batch,
                    state.owner,
                    seconds(state.at),
                    state.reason,
                ]
                for state in streams.values()
            ],
        )
    for state in streams.values():
        for line in [*_oddities(state), *_mover_lines(domain, state)]:
            console.line(f"stream {state.stream}: {line}")
    if log.core.unclaimed:
        console.line(f"{count_text(log.core.unclaimed, 'stream')} still to be opened: the frontier waits for them")
    return True


def _facts(log: Log) -> dict[str, object]:
    domain, frontier = log.domain, log.frontier()
    return {
        "path": log.path,
        "format_version": log.core.format.version,
        "kind": log.kind,
        "table_version": log.core.version,
        "times": [type_.value for type_ in domain.types],
        "minimum": domain.time_to_json(domain.minimum),
        **frontier_facts(domain, frontier),
        **since_json(log),
        "unclaimed": log.core.unclaimed,
        "messages": sizes_of(log.core.files()),
        "dead": sizes_of(log.core.dead_files()),
        "streams": [_stream_facts(domain, state) for state in log.streams().values()],
        "warnings": log.core.upkeep_problems(),
        "columns": [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in log.schema],
    }


def _since_facts(log: Log) -> list[tuple[str, str]]:
    """Return from where a log can be read, what it keeps, and who holds it back; nothing where all that is unused."""
    since, keep, retainers = log.since(), log.core.kept(), log.retainers()
    found = []
    if since != log.domain.minimum_frontier or keep is not None or retainers:
        found.append(("since", frontier_text(log.domain, since)))
    if keep is not None:
        found.append(("keeps", keep_text(log)))
    costs = log.core.retained_bytes()
    for name, each in retainers.items():
        at = frontier_text(log.domain, each.needed)
        if name in costs:
            said = f"{at} for {each.owner!r} until {seconds(each.expires)}, {size_text(costs[name])} by it alone"
        else:
            said = f"{at}, overrun by {each.overrun}" if each.overrun else f"{at}, expired {seconds(each.expires)}"
        found.append((f"retained for {name}", said))
    return found


def keep_text(log: Log) -> str:
    """Return in words how much a log keeps."""
    keep = log.core.kept()
    if keep is None:
        return "everything"
    length = log.domain.types[0].render_duration(keep.length)
    return f"{length}, and what was committed in the last {Duration(keep.committed).text}"


def since_json(log: Log) -> dict[str, object]:
    """Return the same for JSON."""
    keep, costs = log.core.kept(), log.core.retained_bytes()
    return {
        "since": log.domain.frontier_to_json(log.since()),
        "keep": None
        if keep is None
        else {
            "length": log.domain.types[0].render_duration(keep.length),
            "committed": Duration(keep.committed).text,
        },
        "retainers": [
            {
                "consumer": name,
                "needs": log.domain.frontier_to_json(each.needed),
                "owner": each.owner,
                "expires": moment(each.expires),
                "alive": name in costs,
                "overrun": each.overrun or None,
                "bytes": costs.get(name, 0),
            }
            for name, each in log.retainers().items()
        ],
    }


def _oddities(state: StreamState) -> list[str]:
    """Return in words what happened to micro-batches of the stream's owner that should not happen."""
    found = []
    if state.note.differing:
        times = count_text(state.note.differing, "repetition")
        found.append(f"{times} of a micro-batch with other rows than the log holds; the log's stand")
    if state.note.former:
        owners = ", ".join(map(repr, state.note.former))
        found.append(f"taken over from {owners}: rows that the new owner's sources gave again are there twice")
    if state.note.gaps:
        found.append(f"micro-batches missing with consent (beginAt): {_numbers(state.note.gaps)}")
    for owner in dict.fromkeys(name for name, _, _ in state.note.lost):
        numbers = _numbers([(a, b) for name, a, b in state.note.lost if name == owner])
        found.append(f"micro-batches of {owner!r} missing with consent (beginAt): {numbers}")
    if state.note.resubmitted:
        found.append(f"dead letters resubmitted, of commits {_numbers(state.note.resubmitted)}")
    return found


def _mover_lines(domain: TimeDomain, state: StreamState) -> list[str]:
    """Return in words which row moved the frontier, and whether it lay in the future then."""
    mover, kind = state.note.mover, domain.types[0]
    if mover is None:
        return []
    place = f"{mover.place}, " if mover.place else ""
    line = f"frontier moved to {kind.render(mover.frontier)} by a row at {kind.render(mover.time)}"
    line += f" ({place}commit {mover.seq}, {seconds(mover.at)})"
    ahead = mover.ahead_of_clock(kind)
    if ahead is not None and ahead > 0:
        line += (
            f", {kind.render_duration(ahead)} after the wall clock: see 'My frontier is too far' in the documentation"
        )
    return [line]


def _mover_facts(domain: TimeDomain, state: StreamState) -> dict[str, object] | None:
    mover, kind = state.note.mover, domain.types[0]
    if mover is None:
        return None
    times = {"time": kind.to_json(mover.time), "frontier": kind.to_json(mover.frontier)}
    return {**times, "seq": mover.seq, "place": mover.place, "at": moment(mover.at)}


def _numbers(ranges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in ranges)


def sizes_of(files: FileIndex) -> dict[str, int | None]:
    """Return how many files there are, and how many rows and bytes they have; None where rows are not known."""
    known = bool((files.rows >= 0).all())
    return {
        "files": len(files),
        "rows": int(files.rows.sum()) if known else None,
        "bytes": int(files.sizes.sum()),
    }


def _sizes_text(files: FileIndex) -> str:
    sizes = sizes_of(files)
    rows = "unknown number of rows" if sizes["rows"] is None else count_text(sizes["rows"], "row")
    return f"{rows} in {count_text(len(files), 'file')}, {size_text(int(files.sizes.sum()))}"


def _stream_facts(domain: TimeDomain, state: StreamState) -> dict[str, object]:
    held = zip(state.counts.times.tolist(), state.counts.counts.tolist(), strict=True)
    return {
        "stream": state.stream,
        "seq": state.seq,
        "frontier": domain.frontier_to_json(state.frontier),
        "held": [{"time": domain.time_to_json(time), "count": count} for time, count in held],
        "closed": state.closed,
        "moved_by": _mover_facts(domain, state),
        "resubmitted": [list(span) for span in state.note.resubmitted],
        "owner": state.owner,
        "batch": state.batch,
        "step": state.step,
        "epoch": state.epoch,
        "at": moment(state.at),
        "reason": state.reason,
        "differing": state.note.differing,
        "former": list(state.note.former),
        "gaps": [list(gap) for gap in state.note.gaps],
    }


RUNS: Mapping[str, Run] = {"stats": _stats}
