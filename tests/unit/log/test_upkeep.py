"""Upkeep beside the writers, and what it does side by side, also while the process ends."""

from __future__ import annotations

import subprocess
import sys

from spark_timely.threads import at_once

# The main thread is done; the job that waits goes through threads of its own only then.
ENDING = """
import threading
from concurrent.futures import thread
from spark_timely.log.upkeep import run_aside
from spark_timely.threads import at_once

def job():
    pause = threading.Event()
    while not thread._shutdown:
        pause.wait(0.001)
    print(at_once(lambda n: n * n, list(range(20)), 4), run_aside("another log", print))

print(run_aside("a log", job))
"""


def test_upkeep_that_waits_is_done_while_a_process_ends() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=True)
    assert done.stdout == f"True\n{[n * n for n in range(20)]} False\n"
    assert done.stderr == ""


def test_all_items_are_done_in_their_order() -> None:
    for n in (0, 1, 2, 50):
        assert at_once(str, list(range(n)), 3) == [str(each) for each in range(n)]
