"""The verbs about whole logs: ls, head, tail, verify, advance, close, compact, repair, wait; frontier in its slow form.

`spark_timely.cli.command` loads this module for them. Their options are in `spark_timely.cli.verb_table`; verbs that
have a module of their own are listed there too.

A verb returns whether the answer is yes; it raises what the library raises. Verbs read a log's
bookkeeping, never its data, unless they are asked for rows (``head``, ``tail``) or for a check of all of them
(``verify``).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
import time as clock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.cli.arguments import asked_log, reach, refuse, storage_options
from spark_timely.cli.output import (
    Console,
    Table,
    aligned,
    count_text,
    frontier_facts,
    frontier_text,
    moment,
    printable,
    seconds,
    size_text,
)
from spark_timely.cli.rows import as_python
from spark_timely.cli.stats import sizes_of
from spark_timely.cli.verb_table import OWN_SINCE, Run
from spark_timely.errors import InvalidOptionError, InvalidUsageError, LogMissingError, TimelyError, shown
from spark_timely.log import Log
from spark_timely.log.cut import Cut, open_cut
from spark_timely.log.files.parquet import TARGET_FILE_BYTES
from spark_timely.log.log import open_log
from spark_timely.log.machine.decide import missing_stream
from spark_timely.log.machine.state import StreamState
from spark_timely.log.reader import events_of, frontier_at
from spark_timely.log.store.storage import TableStorage, checked_options
from spark_timely.log.store.urls import own_options
from spark_timely.log.verify import VerifyReport
from spark_timely.log.wait import passes, wait_for, wait_until
from spark_timely.masking import masked
from spark_timely.time.antichain import Antichain, consolidate_rows
from spark_timely.time.domain import TimeDomain


def _stream(log: Log, name: str) -> StreamState:
    state = log.core.stream(name)
    if state is None:
        raise missing_stream(log.path, name, log.streams())
    return state


# --- ls -----------------------------------------------------------------------------------------

_LS_COLUMNS: Final = ("log", "kind", "streams", "frontier", "messages", "size", "newest commit")


def _ls(options: argparse.Namespace, console: Console) -> bool:
    storage = reach(options.folder, storage_options(options))
    if storage.local and not os.path.isdir(storage.uri):
        found = "a file" if os.path.exists(storage.uri) else "nothing there"
        msg = f"could not look for logs in {storage.uri!r}: found {found}"
        raise LogMissingError(msg, hint="give a folder")
    rows: list[list[object]] = []
    problems: list[TimelyError] = []
    for name in _tables(storage, "", options.depth):
        path = f"{storage.uri}/{name}" if name else storage.uri
        try:
            log = open_log(path, storage_options=storage_options(options))
            line, cells = _line_of(log), _cells_of(log)
        except LogMissingError:
            continue  # another table
        except TimelyError as error:
            problems.append(error)
            continue
        if console.json_mode:
            console.answer(line)
            console.flush()
        else:
            rows.append([name or ".", *cells])
    if rows:
        console.table(_LS_COLUMNS, rows)
    elif not console.json_mode and not problems:
        console.line("no logs here")
    if problems:
        first, *others = problems
        if others:
            first.locate(f"and {count_text(len(others), 'other log')} could not be opened either")
        raise first
    return True


def _tables(storage: TableStorage, folder: str, depth: int) -> Iterator[str]:
    """Yield the folders with a Delta table in them, in order; what is in a table is left alone."""
    folders = storage.folders(folder)
    if "_delta_log" in folders:
        yield folder
    elif depth:
        for name in folders:
            if not name.startswith((".", "_")):
                yield from _tables(storage, f"{folder}/{name}" if folder else name, depth - 1)


def _line_of(log: Log) -> dict[str, object]:
    return {
        "path": log.path,
        "kind": log.kind,
        "streams": list(log.streams()),
        **frontier_facts(log.domain, log.frontier()),
        "messages": sizes_of(log.core.files()),
        "at": moment(_newest(log)),
    }


def _cells_of(log: Log) -> list[object]:
    sizes = sizes_of(log.core.files())
    frontier = frontier_text(log.domain, log.frontier())
    size = size_text(int(log.core.files().sizes.sum()))
    return [log.kind, len(log.streams()), frontier, sizes["rows"], size, seconds(_newest(log))]


def _newest(log: Log) -> int:
    """Return the wall clock of the newest commit, in microseconds; the one that made the log counts too."""
    return max(state.at for state in log.core.ends().values())


# --- head, tail ---------------------------------------------------------------------------------


def _head(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    shape = _Rows(log, options, console)
    rows = list(islice(_first_rows(log, options), options.rows))
    if rows or options.rows == 0:
        shape.show(rows)
    elif not console.json_mode:
        console.line("no dead letters" if options.dead else "no messages yet")
    return True


class _Rows:
    """Shows rows of a log, as a table or as one JSON object each."""

    def __init__(self, log: Log, options: argparse.Namespace, console: Console) -> None:
        if options.stream is not None:
            _stream(log, options.stream)
        payload = _chosen_columns(log, options.columns)
        lead = ["_event", "_stream", "_seq"] if options.events else ["_stream", "_seq"]
        lead += log.domain.columns
        if getattr(options, "dead", False):
            lead.append("_reason")
        if log.kind == "collection":
            lead.append("_diff")
        if options.events:
            lead += ["_delta", "_count"]
        self._names = [*lead, *payload]
        self._console = console
        # Seconds, as a person would write them; the payload is shown as it is.
        self._table = Table(console, self._names, as_is=True)

    def show(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Write rows, and let the reader have them."""
        chosen = [{name: row.get(name) for name in self._names} for row in rows]
        if self._console.json_mode:
            for row in chosen:
                self._console.answer(row, as_is=True)
        else:
            self._table.add([list(row.values()) for row in chosen])
        self._console.flush()


