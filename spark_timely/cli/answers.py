"""The verbs that answer from logs at a time: peek, subscribe, sql, copy-to, explain-timestamp.

`spark_timely.cli.command` loads it when one of these verbs runs. Each reads its options, asks `spark_timely.answers` or
Spark, and prints the rows.

Invariants
----------
1. Spark starts only for what needs it: a SELECT that is no peek, a peek that would read too much, and ``copy-to``.
2. A subscription acknowledges what was printed and flushed, and nothing else. A signal ends it between two batches.
3. An answer that is printed is bounded: by its own limit, or by ``--max-rows``.
"""

from __future__ import annotations

import argparse
import math
import shlex
import signal
import sys
import time as clock
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_timely.answers.peek import SCAN_LIMIT_BYTES, PeekExplanation, peek
from spark_timely.answers.statements import (
    CopyStatement,
    PeekStatement,
    SqlStatement,
    Statement,
    SubscribeStatement,
    parse,
    parse_order,
)
from spark_timely.answers.subscribe import Subscription, subscribe
from spark_timely.cli.arguments import asked_log, keys_of, names_of, reach, refuse, spark_of, storage_options
from spark_timely.cli.output import Console, aligned, cell_text, count_text
from spark_timely.cli.rows import print_rows, rows_of
from spark_timely.cli.verb_table import Run
from spark_timely.continual.body import read_query
from spark_timely.errors import InvalidUsageError, ResultTooLargeError, StorageError, shown
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.log.store.storage import checked_options, normal_path
from spark_timely.log.store.urls import own_options
from spark_timely.log.timestamp import TimestampExplanation, check_complete, explain_timestamp
from spark_timely.trace.updates import DIFF

_LOOK_S: Final = 0.2
"""Seconds between two looks at signals and at the reader, while nothing comes."""


# --- rows -----------------------------------------------------------------------------------------


def _format(options: argparse.Namespace) -> str:
    """Return how rows are printed; refuse two answers to that."""
    if options.json and options.format not in (None, "json"):
        refuse(f"--json with --format {options.format}", "give one of them")
    return "json" if options.json else options.format or "table"


def _explain(facts: Mapping[str, object], console: Console) -> None:
    """Say how something was answered, on standard error: the answer may go into a pipe."""
    pairs = ((name.replace("_", " "), cell_text(value)) for name, value in facts.items() if value != "")
    Console(sys.stderr, json_mode=console.json_mode).say(dict(facts), aligned(pairs))


# --- peek -----------------------------------------------------------------------------------------


def _peek(options: argparse.Namespace, console: Console) -> bool:
    form = _format(options)
    log = asked_log(options)
    found: list[PeekExplanation] = []
    try:
        table = peek(
            log,
            as_of=options.as_of,
            keys=keys_of(log.schema, options.key),
            where=options.where,
            select=None if options.select is None else names_of(options.select),
            order_by=None if options.order_by is None else parse_order(options.order_by),
            limit=options.limit,
            offset=options.offset,
            max_bytes=options.max_bytes,
            forgotten=options.forgotten,
            timeout_s=options.timeout.seconds,
            scan_limit=SCAN_LIMIT_BYTES if options.scan_limit is None else options.scan_limit,
            explain=found.append,
        )
    except ResultTooLargeError as error:
        if error.limit_name == "scan_limit":
            error.hint = "ask for keys, give a larger --scan-limit, or let Spark answer: spark-timely sql 'SELECT …'"
        raise
    print_rows(table.schema.names, rows_of(table), form, console)
    if options.explain:
        for each in found:
            _explain(each.to_dict(), console)
    return True


# --- subscribe ------------------------------------------------------------------------------------


class _Signals:
    """Lets the first signal to end be noticed between two batches; the next one interrupts at once.

    A signal that is ignored, as in the background of a script, stays so; outside the main thread none is taken.
    """

    def __init__(self) -> None:
        self.asked = False

    def _take(self, number: int, _: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def taken(self) -> Iterator[_Signals]:
        """Take signals until the end, and leave them as they were."""
        before: dict[signal.Signals, Any] = {}
        with suppress(ValueError):  # not the main thread
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, self._take)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


# Of the options, those that `subscribe` takes as they are.
_TIMES: Final = ("as_of", "as_of_at_least", "up_to")
_SUBSCRIBED: Final = ("forgotten", "progress", "envelope", "name", "expiry", "resume_from", "max_bytes")


