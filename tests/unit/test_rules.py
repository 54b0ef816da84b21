"""The table of rules names tests that exist."""

from __future__ import annotations

import re

from tests.modules import ROOT


def test_every_test_named_in_the_table_of_rules_exists() -> None:
    text = (ROOT / "tests" / "RULES.md").read_text(encoding="utf-8")
    letters = re.findall(r"`(\w)` = `(tests/[\w/]+\.py)`", text)
    files = dict(letters)
    assert len(files) == len(letters), "a letter stands for two files"
    named = re.findall(r"`(\w)::(\w+)`", text)
    assert len(named) > 20
    missing = [
        f"{files[letter]}::{name}"
        for letter, name in named
        if f"def {name}(" not in (ROOT / files[letter]).read_text(encoding="utf-8")
    ]
    assert not missing


def test_every_rule_of_the_capture_protocol_has_a_row() -> None:
    text = (ROOT / "tests" / "RULES.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (003\.\d\d) \|", text, re.MULTILINE) == [f"003.{i:02}" for i in range(1, 13)]


def test_each_rule_of_scopes_and_each_wish_has_a_row_or_a_reason() -> None:
    text = (ROOT / "tests" / "RULES.md").read_text(encoding="utf-8")
    reasons = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## Rules of the seeds with no place here")[
        1
    ] + text.split("## 001: not built, or not for a test")[1]
    rows = set(re.findall(r"^\| ((?:000|001)\.\d\d)", text, re.MULTILINE))
    wanted = {f"000.{i:02}" for i in range(1, 67)} | {f"001.{i:02}" for i in range(1, 17)}
    assert {rule for rule in wanted - rows if f"- {rule}" not in reasons} == set()


def test_each_rule_of_continual_tasks_has_a_row_or_a_reason() -> None:
    text = (ROOT / "tests" / "RULES.md").read_text(encoding="utf-8")
    reasons = (
        (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## Rules of the seeds with no place here")[1]
    )
    found: set[int] = set()
    for cell in re.findall(r"^\| (002\.[^|]*) \|", text, re.MULTILINE):
        found.update(int(number) for number in re.findall(r"002\.(\d\d)", cell))
        for first, last in re.findall(r"002\.(\d\d)–002\.(\d\d)", cell):
            found.update(range(int(first), int(last) + 1))
    told = {int(number) for number in re.findall(r"002\.(\d\d)", reasons)}
    assert set(range(1, 66)) - found - told == set()
