"""Rules taken away from the product, one at a time: ``python -m tests.mutants.rules``.

A row of `tests/RULES.md` says which test keeps which rule. The files of the folder `rules` say, for each row, how to
break that rule in the product, and which of the row's tests must fail then. The run happens in a copy of the tree.

A break of code that only `progress/` has (dataflows do not run it before they have loops) is counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.tree import ROOT, WARM, copy_tree, say
from tests.mutants.trial import trial

TABLE = ROOT / "tests" / "RULES.md"
FOLDER = Path(__file__).with_suffix("")
ALONE = ("spark_timely/progress/subgraph.py", "spark_timely/progress/broadcast.py", "spark_timely/progress/worker.py")
ALONE += ("spark_timely/progress/events.py", "spark_timely/progress/operate.py")
"""Modules of `progress/` that no dataflow runs yet."""
NEED_SPARK = ("tests/spark/", "tests/faults/", "tests/stores/")
MODELS = "(model)"
"""Behind the name of a test in the table: it tests a model, not the product."""


@dataclass(frozen=True)
class Row:
    """A row of the table: its rules, and its tests with their files."""

    rules: tuple[str, ...]
    tests: tuple[str, ...]
    models: tuple[str, ...]


@dataclass(frozen=True)
class Break:
    """A rule taken away in one place of the product, and the test that must fail.

    Where two checks keep it, one behind the other, both are taken away (`also_old`). One that `hangs` lets its test
    wait for ever: that it does is how it is noticed.
    """

    rule: str
    what: str
    file: str
    old: str
    new: str
    test: str
    also_old: str = ""
    also_new: str = ""
    hangs: bool = False

    @property
    def alone(self) -> bool:
        """Whether only `progress/` has the rule, until dataflows have loops."""
        return self.file in ALONE

    def apply(self, source: str) -> str:
        """Return the source without the rule."""
        for old, new in ((self.old, self.new), (self.also_old, self.also_new)):
            if not old:
                continue
            if source.count(old) != 1:
                message = f"{self.rule} ({self.what}): its text is {source.count(old)} times in {self.file}, not once"
                raise ValueError(message)
            source = source.replace(old, new)
        return source


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return the rows of the table."""
    text = TABLE.read_text(encoding="utf-8")
    files = dict(re.findall(r"`(\w)` = `(tests/[\w/]+\.py)`", text))
    found = []
    for line in text.splitlines():
        if not (begin := re.match(r"\| (0\d\d\.\d\d[^|]*) \|", line)):
            continue
        named = re.findall(r"`(\w)::(\w+)`( \(model\))?", line)
        tests = tuple(f"{files[letter]}::{name}" for letter, name, model in named if not model)
        models = tuple(f"{files[letter]}::{name}" for letter, name, model in named if model)
        found.append(Row(_numbers(begin[1]), tests, models))
    return tuple(found)


def _numbers(cell: str) -> tuple[str, ...]:
    """Return the rules that a cell names: ``002.49–002.51`` are three."""
    found: list[str] = []
    for first, last in re.findall(r"(\d{3}\.\d\d)(?:–(\d{3}\.\d\d))?", cell):
        end = int((last or first)[4:])
        found += [f"{first[:3]}.{number:02}" for number in range(int(first[4:]), end + 1)]
    return tuple(found)


@functools.cache
def breaks() -> tuple[Break, ...]:
    """Return all breaks, in the order of their files."""
    found = []
    for file in sorted(FOLDER.glob("*.toml")):
        for each in tomllib.loads(file.read_text(encoding="utf-8"))["break"]:
            texts = {name: value.strip("\n") for name, value in each.items() if isinstance(value, str)}
            found.append(Break(**{**each, **texts}))
    return tuple(found)


def drawn(seed: str, n: int) -> list[Break]:
    """Draw breaks whose tests need no Spark, and end."""
    quick = [each for each in breaks() if not each.test.startswith(NEED_SPARK) and not each.hangs]
    return random.Random(seed).sample(quick, min(n, len(quick)))


def run(chosen: Sequence[Break], root: Path) -> int:
    """Try each break in the copy `root`; return how many no test noticed."""
    scratch = root.parent / "scratch"
    counts: Counter[str] = Counter()
    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    unchanged = sorted({each.test for each in chosen})
    if chosen:
        outcome, test = trial(unchanged, scratch=scratch, limit_s=900)
        if outcome != "passed":
            sys.exit(f"without a break the tests {outcome}: {test}\n{(scratch / 'output').read_text()[-2000:]}")
    for at, each in enumerate(chosen):
        file = root / each.file
        source = file.read_text(encoding="utf-8")
        broken = each.apply(source)
        compile(broken, each.file, "exec")  # what is no Python would fail any test
        file.write_text(broken, encoding="utf-8")
        try:
            # Compiled modules are told apart by seconds and size: a time that no version of the file had before.
            stamp = time.time() + at + 1
            os.utime(file, (stamp, stamp))
            outcome, _ = trial([each.test], scratch=scratch, limit_s=300)
        finally:
            file.write_text(source, encoding="utf-8")
        kind = "progress alone" if each.alone else "product"
        noticed = outcome == ("hung" if each.hangs else "failed")
        counts[f"{kind}, {'noticed' if noticed else 'NOT noticed'}"] += 1
        if not noticed:
            say(f"{outcome}  {each.rule}  {each.what}\n    {each.file}\n    {each.test}")
    for name, number in sorted(counts.items()):
        say(f"{name}: {number}")
    return sum(number for name, number in counts.items() if "NOT" in name)


def main() -> int:
    """Break each rule once in a copy of the tree; 1 where a named test does not fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.rules", description=main.__doc__)
    parser.add_argument("--only", default="", help="a part of a rule or of a file, as in 002. or log/machine")
    parser.add_argument("--draw", type=int, default=0, help="so many, drawn, of those that need no Spark and end")
    parser.add_argument("--seed", default="1", help="of the draw: any text")
    parser.add_argument("--in-copy", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.in_copy:
        with tempfile.TemporaryDirectory(prefix="rules-") as folder:
            copy = Path(folder) / "project"
            copy_tree(ROOT, copy)
            environment = {**os.environ, "PYTHONPATH": str(copy)}  # before the installed project, everywhere
            command = [sys.executable, "-m", "tests.mutants.rules", "--in-copy", *sys.argv[1:]]
            return subprocess.run(command, cwd=copy, env=environment, check=False).returncode
    chosen = drawn(given.seed, given.draw) if given.draw else list(breaks())
    chosen = [each for each in chosen if given.only in each.rule or given.only in each.file]
    return 1 if run(chosen, Path.cwd()) else 0


if __name__ == "__main__":
    sys.exit(main())
