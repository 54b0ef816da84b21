"""The verbs of the command line: what each takes, what it does, what it answers.

A verb returns whether the answer is yes; it raises what the library raises. Verbs read a log's
bookkeeping, never its data, unless they are asked for rows (``head``) or for a check of all of them
(``verify``).
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import os
import sys
import time as clock
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow.compute as pc

from spark_timely.cli.output import Console, count_text, printable, size_text
from spark_timely.conf import parse_bytes
from spark_timely.errors import InvalidOptionError, InvalidUsageError, TimelyError, shown
from spark_timely.log import Log
from spark_timely.log.cut import Cut, open_cut
from spark_timely.log.files.index import FileIndex
from spark_timely.log.files.parquet import TARGET_FILE_BYTES
from spark_timely.log.log import open_log
from spark_timely.log.machine.decide import missing_stream
from spark_timely.log.machine.state import StreamState
from spark_timely.log.store.storage import promised
from spark_timely.log.wait import passes, wait_for
from spark_timely.masking import masked
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import consolidate_rows
from spark_timely.time.domain import TimeDomain
from spark_timely.time.text import Duration, moment_text, parse_duration


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line.

    Parameters
    ----------
    name, summary, description : str
        For the help.
    arguments : callable
        Adds the verb's own arguments to its parser.
    run : callable
        Does it, and returns whether the answer is yes.
    log_needed : bool
        Whether it is always about one log.
    """

    name: str
    summary: str
    description: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], bool]
    log_needed: bool = True


def asked_log(options: argparse.Namespace) -> Log:
    """Open the log that was named."""
    return open_log(options.log, storage_options=storage_options(options))


def storage_options(options: argparse.Namespace) -> dict[str, str] | None:
    """Return the storage options that were given, None where none were."""
    storage: dict[str, str] = {}
    for pair in options.storage:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            # Not what was given: it may be a secret.
            msg = "could not read the command line: found --storage without a name and '='"
            raise InvalidOptionError(msg, hint="give --storage KEY=VALUE")
        storage[key] = value
    return promised(storage, single_writer=options.single_writer) or None


def _stream(log: Log, name: str) -> StreamState:
    state = log.stream(name)
    if state is None:
        raise missing_stream(log.path, name, log.streams())
    return state


def frontier_text(domain: TimeDomain, frontier: Antichain) -> str:
    """Render a frontier for people: one time bare, several as JSON, the empty one with its meaning."""
    if frontier.is_empty:
        return "[] (complete)"
    if len(frontier) == 1 and domain.arity == 1:
        return str(domain.render_time(frontier.elements[0]))
    return domain.render_frontier(frontier)


def frontier_facts(domain: TimeDomain, frontier: Antichain) -> dict[str, object]:
    """Return how far something is, for JSON."""
    return {"frontier": domain.frontier_to_json(frontier), "complete": frontier.is_empty}


def _moment(microseconds: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)


# --- head ---------------------------------------------------------------------------------------


def _head_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--rows", type=whole_number, default=10, metavar="N", help="how many rows (10)")
    parser.add_argument("--stream", metavar="NAME", help="only this stream")
    parser.add_argument("--columns", metavar="A,B", help="only these columns of the payload")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--events", action="store_true", help="progress rows too, where they stand between the messages")
    what.add_argument("--dead", action="store_true", help="dead letters instead of messages")


_MOST_DIGITS: Final = 18  # of 64 bits


def whole_number(text: str, *, least: int = 0) -> int:
    """Read a number of the command line."""
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS or int(text) < least:
        wanted = f"a whole number{f' from {least}' if least else ''} of at most {_MOST_DIGITS} digits"
        msg = f"expected {wanted}, found {text!r:.40}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _head(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    if options.stream is not None:
        _stream(log, options.stream)
    payload = _chosen_columns(log, options.columns)
    lead = ["_event", "_stream", "_seq"] if options.events else ["_stream", "_seq"]
    lead += log.domain.columns
    if log.kind == "collection":
        lead.append("_diff")
    if options.events:
        lead += ["_delta", "_count"]
    rows: list[dict[str, object]] = []
    for row in _rows(log, options):
        if len(rows) == options.rows:
            break
        rows.append({name: row.get(name) for name in [*lead, *payload]})
    if console.json_mode:
        for row in rows:
            console.answer(row, as_is=True)
    elif rows:
        # Seconds, as a person would write them; the payload is shown as it is.
        console.table([*lead, *payload], [list(row.values()) for row in rows], as_is=True)
    else:
        console.line("no dead letters" if options.dead else "no messages yet")
    return True


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


