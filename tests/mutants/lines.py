"""Which tests run which lines: noted once, kept between runs, and noted again for the test files that changed."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants import LINES_FILE, LINES_FOLDERS
from tests.mutants.changes import Change

TESTS = ("tests/unit", "tests/property", "tests/conformance", "tests/golden")
# What looks at the text of the project, or tries mutants itself; and what is long and only about other packages.
LEFT_OUT = ("tests/unit/test_repository.py", "tests/unit/test_mutants.py", "tests/property/test_rules_mutants.py")
LEFT_OUT += (
    "tests/unit/progress/",
    "tests/property/test_progress_simulation.py",
    "tests/property/test_reachability.py",
)
LEFT_OUT += ("tests/property/test_order.py",)
MARKS = "not spark and not connect and not faults and not long and not bench"
_PACKAGES = ("conf", "datasource", "sink", "spark_timely")


@dataclass
class Lines:
    """Which tests run which lines.

    Attributes
    ----------
    state
        Names the texts of everything but the test files: what is noted holds for these only.
    files
        By test file, the name of its text.
    tests
        Names of tests that pass, and the seconds that each took.
    lines
        By file and line, the numbers of tests.
    failed
        Names of tests that fail without any change.
    """

    state: str = ""
    files: dict[str, str] = field(default_factory=dict)
    tests: list[tuple[str, float]] = field(default_factory=list)
    lines: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def of(self, change: Change) -> list[tuple[str, float]]:
        """Return the tests that run the lines of a change, the quickest first."""
        file = self.lines.get(change.path, {})
        span = range(change.line, change.last_line + 1)
        found = {number for line in span for number in file.get(line, ())}
        if change.at_import:  # noted for the test that happened to import it: whatever uses the module
            found = {number for numbers in file.values() for number in numbers}
        return sorted((self.tests[number] for number in found), key=lambda each: each[1])

    def stages(self, change: Change, quick_s: float, most_s: float) -> list[list[tuple[str, float]]]:
        """Return the tests that run the lines of a change, in groups: those of the files that are closest first.

        To import test files takes longer than most tests do, and most changes are noticed by the first few files. What
        would take longer than `quick_s` together comes last, and what would take longer than `most_s` not at all.
        """
        every = self.of(change)
        until = list(itertools.accumulate(took for _, took in every))
        quick = [each for each, seconds in zip(every, until, strict=True) if seconds <= quick_s] or every[:1]
        slow = [each for each, seconds in zip(every, until, strict=True) if seconds <= most_s][len(quick) :]
        package = Path(change.path).parent.name
        there = Counter(_file_of(name) for name, _ in self.tests)
        near = Counter(_file_of(name) for name, _ in quick)
        # By the share of a file's tests that run the lines; those of the same folder first.
        files = sorted(near, key=lambda name: (f"/{package}/" not in name, -near[name] / there[name]))
        ends = [0, 3, 12, len(files)]
        groups = [set(files[low:high]) for low, high in itertools.pairwise(ends)]
        found = [[each for each in quick if _file_of(each[0]) in group] for group in groups]
        return [group for group in [*found, slow] if group]

    def without(self, files: Iterable[str]) -> Lines:
        """Return the same without the tests of some files."""
        gone = set(files)
        kept = [i for i, (name, _) in enumerate(self.tests) if _file_of(name) not in gone]
        number = {old: new for new, old in enumerate(kept)}
        return Lines(
            self.state,
            {name: text for name, text in self.files.items() if name not in gone},
            [self.tests[i] for i in kept],
            {
                path: {line: [number[i] for i in of if i in number] for line, of in by.items()}
                for path, by in self.lines.items()
            },
            [name for name in self.failed if _file_of(name) not in gone],
        )

    def add(self, noted: dict[str, Any]) -> None:
        """Add what the plugin wrote about further test files."""
        start = len(self.tests)
        self.tests += [(name, seconds) for name, seconds in noted["tests"]]
        self.failed += noted["failed"]
        for path, by in noted["lines"].items():
            mine = self.lines.setdefault(path, {})
            for line, of in by.items():
                mine.setdefault(int(line), []).extend(start + i for i in of)

    def dump(self) -> str:
        """Return a text for `load`."""
        return json.dumps(vars(self))

    @classmethod
    def load(cls, text: str) -> Lines:
        """Read what `dump` made."""
        found = cls(**json.loads(text))
        found.tests = [(name, seconds) for name, seconds in found.tests]
        found.lines = {path: {int(line): of for line, of in by.items()} for path, by in found.lines.items()}
        return found


def note(root: Path, build: Path, folders: Sequence[str]) -> Lines:
    """Return what is known of a tree; runs the quick tests of all files of which it is not known yet.

    Parameters
    ----------
    root
        The tree, which is the working folder.
    build
        Where the notes are kept: `lines.json`, and `lines.log` with what the tests said.
    folders
        Whose lines are meant.
    """
    kept = build / "lines.json"
    found = Lines.load(kept.read_text(encoding="utf-8")) if kept.exists() else Lines()
    state, files = _state(root)
    if found.state != state:
        found = Lines(state)
    found = found.without(name for name, text in found.files.items() if files.get(name) != text)
    new = [name for name in files if name not in found.files]
    if new:
        print(f"running {len(new)} files of quick tests once, to see which lines they run", flush=True)
        part = build / "lines.part"
        environment = {**os.environ, LINES_FILE: str(part), LINES_FOLDERS: ",".join(folders)}
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "tests.mutants.plugin", "-p", "no:xdist"]
        with (build / "lines.log").open("wb") as log:
            subprocess.run([*command, "-m", MARKS, *new], env=environment, stdout=log, stderr=log, check=False)
        found.add(json.loads(part.read_text(encoding="utf-8")))
        found.files.update({name: files[name] for name in new})
        kept.write_text(found.dump(), encoding="utf-8")
        part.unlink()
    return found


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _state(root: Path) -> tuple[str, dict[str, str]]:
    """Return a name for the texts of the packages and of what tests share, and one for that of each test file."""
    files, rest = {}, hashlib.sha256()
    for folder in (*_PACKAGES, "tests"):
        for file in sorted((root / folder).rglob("*")):
            name = str(file.relative_to(root))
            if not file.is_file() or file.suffix in {".pyc", ".md"} or name.startswith("tests/mutants/"):
                continue
            text = hashlib.sha256(file.read_bytes()).hexdigest()
            if folder == "tests" and file.name.startswith("test_"):
                if name.startswith(TESTS) and not name.startswith(LEFT_OUT):
                    files[name] = text
            else:
                rest.update(f"{name}\0{text}\0".encode())
    return rest.hexdigest(), files