def _chosen_columns(log: Log, names: str | None) -> list[str]:
    known = log.schema.names
    if names is None:
        return list(known)
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in known:
            msg = f"could not read log {log.path!r}: found no column {shown(name)}"
            raise InvalidOptionError(msg, hint="give columns of this log: " + ", ".join(map(repr, known)))
    return chosen


def _first_rows(log: Log, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield rows in the order in which they were captured, by commit."""
    if options.dead:
        dead = log.dead()
        if options.stream is not None:
            dead = dead.filter(pc.equal(dead["_stream"], options.stream))
        yield from as_python(dead.slice(0, options.rows))
        return
    progress = log.core.progress() if options.events else None
    for state, messages in events_of(log.core, options.stream):
        yield from _commit_rows(state, messages.slice(0, options.rows), progress)


def _commit_rows(state: StreamState, messages: pa.Table, progress: pa.Table | None) -> Iterator[dict[str, object]]:
    """Yield the rows of a commit: messages, then its own of all the progress."""
    for batch in messages.to_batches(max_chunksize=1000):  # not all of a large commit as objects at once
        for row in as_python(batch):
            yield {"_event": "message", "_stream": state.stream, "_seq": state.seq} | row
    if progress is not None:
        here = pc.and_(pc.equal(progress["_stream"], state.stream), pc.equal(progress["_seq"], state.seq))
        for row in progress.filter(here).to_pylist():
            yield {"_event": "progress"} | row


def _tail(
    options: argparse.Namespace,
    console: Console,
    *,
    now: Callable[[], float] = clock.monotonic,
    pause: Callable[[float], None] = clock.sleep,
) -> bool:
    log = asked_log(options)
    shape = _Rows(log, options, console)
    rows: list[dict[str, object]] = []
    if options.rows:
        for commit in _commits(log, options, _newest_positions(log, options), options.rows):
            rows = [*rows, *commit][-options.rows :]
    if rows or options.rows == 0 or options.follow:
        shape.show(rows)
    elif not console.json_mode:
        console.line("no messages yet")
    if not options.follow:
        return True
    positions = log.core.positions()

    def look(_: float) -> bool:
        nonlocal positions
        if log.refresh():
            for commit in _commits(log, options, positions):
                while part := list(islice(commit, 1000)):
                    shape.show(part)
            positions = log.core.positions()
        console.check_reader()
        return log.frontier().is_empty if options.stream is None else _stream(log, options.stream).closed

    # A look costs about a millisecond: less than that is as good as none.
    return wait_until(look, timeout_s=math.inf, poll_s=max(options.poll.seconds, 0.001), now=now, pause=pause)


def _commits(
    log: Log, options: argparse.Namespace, positions: Mapping[str, int], most: int | None = None
) -> Iterator[Iterator[dict[str, object]]]:
    """Yield the rows of each commit from some positions on, the last `most` of each, by the clock of the commits."""
    progress = log.core.progress() if options.events else None
    commits = list(events_of(log.core, options.stream, positions=positions))
    for state, messages in sorted(commits, key=lambda one: (one[0].at, one[0].stream, one[0].seq)):
        first = 0 if most is None else max(0, messages.num_rows - most)
        yield _commit_rows(state, messages.slice(first), progress)


def _newest_positions(log: Log, options: argparse.Namespace) -> dict[str, int]:
    """Return from which commit of each stream on there are as many rows as are asked for, the newest ones.

    Notes
    -----
    Reads progress alone.
    """
    positions = log.core.positions()
    progress = log.core.progress()
    if options.stream is not None:
        progress = progress.filter(pc.equal(progress["_stream"], options.stream))
    commits = progress.group_by(["_stream", "_seq"]).aggregate([("_at", "max"), ("_rows", "max"), ("_count", "count")])
    commits = commits.sort_by([("_at_max", "descending"), ("_stream", "descending"), ("_seq", "descending")])
    rows = pc.fill_null(commits["_rows_max"], 0)
    if options.events:
        rows = pc.add(rows, commits["_count_count"])
    so_far = np.cumsum(np.asarray(rows.to_numpy(), np.int64))
    taken = commits.slice(0, int(np.searchsorted(so_far, options.rows)) + 1)
    for stream, seq in zip(taken["_stream"].to_pylist(), taken["_seq"].to_pylist(), strict=True):
        positions[stream] = min(positions[stream], seq)
    return positions


# --- frontier -----------------------------------------------------------------------------------


def frontier(options: argparse.Namespace, console: Console) -> bool:
    """Print how far a log is, or answer whether it is so far."""
    log = asked_log(options)
    domain = log.domain
    found = _asked_frontier(log, options)
    answer = True
    if options.passed is not None:
        answer = not found.less_equal(domain.parse_time(options.passed))
    elif options.complete:
        answer = found.is_empty
    asked = options.passed is not None or options.complete
    facts = frontier_facts(domain, found) | ({"answer": answer} if asked else {})
    console.say(facts, [frontier_text(domain, found)])
    return answer


def _asked_frontier(log: Log, options: argparse.Namespace) -> Antichain:
    state = None if options.stream is None else _stream(log, options.stream)
    if options.at is not None:
        return frontier_at(log.core, timestamp=options.at, stream=options.stream)
    whole = log.frontier()  # refuses where another program changed rows: progress may be among them
    return whole if state is None else state.frontier


# --- verify -------------------------------------------------------------------------------------


def _verify(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    since = None if options.since is None else log.since() if options.since == OWN_SINCE else options.since
    report = log.verify(since=since)
    wanted = _hash(options.expect)
    as_expected = wanted is None or report.digest.startswith(wanted)
    since = None if since is None else log.domain.parse_frontier(since)
    facts = {
        "legal": report.legal,
        "hash": report.digest,
        "since": None if since is None else log.domain.frontier_to_json(since),
        "as_expected": None if wanted is None else as_expected,
        "frontier": log.domain.frontier_to_json(report.frontier),
        "messages": report.messages,
        "dead": report.dead_letters,
        "commits": report.commits,
        "streams": report.streams,
        "files": report.files,
        "counts_alone": report.counts_alone,
        "problems": list(report.problems),
    }
    lines = aligned(_verify_pairs(log.domain, report, since))
    lines += [f"  {problem}" for problem in report.problems]
    lines += [] if as_expected else [f"the hash is not the expected one: {wanted}"]
    console.say(facts, lines)
    return report.legal and as_expected


def _verify_pairs(domain: TimeDomain, report: VerifyReport, since: Antichain | None) -> Iterator[tuple[str, str]]:
    """Give what a check has found, for people."""
    yield "hash", report.digest
    if since is not None:
        yield "since", frontier_text(domain, since)
    yield "frontier", frontier_text(domain, report.frontier)
    checked = [
        count_text(report.messages, "message"),
        count_text(report.dead_letters, "dead letter"),
        f"{count_text(report.commits, 'commit')} of {count_text(report.streams, 'stream')}",
        count_text(report.files, "file"),
    ]
    yield "checked", ", ".join(checked)
    if report.counts_alone:
        yield "by counts alone", f"{count_text(report.counts_alone, 'commit')}: of these no changed value is seen"
    yield "protocol", "kept" if report.legal else f"broken, {count_text(len(report.problems), 'problem')}"


def _hash(text: str | None) -> str | None:
    if text is None:
        return None
    wanted = text.strip().lower()
    if len(wanted) < 8 or len(wanted) > 64 or set(wanted) - set("0123456789abcdef"):
        refuse(f"--expect {shown(text)}", "give the 64 hexadecimal digits that `verify` prints, or the first 8 or more")
    return wanted


# --- advance, close, compact --------------------------------------------------------------------


def _advance(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    _stream(log, options.stream)
    planned = [log.advance(options.stream, options.frontier, reason=options.reason, dry_run=True)]
    left = _frontier_after(log, planned)
    if options.dry_run:
        _print_moves(log.domain, planned, left, options, console)
        return True
    ask("advance", options, _moves(log.domain, planned, left))
    after = log.advance(options.stream, options.frontier, reason=options.reason)
    _print_moves(log.domain, [after], log.frontier(), options, console)
    return True


def _close(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    planned = log.close(options.stream, reason=options.reason, dry_run=True)
    nothing = Antichain.empty(log.domain.arity)
    left = nothing if options.stream is None else _frontier_after(log, planned)
    given_up = log.core.unclaimed if options.stream is None else 0
    if options.dry_run:
        _print_moves(log.domain, planned, left, options, console, given_up=given_up)
        return True
    if planned or given_up:
        ask("close", options, _moves(log.domain, planned, left, given_up))
    closed = log.close(options.stream, reason=options.reason)
    _print_moves(log.domain, closed, log.frontier(), options, console, given_up=given_up)
    return True


def _frontier_after(log: Log, after: Sequence[StreamState]) -> Antichain:
    """Return the frontier that the log would have with other states of some streams."""
    now = log.core.counts()
    # What the streams hold now, given up, and what they would hold instead: as many parts as streams.
    held = [(state.before, -1) for state in after] + [(state.counts, 1) for state in after]
    times = np.concatenate([now.times, *(counts.times for counts, _ in held)])
    counted = np.concatenate([now.counts, *(sign * counts.counts for counts, sign in held)])
    times, counted = consolidate_rows(times, counted)
    return Antichain.from_times(times[counted > 0], log.domain.arity)


def ask(verb: str, options: argparse.Namespace, moves: Sequence[str]) -> None:
    """Ask at a terminal whether to continue; raise if the answer is not yes. Scripts are not asked."""
    if options.yes or not sys.stdin.isatty():
        return
    sys.stderr.write("".join(printable(masked(line)) + "\n" for line in moves))
    sys.stderr.write(f"this cannot be undone. {verb.capitalize()} {printable(masked(options.log))}? [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if answer.lower() not in {"y", "yes"}:
        msg = f"could not {verb} log {options.log!r}: found answer={answer!r}"
        raise TimelyError(msg, hint="answer y, or give --yes; nothing was changed")


def _moves(domain: TimeDomain, after: Sequence[StreamState], frontier: Antichain, given_up: int = 0) -> list[str]:
    """Return in words which streams move, from where to where, and where that leaves the log."""
    lines = []
    for state in after:
        old = frontier_text(domain, state.before.frontier)
        lines.append(f"{state.stream}: {old} \N{RIGHTWARDS ARROW} {frontier_text(domain, state.frontier)}")
    if given_up:
        lines.append(f"{count_text(given_up, 'stream')} still to be opened: given up")
    return [*(lines or ["nothing to do"]), f"frontier of the log: {frontier_text(domain, frontier)}"]


def dry_run_lines(options: argparse.Namespace) -> list[str]:
    """Return what is said behind the answer to a verb that was only tried."""
    return ["dry run: nothing was changed"] if options.dry_run else []


def _print_moves(
    domain: TimeDomain,
    after: Sequence[StreamState],
    frontier: Antichain,
    options: argparse.Namespace,
    console: Console,
    *,
    given_up: int = 0,
) -> None:
    """Answer which streams moved or would move, and where that leaves the log."""
    moves = [
        {
            "stream": state.stream,
            "from": domain.frontier_to_json(state.before.frontier),
            "to": domain.frontier_to_json(state.frontier),
        }
        for state in after
    ]
    facts = {"moved": moves, **frontier_facts(domain, frontier)} | ({"dry_run": True} if options.dry_run else {})
    console.say(facts, [*_moves(domain, after, frontier, given_up), *dry_run_lines(options)])


def _compact(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    size = TARGET_FILE_BYTES if options.target_file_size is None else options.target_file_size
    report = log.compact(target_file_size=size)
    problems = log.core.upkeep_problems()
    lines = [
        f"{count_text(report.files_before, 'file')} \N{RIGHTWARDS ARROW} {count_text(report.files_after, 'file')},"
        f" {size_text(report.bytes_rewritten)} rewritten in {count_text(report.merges, 'commit')}"
    ]
    if report.lost:
        lines.append(f"{count_text(report.lost, 'merge')} left to another writer, who rewrote the same files")
    lines += [f"warning: {problem}" for problem in problems]
    console.say(dataclasses.asdict(report) | {"warnings": problems}, lines)
    return True


# --- repair -------------------------------------------------------------------------------------


_REPAIRED = {
    "empty": "an entry without actions in its place",
    "rebuild": "the entry of the commit in its place",
    "delete": "deleted",
}


def _repair(options: argparse.Namespace, console: Console) -> bool:
    from spark_timely.log.store.repair import repair_log

    if options.accept is not None:
        return _accept(options, console)
    report = repair_log(options.log, apply=options.yes)
    if console.json_mode:
        console.answer(dataclasses.asdict(report))
    elif not report.steps:
        console.line("no entry and no checkpoint of the table's log is damaged")
    for step in report.steps if not console.json_mode else ():
        line = f"version {step.version} is {step.found}: {_REPAIRED[step.action]}; {step.says}"
        console.line(f"checkpoint of {line}" if step.action == "delete" else line)
        for file in step.files:
            console.line(f"  {file}")
    if report.steps and not report.applied and not console.json_mode:
        console.line("nothing was changed: stop who writes to the log, and give --yes to do it")
    return report.applied or not report.steps


def _accept(options: argparse.Namespace, console: Console) -> bool:
    report = asked_log(options).accept_change(options.accept)
    lines = [f"accepted: {change}" for change in report.changes]
    if report.put_back:
        lines.append(f"{count_text(len(report.put_back), 'file')} of progress put back")
    if report.commits:
        lines.append(
            f"{count_text(report.commits, 'commit')} with other messages: {report.more} more, {report.less} less,"
            f" {count_text(report.other, 'commit')} with as many"
        )
    if report.accepted:
        lines.append(f"readers from before are refused until they say acceptChange={report.token}, or begin again")
    console.say(dataclasses.asdict(report), lines)
    return True


def _wait(
    options: argparse.Namespace,
    console: Console,
    *,
    now: Callable[[], float] = clock.monotonic,
    pause: Callable[[float], None] = clock.sleep,
) -> bool:
    logs, reached = _asked(options)
    begun = now()
    # A look costs about a millisecond: less than that is as good as none.
    poll_s = max(options.poll.seconds, 0.001)
    answer = wait_for(logs, reached, timeout_s=options.timeout.seconds, poll_s=poll_s, now=now, pause=pause)
    waited = now() - begun
    found, lines = [], []
    for log in logs:
        frontier, there = log.frontier(), reached(log.frontier())
        found.append({"log": log.path, **frontier_facts(log.domain, frontier), "reached": there})
        before = f"{log.path}: " if len(logs) > 1 else ""
        after = "" if there else f", not reached in {options.timeout.text}"
        lines.append(f"{before}{frontier_text(log.domain, frontier)}{after}")
    console.say({"reached": answer, "waited_seconds": round(waited, 3), "logs": found}, lines)
    return answer


def _asked(options: argparse.Namespace) -> tuple[list[Log], Callable[[Antichain], bool]]:
    if options.cut is None:
        if options.log is None:
            msg = "could not read the command line: found no LOG"
            raise InvalidUsageError(msg, hint="give the log to wait for, or --cut FILE")
        log = asked_log(options)
        return [log], passes(log.domain, time=options.time, frontier=options.token)
    if options.log is not None:
        msg = f"could not read the command line: found LOG {shown(options.log)} beside --cut"
        raise InvalidUsageError(msg, hint="leave LOG out: a cut names its logs")
    cut = Cut.from_json(_text(options.cut))
    given = checked_options(storage_options(options), *(entry.path for entry in cut.logs))
    for entry in cut.logs:
        reach(entry.path, own_options(entry.path, given))
    return open_cut(cut, storage_options=given), cut.reached_by


_FILE_HINT = "give a file with what str(cut) gives, or - for standard input"


def _text(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read()
        if os.path.exists(file) and not os.path.isfile(file):
            # A pipe without a writer would be waited for, whatever the timeout.
            refuse(f"--cut {shown(file)}, which is no file", _FILE_HINT)
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, ValueError) as error:  # not text, or no name of a file
        refuse(f"--cut {shown(file)}, which cannot be read ({error})", _FILE_HINT)


RUNS: Mapping[str, Run] = {
    "ls": _ls,
    "head": _head,
    "tail": _tail,
    "verify": _verify,
    "advance": _advance,
    "close": _close,
    "compact": _compact,
    "repair": _repair,
    "wait": _wait,
}
