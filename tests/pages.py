"""Pages of the documentation: their code, what it prints, and how it is run.

A page is Markdown. Its blocks ``python`` run in order, in one process that begins in an empty folder; a block
``text`` right after one is what it prints. A block ``console`` holds commands, lines that begin with
``$ spark-timely``, and what they print. A block ``sh`` may hold `pip install`: the page runs with what that installs,
and what other packages of the environment offer cannot be imported.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.faults.harness import STARTED, quick_java
from tests.modules import ROOT

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PRINTED = re.compile(r"\n+```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = "$ spark-timely "
_MARK = "=== end of a step ==="
_COLUMNS = re.compile(r"[ \t]+$", re.MULTILINE)

# Run between two pages of one process. A query or an instance that a page leaves running ends with its session.
_CLEAN = """
import shutil
import sys
from pathlib import Path
from pyspark.sql import SparkSession
session = SparkSession.getActiveSession()
if session is not None:
    session.stop()
for each in Path().iterdir():
    if each.name != ".page.py":
        shutil.rmtree(each) if each.is_dir() else each.unlink()
for name in {}:
    del sys.modules[name]
globals().clear()
globals()["__name__"] = "__main__"
"""


@dataclass(frozen=True, slots=True)
class Step:
    """What is run at once: a block of Python or a command, what the page says that it prints, and where it says so.

    The code of a command calls the command line in the process of the page; the command itself is kept beside it.
    """

    code: str
    printed: str
    span: tuple[int, int]
    has_place: bool
    command: str | None = None


def pages() -> list[Path]:
    """Return all pages of the documentation, the README first."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the blocks of a page in one language, as they stand there."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [block for found, block in _BLOCK.findall(text) if found == language]


def steps(text: str) -> list[Step]:
    """Return what is run of the text of a page, in order."""
    found = []
    for block in _BLOCK.finditer(text):
        if block[1] == "python":
            printed = _PRINTED.match(text, block.end())
            span = printed.span(1) if printed else (block.end(), block.end())
            found.append(Step(block[2], printed[1] if printed else "", span, has_place=printed is not None))
        elif block[1] == "console":
            found.extend(_commands(block[2], block.start(2)))
    return found


def _commands(text: str, offset: int) -> list[Step]:
    starts = [found.start() for found in re.finditer(r"^\$ ", text, re.MULTILINE)]
    found = []
    for begin, end in zip(starts, [*starts[1:], len(text)], strict=True):
        command, _, printed = text[begin:end].partition("\n")
        assert command.startswith(_COMMAND), command
        code = f"import shlex; from spark_timely.cli import main; main(shlex.split({command[len(_COMMAND) :]!r}))\n"
        span = (offset + end - len(printed), offset + end)
        found.append(Step(code, printed, span, has_place=True, command=command.removeprefix("$ ")))
    return found


def not_installed(text: str) -> list[str]:
    """Return the modules of this environment which the `pip install` lines of a page, together, do not install."""
    wanted: list[Requirement] = []
    for block in re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("pip install "):
                named = shlex.split(line, comments=True)[2:]
                wanted += [Requirement(re.sub(r"^\.", "spark-timely", name)) for name in named]
    assert wanted, "the page does not say what to install"
    found: set[tuple[str, str]] = set()
    while wanted:
        one = wanted.pop()
        for extra in {"", *one.extras}:
            if (each := (canonicalize_name(one.name), extra)) not in found:
                found.add(each)
                wanted += _needs(one.name, extra)
    names = {name for name, _ in found}
    owners = metadata.packages_distributions().items()
    return sorted(module for module, by in owners if names.isdisjoint(map(canonicalize_name, by)))


def _needs(name: str, extra: str) -> list[Requirement]:
    """Return what a distribution needs, or one of its extras. Ours is read where it is written."""
    if name == "spark-timely":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        needs = project["optional-dependencies"][extra] if extra else project["dependencies"]
        return [Requirement(need) for need in needs]
    needs = [Requirement(need) for need in metadata.requires(name) or ()]
    return [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]


