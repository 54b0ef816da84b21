"""What it costs to start a command: `--version` beside bare Python, `frontier` beside `import deltalake`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import spark_timely as st

from .report import Case, alternate

if TYPE_CHECKING:
    from collections.abc import Callable

COMMITS, REPEATS = 20, 15
NAMES = (
    "cli_version_vs_python_pass",
    "cli_frontier_vs_import_deltalake",
    "cli_version_memory_vs_python_pass",
    "cli_frontier_memory_vs_import_deltalake",
)

# A small process starts the one that is measured: a child's peak begins with that of its parent.
_MEASURED = """
import os, sys, time
answer, words = sys.argv[1], sys.argv[2:]
to_file = [(os.POSIX_SPAWN_OPEN, 1, answer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)]
start = time.perf_counter()
child = os.posix_spawn(words[0], words, os.environ, file_actions=to_file)
_, status, usage = os.wait4(child, 0)
print(time.perf_counter() - start, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status))
"""


class _Command:
    """A command that is run in a process of its own, again and again."""

    def __init__(self, scratch: Path, words: Sequence[str], answer: str) -> None:
        self._words = [sys.executable, *words]
        self._answer = answer
        self._file = scratch / "cli-answer"
        # With the compiled modules that an installed package has, and as many for the other side.
        self._environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(scratch / "cli-pycache")}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.peaks_mb: list[float] = []

    def seconds(self) -> float:
        """Run it, compare what it prints, and return how long it took by the wall clock."""
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MEASURED, str(self._file), *self._words],
            check=True,
            capture_output=True,
            text=True,
            env=self._environment,
        )
        took, peak_mb, code = map(float, done.stdout.split())
        found = self._file.read_text(encoding="utf-8")
        if code != 0 or found != self._answer:
            message = f"{self._words}: expected {self._answer!r}, found {found!r} and exit code {code:.0f}"
            raise AssertionError(message)
        self.peaks_mb.append(peak_mb)
        return took


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure what is wanted: seconds with an aim, and peak memory for information."""
    # Through the interpreter: the first line of the script breaks where the path has spaces.
    program = str(Path(sys.executable).with_name("spark-timely"))
    log = _log(scratch / "cli-log") if any(wanted(name) for name in NAMES if "frontier" in name) else ""
    sides = {
        "cli_version": (
            "python_pass",
            "`spark-timely --version`; peer: `python -c pass`",
            4.0,
            _Command(scratch, [program, "--version"], f"spark-timely {st.__version__}\n"),
            _Command(scratch, ["-c", "pass"], ""),
        ),
        "cli_frontier": (
            "import_deltalake",
            f"`spark-timely frontier LOG`, {COMMITS} commits of two streams; peer: `python -c 'import deltalake'`",
            2.5,
            _Command(scratch, [program, "frontier", log], f"{COMMITS}\n"),
            _Command(scratch, ["-c", "import deltalake"], ""),
        ),
    }
    cases = []
    for name, (beside, what, aim, ours, peer) in sides.items():
        names = f"{name}_vs_{beside}", f"{name}_memory_vs_{beside}"
        if not any(map(wanted, names)):
            continue
        time_ = Case(names[0], what, aim, higher_is_better=False)
        memory = Case(names[1], f"peak memory of {what}", None, unit="MB", higher_is_better=False)
        alternate(time_, ours.seconds, peer.seconds, REPEATS)
        memory.ours, memory.peer = ours.peaks_mb[-REPEATS:], peer.peaks_mb[-REPEATS:]
        cases += [case for case in (time_, memory) if wanted(case.name)]
    return cases


def _log(path: Path) -> str:
    schema = pa.schema([("value", pa.int64())])
    log = st.create_log(path, schema, minimum=(0,), streams=2)
    for time_ in range(COMMITS // 2):
        for stream in ("a", "b"):
            rows = pa.table({"_time": [2 * time_], "value": [time_]})
            log.writer(stream, owner="bench").append(rows, advance_to=2 * time_ + 2)
    if log.frontier().to_json() != [COMMITS]:
        message = f"log {path}: expected frontier [{COMMITS}], found {log.frontier().to_json()}"
        raise AssertionError(message)
    return str(path)
