"""Inputs mutated at random for what reads foreign bytes: captures, events as JSON lines, CDCv2 messages.

Run by itself, ``python -m tests.property.fuzzing --inputs N``, within a bound of memory that the system
enforces; it prints what came of them as a line of JSON. A reader may refuse with its own error and the place, or
read: then what it gives is written again and must say the same. Anything else, a crash, another error or more
memory, ends the run.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import time as clock
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spark_timely.errors import CaptureFormatError, ProtocolError
from spark_timely.interop.cdcv2.reader import CdcReader, message_lines, read_message
from spark_timely.interop.chunk import VERSIONS, CaptureChunk, TimelyVersion
from spark_timely.interop.jsonl import chunk_lines, json_chunk
from spark_timely.interop.reader import CaptureReader
from spark_timely.interop.schema import parse_type
from spark_timely.interop.stamps import StampRules, are_updates, place_records
from spark_timely.interop.time_layout import time_layout
from spark_timely.interop.writer import CaptureEncoder, build_chunk
from tests.oracles import stamp_model
from tests.oracles.golden import (
    capture_file,
    captures,
    golden_bytes,
    stamped_captures,
    types_of,
    vectors,
    version_of,
)

FUZZ_BYTES = 64 << 20
"""What a million inputs, of some hundred bytes to 60 kB, may take beyond what the process has at the start."""

WINDOW = 1500
NUMBERS = [0, 1, 2, 7, 8, 255, 1 << 20, 1 << 28, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63]
NUMBERS += [(1 << 64) - 1, (1 << 64) - 8, (1 << 64) - 20]
CHUNKS = [4096] * 8 + [64, 200]  # small ones cost many times as much, and find no more than where events are cut
TOKENS = [str(n) for n in (*NUMBERS, -1, -(1 << 63), -(1 << 63) - 1)]
TOKENS += ["1.5", "1e400", "-0", "NaN", "Infinity", "null", "true", '""', '"a"', "[]", "{}", "[[]]", '"\\ud800"']
TOKENS += ["9" * 5000, "[" * 3000, '{"updates": ', '"progress"', '"messages"', '"lower"', "{", "}", "[", "]", ",", ":"]

FUZZED = [
    ("u64", "u64"),
    ("u64", "(string, u64)"),
    ("product<u64, u64>", "(option<u64>, vec<u8>, bool)"),
    ("u32", "enum{A, B(string), C({n: vec<string>})}"),
    ("duration", "(duration, vec<option<(u8, string)>>)"),
]

KINDS = {
    "()": (),
    "u32": ("u32",),
    "u64": ("u64",),
    "i64": ("i64",),
    "product<u64, u64>": ("u64", "u64"),
    "duration": ("u64", "u32"),
}
"""Integers of which a time is made."""

Types = tuple[str, str]
Versioned = tuple[str, str, TimelyVersion]


def seeds(timely: TimelyVersion) -> list[tuple[str, str, bytes]]:
    """Return small captures of types that timely's own have not; for 0.32 with stamps of any number of times."""
    rows = {
        "u64": [1, 2, 3],
        "(string, u64)": [("a", 1), ("naïve", 1 << 63), ("", 0)],
        "(option<u64>, vec<u8>, bool)": [(None, [], True), (5, [1, 2, 3], False)],
        "enum{A, B(string), C({n: vec<string>})}": ["A", {"B": "x"}, {"C": {"n": ["y", ""]}}, "A"],
        "(duration, vec<option<(u8, string)>>)": [([1, 2], [None, (1, "z")]), ([0, 0], [])],
    }
    times = {"u64": [0, 5], "u32": [0, 5], "product<u64, u64>": [[0, 0], [1, 2]], "duration": [[0, 0], [1, 5]]}
    found = []
    for time, record in FUZZED:
        low, high = times[time]
        stamps: list[Any] = [low, high, high]
        if timely != "0.31":
            stamps = [[low, high, high], [], [high]]
        first, second, third = stamps
        events: list[Any] = [(first, rows[record]), [[low, -1], [high, 1]], (second, []), (third, rows[record] * 2), []]
        chunk = build_chunk(events * 3, time=time, record=record, timely=timely)
        found.append((time, record, CaptureEncoder(time=time, record=record, timely=timely).encode(chunk)))
    return found


