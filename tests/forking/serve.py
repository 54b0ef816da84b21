"""The process that is forked: ``python -m tests.forking.serve SOCKET``. See `tests.forking`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import time
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import NoReturn

# No thread may run where a process is forked; of what is imported only this library would start some.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
_NEEDED = (
    "deltalake",
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyspark.daemon",
    "pyspark.sql.connect.streaming.worker.foreach_batch_worker",
    "pyspark.sql.connect.streaming.worker.listener_worker",
    "pyspark.sql.pandas.types",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "spark_timely.datasource.source",
    "spark_timely.spark.tasks.continual",
    "spark_timely.spark.dataflows.dataflow",
    "spark_timely.spark.replay.replay",
)
Request = tuple[list[str], str, dict[str, str], list[int]]


def _received(connection: socket.socket) -> Request | None:
    """Read what is asked for; nothing where whoever asked went away."""
    head, files, _, _ = socket.recv_fds(connection, 4, 3)
    wanted = int.from_bytes(head, "big") if len(head) == 4 else 0
    parts = []
    while wanted > 0:
        part = connection.recv(min(wanted, 1 << 16))
        if not part:
            break
        parts.append(part)
        wanted -= len(part)
    if wanted or len(files) != 3:
        for fd in files:
            os.close(fd)
        return None
    words, folder, variables = marshal.loads(b"".join(parts))
    return words, folder, variables, list(files)


def serve(address: str) -> Request:
    """Fork whenever that is asked for, until the standard input ends; return what is asked for, in the new process."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    poll = select.poll()
    for fd in (0, listener.fileno()):
        poll.register(fd, select.POLLIN | select.POLLHUP)
    children: dict[int, tuple[int, socket.socket]] = {}  # by the file of the process: its id, and who stands for it
    standing: dict[int, int] = {}  # by the file of who stands for it: its id
    connections: dict[int, socket.socket] = {}
    while True:
        # The listener last: what it accepts may have the number of a file that is closed before.
        for fd, _ in sorted(poll.poll(), key=lambda event: event[0] == listener.fileno()):
            if fd == 0:
                os._exit(0)
            if fd == listener.fileno():
                connection, _ = listener.accept()
                request = _received(connection)
                if request is None:
                    connection.close()
                    continue
                child = os.fork()
                if child == 0:
                    os.setpgid(0, 0)
                    _name_after(connection)
                    return request
                with contextlib.suppress(OSError):  # it may have done so itself, and more
                    os.setpgid(child, child)
                for each in request[3]:
                    os.close(each)
                process = os.pidfd_open(child)
                children[process] = child, connection
                standing[connection.fileno()], connections[connection.fileno()] = child, connection
                poll.register(process, select.POLLIN)
                poll.register(connection, select.POLLIN | select.POLLHUP)
            elif fd in children:
                child, connection = children.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                _, status = os.waitpid(child, 0)
                with contextlib.suppress(OSError):
                    connection.send(status.to_bytes(4, "big"))
                if standing.pop(connection.fileno(), None) is not None:
                    poll.unregister(connection)
                    del connections[connection.fileno()]
                connection.close()
            elif fd in standing:
                try:
                    signals = connections[fd].recv(16)
                except OSError:
                    signals = b""
                for number in signals:
                    os.kill(standing[fd], number)
                if not signals:  # who stood for it was killed, and with it what it forked itself
                    os.killpg(standing[fd], signal.SIGKILL)
                    poll.unregister(fd)
                    del standing[fd], connections[fd]


def _name_after(connection: socket.socket) -> None:
    """Let this process be found by who stands for it: `tests.faults.harness.descendants` reads the name."""
    pid, _, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    with open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write(f"for {pid}")


def become(request: Request) -> NoReturn:
    """Do what a new interpreter would do with these words, variables and files; end the process."""
    (_, module, *arguments), folder, variables, files = request
    for fd, file in enumerate(files):
        os.dup2(file, fd)
    os.closerange(3, 1024)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    own = [entry for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [folder, *own, *(entry for entry in sys.path[1:] if entry not in own)]
    sys.argv[:] = [module, *arguments]
    # The interpreter runs it at its start: it may change the path.
    found = PathFinder.find_spec("sitecustomize")
    if found is not None and found.loader is not None:
        found.loader.exec_module(module_from_spec(found))
    sys.modules.pop(module, None)  # it is only the program, as it would be otherwise
    status = _run(module)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)  # an interpreter that takes itself apart does so for longer than most of these lived


def _run(module: str) -> int:
    """Run a module as a program; return its exit code."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - told as an interpreter tells it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    for _name in _NEEDED:
        importlib.import_module(_name)
    gc.collect()
    gc.freeze()
    become(serve(sys.argv[1]))
