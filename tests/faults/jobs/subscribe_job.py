"""One process without Spark that subscribes to a log by name, stores what it gets, and is killed (SIGKILL) on the way.

Usage: subscribe_job.py LOG STORE UP_TO N. The store is one file, replaced as a whole: the rows so far and the position
that they are up to. It is killed before the N-th of these steps: a commit of the position into the log, the same once
it has happened, a batch, its store, the same once it has happened, an acknowledgement; with N = 0 never.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

from spark_timely.answers import retainers
from spark_timely.answers.subscribe import subscribe
from spark_timely.log.core import LogCore


def main(path: str, store: Path, up_to: int, number: int) -> None:
    turns, lock = count(1), threading.Lock()

    def step() -> None:
        with lock:
            if next(turns) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    own = LogCore.retain_several

    def retain_several(log: LogCore, wanted: Any) -> Any:
        step()
        found = own(log, wanted)
        step()
        return found

    LogCore.retain_several = retain_several  # type: ignore[method-assign]
    # Positions are written as soon as the thread gets to it, not every ten seconds.
    retainers._LEAST_S = 0.0  # type: ignore[misc]
    stored = json.loads(store.read_text()) if store.exists() else {"rows": [], "position": None}
    begin: dict[str, Any] = {"as_of": 0} if stored["position"] is None else {"resume_from": stored["position"]}
    with subscribe(path, name="job", up_to=up_to, poll_s=0.001, **begin) as subscription:
        for batch in subscription:
            step()
            stored["rows"] += [list(row.values()) for row in batch.rows.to_pylist()]
            stored["position"] = batch.upper.to_json()
            part = store.with_suffix(".part")
            part.write_text(json.dumps(stored))
            step()
            part.replace(store)
            step()
            subscription.acknowledge(batch.upper)
            step()


if __name__ == "__main__":
    where, into, end, when = sys.argv[1:]
    main(where, Path(into), int(end), int(when))