def lengths_of(data: bytes, width: int, timely: TimelyVersion) -> list[int]:
    """Return where the lengths in a capture stand: those of events, of stamps, and the counts of what they hold."""
    places, at = [], 0
    while at + 28 <= len(data):
        places += [at, at + 12]
        if data[at + 8] == 1 and timely == "0.31":
            places[-1] += width
        elif data[at + 8] == 1:
            places.append(at + 20 + width * int.from_bytes(data[at + 12 : at + 20], "little"))
        at += 8 + int.from_bytes(data[at : at + 8], "little")
    return places


def mutated(data: bytes, rng: random.Random, *, lengths: list[int] | None = None, other: bytes = b"") -> bytes:
    """Change bytes in one to eight ways: bits, bytes, pieces left out, cut off, doubled, put in, extreme lengths."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(9)
        if kind == 0 and out:
            out[at % len(out)] = rng.randrange(256)
        elif kind == 1 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del out[at : at + rng.randrange(1, 30)]
        elif kind == 3:
            out[at:at] = rng.randbytes(rng.randrange(1, 12))
        elif kind in (4, 5):
            place = rng.choice(lengths) if lengths else at
            number = rng.choice([*NUMBERS, rng.getrandbits(64), rng.randrange(64)])
            out[place : place + 8] = number.to_bytes(8, "little")
        elif kind == 6:
            del out[at:]
        else:
            source = other if other and kind == 7 else bytes(out)
            low = rng.randrange(len(source) + 1)
            out[at:at] = source[low : low + rng.randrange(1, 60)]
    return bytes(out)


def mutated_text(line: str, rng: random.Random) -> str:
    """Change a line of JSON in one to three ways: characters, and whole tokens."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(line) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            line = line[:at] + chr(rng.choice([rng.randrange(32, 127), 0, 0xFFFF, 0x1F600])) + line[at + 1 :]
        elif kind == 1:
            line = line[:at]
        elif kind == 2:
            line = line[:at] + line[at + rng.randrange(1, 12) :]
        else:
            # In place of a number, if there is one from here on: what is well-formed gets further.
            while kind == 3 and at < len(line) and not line[at].isdigit():
                at += 1
            end = at
            while end < len(line) and line[end].isdigit():
                end += 1
            line = line[:at] + rng.choice(TOKENS) + line[end:]
    return line


def harmless(time: str, record: str, data: bytes, chunk_bytes: int | None, timely: TimelyVersion = "0.31") -> bool:
    """Read whatever it is; whole events are written again as they were, others refused with their place.

    Stamps are written sorted; their records get times, with the stamps beside them, or are refused.
    """
    reader = CaptureReader(io.BytesIO(data), time=time, record=record, timely=timely, chunk_bytes=chunk_bytes)
    encoder = CaptureEncoder(time=time, record=record, timely=timely)
    done = 0
    try:
        for chunk in reader:
            low, high = int(chunk.positions[0]), int(chunk.positions[-1])
            again, wanted = encoder.encode(chunk), data[low:high]
            if timely != "0.31" and again != wanted:
                wanted = stamp_model.with_sorted_stamps(wanted, KINDS[time])
            assert (low, again) == (done, wanted)
            chunk.records.validate(full=True)
            if timely != "0.31":
                _place(chunk, time, record)
            done = high
    except CaptureFormatError as refused:
        error = refused
    else:
        assert done + reader.unfinished == len(data)
        return True
    assert isinstance(error.position, int)
    assert isinstance(error.event, int)
    assert done <= error.position <= len(data)
    return False


def _place(chunk: CaptureChunk, time: str, record: str) -> None:
    """Give the records times; what is refused is refused in one of the chunk's events."""
    times, type_ = time_layout(time), parse_type(record)
    updates = are_updates(times.type, type_, "auto")
    try:
        placed = place_records(chunk, StampRules(times, type_, updates, True, "drop"), "w")
    except CaptureFormatError as refused:
        assert chunk.positions[0] <= refused.position < chunk.positions[-1]  # noqa: PT017 - any input may be refused
        return
    assert placed.times.shape[0] == placed.records.num_rows == chunk.n_records - placed.dropped
    placed.records.validate(full=True)


