"""The verb ``instance``: runs a compute instance, sends it requests, and shows its state.

A compute instance is a process that keeps dataflows running and answers from them (`spark_timely.compute`). ``run``
starts one on Spark; all else goes through its directory, by `Requests` or a `Handle` that follows.

Invariants
----------
1. ``create``, ``drop``, ``configure`` and ``remove`` ask the process that runs the instance; they never write its
   command log.
2. ``status``, ``peek`` and ``why`` follow the instance: they need no Spark, and change nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from spark_timely.cli.arguments import keys_of, names_of, pairs_of, refuse, spark_of, storage_options
from spark_timely.cli.output import Console
from spark_timely.cli.rows import print_rows, rows_of
from spark_timely.cli.verb_table import Run
from spark_timely.compute.drive.directory import Directory
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.requests import Requests
from spark_timely.compute.drive.runtime import Runtime
from spark_timely.compute.introspection import RELATIONS
from spark_timely.errors import MissingError, WaitTimeoutError, shown
from spark_timely.log.store.storage import normal_path

_STATUS: Final = "hydration"
_FOLDERS: Final = "folders"


def _pairs(options: argparse.Namespace, name: str) -> dict[str, str]:
    """Return NAME=VALUE options as a mapping."""
    return dict(pairs_of(f"--{name}", getattr(options, name), f"write --{name} NAME=VALUE"))


def _id(options: argparse.Namespace) -> str:
    if options.id is None:
        refuse(f"{options.action} without an id", f"write spark-timely instance DIR {options.action} ID")
    return str(options.id)


def _starts(options: argparse.Namespace) -> dict[str, int]:
    """Return NAME=START options as a mapping."""
    found = {}
    for name, start in _pairs(options, "adopt").items():
        if not start.isdecimal():
            refuse(f"--adopt {shown(f'{name}={start}')}", "write --adopt NAME=START, where START is a number")
        found[name] = int(start)
    return found


def _directory(options: argparse.Namespace) -> Directory:
    return Directory(options.directory, storage_options(options) or {})


@contextmanager
def _following(options: argparse.Namespace) -> Iterator[Handle]:
    """Follow the instance, without Spark."""
    handle = Handle(
        options.directory, Runtime(_no_tasks, _no_files), read_only=True, storage_options=storage_options(options)
    )
    try:
        yield handle
    finally:
        handle.close()


def _no_tasks(*_: object) -> Any:  # noqa: ANN401 - never called: a follower runs nothing
    raise NotImplementedError


def _no_files(*_: object) -> Any:  # noqa: ANN401 - never called
    raise NotImplementedError


# --- run ------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace, console: Console) -> bool:
    """Run the instance until a signal ends it, or another process takes it over."""
    from spark_timely.spark.instance.instance import ComputeInstance

    ended = threading.Event()
    spark = spark_of(options)  # which takes signals too
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    instance = None
    try:
        instance = ComputeInstance(
            spark,
            options.directory,
            read_only=options.read_only,
            moved=options.moved,
            adopts=_starts(options),
            leaves=options.leave,
            storage_options=storage_options(options),
            new_session=lambda: spark_of(options),
        )
        console.say({"running": options.directory}, [f"instance {options.directory} runs; press Ctrl-C to end it"])
        console.flush()
        while not ended.wait(0.2):
            if instance.error is not None:
                raise instance.error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if instance is not None:
            instance.close()
    return True


# --- asking ---------------------------------------------------------------------------------------


def _id_or_path(value: str) -> str:
    """Return an id as it is, and a path as the process that runs the instance finds it too, from another directory.

    A value without '/' that is no path here is an id.
    """
    return normal_path(value) if "/" in value or os.path.exists(value) else value


def _logs(options: argparse.Namespace, name: str) -> dict[str, str]:
    """Return NAME=LOG options as a mapping."""
    return {word: _id_or_path(value) for word, value in _pairs(options, name).items()}


def _ask(verb: str, arguments: Mapping[str, object], options: argparse.Namespace, console: Console) -> bool:
    directory = _directory(options)
    directory.check("ask", create=False)
    done, warnings = True, list[str]()
    try:
        warnings = Requests(directory).ask(verb, arguments, timeout_s=options.timeout.seconds)
    except WaitTimeoutError:
        done = False  # it stays, and is no failure: it is done when a process runs the instance
    facts = {"done" if done else "asked": verb, **arguments} | ({"warnings": warnings} if warnings else {})
    later = "asked, not done yet: the process that runs the instance does it (spark-timely instance DIR run)"
    console.say(facts, [f"{verb}: {'done' if done else later}", *(f"warning: {warning}" for warning in warnings)])
    return done


def _create(options: argparse.Namespace, console: Console) -> bool:
    if options.query is None:
        refuse("create without --query", "write --query 'SELECT … FROM name' --import name=PATH")
    asked: dict[str, object] = {"id": _id(options), "query": options.query}
    if options.input:
        return _create_task(asked, options, console)
    if options.reference or options.snapshot:
        refuse("--reference or --snapshot without --input", "they are of a continual task: write --input NAME=LOG too")
    asked["imports"] = _logs(options, "import")
    if options.as_of is not None:
        asked["as_of"] = options.as_of
    if options.into is not None:
        return _ask("maintain", {**asked, "into": normal_path(options.into)}, options, console)
    return _ask(
        "index", {**asked, "key": [name for given in options.key for name in names_of(given)]}, options, console
    )


def _create_task(asked: dict[str, object], options: argparse.Namespace, console: Console) -> bool:
    if getattr(options, "import") or options.key:
        refuse("--import or --key beside --input", "a continual task reads --input and --reference, and has no key")
    asked |= {"inputs": _logs(options, "input"), "references": _logs(options, "reference")}
    into = None if options.into is None else normal_path(options.into)
    given = {"into": into, "as_of": options.as_of, "snapshot": options.snapshot or None}
    asked |= {name: value for name, value in given.items() if value is not None}
    return _ask("continual_task", asked, options, console)


def _ask_by_id(options: argparse.Namespace, console: Console) -> bool:
    """Ask to drop a collection, or to remove a folder."""
    return _ask(options.action, {"id": _id(options)}, options, console)


def _configure(options: argparse.Namespace, console: Console) -> bool:
    values: dict[str, object] = {}
    for name, text in _pairs(options, "set").items():
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    if not values:
        refuse("configure without --set", "write --set NAME=VALUE, such as --set hydration_limit=2")
    return _ask("configure", values, options, console)


# --- looking --------------------------------------------------------------------------------------


def _status(options: argparse.Namespace, console: Console) -> bool:
    relation = options.id or _STATUS
    if relation not in (*RELATIONS, _FOLDERS):
        refuse(f"no relation {shown(relation)}", f"choose among {', '.join(sorted((*RELATIONS, _FOLDERS)))}")
    with _following(options) as instance:
        instance.settle()
        table = instance.folders() if relation == _FOLDERS else instance.show(relation)
        unknown = instance.unknown_folders() if relation == _STATUS else []
    print_rows(table.schema.names, rows_of(table), "json" if console.json_mode else "table", console)
    if unknown and not console.json_mode:
        console.line(f"folders that no collection has, and that stay: {len(unknown)} (status folders lists them)")
    return True


def _peek(options: argparse.Namespace, console: Console) -> bool:
    target = _id(options)
    with _following(options) as instance:
        instance.settle()
        if not instance.has(target):
            msg = f"could not peek {target!r}: found no collection of this id"
            raise MissingError(msg, hint="spark-timely instance DIR status exports lists them")
        table = instance.peek(
            target,
            as_of=options.as_of,
            keys=keys_of(instance.schema_of(target), options.key),
            where=options.where,
            limit=options.limit,
            timeout_s=options.timeout.seconds,
        )
    print_rows(table.schema.names, rows_of(table), "json" if console.json_mode else "table", console)
    return True


def _why(options: argparse.Namespace, console: Console) -> bool:
    with _following(options) as instance:
        instance.settle()
        text = instance.why(_id(options))
    console.say({"why": text.splitlines()}, text.splitlines())
    return True


_ACTIONS: Final[Mapping[str, Run]] = {
    "run": _run,
    "create": _create,
    "drop": _ask_by_id,
    "configure": _configure,
    "status": _status,
    "peek": _peek,
    "why": _why,
    "remove": _ask_by_id,
}


def _instance(options: argparse.Namespace, console: Console) -> bool:
    return _ACTIONS[options.action](options, console)


RUNS: Mapping[str, Run] = {"instance": _instance}
