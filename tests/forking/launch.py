"""What Spark starts as its Python: asks to be forked in its place, or becomes the interpreter. See `tests.forking`.

It runs isolated and without packages, in some 10 ms: it imports only what is part of the interpreter.
"""

from __future__ import annotations

import _signal
import _socket
import marshal
import os
import sys

_PASSED = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP)


def _ask(address: str, words: list[str]) -> _socket.socket | None:
    """Ask for a fork; return the connection that stands for it, or nothing where it is none of that process's."""
    # With another seed of hashes it would be another program, and what counts lines does so from the start.
    if words[:1] != ["-m"] or os.environ.get("PYTHONHASHSEED", "0") != "0" or "COVERAGE_PROCESS_START" in os.environ:
        return None
    # A daemon stays as long as its session, and each of its workers would import all for itself.
    if words[1] != "pyspark.daemon" or "SPARK_TIMELY_STARTED_DAEMONS" in os.environ:
        place = "-".join(words[1:3]).replace("/", "_")  # a daemon is one for each module that it runs
        try:
            os.close(os.open(f"{address}-{place}", os.O_CREAT | os.O_EXCL))
            return None  # the first of each place is started: what only a new interpreter shows must fail a test
        except FileExistsError:
            pass
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(address)
    except OSError:
        return None
    if words[1] == "pyspark.daemon":
        os.setpgid(0, 0)  # as it does itself: it outlives what ends the group of its JVM, until it notices
    request = marshal.dumps((words, os.getcwd(), dict(os.environ)))
    files = b"".join(fd.to_bytes(4, sys.byteorder) for fd in range(3))
    connection.sendmsg([len(request).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    while request:
        request = request[connection.send(request) :]
    return connection


def _stand_for(connection: _socket.socket) -> None:
    """Pass signals on, and end as it ends."""
    for number in _PASSED:
        _signal.signal(number, lambda got, _: connection.send(bytes([got])))
    said = b""
    while len(said) < 4:
        got = connection.recv(4 - len(said))
        if not got:
            os._exit(1)  # that process is gone
        said += got
    status = int.from_bytes(said, "big")
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by in _PASSED:
            _signal.signal(ended_by, _signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    os._exit(os.WEXITSTATUS(status))


_address, _interpreter, *_words = sys.argv[1:]
_connection = _ask(_address, _words)
if _connection is None:
    os.execv(_interpreter, [_interpreter, *_words])
_stand_for(_connection)