def harmless_lines(time: str, record: str, lines: list[str], timely: TimelyVersion = "0.31") -> bool:
    """Read lines as events; what is read has bytes, and its own lines have the same."""
    try:
        chunk = json_chunk(lines, time=time, record=record, timely=timely)
    except CaptureFormatError as refused:
        error = refused
    else:
        return _same_bytes(time, record, chunk, timely)
    assert isinstance(error.event, int)
    return False


def _same_bytes(time: str, record: str, chunk: CaptureChunk, timely: TimelyVersion) -> bool:
    encoder = CaptureEncoder(time=time, record=record, timely=timely)
    lines = chunk_lines(chunk, time=time, record=record, timely=timely)
    again = json_chunk(lines, time=time, record=record, timely=timely)
    assert encoder.encode(again) == encoder.encode(chunk)
    return True


def harmless_messages(time: str, record: str, lines: list[str], cut: int) -> bool:
    """Take messages in two parts; what comes out is complete, comes once, and the frontier only moves forward."""
    try:
        messages = [read_message(line, time=time, record=record) for line in lines]
    except CaptureFormatError:
        return False
    again = [read_message(line, time=time, record=record) for line in message_lines(messages, time=time, record=record)]
    said = [list(message_lines([message], time=time, record=record)) for message in messages]
    assert said == [list(message_lines([message], time=time, record=record)) for message in again]
    reader = CdcReader(time=time, record=record)
    given: set[tuple[object, ...]] = set()
    try:
        for part in (messages[:cut], messages[cut:]):
            before = reader.frontier
            output = reader.extend(part)
            if output is None:
                continue
            assert before.less_equal_frontier(output.frontier)
            times = output.updates.times
            assert before.beyond(times).all()
            assert not output.frontier.beyond(times).any()
            rows = zip(map(str, output.updates.rows.to_pylist()), map(tuple, times.tolist()), strict=True)
            new = list(rows)
            assert len(set(new)) == len(new)
            assert given.isdisjoint(new)
            given.update(new)
    except ProtocolError:
        return False
    return True


