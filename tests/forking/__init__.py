"""Python processes of Spark that are forked of one which has imported what they need, in place of being started.

Spark starts a Python process for each streaming query that reads and for each kind of work of each Connect session, and
most of what such a process does is to import pyspark and this library: 0.7 s of processor time, thousands of times in
the suite. `Forks` starts one process that has imported them, and `Forks.python` is a program that behaves as this
interpreter does: called as Spark does (``-m MODULE``), it has that process fork, and stands for what was forked: its
files, folder and variables are handed over, its signals passed on, its end followed both ways. All else it does by
replacing itself with the interpreter. Where processes are killed the group of one that is forked, and its place below
others, are as they would be.

A process that is forked has imported what a new one may fail to import. So the first process of each module that Spark
starts, Connect's too, is started as a user's; a test that runs alone has those of its own. Daemons, which stay as long
as their session and of which all its workers come, are started so for Connect alone. All are started in the pages
of the documentation and the examples, which come to every place where a classic session starts Python, and in jobs of
`tests/faults` that kill them or run on executors (`tests.faults.harness.STARTED`).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


class Forks:
    """A process that is forked where Spark starts Python.

    Parameters
    ----------
    folder : Path
        For its socket and the program, with a short path: that of a socket has at most 107 bytes.
    """

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "s"
        self.python = folder / "python"
        words = [sys.executable, "-I", "-S", str(HERE / "launch.py"), str(self._socket), sys.executable]
        self.python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        self.python.chmod(0o755)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; nothing happens where it runs. Until it is ready, processes are started as usual."""
        if self._process is None and hasattr(os, "pidfd_open"):
            # What Spark sets for its Python processes, and cannot be changed in one that runs.
            variables = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forking.serve", str(self._socket)],
                stdin=subprocess.PIPE,
                cwd=HERE.parents[1],
                env=variables,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End it; what was forked goes with whoever asked for it."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait()
