"""TCP connections for captures: listens for timely producers or connects to them, and resumes after a break.

``spark-timely import`` uses it where an address stands for a file. `Producers` gives the connections of an address one
after the other, and `import_socket` feeds them to a `StreamImport` (`importing`).

Timely's examples `capture_send` and `capture_recv` work so. A connection carries one captured stream from its
beginning. When it breaks, the producer sends the stream again from the beginning, on a new connection. What the log
already has is compared, and not captured twice; another content is refused.

Invariants
----------
1. An address is one capture, so one stream; further connections to it wait until the present one has ended.
2. Nothing is ever sent to a producer: timely's producers do not read.
3. A producer that vanishes without closing its connection, as when its machine loses power, blocks nothing: the
   operating system probes the connection (TCP keepalive), and the next one is accepted.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from spark_timely.errors import InvalidUsageError, StorageError, shown
from spark_timely.interop.importing import Imported, StreamImport
from spark_timely.log.wait import wait_until

_ADDRESS = re.compile(
    r"tcp(?P<listen>-listen)?://(?P<host>\[[0-9A-Fa-f:.]+(?:%[^\]/]+)?\]|[^:/\[\]]+):(?P<port>[0-9]{1,5})/?"
)
_LOOK_S = 0.2
"""How often a wait looks whether it has lasted long enough."""
_CONNECT_S = 2.0
"""How long one try to connect may take; then it is tried again, as long as there is time."""
_SILENT_S, _ASK_S, _ASK_TIMES = 30, 10, 3
"""After how long a silent producer is asked for a sign of life; how often, and how many times."""
_AWAY = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}
"""Errors of connecting that may pass, as while a machine restarts."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a capture: a host and port to listen on, or to connect to.

    Parameters
    ----------
    host : str
    port : int
    listen : bool
        Whether producers connect to it, or it is connected to.

    Examples
    --------
    >>> Address.parse("tcp-listen://127.0.0.1:8000").listen
    True
    """

    host: str
    port: int
    listen: bool

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``tcp://HOST:PORT`` or ``tcp-listen://HOST:PORT``; raises `InvalidUsageError`."""
        found = _ADDRESS.fullmatch(text)
        if found is None or int(found["port"]) > 65_535:
            msg = f"could not read address {shown(text)}: found neither tcp://HOST:PORT nor tcp-listen://HOST:PORT"
            raise InvalidUsageError(
                msg, hint="give tcp://127.0.0.1:8000 to connect, tcp-listen://127.0.0.1:8000 to wait"
            )
        return cls(found["host"].strip("[]"), int(found["port"]), found["listen"] is not None)

    def __str__(self) -> str:
        """Return the address as text."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp{'-listen' if self.listen else ''}://{host}:{self.port}"


def is_address(text: str) -> bool:
    """Return whether a text is meant as an address, right or wrong.

    Examples
    --------
    >>> is_address("tcp://here"), is_address("tcp.bin")
    (True, False)
    """
    return text.startswith(("tcp://", "tcp-listen://"))


def _never() -> bool:
    return False


class _Incoming:
    """Bytes of a connection; 0 where none came within a moment, so that what came can be committed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.ended = False
        connection.settimeout(_LOOK_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", _SILENT_S), ("TCP_KEEPINTVL", _ASK_S), ("TCP_KEEPCNT", _ASK_TIMES)):
            if (option := getattr(socket, name, None)) is not None:  # not on every system
                connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def readinto(self, buffer: memoryview, /) -> int:
        try:
            n = self._connection.recv_into(buffer)
        except TimeoutError as error:
            # With a number it is the system's: nobody has answered it.
            self.ended = error.errno is not None
            return 0
        except OSError:  # reset, unreachable: however it broke, another connection may come
            n = 0
        self.ended = not n
        return n


class Producers:
    """The producers of an address, one after the other: it is listened on, or connected to.

    Listening begins at once, so that an address that cannot be had is known before anything else is done.

    Parameters
    ----------
    address : Address

    Raises
    ------
    StorageError
        If the address cannot be listened on.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._listener: socket.socket | None = None
        if address.listen:
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            try:
                self._listener = socket.create_server((address.host, address.port), family=family)
            except (OSError, UnicodeError) as error:
                msg = f"could not listen on {address}: found {shown(str(error))}"
                hint = "use a free port, and a host of this machine"
                raise StorageError(msg, hint=hint) from error
            self._listener.settimeout(_LOOK_S)

    def __enter__(self) -> Producers:
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """Stop listening; the system refuses producers that still wait to connect."""
        if self._listener is not None:
            self._listener.close()

    @property
    def port(self) -> int:
        """The port that is listened on, or connected to."""
        return self.address.port if self._listener is None else int(self._listener.getsockname()[1])

    def next(self) -> socket.socket | None:
        """Return a connection, None if there was none within a moment.

        Raises
        ------
        StorageError
            If there is no such address.
        """
        try:
            if self._listener is not None:
                return self._listener.accept()[0]
            return socket.create_connection((self.address.host, self.address.port), timeout=_CONNECT_S)
        except TimeoutError:
            return None
        except (OSError, UnicodeError) as error:
            if isinstance(error, ConnectionError) or (isinstance(error, OSError) and error.errno in _AWAY):
                return None
            msg = f"could not connect to {self.address}: found {shown(str(error))}"
            raise StorageError(msg, hint="check host and port") from error


def import_socket(
    task: StreamImport,
    address: Address | Producers,
    *,
    wait_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
    bound: Callable[[int], None] | None = None,
    stop: Callable[[], bool] = _never,
) -> Imported:
    """Import the capture that comes from an address, until it is closed, or nothing new comes any more.

    Parameters
    ----------
    task : StreamImport
    address : Address or Producers
    wait_s : float
        How long to wait for a first connection, and for another one where a capture is not closed yet. Connections
        that were made from here and brought nothing new do not count.
    clock : callable
        Seconds.
    bound : callable, optional
        Gets the port number, once it is listened on.
    stop : callable
        Is asked every now and then whether to stop; what has come by then is imported.

    Raises
    ------
    StorageError
        If the address cannot be listened on, or does not exist.
    CaptureFormatError, ProtocolError
        As `StreamImport.take_whole`; the connection is closed.
    """
    if task.closed:
        return task.result()
    with contextlib.ExitStack() as stack:
        producers = address if isinstance(address, Producers) else stack.enter_context(Producers(address))
        if bound is not None:
            bound(producers.port)
        # A listener waits for a connection anyway; an address that refuses, or sends the same bytes, is not asked again
        # at once.
        poll_s = 0.0 if producers.address.listen else _LOOK_S

        def look(_: float) -> bool:
            connection = None if task.closed or stop() else producers.next()
            if connection is None:
                return task.closed or stop()
            before = task.position
            with connection:
                source = _Incoming(connection)
                task.take_whole(source, again=lambda: not source.ended and not stop())
            return producers.address.listen or task.position != before

        while wait_until(look, timeout_s=wait_s, poll_s=poll_s, now=clock) and not task.closed and not stop():
            pass
    return task.result()