def capture_inputs() -> list[tuple[Versioned, bytes, list[int]]]:
    """Return stretches of the golden captures, whole events each, and the small ones of `seeds`."""
    found: list[tuple[Versioned, bytes, list[int]]] = [
        ((time, record, timely), data, lengths_of(data, time_layout(time).width, timely))
        for timely in VERSIONS
        for time, record, data in seeds(timely)
    ]
    for name in (*captures(), *stamped_captures()):
        time, record = types_of(name)
        data, width, timely = golden_bytes(capture_file(name, "bin")), time_layout(time).width, version_of(name)
        starts, at = [], 0
        while at + 8 <= len(data):
            starts.append(at)
            at += 8 + int.from_bytes(data[at : at + 8], "little")
        for i in range(0, len(starts), max(1, len(starts) // 12)):
            end = next((start for start in starts[i:] if start >= starts[i] + WINDOW), len(data))
            window = data[starts[i] : min(end, starts[i] + 8 * WINDOW)]
            found.append(((time, record, timely), window, lengths_of(window, width, timely)))
    return found


def line_inputs() -> list[tuple[Versioned, list[str]]]:
    """Return a few events at a time of the golden captures, as lines."""
    found: list[tuple[Versioned, list[str]]] = []
    for name in (*captures(), *stamped_captures()):
        lines = [json.dumps(line) for line in vectors(capture_file(name, "expected.jsonl"))][:60]
        short = [line for line in lines if len(line) < 2 * WINDOW]
        found += [((*types_of(name), version_of(name)), short[i : i + 4]) for i in range(0, len(short), 12)]
    return found


def message_inputs() -> list[tuple[Types, list[str]]]:
    """Return the messages of the golden cases, as lines."""
    times = {"u64": "u64", "product": "product<u64, u64>"}
    cases = [case for file in ("cdcv2_iter", "cdcv2_sink") for case in vectors(f"{file}.jsonl")]
    return [((times[case["time"]], "string"), [json.dumps(m) for m in case["messages"]][:24]) for case in cases]


WEIGHTS = {"captures": 7, "stamped captures": 10, "lines": 3, "messages": 3}
"""How often inputs of each kind are drawn."""


class Fuzzer:
    """Draws inputs of each kind, and counts how many were read and how many refused."""

    def __init__(self, seed: int, kinds: dict[str, int] | None = None) -> None:
        self.kinds = kinds or WEIGHTS
        self._rng = random.Random(seed)
        self._captures = capture_inputs()
        self._by_version = {v: [each for each in self._captures if each[0][2] == v] for v in VERSIONS}
        self._lines = line_inputs()
        self._messages = message_inputs()
        self.counts: Counter[str] = Counter()

    def warm_up(self) -> None:
        """Read each input as it is: what is made once is made."""
        for (time, record, timely), data, _ in self._captures:
            assert harmless(time, record, data, None, timely)
        assert all(harmless_lines(time, record, lines, timely) for (time, record, timely), lines in self._lines)
        assert all(harmless_messages(*types, lines, 3) for types, lines in self._messages[::7])

    def one(self, kind: str | None = None) -> None:
        """Try one input, of a kind or of any."""
        kind = kind or self._rng.choices([*self.kinds], [*self.kinds.values()])[0]
        read = {
            "captures": self._capture,
            "stamped captures": self._stamped,
            "lines": self._line,
            "messages": self._message,
        }[kind]()
        self.counts[f"{kind} {'read' if read else 'refused'}"] += 1

    def _capture(self) -> bool:
        return self._mutant("0.31")

    def _stamped(self) -> bool:
        return self._mutant("0.32")

    def _mutant(self, wanted: TimelyVersion) -> bool:
        rng = self._rng
        captures = self._by_version[wanted]
        (time, record, timely), data, lengths = rng.choice(captures)
        if rng.randrange(20) == 0:
            # Another type, or another version, than what it holds.
            (time, record, timely), *_ = rng.choice(self._captures)
        other = rng.choice(captures)[1]
        return harmless(time, record, mutated(data, rng, lengths=lengths, other=other), rng.choice(CHUNKS), timely)

    def _line(self) -> bool:
        (time, record, timely), lines = self._rng.choice(self._lines)
        return harmless_lines(time, record, self._changed(lines), timely)

    def _message(self) -> bool:
        rng = self._rng
        types, lines = rng.choice(self._messages)
        low = rng.randrange(len(lines))
        part = lines[low : low + rng.randrange(1, 8)]
        return harmless_messages(*types, self._changed(part), rng.randrange(len(part) + 1))

    def _changed(self, lines: list[str]) -> list[str]:
        i = self._rng.randrange(len(lines))
        return [*lines[:i], mutated_text(lines[i], self._rng), *lines[i + 1 :]]


def resident_bytes() -> int:
    """Return the most memory that the process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(n: int, seed: int, *, tell: Callable[[str], None], kind: str | None = None) -> None:
    """Try n inputs, of a kind or of all, within `FUZZ_BYTES` of memory, and tell what came of them as JSON."""
    fuzzer = Fuzzer(seed, None if kind is None else {kind: 1})
    fuzzer.warm_up()
    with open("/proc/self/statm", encoding="ascii") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resident, pool = resident_bytes(), pa.total_allocated_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (size + FUZZ_BYTES, size + FUZZ_BYTES))
    started = clock.monotonic()
    for i in range(n):
        try:
            fuzzer.one()
        except BaseException:
            tell(f"failed at input {i} of seed {seed}")
            raise
    found = {
        "inputs": n,
        "seed": seed,
        "seconds": round(clock.monotonic() - started, 1),
        "resident_growth": resident_bytes() - resident,
        "arrow_peak": pa.default_memory_pool().max_memory(),
        "arrow_left": pa.total_allocated_bytes() - pool,
        "counts": dict(fuzzer.counts),
    }
    tell(json.dumps(found))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=20_261_121)
    parser.add_argument("--kind", choices=sorted(WEIGHTS), help="of one kind only (of all)")
    given = parser.parse_args()
    tell = lambda text: print(text, flush=True)  # noqa: E731, T201 - the answer of this process
    fuzz(given.inputs, given.seed, tell=tell, kind=given.kind)


if __name__ == "__main__":
    main()
