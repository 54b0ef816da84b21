"""A server of Spark Connect as a process of its own, which outlives its clients.

Only what was started here is ever ended, by its id.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from spark_timely.spark import session_settings
from tests.faults.harness import QUICK, START_DEADLINE_S, STARTED, alive, descendants, wait_until

HOME = Path(pyspark.__file__).parent
MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """A server that knows Delta and this library, on a free port.

    Parameters
    ----------
    folder : Path
        For what it writes.
    started : bool
        Whether its Python processes are started as a user's; else they are forked: see `tests.forking`.
    settings : str
        Options of Spark that it has besides.
    """

    def __init__(self, folder: Path, *, started: bool = True, **settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._output = folder / "server.txt"
        packages = configure_spark_with_delta_pip(SparkSession.builder)._options["spark.jars.packages"]
        own = session_settings(delta=True)
        conf = {
            **own,
            "spark.jars.packages": packages,
            "spark.connect.grpc.binding.port": "0",
            "spark.ui.port": "0",
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(folder / "local"),
            "spark.driver.extraJavaOptions": f"{own['spark.driver.extraJavaOptions']} {QUICK}",
            **settings,
        }
        arguments = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        path = os.pathsep.join(filter(None, [own["spark.executorEnv.PYTHONPATH"], os.environ.get("PYTHONPATH")]))
        variables = {**os.environ, **(STARTED if started else {}), "SPARK_HOME": str(HOME), "PYTHONPATH": path}
        with self._output.open("w") as out:
            self._process = subprocess.Popen(
                [str(HOME / "bin" / "spark-submit"), "--class", MAIN, "--master", "local[2]", *arguments,
                 "spark-internal"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=variables, cwd=folder,
                start_new_session=True,
            )  # fmt: skip
        names = ("SparkConnectService", "SparkUI")
        port, web = (self._said(rf"service '[\w.]*{name}' on port (\d+)") for name in names)
        self.url, self.web = f"sc://localhost:{port}", f"http://localhost:{web}/api/v1/applications"

    def _said(self, pattern: str) -> str:
        def found() -> re.Match[str] | None:
            assert self._process.poll() is None, self._output.read_text(errors="replace")[-4000:]
            return re.search(pattern, self._output.read_text(errors="replace"))

        wait_until(lambda: found() is not None, deadline_s=START_DEADLINE_S, what=pattern)
        match = found()
        assert match is not None
        return match[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, and all that it started."""
        below = descendants(self._process.pid)
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        wait_until(lambda: not any(map(alive, below)), deadline_s=START_DEADLINE_S, what="the end of the server")
