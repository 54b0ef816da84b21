"""The verbs ``import``, ``export`` and ``types``: captures of the real timely into a log, and a log to captures.

A capture is a file or connection with events of timely dataflow, the library in Rust. `spark_timely.interop` reads and
writes them. Here files and addresses get their streams, a log is made where there is none, and progress and errors are
printed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import shlex
import threading
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spark_timely.cli.arguments import asked_log, reach, refuse, storage_options
from spark_timely.cli.output import Console, count_text, frontier_facts, frontier_text, size_text
from spark_timely.cli.verb_table import Run
from spark_timely.errors import (
    CaptureFormatError,
    InvalidOptionError,
    LogMissingError,
    ProtocolError,
    TimelyError,
    shown,
)
from spark_timely.interop.cdcv2.conversion import CdcImport, export_collection
from spark_timely.interop.cdcv2.reader import read_message
from spark_timely.interop.cdcv2.statements import Statement
from spark_timely.interop.chunk import VERSIONS
from spark_timely.interop.exporting import Exported, chosen_types, default_types, export_log
from spark_timely.interop.importing import (
    CaptureTypes,
    Imported,
    StreamImport,
    found_version,
    hint_at_other_version,
)
from spark_timely.interop.jsonl import JsonLines, Line, Lines
from spark_timely.interop.reader import GrowingFile, Source
from spark_timely.interop.rust import rust_types
from spark_timely.interop.schema import type_text
from spark_timely.interop.selection import Selection
from spark_timely.interop.sockets import Address, Producers, import_socket, is_address
from spark_timely.log import Log
from spark_timely.log.files.format import LogKind
from spark_timely.log.log import create_log, open_log
from spark_timely.log.wait import wait_until
from spark_timely.threads import aside
from spark_timely.trace.updates import Updates


def _import(
    options: argparse.Namespace,
    console: Console,
    *,
    now: Callable[[], float] = clock.monotonic,
    pause: Callable[[float], None] = clock.sleep,
) -> bool:
    types = CaptureTypes.parse(
        options.time, options.record, timely=options.timely, stamps=options.stamps, updates=options.updates
    )
    target = _Target(options, types)
    if options.format == "cdcv2":
        return _import_cdcv2(options, types, target, console)
    streams = dict(zip(options.captures, _stream_names(options), strict=True))
    addresses = {capture: Address.parse(capture) for capture in options.captures if is_address(capture)}
    paths = [capture for capture in options.captures if capture not in addresses]
    _check_files(paths)
    _check_distinct(paths)
    json_lines = options.format == "jsonl"
    results: dict[str, Imported] = {}
    total = sum(os.path.getsize(path) for path in paths) if options.format == "timely" and not addresses else None
    with contextlib.ExitStack() as stack:
        # First what can fail and changes nothing: ports, types, and what the files begin with.
        producers = {capture: stack.enter_context(Producers(address)) for capture, address in addresses.items()}
        bar = stack.enter_context(console.progress("import", total, unit="B"))
        tasks: dict[str, StreamImport] = {}
        more: dict[str, Any]
        for capture, stream in streams.items():
            far = capture in addresses
            name, more = (capture, {"max_delay_s": 1.0}) if far else (os.path.basename(capture), {"report": bar.update})
            log = target.source(own=far)
            tasks[capture] = StreamImport(log, stream, types, name=name, unstamped=options.unstamped, **more)
        found = _settle(tasks, paths, json_lines=json_lines, follow=options.wait is not None)
        files = [_CaptureFile(path, tasks[path], json_lines=json_lines) for path in paths]
        for file in files:
            file.rehearse()
        target.reserve(list(tasks.values()))
        wait_s = 0.0 if options.wait is None else options.wait.seconds

        def wait(has_news: Callable[[], bool]) -> bool:
            return wait_until(lambda _: has_news(), timeout_s=wait_s, poll_s=0.2, now=now, pause=pause)

        listeners = _Listeners()
        for capture in addresses:
            patience_s = 60.0 if options.wait is None else wait_s
            listeners.start(capture, producers[capture], tasks[capture], patience_s, results)
        try:
            for file in files:
                bar.update(file.task.position)
                results[file.path] = file.take(wait)
            listeners.join()
        except KeyboardInterrupt:
            listeners.stop()
            raise
        finally:
            listeners.wait()
        listeners.check()
    _print_imported(target.log, types, [results[capture] for capture in streams], found, console)
    return True


def _settle(tasks: Mapping[str, StreamImport], files: list[str], *, json_lines: bool, follow: bool) -> set[str]:
    """Find the versions of timely that were not declared; return the streams of which one was found."""
    unknown = {capture: task for capture, task in tasks.items() if task.types.timely is None}
    for capture, task in unknown.items():
        if follow or capture not in files:
            msg = f"could not import {shown(capture)}: found no --timely with a capture that is followed"
            hint = "give --timely 0.31 or --timely 0.32: the bytes do not say it, and may be good in both at first"
            raise InvalidOptionError(msg, hint=hint)
        task.settle(found_version(capture, task.types, json_lines=json_lines))
    return {task.stream for task in unknown.values()}


class _CaptureFile:
    """A capture in a file, and the task that imports it."""

    def __init__(self, path: str, task: StreamImport, *, json_lines: bool) -> None:
        self.path, self.task, self._json_lines = path, task, json_lines

    def _bytes_of(self, file: GrowingFile) -> Source:
        """Return what gives the bytes of the capture for those of the file."""
        types = self.task.types
        return JsonLines(file, types.time, types.record, timely=types.version) if self._json_lines else file

    @contextlib.contextmanager
    def _hinted(self) -> Iterator[None]:
        """Say of bytes that cannot be read whether they fit the other version of timely."""
        try:
            yield
        except CaptureFormatError as error:
            if not self.task.position:
                hint_at_other_version(error, self.path, self.task.types, json_lines=self._json_lines)
            raise

    def rehearse(self) -> None:
        """Read what the file begins with, unless the log has something of it."""
        if not self.task.position:
            with GrowingFile(self.path) as opened, self._hinted():
                self.task.rehearse(self._bytes_of(opened))

    def take(self, wait: Callable[[Callable[[], bool]], bool]) -> Imported:
        """Import what the log has not."""
        with self._hinted():
            return self.task.take_file(self.path, wait=wait, wrap=self._bytes_of)


def _check_files(files: list[str]) -> None:
    for file in files:
        if not os.path.isfile(file):
            msg = f"could not import {shown(file)}: found no such file"
            raise InvalidOptionError(msg, hint="give files that timely's EventWriter wrote, or addresses")


def _check_distinct(files: list[str]) -> None:
    """Refuse the same file under two names: its records would be in the log twice."""
    seen: dict[tuple[int, int], str] = {}
    for file in files:
        facts = os.stat(file)
        other = seen.get((facts.st_dev, facts.st_ino))
        seen[facts.st_dev, facts.st_ino] = file
        if other is not None:
            msg = f"could not import {shown(file)}: found it to be the same file as {shown(other)}"
            raise InvalidOptionError(msg, hint="give each capture once: its records would be in the log twice")


def _import_cdcv2(options: argparse.Namespace, types: CaptureTypes, target: _Target, console: Console) -> bool:
    """Import messages from all files into one stream; those that are not complete are left for another time."""
    _check_files(options.captures)
    if options.timely is not None or (options.stamps, options.unstamped, options.updates) != (
        "refuse",
        "refuse",
        "auto",
    ):
        refuse(
            "--timely, --stamps, --unstamped or --updates with --format cdcv2",
            "leave them out: messages of CDCv2 have no stamps, and are the same in both",
        )
    if len(options.stream) > 1 or options.wait is not None:
        refuse(
            "--wait, or more than one --stream, with --format cdcv2",
            "leave them out: all files together are one stream, and are read once",
        )
    task = CdcImport(target.source(), options.stream[0] if options.stream else "cdcv2", types)
    events = unfinished = 0
    total = sum(os.path.getsize(file) for file in options.captures)
    with console.progress("import", total, unit="B") as bar:
        for file in options.captures:
            with GrowingFile(file) as opened:
                lines, done = Lines(opened), 0
                while block := lines.block():
                    events += len(block)
                    _extend(task, types, file, block)
                    bar.update(lines.position - done)
                    done = lines.position
                unfinished += lines.unfinished
    task.check_copies()
    task.open()
    log, frontier = target.log, task.frontier
    assert log is not None
    facts = {"messages": events, "added": task.added, "pending": task.pending, "unfinished": unfinished}
    pending = f", {count_text(task.pending, 'update')} not complete yet" if task.pending else ""
    pending += f"; {count_text(unfinished, 'byte')} of a message that is not whole yet" if unfinished else ""
    texts = [
        f"{count_text(events, 'message')}: {count_text(task.added, 'update')} added{pending}",
        f"frontier of the stream: {frontier_text(log.domain, frontier)}",
    ]
    console.say(facts | frontier_facts(log.domain, frontier), texts)
    return True


def _extend(task: CdcImport, types: CaptureTypes, file: str, block: Sequence[Line]) -> None:
    """Import the messages of some lines of a file; say of what is wrong in which lines it is."""
    messages: list[Updates | Statement] = []
    for line in block:
        try:
            messages.append(read_message(line.data, time=types.time, record=types.record))
        except CaptureFormatError as error:
            where = f"in line {line.number} of {shown(file)}, byte={line.position}"
            error.locate(where, event=line.number - 1, position=line.position)
            raise
    try:
        task.extend(messages)
    except ProtocolError as error:
        # Which of them contradicts what came before is known by its time, not by its line.
        first, last = block[0], block[-1]
        where = f"in lines {first.number} to {last.number} of {shown(file)}, from byte={first.position}"
        error.locate(where, event=first.number - 1, position=first.position)
        raise


def _stream_names(options: argparse.Namespace) -> list[str]:
    if options.stream:
        if len(options.stream) != len(options.captures):
            refuse(
                f"--stream {len(options.stream)} times",
                f"give it once for each of the {len(options.captures)} captures, or never",
            )
        names = list(options.stream)
    else:
        names = [_name_of(capture) for capture in options.captures]
    for name in names:
        if names.count(name) > 1:
            refuse(f"stream {name!r} for more than one capture", "name the streams, one --stream NAME for each capture")
    return names


def _name_of(capture: str) -> str:
    text = capture if is_address(capture) else os.path.splitext(os.path.basename(capture))[0]
    return re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")[:200] or "capture"


class _Target:
    """The log that is imported into: there already, or made once there is something to write."""

    def __init__(self, options: argparse.Namespace, types: CaptureTypes) -> None:
        self._options = options
        self._types = types
        self._storage = storage_options(options)
        self._lock = threading.Lock()
        self._kind: LogKind = "collection" if options.format == "cdcv2" else "stream"
        captures = len(options.captures) if self._kind == "stream" else 1
        self._streams = options.streams or captures
        self.log: Log | None
        reach(options.log, self._storage)
        try:
            self.log = open_log(options.log, storage_options=self._storage)
        except LogMissingError:
            self.log = None
            _ = types.payload  # raises, if a log cannot have such columns
            if self._streams < captures:
                refuse(
                    f"--streams {self._streams} for {captures} captures",
                    "give the number of all captures that the log will get",
                )

    def source(self, *, own: bool = False) -> Log | Callable[[], Log]:
        """Return the log, or what makes it; a handle of its `own` for another thread."""
        if self.log is None:
            return self._own if own else self._made
        return self._own() if own else self.log

    def _own(self) -> Log:
        return open_log(self._made().path, storage_options=self._storage)

    def _made(self) -> Log:
        with self._lock:
            if self.log is None:
                domain = self._types.layout.domain
                self.log = create_log(
                    self._options.log,
                    self._types.payload,
                    times=[type_.value for type_ in domain.types],
                    minimum=np.array(domain.minimum),
                    kind=self._kind,
                    streams=self._streams,
                    exist_ok=True,
                    storage_options=self._storage,
                )
            return self.log

    def reserve(self, tasks: list[StreamImport]) -> None:
        """Open streams beforehand, unless the log has kept a capability at its minimum for each of them.

        Else the first of them might use up what the others begin with, and the log be complete without them.
        """
        new = [task for task in tasks if not task.opened]
        if self.log is not None and self.log.core.unclaimed < len(new):
            for task in new:
                task.open()


class _Listeners:
    """A thread for each address. Each has a log handle of its own: they commit independently."""

    def __init__(self) -> None:
        # Not the threads: in Python 3.11 one whose join was interrupted passes for ended.
        self._done: list[threading.Event] = []
        self._errors: list[BaseException] = []
        self._stop = threading.Event()

    def start(
        self,
        capture: str,
        producers: Producers,
        task: StreamImport,
        wait_s: float,
        results: dict[str, Imported],
    ) -> None:
        done = threading.Event()
        self._done.append(done)

        def run() -> None:
            try:
                results[capture] = import_socket(task, producers, wait_s=wait_s, stop=self._stop.is_set)
            except BaseException as error:  # noqa: BLE001 - raised again by check, in the thread that asked
                self._errors.append(error)
            finally:
                done.set()

        aside("import", run)

    def stop(self) -> None:
        """Let all commit what has come, and stop."""
        self._stop.set()

    def join(self) -> None:
        """Wait for all; an interrupt from the keyboard is noticed, and lets them stop."""
        for done in self._done:
            while not done.wait(0.2):
                pass

    def wait(self) -> None:
        """Wait for all, whatever happens."""
        try:
            self.join()
        except KeyboardInterrupt:
            self.stop()
            self.join()
            raise

    def check(self) -> None:
        """Raise what they raised; the first of it, which names the others."""
        if not self._errors:
            return
        first, *others = self._errors
        if isinstance(first, TimelyError):
            first.message = "; and ".join(map(str, [first.message, *others]))
            first.args = (first.message,)
        raise first


def _print_imported(
    log: Log | None, types: CaptureTypes, results: list[Imported], found: set[str], console: Console
) -> None:
    if log is None:  # nobody came
        domain = types.layout.domain
        frontier = domain.minimum_frontier
    else:
        log.refresh()
        domain, frontier = log.domain, log.frontier()
    if console.json_mode:
        captures = []
        for result in results:
            facts = dataclasses.asdict(dataclasses.replace(result, frontier=None))  # type: ignore[arg-type]
            captures.append({**facts, "frontier": domain.frontier_to_json(result.frontier)})
        console.answer({"captures": captures, **frontier_facts(domain, frontier)})
        return
    for result in results:
        added = f"{count_text(result.new_events, 'event')} with {count_text(result.new_records, 'record')} added"
        state = "closed" if result.closed else f"unfinished, at {frontier_text(domain, result.frontier)}"
        if result.unfinished:
            state += f", {count_text(result.unfinished, 'byte')} of an event that is not whole yet"
        if result.missing:
            state += f"; sent once more, but for the last {count_text(result.missing, 'byte')}"
        if result.dropped:
            state += f"; {count_text(result.dropped, 'record')} without a time left out"
        if result.dead:
            state += f"; {count_text(result.dead, 'record')} without a time set apart as dead letters"
        if result.stream in found:
            state += f"; read as Timely {result.timely}, the only version that its bytes fit"
        console.line(f"{result.name} \N{RIGHTWARDS ARROW} {result.stream}: {added}; {state}")
    if any(dataclasses.replace(types, timely=result.timely).are_updates for result in results):
        console.line("records are updates (data, time, diff), each at its own time; --updates no: they are none")
    if log is None:
        console.line("nothing came: there is no log yet")
        return
    console.line(f"frontier of the log: {frontier_text(domain, frontier)}")


def _types_of(options: argparse.Namespace, log: Log) -> tuple[CaptureTypes | None, list[str] | None, dict[str, str]]:
    """Return the types that are declared, None if none are, the columns that are chosen, and the casts."""
    columns = None if options.columns is None else options.columns.split(",")
    casts: dict[str, str] = {}
    for text in options.cast:
        name, equals, kind = text.partition("=")
        if not equals or not name or not kind or name in casts:
            once = "it once for each column, with a type: " if name in casts else ""
            refuse(f"--cast {shown(text)}", f"write {once}--cast at=i64")
        casts[name] = kind
    if options.time is None and options.record is None:
        return None, columns, casts
    known = None
    if None in (options.time, options.record):
        known = default_types(log, Selection.parse(columns, casts))
    asked = CaptureTypes.parse(options.time or "u64", options.record or "u64")
    types = CaptureTypes(
        known.time if known is not None and options.time is None else asked.time,
        known.record if known is not None and options.record is None else asked.record,
    )
    return types, columns, casts


def _types(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    types, columns, casts = _types_of(options, log)
    timely = options.timely or default_types(log, Selection.parse(columns, casts)).timely or VERSIONS[0]
    chosen = chosen_types(log, types, Selection.parse(columns, casts))
    program = rust_types(log, types=types, columns=columns, casts=casts, timely=timely)
    facts = {"time": type_text(chosen.time), "record": type_text(chosen.record), "timely": timely, "rust": program}
    console.say(facts, program.splitlines())
    return True


def _export(options: argparse.Namespace, console: Console) -> bool:
    log = asked_log(options)
    types, columns, casts = _types_of(options, log)
    index = log.core.files()
    total = int(index.rows.sum()) if bool((index.rows >= 0).all()) else None
    form = options.format or ("cdcv2" if log.kind == "collection" else "timely")
    if form == "cdcv2" and options.timely is not None:
        refuse(
            "--timely with --format cdcv2", "leave it out: messages of CDCv2 have no stamps, and are the same in both"
        )
    if form == "cdcv2" and options.stream is not None:
        refuse("--stream with --format cdcv2", "leave --stream out: a collection is what all its streams add up to")
    asked: dict[str, Any] = {"types": types, "columns": columns, "casts": casts}
    asked |= {"files": options.files, "up_to": options.up_to, "name": options.name}
    with console.progress("export", total, unit="row") as bar:
        asked["report"] = bar.update
        if form == "cdcv2":
            written = export_collection(log, options.folder, **asked)
        else:
            asked |= {"timely": options.timely, "stream": options.stream, "json_lines": form == "jsonl"}
            written = export_log(log, options.folder, **asked)
    return _print_written(written, console)


def _print_written(written: list[Exported], console: Console) -> bool:
    lines = [
        f"{each.path}: {count_text(each.events, 'event')} with {count_text(each.records, 'record')},"
        f" {size_text(each.size_bytes)}"
        for each in written
    ]
    first = written[0]
    words = ["--time", first.time, "--record", first.record, *first.options]
    console.say([dataclasses.asdict(each) for each in written], [*lines, f"types: {shlex.join(words)}"])
    return True


RUNS: Mapping[str, Run] = {"import": _import, "export": _export, "types": _types}
