"""The table of rules names tests that exist."""

from __future__ import annotations

import re

from tests.modules import ROOT
from tests.mutants.rules import breaks, rows


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
    reasons = text.split("## Rules of the seeds with no place here")[1]
    rows = set(re.findall(r"^\| ((?:000|001)\.\d\d)", text, re.MULTILINE))
    wanted = {f"000.{i:02}" for i in range(1, 67)} | {f"001.{i:02}" for i in range(1, 17)}
    assert {rule for rule in wanted - rows if f"- {rule}" not in reasons} == set()


def test_each_rule_of_continual_tasks_has_a_row_or_a_reason() -> None:
    text = (ROOT / "tests" / "RULES.md").read_text(encoding="utf-8")
    reasons = text.split("## Rules of the seeds with no place here")[1]
    found: set[int] = set()
    for cell in re.findall(r"^\| (002\.[^|]*) \|", text, re.MULTILINE):
        found.update(int(number) for number in re.findall(r"002\.(\d\d)", cell))
        for first, last in re.findall(r"002\.(\d\d)–002\.(\d\d)", cell):
            found.update(range(int(first), int(last) + 1))
    told = {int(number) for number in re.findall(r"002\.(\d\d)", reasons)}
    assert set(range(1, 66)) - found - told == set()


def test_each_row_is_broken_in_the_product_at_least_once() -> None:
    broken = [(each.rule, each.test) for each in breaks()]
    rows_left = [
        row.rules
        for row in rows()
        if not row.rules[0].startswith("003.")  # these are broken in tests/property/test_rules_mutants.py
        and not any(rule in row.rules and test in row.tests for rule, test in broken)
    ]
    assert not rows_left, "rules without a break in tests/mutants/rules"


def test_each_break_is_of_code_as_it_is_and_of_its_row() -> None:
    of_rule: dict[str, set[str]] = {}
    for row in rows():
        for rule in row.rules:
            of_rule.setdefault(rule, set()).update(row.tests)
    wrong = []
    for each in breaks():
        source = (ROOT / each.file).read_text(encoding="utf-8")
        try:
            each.apply(source)
        except ValueError as error:
            wrong.append(f"{each.rule} {each.what}: {error}")
        if each.test not in of_rule.get(each.rule, ()):
            wrong.append(f"{each.rule} {each.what}: {each.test} is no product test of its row")
        if each.file.startswith("tests/"):
            wrong.append(f"{each.rule} {each.what}: {each.file} is no part of the product")
    assert not wrong


def test_each_row_names_a_test_of_the_product() -> None:
    assert not [row.rules for row in rows() if not row.tests]
