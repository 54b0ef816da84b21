"""Follow pages as a reader does: from an empty folder, with a built wheel, and no step that is not written.

``python scripts/follow.py --wheel dist/spark_timely-….whl --python venv/bin/python README.md …``

The lines ``pip install`` of a page run as they stand there, with the wheel in the place of the clone. Its blocks of
Python run in one process, its commands as programs, in the order of the page, and what they print is compared with it.
Lines that need a clone (``make demo``) are named and left out; any other line of a shell fails.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.modules import ROOT
from tests.pages import blocks, run, steps

_CLONE = re.compile(r"^\.(?P<extras>\[[\w,-]+\])?$")


def shell_lines(page: str) -> tuple[list[str], list[str]]:
    """Return the lines of a page that install something, and those that need a clone.

    Raises
    ------
    SystemExit
        If there is another line: nothing here knows how to follow it.
    """
    lines = [line for block in blocks(page, "sh") for line in block.splitlines() if line.strip()]
    installs = [line for line in lines if line.startswith("pip install ")]
    clone = [line for line in lines if line.startswith("make ")]
    other = [line for line in lines if line not in installs and line not in clone]
    if other:
        raise SystemExit(f"could not follow {page}: found lines of a shell that cannot be run: {other}")
    if not installs:
        raise SystemExit(f"could not follow {page}: found no line `pip install`")
    return installs, clone


def with_wheel(line: str, wheel: Path) -> list[str]:
    """Return the arguments of a line ``pip install …``, the wheel in the place of the clone."""
    found = []
    for word in shlex.split(line, comments=True)[2:]:
        here = _CLONE.match(word)
        if here:
            found.append(f"spark-timely{here['extras'] or ''} @ {wheel.as_uri()}")
        else:
            found.append(re.sub(r"file:///\S+", wheel.as_uri(), word))
    return found


def follow(page: str, wheel: Path, python: Path) -> None:
    """Install what a page says, run it, and compare what is printed."""
    installs, clone = shell_lines(page)
    for line in clone:
        print(f"{page}: left out, since it needs a clone: {line}")
    for line in installs:
        print(f"{page}: {line}", flush=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *with_wheel(line, wheel)],
            check=True,
        )
    parts = steps((ROOT / page).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        printed = run(parts, Path(folder), python=python)
    shown = [part.printed for part in parts]
    if printed != shown:
        there, here = ("".join(texts).splitlines() for texts in (shown, printed))
        print(*difflib.unified_diff(there, here, "the page", "printed", lineterm=""), sep="\n")
        raise SystemExit(f"could not follow {page}: found that it prints something else")
    print(f"{page}: {len(parts)} steps print what the page shows", flush=True)


def main() -> None:
    """Follow the named pages, one after the other, in one environment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wheel", type=lambda text: Path(text).resolve(), required=True)
    # Not resolved: the Python of an environment is a link.
    parser.add_argument("--python", type=lambda text: Path(os.path.abspath(text)), required=True)
    parser.add_argument("pages", nargs="+")
    options = parser.parse_args()
    for page in options.pages:
        follow(page, options.wheel, options.python)


if __name__ == "__main__":
    main()