def run(
    parts: list[Step],
    folder: Path,
    *,
    without: list[str] | None = None,
    python: Path | None = None,
    labels: list[str] | None = None,
) -> list[str]:
    """Run the steps of a page in a process of its own, in an empty folder, and return what each prints.

    The modules `without` cannot be imported there. With the `python` of another environment, commands are programs of
    that environment. The labels name the steps in tracebacks; unless given their numbers do.
    """
    labels = labels or [f"step {number}" for number in range(len(parts))]
    codes = [part.code if python is None or part.command is None else _program(part.command) for part in parts]
    script = folder / ".page.py"
    script.write_text(
        f"import sys; sys.modules.update(dict.fromkeys({without or []!r}))\n"
        "names = {'__name__': '__main__'}\n"
        f"for label, code in zip({labels!r}, {codes!r}, strict=True):\n"
        "    exec(compile(code, label, 'exec'), names)\n"
        f"    print({_MARK!r}, flush=True)\n",
        encoding="utf-8",
    )
    ended = subprocess.run(
        [python or sys.executable, script.name],
        cwd=folder,
        env=_environment(python),
        capture_output=True,
        encoding="utf-8",
        timeout=1000,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    return [_tidy(printed) for printed in ended.stdout.split(f"{_MARK}\n")[:-1]]


def run_in_turn(pages: dict[str, tuple[list[Step], list[str]]], folder: Path) -> dict[str, list[str]]:
    """Run the steps of named pages one page after the other, in one process and so on one JVM; return what each prints.

    Each page finds an empty folder, no names and no Spark session, and can import what is not among the modules beside
    its steps: a page none of those that the page before it can. Settings of the first one's session are the JVM's. Most
    of what a page of its own takes is the start of a JVM and what that does for the first time.
    """
    whole: list[tuple[str, Step]] = []
    for (name, (parts, without)), (_, (_, later)) in itertools.pairwise([*pages.items(), ("", ([], []))]):
        assert set(later) <= set(without), name
        clean = _CLEAN.replace("{}", repr(sorted(set(without) - set(later))))
        between = Step(clean, "", (0, 0), has_place=True)
        whole += [(f"{name} {n}", step) for n, step in enumerate([*parts, between])]
    _, first = next(iter(pages.values()))
    printed = iter(run([step for _, step in whole], folder, without=first, labels=[label for label, _ in whole]))
    found = {name: [next(printed) for _ in (*parts, None)] for name, (parts, _) in pages.items()}
    assert not any(texts.pop() for texts in found.values()), "what stops a session prints nothing"
    return found


def _program(command: str) -> str:
    """Return code that runs a command and prints what it prints; 1 is its no."""
    return (
        "import shlex, subprocess\n"
        f"ended = subprocess.run(shlex.split({command!r}), stdout=subprocess.PIPE, encoding='utf-8')\n"
        "assert ended.returncode in (0, 1), ended\n"
        "print(ended.stdout, end='')\n"
    )


def _environment(python: Path | None) -> dict[str, str]:
    """Return the variables of a page's process: with another Python, those of a shell in which that one is chosen."""
    found = {**os.environ, **STARTED, "JAVA_TOOL_OPTIONS": quick_java()}
    if python is not None:
        found = {name: value for name, value in found.items() if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))}
        found["PATH"] = f"{python.parent}{os.pathsep}{found['PATH']}"
    return found


def _tidy(printed: str) -> str:
    """Return what was printed without blanks at the ends of lines and without empty lines around it."""
    text = _COLUMNS.sub("", printed).strip("\n")
    return f"{text}\n" if text else ""


def rewritten(text: str, printed: list[str]) -> str:
    """Return the text of a page with what its steps print now. A block that prints nothing on the page has no place."""
    for part, output in reversed(list(zip(steps(text), printed, strict=True))):
        begin, end = part.span
        assert output == part.printed or part.has_place, f"add an empty block `text` behind: {part.code}"
        text = text[:begin] + output + text[end:]
    return text


def main() -> None:
    """Rewrite what the named pages print: ``python -m tests.pages README.md docs/tutorial/first-log.md``."""
    for name in sys.argv[1:]:
        page = ROOT / name
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            printed = run(steps(text), Path(folder), without=not_installed(text))
            page.write_text(rewritten(text, printed), encoding="utf-8")


if __name__ == "__main__":
    main()
