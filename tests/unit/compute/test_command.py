"""Commands are plain values with one text each, read strictly."""

from __future__ import annotations

import json
import pickle

import pytest

from spark_timely.compute.command import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateInstance,
    CreateTimely,
    Dataflow,
    Export,
    Import,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
    parse_command,
    text_of,
)
from spark_timely.errors import InvalidShapeError, InvalidUsageError, LogFormatError, TimelyError
from spark_timely.time.domain import TimeDomain
from tests.unit.compute.support import DOMAIN, EMPTY, at, create, flow

TWO = TimeDomain(("long", "date"), (0, 0))
COMMANDS: list[Command] = [
    CreateTimely(7, "me"),
    CreateInstance({"frontiers": "s1"}, {"hydration_limit": 2, "x": [1, {"y": None}]}, TWO),
    InitializationComplete(),
    AllowWrites(),
    UpdateConfiguration({"a": True, "b": 1.5, "ä": "ü"}),
    create("a", "b:log", "c:subscribe", "d:copy-to", reads=["z"], plan='{"z": [1, 2.0], "a": "\\u00e4"}'),
    create("a", as_of=at((1, 2), (2, 1)), domain=TWO, until=at((5, 5)), interactive=True, restartable=False),
    Schedule("a"),
    AllowCompaction("a", at(5)),
    AllowCompaction("a", EMPTY),
    AllowCompaction("a", at((1, 2), (2, 1))),
    Peek("p", (5,), "a", plan='{"limit": 3}', traceparent="00-1-2-01"),
    Peek("p", (5, 6), path="/logs/a"),
    CancelPeek("p"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_text_of_a_command_gives_it_back(command: Command) -> None:
    text = text_of(command)
    assert parse_command(text) == command
    assert text_of(parse_command(text)) == text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert pickle.loads(pickle.dumps(command)) == command
    assert hash(parse_command(text)) == hash(command)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_text_with_a_part_missing_or_unknown_or_of_another_kind(command: Command) -> None:
    facts = json.loads(text_of(command))
    for name in facts:
        with pytest.raises(TimelyError, match="could not"):
            parse_command(json.dumps({key: value for key, value in facts.items() if key != name} | {"other": 1}))
    with pytest.raises(TimelyError, match="unknown 'other'"):
        parse_command(json.dumps(facts | {"other": 1}))
    for name in facts.keys() - {"plan"}:
        with pytest.raises(TimelyError, match="could not"):
            parse_command(json.dumps(facts | {name: 1.25}))


@pytest.mark.parametrize(
    ("text", "kind", "match"),
    [
        ('{"v":2,"command":"allow_writes"}', LogFormatError, "version=2, this library reads 1"),
        ('{"v":1,"command":"fly"}', LogFormatError, "command='fly'"),
        ('{"v":true,"command":"allow_writes"}', InvalidUsageError, "v=True"),
        ("[1]", InvalidUsageError, r"found \[1\]"),
        ("{", InvalidUsageError, "no JSON"),
        ('{"v":1,"v":1,"command":"allow_writes"}', InvalidUsageError, "twice"),
        ('{"command":"peek","id":"p","time":[NaN],"plan":{},"v":1,"path":"/x"}', InvalidUsageError, "no JSON"),
        ('{"command":"update_configuration","values":{"x":1e999},"v":1}', InvalidUsageError, "no JSON"),
        (
            '{"arity":1,"command":"allow_compaction","frontier":["x"],"id":"a","v":1}',
            InvalidShapeError,
            "in command 'allow_compaction'",
        ),
    ],
)
def test_text_that_is_no_command_is_refused_and_says_why(text: str, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        parse_command(text)


def test_plans_and_details_are_compared_by_what_they_say() -> None:
    assert flow("a", plan='{"a":1,"b":2}') == flow("a", plan=' {"b": 2, "a": 1}')
    assert flow("a", plan='{"a":1}') != flow("a", plan='{"a":1.0}')
    assert Export("a", "log", '{"p": "x"}') == Export("a", "log", '{"p":"x"}')
    assert UpdateConfiguration({"a": 1}) != UpdateConfiguration({"a": True})


def test_configuration_is_copied_and_cannot_be_changed() -> None:
    values = {"a": [1]}
    command = UpdateConfiguration(values)
    values["a"].append(2)
    assert command.values == {"a": [1]}
    with pytest.raises(TypeError):
        command.values["a"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Import("a"), "path=None, export=None"),
        (lambda: Import("a", path="/x", export="b"), "path='/x', export='b'"),
        (lambda: Import("a", export="b", log_id="c"), "without a path"),
        (lambda: Export("a", "view"), "kind='view'"),  # type: ignore[arg-type]
        (lambda: Export(" a", "index"), "' a'"),
        (lambda: flow("a", "a"), "export 'a' twice"),
        (lambda: flow("a", reads=["x", "x"]), "import 'x' twice"),
        (lambda: Dataflow("f", (), "{}", (), at(1)), "no exports"),
        (lambda: flow("a", as_of=EMPTY), "empty as_of"),
        (lambda: flow("a", as_of=at((1, 1))), "as_of=Antichain.of"),
        (lambda: flow("a", until=at((1, 1))), "until=Antichain.of"),
        (lambda: flow("a", as_of=-1), "before the minimum"),
        (lambda: flow("a", plan="{"), "no JSON"),
        (lambda: flow("a", interactive=1), "interactive=1"),
        (lambda: Dataflow("f", ("x",), "{}", (Export("a", "index"),), at(1)), "imports="),  # type: ignore[arg-type]
        (lambda: flow("a", domain="long"), "domain='long'"),
        (lambda: CreateTimely(-1), "epoch=-1"),
        (lambda: CreateTimely(True), "epoch=True"),
        (lambda: Schedule(""), "''"),
        (lambda: Schedule("a\nb"), "could not read the id"),
        (lambda: AllowCompaction("a", 5), "found 5"),  # type: ignore[arg-type]
        (lambda: Peek("p", (1,)), "collection=None, path=None"),
        (lambda: Peek("p", (), "a"), r"time=\(\)"),
        (lambda: Peek("p", (1.5,), "a"), "time="),  # type: ignore[arg-type]
        (lambda: UpdateConfiguration({"a": float("nan")}), "no JSON"),
        (lambda: UpdateConfiguration({"a": {1}}), "no JSON"),
        (lambda: UpdateConfiguration([1]), r"found \[1\]"),  # type: ignore[arg-type]
        (lambda: CreateInstance({"frontiers": 5}), "found 5"),  # type: ignore[dict-item]
    ],
)
def test_command_that_makes_no_sense_cannot_be_made(make: object, match: str) -> None:
    with pytest.raises(InvalidUsageError, match=match):
        make()  # type: ignore[operator]


def test_only_what_says_all_of_itself_lasts() -> None:
    assert flow("a").lasts
    assert not flow("a", interactive=True).lasts
    assert not flow("a", restartable=False).lasts
    assert flow("a:log", reads=["a", "b"]).own_imports == ("b",)
    assert flow("a").domain == DOMAIN
