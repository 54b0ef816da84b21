"""Lines of JSON from a source that grows: the same lines, or the same refusal, however the bytes come."""

from __future__ import annotations

import json

import pytest

from spark_timely.errors import CaptureFormatError
from spark_timely.interop.jsonl import Lines, json_chunk


class Parts:
    """A source that has one part after the other, and says in between that there is nothing for now."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = [each for part in parts for each in (part, b"")]

    def readinto(self, buffer: memoryview) -> int:
        part = self.parts.pop(0) if self.parts else b""
        buffer[: len(part)] = part
        return len(part)


def lines_of(*parts: bytes) -> list[tuple[int, int, dict[str, object]]]:
    source = Parts(*parts)
    lines = Lines(source)
    found = []
    while source.parts:
        for line in lines.block():
            found.append((line.number, line.position, json.loads(line.data)))
    return found


def test_lines_are_the_same_wherever_the_bytes_are_cut() -> None:
    data = '{"a": {"ä": 1}}\n\n{"b": "}"} \r\n{"c": 3}'.encode()
    wanted = [(1, 0, {"a": {"ä": 1}}), (3, 18, {"b": "}"}), (4, 31, {"c": 3})]
    assert lines_of(data) == wanted
    for cut in range(len(data)):
        assert lines_of(data[:cut], data[cut:]) == wanted, cut


def test_two_objects_on_a_line_are_refused_for_any_cut() -> None:
    data = b'{"a": 1} {"b": 2}\n'
    for cut in range(len(data)):
        # A line that is no JSON is refused by whoever reads it.
        with pytest.raises((CaptureFormatError, json.JSONDecodeError)):
            lines_of(data[:cut], data[cut:])


@pytest.mark.parametrize(
    ("line", "record", "found"),
    [
        ('{"messages": [0, [1]], "messages": [0, [2]]}', "u64", "found name 'messages' twice"),
        ('{"messages": [0, [1e400]]}', "f64", "found '1e400', which no float holds"),
        ('{"messages": [0, [1e300]]}', "f32", r"found 1e\+300"),
    ],
)
def test_ambiguous_line_or_too_large_number_is_refused(line: str, record: str, found: str) -> None:
    with pytest.raises(CaptureFormatError, match=found):
        json_chunk([line], time="u64", record=record)
