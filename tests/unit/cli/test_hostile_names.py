"""Whatever a log or a command line has for names, nothing that a verb prints controls the terminal."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pytest

import spark_timely as st
from spark_timely.cli.verb_table import VERBS
from tests.faults.harness import long_lane
from tests.unit.cli.conftest import Run

# What may move a cursor, change the direction of writing, or end a line. A verb's own lines end with "\n".
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
HOSTILE = ("\x1b[2J", "\x9b31m", "\u202e", "\u2028", "\x07", "\x7f", "\r", "\u2066", "\t", "\x85", "\n\x1b]0;")

# What each verb is called with; several where it has several answers. {log} and so on are hostile themselves.
CALLS = {
    "ls": ["{folder}", "{folder} --json", "{name}"],
    "head": ["{log}", "{log} --json", "{log} --stream {name}", "{log} --dead", "{name}"],
    "tail": ["{log}", "{log} --json", "{log} --stream {name}", "{name}"],
    "stats": ["{log}", "{log} --json", "{log} --stream {name}", "{name}"],
    "frontier": ["{log}", "{log} --json", "{log} --stream {name}", "{log} --passed {name}", "{name}"],
    "verify": ["{log}", "{log} --json", "{log} --expect {name}"],
    "peek": ["{log}", "{log} --json", "{log} --where {name}", "{log} --select {name}", "{log} --at {name}", "{name}"],
    "subscribe": ["{log} --up-to 2", "{log} --as-of {name}", "{name}"],
    "sql": [
        "{select}", "{select} --format json", "{select} --format csv", "{name}", "{select} --name {name}",
        "{select} --explain json", "DELETE",
    ],
    "copy-to": ["{log} {name} --format {name}"],
    "explain-timestamp": ["{log}", "{log} --json", "{log} --as-of {name}", "{name}"],
    "instance": ["{folder} status {name}", "{folder} drop {name}", "{name} create {name} --query {name} --timeout 0s"],
    "advance": ["{log} --stream {name} --to 3 --as {name}", "{log} --stream {stream} --to {name} --as {name}"],
    "close": ["{log} --stream {name} --yes", "{log} --stream {name} --yes --json", "{name} --yes"],
    "compact": ["{log}", "{log} --json", "{name}"],
    "forget": ["{log} --to {name} --yes", "{log} --to 1 --dry-run", "{log} --to 1 --yes"],
    "retain": ["{log} {name} --from 1", "{log} {name} --from {name}"],
    "retainers": ["{log}", "{log} --json", "{name}"],
    "release": ["{log} {name}", "{log} {consumer}", "{name} {name}"],
    "vacuum": ["{log} --dry-run", "{log} --older-than {name}", "{name}"],
    "repair": ["{log}", "{log} --json", "{name}"],
    "wait": ["{log} --time 1 --timeout 0s", "{log} --time 99 --timeout 0s", "{log} --time {name}", "{name} --time 1"],
    "import": ["{name} --into {log}", "{folder} --into {name}"],
    "export": ["{log} {name}/x", "{name} {name}", "{log} {folder} --json"],
    "types": ["{log}", "{name}"],
    "completion": ["bash", "{name}"],
    "help": ["stats", "{name}"],
}  # fmt: skip


def hostile(rng: random.Random, least: tuple[str, ...] = HOSTILE) -> str:
    """Return a name with something in it that would control a terminal."""
    text = "".join(rng.choice(["a", "é", " ", "-", rng.choice(least)]) for _ in range(rng.randint(1, 4)))
    return f"n{text}{rng.choice(least)}" + rng.choice(["", "'", "`"])


def made(folder: Path, rng: random.Random) -> tuple[Path, dict[str, str]]:
    """Make a log with such names wherever one is taken, and return it with what it has."""
    # The table's library takes no control characters in a path, and neither these nor spaces in columns.
    wide = ("\u202e", "\u2028", "\u2066")
    path = folder / hostile(rng, wide) / hostile(rng, wide).replace("`", "")
    names = {"stream": "main", "owner": hostile(rng), "consumer": hostile(rng)}
    names["column"] = re.sub("[ \t\n]", "", hostile(rng, tuple(each for each in HOSTILE if each[0] not in "\t\n")))
    schema = pa.schema([(names["column"], pa.string())])
    log = st.create_log(path, schema, minimum=(0,), streams=2)
    for stream in (names["stream"], "other"):
        rows = pa.table({"_time": [0, 1], names["column"]: [hostile(rng), None]})
        log.writer(stream, owner=names["owner"]).append(rows, advance_to=2)
    log.retain(names["consumer"], [1], owner=names["owner"])
    return path, names


@pytest.mark.parametrize("verb", CALLS)
def test_nothing_that_is_printed_controls_a_terminal(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(60 if long_lane() else 1):
        rng = random.Random(f"{verb} {seed}")
        (tmp_path / str(seed)).mkdir()
        path, names = made(tmp_path / str(seed), rng)
        for call in CALLS[verb]:
            values = {"log": str(path), "folder": str(path.parent), **names}
            values["select"] = f"SELECT * FROM `{path}`"
            words = [word.format(**values, name=hostile(rng)) for word in shlex.split(call)]
            _, out, err = run(verb, *words)
            printed = out if verb != "sql" or "csv" not in call else ""  # CSV is what the log has
            found = CONTROLS.search(printed + err)
            assert found is None, f"{seed=} {words}: {found[0]!r} in {(printed + err)!r}"
            if "--json" in words and out:
                for line in out.splitlines():
                    json.loads(line)


def test_every_verb_is_called_with_such_names() -> None:
    assert CALLS.keys() == {verb.name for verb in VERBS}
