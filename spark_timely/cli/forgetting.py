"""The verbs by which a log forgets: forget, retain, retainers, release and vacuum.

Loaded by `spark_timely.cli.command` when one of these verbs runs. Each calls the method of `Log` that does it, and
prints what is gone, what stays, and which consumers hold it back.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence

from spark_timely.cli.arguments import asked_log, refuse
from spark_timely.cli.log_verbs import ask, dry_run_lines
from spark_timely.cli.output import Console, count_text, frontier_text, moment, seconds, size_text
from spark_timely.cli.stats import keep_text, since_json
from spark_timely.cli.verb_table import Run
from spark_timely.log import Log
from spark_timely.log.compaction import ForgettingReport
from spark_timely.log.machine.since import Retainer
from spark_timely.log.vacuum import VacuumReport
from spark_timely.time.antichain import Antichain

# --- forget -------------------------------------------------------------------------------------


def _forget(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    if options.always and options.keep is None:
        refuse("--always without --keep", "give --keep with how much stays, such as '30 days'")
    wanted = log.behind(options.keep) if options.to is None else log.domain.parse_frontier(options.to)
    before = log.since()
    since = log.allow_compaction(wanted, by="command line", dry_run=True)
    lines = [_move(log, before, since)]
    if not options.dry_run:
        if since != before or options.always:
            ask("forget", options, lines)
        if options.always:
            log.keep(options.keep)
        since = log.allow_compaction(wanted, by="command line")
    forgotten = None if options.dry_run else log.compact(logical=True).forgotten
    vacuum = log.vacuum(dry_run=options.dry_run) if options.purge else None
    reached = wanted.less_equal_frontier(since)
    facts = {
        "asked": log.domain.frontier_to_json(wanted),
        "before": log.domain.frontier_to_json(before),
        **since_json(log),
        "since": log.domain.frontier_to_json(since),
        "reached": reached,
        **_forgotten_facts(log, since, forgotten),
        "vacuum": None if vacuum is None else _vacuum_facts(vacuum),
        "dry_run": options.dry_run,
    }
    lines = [_move(log, before, since), *_forgotten_lines(log, since, forgotten)]
    lines += [] if reached else _holders(log, wanted)
    lines += [] if vacuum is None else [*_vacuum_lines(vacuum), _gone(vacuum, forgotten)]
    console.say(facts, [*lines, *dry_run_lines(options)])
    return reached


def _move(log: Log, before: Antichain, since: Antichain) -> str:
    if before == since:
        return f"since stays at {frontier_text(log.domain, since)}"
    return f"since: {frontier_text(log.domain, before)} \N{RIGHTWARDS ARROW} {frontier_text(log.domain, since)}"


def _forgotten_facts(log: Log, since: Antichain, done: ForgettingReport | None) -> dict[str, object]:
    if done is None:
        files, size = log.core.files_before(since)
        return {"files_before": files, "bytes_before": size}
    return {"forgotten": {k: v for k, v in dataclasses.asdict(done).items() if k != "since"}}


def _forgotten_lines(log: Log, since: Antichain, done: ForgettingReport | None) -> list[str]:
    if done is None:
        files, size = log.core.files_before(since)
        return [f"{count_text(files, 'file')} before it, {size_text(size)}"]
    return [
        f"{count_text(done.rows_removed, 'message')} fewer: {count_text(done.files_removed, 'file')} of"
        f" {size_text(done.bytes_removed)} replaced by {count_text(done.files_written, 'file')} of"
        f" {size_text(done.bytes_written)}"
    ]


def _holders(log: Log, wanted: Antichain) -> list[str]:
    """Return in words why since did not get as far as was asked."""
    alive = log.core.retained_bytes()
    lines = [
        f"held back by consumer {name!r} until {seconds(each.expires)}"
        for name, each in log.retainers().items()
        if name in alive and not wanted.less_equal_frontier(each.needed)
    ]
    if log.core.kept() is not None:
        lines.append(f"the log keeps {keep_text(log)}")
    return lines or ["held back by the log's own frontier"]


def _gone(vacuum: VacuumReport, done: ForgettingReport | None) -> str:
    if vacuum.gone_at is None or (done is None and vacuum.dry_run):
        left = (
            "nothing that was forgotten is left on disk" if not vacuum.dry_run else "what is replaced stays for a while"
        )
        return f"{left}, but for copies that others made"
    return (
        f"gone from disk after {seconds(vacuum.gone_at)}: by the upkeep of commits that come then, or by"
        " `spark-timely vacuum`"
    )


# --- retain, retainers, release -----------------------------------------------------------------


def _retain(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    retainer = log.retain(options.consumer, options.frontier, owner=options.owner, expiry=options.expiry)
    line = "released"
    if retainer is not None:
        line = f"needs {frontier_text(log.domain, retainer.needed)}, until {seconds(retainer.expires)}"
    console.say(since_json(log), [f"{options.consumer}: {line}"])
    return True


def _retainers(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    if console.json_mode:
        console.answer(since_json(log))
        return True
    costs, retainers = log.core.retained_bytes(), log.retainers()
    if not retainers:
        console.line("no retainers")
        return True
    console.table(
        ("consumer", "needs", "owner", "expires", "state", "holds"),
        [
            [
                name,
                frontier_text(log.domain, each.needed),
                each.owner,
                seconds(each.expires),
                _state(each, alive=name in costs),
                size_text(costs.get(name, 0)),
            ]
            for name, each in retainers.items()
        ],
    )
    return True


def _state(retainer: Retainer, *, alive: bool) -> str:
    if retainer.overrun:
        return f"overrun by {retainer.overrun}"
    return "live" if alive else "expired"


def _release(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    freed = log.core.retained_bytes().get(options.consumer, 0)
    found = options.consumer in log.retainers()
    line = f"{options.consumer}: {size_text(freed)} could be forgotten without it"
    if not options.dry_run or not found:
        if found:
            ask("release a consumer of", options, [line])
        log.release(options.consumer)
    facts = {**since_json(log), "consumer": options.consumer, "bytes": freed, "dry_run": options.dry_run}
    console.say(facts, [line, *dry_run_lines(options)])
    return True


# --- vacuum -------------------------------------------------------------------------------------


def _vacuum(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    age = None if options.older_than is None else dt.timedelta(seconds=options.older_than.seconds)
    report = log.vacuum(older_than=age, unknown=options.unknown, dry_run=options.dry_run)
    console.say(_vacuum_facts(report), [*_vacuum_lines(report), *dry_run_lines(options)])
    return True


def _vacuum_facts(report: VacuumReport) -> dict[str, object]:
    gone_at = None if report.gone_at is None else moment(report.gone_at)
    return dataclasses.asdict(report) | {"gone_at": gone_at}


def _vacuum_lines(report: VacuumReport) -> Sequence[str]:
    would = "would be deleted" if report.dry_run else "deleted"
    lines = [f"{count_text(report.files, 'file')} {would}, {size_text(report.bytes)}"]
    if report.gone_at is not None:
        lines.append(
            f"{count_text(report.young_files, 'file')} replaced too lately, {size_text(report.young_bytes)}: the last"
            f" may go after {seconds(report.gone_at)}"
        )
    if report.unknown_files:
        lines.append(
            f"{count_text(report.unknown_files, 'file')} that no entry names, {size_text(report.unknown_bytes)}:"
            " --unknown deletes them too"
        )
    return lines


RUNS: Mapping[str, Run] = {
    "forget": _forget,
    "retain": _retain,
    "retainers": _retainers,
    "release": _release,
    "vacuum": _vacuum,
}
