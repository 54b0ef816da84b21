"""Change the project in small ways and see whether a test fails: ``python -m tests.mutants --seed 1 --minutes 20``.

Everything happens in a copy of the tree. First the quick tests run with each line that they run noted (kept in
`build/mutants`; later only for test files that changed, as long as the code is the same). Then changes are drawn by
the seed until the time is up; each is tried against the tests that run its lines, those of the closest files first,
in processes of their own. A change that no test notices survives: it is shown, and the run fails, unless
`equivalents.toml` argues that the change makes no difference.

Not tried: whether tests that need Spark would notice. Lines that no quick test runs are counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import tests.mutants.equivalents as known
from tests.mutants.changes import Change, changes_of, drawn
from tests.mutants.lines import Lines, note
from tests.mutants.tree import ROOT, WARM, copy_tree, say
from tests.mutants.trial import trial

FOLDERS = (
    "spark_timely/log",
    "spark_timely/protocol",
    "spark_timely/canonical",
    "spark_timely/dataflow",
    "sink",
    "datasource",
)


def main() -> int:
    """Make the copy and run in it; 1 when a change survived that nobody has argued away."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20.0, help="for the trials; noting the lines comes before it")
    parser.add_argument("--only", action="append", default=[], help="a part of a path, as in log/machine/decide")
    parser.add_argument("--quick", type=float, default=20.0, help="seconds of tests that every change is tried against")
    parser.add_argument("--most", type=float, default=300.0, help="seconds of tests for what these do not notice")
    parser.add_argument("--in-copy", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.in_copy:
        return Run(given).run()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "project"
        copy_tree(ROOT, copy)
        # The copy comes before the installed project, also in processes that tests start.
        environment = {**os.environ, "PYTHONPATH": str(copy), "MUTANTS_BUILD": str(ROOT / "build" / "mutants")}
        command = [sys.executable, "-m", "tests.mutants", "--in-copy", *sys.argv[1:]]
        return subprocess.run(command, cwd=copy, env=environment, check=False).returncode


class Run:
    """Trials in the copy, which is the working folder."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.root = Path.cwd()
        self.build = Path(os.environ["MUTANTS_BUILD"])
        self.scratch = self.root.parent / "scratch"
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)

    def run(self) -> int:
        """Try changes until the time is up; say what survived."""
        self.build.mkdir(parents=True, exist_ok=True)
        paths = [
            str(file.relative_to(self.root))
            for folder in FOLDERS
            for file in sorted((self.root / folder).rglob("*.py"))
            if not self.given.only or any(part in str(file) for part in self.given.only)
        ]
        changes = [change for path in paths for change in changes_of(self.root, path)]
        for change in changes:
            self.counts[_folder(change)]["there are"] += 1
        found = note(self.root, self.build, FOLDERS)
        for name in found.failed:
            say(f"not used, it fails without any change: {name}")
        for name in WARM:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        self.proof(found)
        start = time.monotonic()
        with (self.build / "trials.jsonl").open("w", encoding="utf-8") as report:
            for change in drawn(changes, self.given.seed):
                if time.monotonic() - start > self.given.minutes * 60:
                    break
                began = time.monotonic()
                outcome, test, n_tests, n_all = self.attempt(change, found)
                self.counts[_folder(change)][outcome] += 1
                row = {"path": change.path, "line": change.line, "where": change.where, "outcome": outcome}
                row |= {"was": change.was, "becomes": change.becomes, "test": test}
                report.write(json.dumps({**row, "seconds": round(time.monotonic() - began, 1)}) + "\n")
                report.flush()
                if outcome == "survived":
                    say(f"survived  {change.path}:{change.line}  {change.where}\n{_indented(change.difference())}")
                    say(f"    {n_tests} of the {n_all} tests that run it were tried\n")
        say(self.table())
        say(f"seed {self.given.seed}, {(time.monotonic() - start) / 60:.0f} minutes; {self.build / 'trials.jsonl'}")
        return 1 if any(counts["survived"] for counts in self.counts.values()) else 0

    def attempt(self, change: Change, found: Lines) -> tuple[str, str, int, int]:
        """Try one change; return what came of it, the test that noticed, the numbers of tests tried and there."""
        file = self.root / change.path
        source = file.read_bytes()
        changed = change.apply(source)
        if changed is None:
            return "no Python", "", 0, 0
        n_all = len(found.of(change))
        if not n_all:
            return "not reached", "", 0, 0
        file.write_bytes(changed)
        tried = 0
        try:
            # Compiled modules are told apart by seconds and size: a time that no version of the file had before.
            stamp = time.time() + sum(sum(counts.values()) for counts in self.counts.values())
            os.utime(file, (stamp, stamp))
            for chosen in found.stages(change, self.given.quick, self.given.most):
                seconds = sum(took for _, took in chosen)
                names = [name for name, _ in chosen]
                outcome, test = trial(names, scratch=self.scratch, limit_s=60 + 5 * min(seconds, 600))
                tried += len(names)
                if outcome in {"failed", "hung"}:
                    return ("noticed" if outcome == "failed" else "hung"), test, tried, n_all
        finally:
            file.write_bytes(source)
        return ("argued" if known.why(change) else "survived"), "", tried, n_all

    def proof(self, found: Lines) -> None:
        """Run some quick tests without a change: a trial that cannot pass would notice everything."""
        quickest: dict[str, str] = {}
        for name, _ in sorted(found.tests, key=lambda each: each[1]):
            quickest.setdefault(name.split("::")[0], name)
        outcome, test = trial(list(quickest.values())[:10], scratch=self.scratch, limit_s=600)
        if outcome != "passed":
            sys.exit(f"without a change a trial {outcome}: {test or (self.scratch / 'output').read_text()[-2000:]}")

    def table(self) -> str:
        """Return the counts of every folder as a table."""
        columns = ("there are", "noticed", "hung", "survived", "argued", "not reached", "no Python")
        rows = [("", *columns)]
        total: Counter[str] = Counter()
        for folder in sorted(self.counts):  # those within others too
            total.update(self.counts[folder])
            rows.append((folder, *(str(self.counts[folder][name]) for name in columns)))
        rows.append(("together", *(str(total[name]) for name in columns)))
        return "\n".join(
            " ".join(f"{cell:>12}" if at else f"{cell:<28}" for at, cell in enumerate(row)) for row in rows
        )


def _folder(change: Change) -> str:
    return str(Path(change.path).parent)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


if __name__ == "__main__":
    sys.exit(main())