def _subscribe(options: argparse.Namespace, console: Console) -> bool:
    storage = storage_options(options)
    reach(options.log, storage)
    asked: dict[str, Any] = {name: getattr(options, name) for name in (*_TIMES, *_SUBSCRIBED)} | {
        "snapshot": not options.no_snapshot,
        "key": None if options.key is None else names_of(options.key),
        "order_by": None if options.order_by is None else parse_order(options.order_by),
        "poll_s": None if options.poll is None else options.poll.seconds,
    }
    timeout_s = math.inf if options.timeout is None else options.timeout.seconds
    return _follow(options.log, storage, asked, console, fetch=options.fetch, timeout_s=timeout_s)


def _follow(
    path: str,
    storage: Mapping[str, str] | None,
    asked: Mapping[str, Any],
    console: Console,
    *,
    fetch: int | None = None,
    timeout_s: float = math.inf,
) -> bool:
    """Print what a subscription gives, until it ends or is ended."""
    with _Signals().taken() as signals:
        with subscribe(path, storage_options=storage, **asked) as subscription:
            try:
                _print_changes(subscription, console, signals, fetch=fetch, timeout_s=timeout_s)
            finally:
                flushed = subscription.position
        if signals.asked:
            _say_position(subscription, flushed)
            raise KeyboardInterrupt
    return True


def _print_changes(
    subscription: Subscription,
    console: Console,
    signals: _Signals,
    *,
    fetch: int | None,
    timeout_s: float,
    now: Callable[[], float] = clock.monotonic,
) -> None:
    """Print batches as they come, each as JSON lines that are flushed; or the first rows, if that many are wanted."""
    acknowledged = subscription.position
    until = now() + timeout_s
    while not (signals.asked or subscription.has_ended):
        console.check_reader()
        left_s = max(until - now(), 0.0)
        wait_s = min(left_s, _LOOK_S)
        if fetch is None:
            batch = subscription.next_batch(timeout_s=wait_s)
            rows = None if batch is None else batch.rows
        else:
            rows = subscription.fetch(fetch, timeout_s=wait_s)
        came = rows is not None and rows.num_rows > 0
        if rows is not None and came:
            for row in rows_of(rows):
                console.answer(row, as_is=True)
            console.flush()
        if subscription.name is not None and subscription.position not in (None, acknowledged):
            acknowledged = subscription.position
            subscription.acknowledge(acknowledged)
        if fetch is not None and (came or not fetch):
            return
        if came:
            until = now() + timeout_s
        elif left_s <= wait_s and (rows is None or fetch is not None):
            return  # not for a batch without rows: behind it there may be one that has some


def _say_position(subscription: Subscription, position: Any) -> None:  # noqa: ANN401 - as the subscription has it
    """Say how to continue, on standard error."""
    if position is None:
        return
    # With the log and its history: a position alone would be believed of another one.
    words = ["--resume-from", str(subscription.cut_at(position))]
    if subscription.domain.arity > 1:
        words += ["--as-of", str(subscription.as_of)]
    with suppress(OSError, StorageError):
        Console(sys.stderr, json_mode=False).line(f"spark-timely: to continue, add {shlex.join(words)}")


# --- sql ------------------------------------------------------------------------------------------

_NAMING: Final = "--name TABLE=LOG"


def _sql(options: argparse.Namespace, console: Console) -> bool:
    form = _format(options)
    statement = _statement(options)
    if isinstance(statement, SubscribeStatement):
        return _sql_subscribe(statement, options, console)
    source = statement.source if isinstance(statement, CopyStatement) else statement
    times = _times(source, options)
    if isinstance(statement, CopyStatement):
        if options.format is not None:
            refuse(f"--format {options.format} with COPY", "write COPY … TO … WITH (FORMAT = 'csv')")
        return _sql_copy(statement, times, options, console)
    if isinstance(source, PeekStatement):
        names, rows = _sql_peek(source, times, options, console)
    else:
        names, rows = _answer_of_spark(source, times, options, console)
    print_rows(names, rows, form, console)
    return True


def _statement(options: argparse.Namespace) -> Statement:
    """Read the statement; where a name may be a field of a column called as the table, it is Spark's."""
    names = _tables(options.name)
    statement = parse(options.text, names=names, naming=_NAMING)
    source = statement.source if isinstance(statement, CopyStatement) else statement
    if isinstance(source, PeekStatement) and source.qualifier is not None:
        columns = {name.lower() for name in _opened(source.target, options).schema.names}
        if source.qualifier.lower() in columns:
            return parse(options.text, names=names, naming=_NAMING, peeks=False)
    return statement