def _rows(log: Log, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield rows in the order in which they were captured, at most as many as are asked for, by commit."""
    if options.dead:
        dead = log.dead()
        if options.stream is not None:
            dead = dead.filter(pc.equal(dead["_stream"], options.stream))
        yield from dead.slice(0, options.rows).to_pylist()
        return
    progress = log.progress() if options.events else None
    for state, messages in log.events(options.stream):
        for row in messages.slice(0, options.rows).to_pylist():
            yield {"_event": "message", "_stream": state.stream, "_seq": state.seq} | row
        if progress is not None:
            here = pc.and_(pc.equal(progress["_stream"], state.stream), pc.equal(progress["_seq"], state.seq))
            for row in progress.filter(here).to_pylist():
                yield {"_event": "progress"} | row


# --- stats --------------------------------------------------------------------------------------


def _stats(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    if console.json_mode:
        console.answer(_facts(log))
        return True
    domain = log.domain
    times = ", ".join(type_.value for type_ in domain.types)
    console.facts(
        [
            ("log", f"{log.path} ({log.kind}, format {log.format.version}, table version {log.version})"),
            ("time", f"{times}, from {domain.render_time(domain.minimum)}"),
            ("frontier", frontier_text(domain, log.frontier())),
            ("messages", _sizes_text(log.files())),
            ("dead letters", _sizes_text(log.dead_files())),
            ("columns", ", ".join(f"{field.name} {field.type}" for field in log.schema)),
            *(("warning", problem) for problem in log.upkeep_problems()),
        ]
    )
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
                    moment_text(state.at // 1_000_000 * 1_000_000, least="seconds"),
                    state.reason,
                ]
                for state in streams.values()
            ],
        )
    for state in streams.values():
        for line in _oddities(state):
            console.line(f"stream {state.stream}: {line}")
    if log.unclaimed:
        console.line(f"{count_text(log.unclaimed, 'stream')} still to be opened: the frontier waits for them")
    return True


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
    for owner in dict.fromkeys(name for name, _, _ in state.note.lost):  # one turn per owner that lost some
        numbers = _numbers([(a, b) for name, a, b in state.note.lost if name == owner])
        found.append(f"micro-batches of {owner!r} missing with consent (beginAt): {numbers}")
    return found


def _numbers(ranges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in ranges)


def _facts(log: Log) -> dict[str, object]:
    domain, frontier = log.domain, log.frontier()
    return {
        "path": log.path,
        "format_version": log.format.version,
        "kind": log.kind,
        "table_version": log.version,
        "times": [type_.value for type_ in domain.types],
        "minimum": domain.time_to_json(domain.minimum),
        **frontier_facts(domain, frontier),
        "unclaimed": log.unclaimed,
        "messages": _sizes(log.files()),
        "dead": _sizes(log.dead_files()),
        "streams": [_stream_facts(domain, state) for state in log.streams().values()],
        "warnings": log.upkeep_problems(),
        "columns": [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in log.schema],
    }


def _sizes(files: FileIndex) -> dict[str, int | None]:
    known = bool((files.rows >= 0).all())
    return {
        "files": len(files),
        "rows": int(files.rows.sum()) if known else None,
        "bytes": int(files.sizes.sum()),
    }


def _sizes_text(files: FileIndex) -> str:
    sizes = _sizes(files)
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
        "owner": state.owner,
        "batch": state.batch,
        "step": state.step,
        "epoch": state.epoch,
        "at": _moment(state.at),
        "reason": state.reason,
        "differing": state.note.differing,
        "former": list(state.note.former),
        "gaps": [list(gap) for gap in state.note.gaps],
    }


# --- frontier -----------------------------------------------------------------------------------


def _frontier_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stream", metavar="NAME", help="of this stream alone")
    parser.add_argument("--at", metavar="MOMENT", help="as it was then: 2013-06-12T08:00Z, wall clock of the commits")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--passed", metavar="TIME", help="ask whether this time is complete: exit code 0 yes, 1 no")
    asked.add_argument("--complete", action="store_true", help="ask whether nothing can follow: exit code 0 yes, 1 no")


def _frontier(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    domain = log.domain
    frontier = _asked_frontier(log, options)
    answer = True
    if options.passed is not None:
        answer = not frontier.less_equal(domain.parse_time(options.passed))
    elif options.complete:
        answer = frontier.is_empty
    if console.json_mode:
        console.answer(frontier_facts(domain, frontier) | {"answer": answer})
    else:
        console.line(frontier_text(domain, frontier))
    return answer


def _asked_frontier(log: Log, options: argparse.Namespace) -> Antichain:
    if options.stream is not None:
        state = _stream(log, options.stream)
        if options.at is None:
            return state.frontier
    if options.at is None:
        return log.frontier()
    return log.frontier_at(timestamp=options.at, stream=options.stream)


# --- verify -------------------------------------------------------------------------------------


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--expect", metavar="HASH", help="the canonical hash that it should have; its beginning will do"
    )


def _verify(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    report = log.verify()
    wanted = _hash(options.expect)
    as_expected = wanted is None or report.digest.startswith(wanted)
    if console.json_mode:
        console.answer(
            {
                "legal": report.legal,
                "hash": report.digest,
                "as_expected": None if wanted is None else as_expected,
                "frontier": log.domain.frontier_to_json(report.frontier),
                "messages": report.messages,
                "dead": report.dead_letters,
                "commits": report.commits,
                "streams": report.streams,
                "files": report.files,
                "problems": list(report.problems),
            }
        )
        return report.legal and as_expected
    console.facts(
        [
            ("hash", report.digest),
            ("frontier", frontier_text(log.domain, report.frontier)),
            (
                "checked",
                f"{count_text(report.messages, 'message')}, {count_text(report.dead_letters, 'dead letter')},"
                f" {count_text(report.commits, 'commit')} of {count_text(report.streams, 'stream')},"
                f" {count_text(report.files, 'file')}",
            ),
            ("protocol", "kept" if report.legal else f"broken, {count_text(len(report.problems), 'problem')}"),
        ]
    )
    for problem in report.problems:
        console.line(printable(f"  {problem}"))
    if not as_expected:
        console.line(f"the hash is not the expected one: {wanted}")
    return report.legal and as_expected


def _hash(text: str | None) -> str | None:
    if text is None:
        return None
    wanted = text.strip().lower()
    if len(wanted) < 8 or len(wanted) > 64 or set(wanted) - set("0123456789abcdef"):
        msg = f"could not read the command line: found --expect {shown(text)}"
        raise InvalidOptionError(
            msg, hint="give the 64 hexadecimal digits that `verify` prints, or the first 8 or more"
        )
    return wanted


# --- advance, close, compact --------------------------------------------------------------------


def _consent_arguments(parser: argparse.ArgumentParser, *, reason: str) -> None:
    parser.add_argument("--reason", metavar="TEXT", default=reason, help="kept with the progress")
    parser.add_argument("--yes", action="store_true", help="do not ask, as at a terminal")
    parser.add_argument("--dry-run", action="store_true", help="show what would happen, and change nothing")


def _advance_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("frontier", metavar="FRONTIER", help="where to: a time, or a JSON list of times")
    parser.add_argument("--stream", metavar="NAME", default="main", help="which stream (main)")
    _consent_arguments(parser, reason="advanced by hand")


def _advance(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    _stream(log, options.stream)
    planned = [log.advance(options.stream, options.frontier, reason=options.reason, dry_run=True)]
    left = _frontier_after(log, planned)
    if options.dry_run:
        _print_moves(log.domain, planned, left, console, dry_run=True)
        return True
    _ask("advance", options, _moves(log.domain, planned, left))
    after = log.advance(options.stream, options.frontier, reason=options.reason)
    _print_moves(log.domain, [after], log.frontier(), console)
    return True


def _close_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stream", metavar="NAME", help="only this stream; if not given the whole log")
    _consent_arguments(parser, reason="closed by hand")


def _close(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    planned = log.close(options.stream, reason=options.reason, dry_run=True)
    nothing = Antichain.empty(log.domain.arity)
    left = nothing if options.stream is None else _frontier_after(log, planned)
    given_up = log.unclaimed if options.stream is None else 0
    if options.dry_run:
        _print_moves(log.domain, planned, left, console, given_up=given_up, dry_run=True)
        return True
    if planned or given_up:
        _ask("close", options, _moves(log.domain, planned, left, given_up))
    closed = log.close(options.stream, reason=options.reason)
    _print_moves(log.domain, closed, log.frontier(), console, given_up=given_up)
    return True


def _frontier_after(log: Log, after: Sequence[StreamState]) -> Antichain:
    """Return the frontier that the log would have with other states of some streams."""
    now = log.counts()
    # What the streams hold now, given up, and what they would hold instead: as many parts as streams.
    held = [(state.before, -1) for state in after] + [(state.counts, 1) for state in after]
    times = np.concatenate([now.times, *(counts.times for counts, _ in held)])
    counted = np.concatenate([now.counts, *(sign * counts.counts for counts, sign in held)])
    times, counted = consolidate_rows(times, counted)
    return Antichain.from_times(times[counted > 0], log.domain.arity)


def _ask(verb: str, options: argparse.Namespace, moves: Sequence[str]) -> None:
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


def _print_moves(
    domain: TimeDomain,
    after: Sequence[StreamState],
    frontier: Antichain,
    console: Console,
    *,
    given_up: int = 0,
    dry_run: bool = False,
) -> None:
    """Answer which streams moved or would move, and where that leaves the log."""
    if console.json_mode:
        moves = [
            {
                "stream": state.stream,
                "from": domain.frontier_to_json(state.before.frontier),
                "to": domain.frontier_to_json(state.frontier),
            }
            for state in after
        ]
        facts = {"moved": moves, **frontier_facts(domain, frontier)}
        console.answer({**facts, "dry_run": True} if dry_run else facts)
        return
    for line in _moves(domain, after, frontier, given_up):
        console.line(line)
    if dry_run:
        console.line("dry run: nothing was changed")


def _compact_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target-file-size", metavar="SIZE", type=_size, default=TARGET_FILE_BYTES, help="such as 64mb (128mb)"
    )


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _compact(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    report = log.compact(target_file_size=options.target_file_size)
    problems = log.upkeep_problems()
    if console.json_mode:
        console.answer(dataclasses.asdict(report) | {"warnings": problems})
        return True
    console.line(
        f"{count_text(report.files_before, 'file')} \N{RIGHTWARDS ARROW} {count_text(report.files_after, 'file')},"
        f" {size_text(report.bytes_rewritten)} rewritten in {count_text(report.merges, 'commit')}"
    )
    if report.lost:
        console.line(f"{count_text(report.lost, 'merge')} left to another writer, who rewrote the same files")
    for problem in problems:
        console.line(f"warning: {printable(problem)}")
    return True


# --- repair -------------------------------------------------------------------------------------


def _repair_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do it; else it is only said what would be done")


_REPAIRED = {
    "empty": "an entry without actions in its place",
    "rebuild": "the entry of the commit in its place",
    "delete": "deleted",
}


def _repair(options: argparse.Namespace, console: Console) -> bool:
    from spark_timely.log.store.repair import repair_log

    report = repair_log(options.log, apply=options.yes)
    if console.json_mode:
        console.answer(dataclasses.asdict(report))
    elif not report.steps:
        console.line("no entry and no checkpoint of the table's log is damaged")
    for step in report.steps if not console.json_mode else ():
        line = f"version {step.version} is {step.found}: {_REPAIRED[step.action]}; {step.says}"
        console.line(printable(f"checkpoint of {line}" if step.action == "delete" else line))
        for file in step.files:
            console.line(printable(f"  {file}"))
    if report.steps and not report.applied and not console.json_mode:
        console.line("nothing was changed: stop who writes to the log, and give --yes to do it")
    return report.applied or not report.steps


def _wait_arguments(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--time", metavar="TIME", help="until this time is complete: the frontier has passed it")
    asked.add_argument(
        "--token",
        metavar="FRONTIER",
        help="until all times not beyond this frontier are complete: a JSON list of times; '[]' is the end of the log",
    )
    asked.add_argument(
        "--cut", metavar="FILE", help="until the logs of a cut have come so far; JSON as str(cut) gives it, - reads it"
    )
    parser.add_argument(
        "--timeout",
        metavar="DURATION",
        type=duration,
        default=Duration(60_000_000),
        help="such as 10m; 0 looks once (60s)",
    )
    parser.add_argument(
        "--poll", metavar="DURATION", type=duration, default=Duration(1_000_000), help="between two looks (1s)"
    )


def duration(text: str) -> Duration:
    """Read a duration of the command line."""
    try:
        return parse_duration(text)
    except ValueError as error:
        msg = f"found {shown(text)}: {error}"
        raise argparse.ArgumentTypeError(msg) from error


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
    if console.json_mode:
        found = [
            {
                "log": log.path,
                **frontier_facts(log.domain, log.frontier()),
                "reached": reached(log.frontier()),
            }
            for log in logs
        ]
        console.answer({"reached": answer, "waited_seconds": round(waited, 3), "logs": found})
        return answer
    for log in logs:  # as many turns as logs
        before = f"{log.path}: " if len(logs) > 1 else ""
        after = "" if reached(log.frontier()) else f", not reached in {options.timeout.text}"
        console.line(f"{before}{frontier_text(log.domain, log.frontier())}{after}")
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
    return open_cut(cut, storage_options=storage_options(options)), cut.reached_by


_FILE_HINT = "give a file with what str(cut) gives, or - for standard input"


def _text(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read()
        if os.path.exists(file) and not os.path.isfile(file):
            # A pipe without a writer would be waited for, whatever the timeout.
            msg = f"could not read the command line: found --cut {shown(file)}, which is no file"
            raise InvalidOptionError(msg, hint=_FILE_HINT)
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, ValueError) as error:  # not text, or no name of a file
        msg = f"could not read the command line: found --cut {shown(file)}, which cannot be read ({error})"
        raise InvalidOptionError(msg, hint=_FILE_HINT) from error


VERBS: tuple[Verb, ...] = (
    Verb(
        "head",
        "first rows, stream by stream in the order captured",
        "Print the first rows of a log, stream by stream in the order captured. With --json: one object per line.",
        _head_arguments,
        _head,
    ),
    Verb(
        "stats",
        "the log at a glance: frontier, sizes, streams",
        "Print what a log is, how far it got, who owns its streams, and what is odd: missing numbers, repetitions with"
        " other rows, overdue upkeep.",
        lambda parser: None,
        _stats,
    ),
    Verb(
        "frontier",
        "which times are complete",
        "Print the frontier: nothing will be added at a time that is not beyond it. Or ask whether a time is complete.",
        _frontier_arguments,
        _frontier,
    ),
    Verb(
        "verify",
        "check the protocol and all rows; canonical hash",
        "Check every stream against the capture protocol and every file against what the log says of it,"
        " and print the canonical hash. Exit code 1 if the log is not sound, or has another hash.",
        _verify_arguments,
        _verify,
    ),
    Verb(
        "advance",
        "move a stream's frontier forward",
        "Declare times of a stream complete, in the name of its owner. Rows that come at such times are late then.",
        _advance_arguments,
        _advance,
    ),
    Verb(
        "close",
        "declare a stream, or the whole log, complete",
        "Give up all capabilities: nothing can be appended any more. This cannot be undone.",
        _close_arguments,
        _close,
    ),
    Verb(
        "compact",
        "merge small files; changes no answer",
        "Merge small files into larger ones. Readers and writers may continue meanwhile.",
        _compact_arguments,
        _compact,
    ),
    Verb(
        "repair",
        "put whole entries in the place of damaged ones",
        "Find entries of the table's log that a power cut left empty, cut or missing, and say what can be done and what"
        " is lost. With --yes it is done. Exit code 1 if there is damage that was left as it is.",
        _repair_arguments,
        _repair,
    ),
    Verb(
        "wait",
        "wait until a time is complete; for job conditions",
        "Wait until a log's frontier has passed a time or reached a token, or until the logs of a cut have come so far."
        " Exit code 0 if it has; 1 if not within the timeout. A complete log has passed every time.",
        _wait_arguments,
        _wait,
        log_needed=False,
    ),
)