def _tables(pairs: Sequence[str]) -> dict[str, str]:
    """Return the logs that tables of a text stand for."""
    tables: dict[str, str] = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or not name or not path or name.lower() in map(str.lower, tables):
            refuse(f"--name {shown(pair)}", "write --name TABLE=LOG, once for each table")
        tables[name] = path
    return tables


def _times(statement: PeekStatement | SqlStatement | SubscribeStatement, options: argparse.Namespace) -> dict[str, Any]:
    """Return the time that is asked for, in the statement or beside it."""
    said = statement.as_of is not None or statement.as_of_at_least is not None
    given = options.as_of is not None or options.as_of_at_least is not None
    if given and (said or None not in (options.as_of, options.as_of_at_least)):
        refuse("several times to answer at", "write AS OF in the statement, or give --as-of or --as-of-at-least")
    if given:
        return {"as_of": options.as_of, "as_of_at_least": options.as_of_at_least}
    return {"as_of": statement.as_of, "as_of_at_least": statement.as_of_at_least}


def _storage_of(path: str, options: argparse.Namespace) -> dict[str, str] | None:
    """Return the storage options that a log takes of those that were given for all."""
    place = normal_path(path)
    return own_options(place, checked_options(storage_options(options), place)) or None


def _opened(path: object, options: argparse.Namespace) -> Log:
    """Open one of the logs that were named."""
    path = str(path)
    storage = _storage_of(path, options)
    reach(path, storage)
    return open_log(path, storage_options=storage)


def _sql_peek(
    statement: PeekStatement, times: Mapping[str, Any], options: argparse.Namespace, console: Console
) -> tuple[list[str], Iterator[dict[str, object]]]:
    """Answer a peek: as SQL has rows, each as often as it is there."""
    log = _opened(statement.target, options)
    asked = statement.arguments(log.schema.names)
    most, limit = options.max_rows, asked["limit"]
    # Without a time that was asked for, as Spark's SQL chooses it.
    chosen = explain_timestamp(log, **times)
    check_complete(f"peek log {log.path!r}", chosen)
    found: list[PeekExplanation] = []

    def job(plan: Any) -> pa.Table:  # noqa: ANN401 - a plan, for Spark
        from spark_timely.spark.answers.peek_job import peek_job

        return peek_job(spark_of(options))(plan)

    table = peek(
        log,
        as_of=np.array(chosen.time, np.int64),
        **{**asked, "limit": most + 1 if limit is None else min(limit, most + 1)},
        forgotten=options.forgotten,
        timeout_s=options.timeout.seconds,
        job=job,
        explain=found.append,
    )
    if options.explain:
        for each in found:
            _explain(each.to_dict(), console)
    _check_rows(sum(table[DIFF].to_pylist()), most)
    names = [name for name in table.schema.names if name != DIFF]

    def rows() -> Iterator[dict[str, object]]:
        for row in rows_of(table):
            copies = row.pop(DIFF)
            yield from repeat(row, copies if isinstance(copies, int) else 0)

    return names, rows()


def _check_rows(n_rows: int, most: int) -> None:
    if n_rows > most:
        msg = f"could not print the answer: found more than {count_text(most, 'row')}"
        raise ResultTooLargeError(
            msg, hint="add a LIMIT, give a larger --max-rows, or write files with COPY … TO", limit_name="max_rows"
        )


def _answer_of_spark(
    statement: SqlStatement, times: Mapping[str, Any], options: argparse.Namespace, console: Console
) -> tuple[list[str], Iterator[dict[str, object]]]:
    frame, chosen = _frame(statement.query, times, options)
    twice = [name for name, n in Counter(frame.columns).items() if n > 1]
    if twice:
        msg = f"could not print the answer: found several columns {shown(twice[0])}"
        raise InvalidUsageError(msg, hint="name them apart: SELECT a.id AS id, b.id AS other")
    table = frame.limit(options.max_rows + 1).toArrow()
    if options.explain:
        _explain({"way": "spark"} | chosen.to_dict(), console)
    _check_rows(table.num_rows, options.max_rows)
    zoned = [
        column.cast(pa.timestamp("us", "UTC"))
        if pa.types.is_timestamp(column.type) and column.type.tz is not None
        else column
        for column in table.columns
    ]
    return table.column_names, rows_of(pa.table(zoned, names=table.column_names))


def _frame(query: str, times: Mapping[str, Any], options: argparse.Namespace) -> tuple[Any, TimestampExplanation]:
    """Return the DataFrame of a query of Spark's, at one time, and what that time follows from."""
    names, storage = _tables(options.name), storage_options(options)
    # What is wrong with text, logs or time is known before Spark has started.
    reads = read_query(query, attempt="run a query at one time", names=list(names), naming=_NAMING).reads
    if not reads:
        msg = f"could not run a query at one time: found no table of a log in {shown(query)}"
        raise InvalidUsageError(msg, hint="read a log by its name, with --name TABLE=LOG, or by its path in backquotes")
    chosen = explain_timestamp({name: names.get(name, name) for name in reads}, **times, storage_options=storage)
    check_complete("run a query at one time", chosen)
    spark = spark_of(options)
    from spark_timely.spark.answers.sql import sql

    frame = sql(
        spark,
        query,
        names=names,
        as_of=np.array(chosen.time, np.int64),
        forgotten=options.forgotten,
        timeout_s=options.timeout.seconds,
        storage_options=storage,
    )
    return frame, chosen


def _sql_subscribe(statement: SubscribeStatement, options: argparse.Namespace, console: Console) -> bool:
    for name, value in (("--format", options.format), ("--explain", options.explain)):
        if value and value != "json":
            refuse(f"{name} with SUBSCRIBE", "leave it out: what changes is printed as JSON, a line for each row")
    log = _opened(statement.target, options)
    asked = statement.arguments(log.schema.names) | _times(statement, options) | {"forgotten": options.forgotten}
    return _follow(log.path, _storage_of(log.path, options), asked, console)


# --- Spark ----------------------------------------------------------------------------------------


def _sql_copy(
    statement: CopyStatement, times: Mapping[str, Any], options: argparse.Namespace, console: Console
) -> bool:
    source = statement.source
    settings: dict[str, Any] = {"format": statement.format}
    if statement.max_file_bytes is not None:
        settings["max_file_bytes"] = statement.max_file_bytes
    if isinstance(source, PeekStatement) and not (source.order_by or source.offset or source.limit is not None):
        asked = source.arguments(_opened(source.target, options).schema.names)
        settings |= {"where": asked["where"], "select": asked["select"]}
        return _copied(str(source.target), statement.folder, times, settings, options, console)
    frame, _ = _frame(source.query, times, options)
    return _copied(frame, statement.folder, None, settings, options, console)


def _copy_to(options: argparse.Namespace, console: Console) -> bool:
    settings: dict[str, Any] = {"format": options.format, "where": options.where}
    settings["select"] = None if options.select is None else names_of(options.select)
    if options.max_file_size is not None:
        settings["max_file_bytes"] = options.max_file_size
    reach(options.log, _storage_of(options.log, options))
    times = {"as_of": options.as_of, "as_of_at_least": options.as_of_at_least}
    return _copied(options.log, options.folder, times, settings, options, console)


def _copied(
    target: Any,  # noqa: ANN401 - a path or a DataFrame
    folder: str,
    times: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    options: argparse.Namespace,
    console: Console,
) -> bool:
    """Copy, and print how many rows that was."""
    as_of = None
    if times is not None:
        log = open_log(target, storage_options=_storage_of(target, options))
        chosen = explain_timestamp(log, **times)
        check_complete(f"copy log {log.path!r}", chosen)
        as_of = np.array(chosen.time, np.int64)
    spark = spark_of(options)
    from spark_timely.spark.answers.copy_to import copy_to

    n_rows = copy_to(
        spark,
        target,
        folder,
        as_of=as_of,
        **settings,
        forgotten=options.forgotten,
        timeout_s=options.timeout.seconds,
        storage_options=storage_options(options),
    )
    console.say({"rows": n_rows, "folder": folder}, [f"{count_text(n_rows, 'row')} copied to {folder}"])
    return True


# --- explain-timestamp ----------------------------------------------------------------------------


def _explain_timestamp(options: argparse.Namespace, console: Console) -> bool:
    logs = [_opened(path, options) for path in options.logs]
    found = explain_timestamp(logs, as_of=options.as_of, as_of_at_least=options.as_of_at_least)
    console.say(found.to_dict(), str(found).splitlines())
    return True


RUNS: Mapping[str, Run] = {
    "peek": _peek,
    "subscribe": _subscribe,
    "sql": _sql,
    "copy-to": _copy_to,
    "explain-timestamp": _explain_timestamp,
}
