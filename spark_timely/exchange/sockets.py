"""Captures over TCP: producers that connect here, or that are connected to, as timely's own examples do.

A socket carries one capture from its beginning. When it breaks, the producer begins anew, on a new
connection; what the log has already is compared and passed over.

Invariants
----------
1. An address is one capture, so one stream; further connections to it wait until the one at hand has ended.
2. Nothing is ever sent to a producer. It notices us only by our absence, as it would notice timely's reader.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spark_timely.errors import InvalidUsageError, StorageError, shown
from spark_timely.exchange.importing import Imported, StreamImport

__all__ = ["Address", "import_socket", "is_address"]

_ADDRESS = re.compile(r"tcp(?P<listen>-listen)?://(?P<host>\[[0-9A-Fa-f:.]+\]|[^:/\[\]]+):(?P<port>[0-9]{1,5})/?")
_LOOK_S = 0.2
"""How often a wait looks whether it has lasted long enough."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a capture comes from.

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
            raise InvalidUsageError(msg, hint="tcp://127.0.0.1:8000 connects, tcp-listen://127.0.0.1:8000 waits")
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


class _Incoming:
    """Bytes of a connection; 0 where none came within a moment, so that what came can be committed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.ended = False
        connection.settimeout(_LOOK_S)

    def readinto(self, buffer: memoryview, /) -> int:
        try:
            n = self._connection.recv_into(buffer)
        except TimeoutError:
            return 0
        except ConnectionError:
            n = 0
        self.ended = not n
        return n


def _listening(address: Address, bound: Callable[[int], None] | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listener = socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        msg = f"could not listen on {address}: found {shown(str(error))}"
        raise StorageError(msg, hint="another program has the port, or the host is none of this machine") from error
    if bound is not None:
        bound(listener.getsockname()[1])
    listener.settimeout(_LOOK_S)
    return listener


def _connections(
    address: Address, wait_s: float, clock: Callable[[], float], bound: Callable[[int], None] | None
) -> Iterator[socket.socket]:
    """Yield connections, one after the other, until none comes for so long."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listening(address, bound)) if address.listen else None
        since = clock()
        while True:
            try:
                if listener is None:
                    connection = socket.create_connection((address.host, address.port), timeout=max(wait_s, _LOOK_S))
                else:
                    connection, _ = listener.accept()
            except (TimeoutError, ConnectionError) as error:
                if clock() - since >= wait_s:
                    return
                if not isinstance(error, TimeoutError):
                    time.sleep(_LOOK_S)  # refused at once; accepting has waited already
                continue
            except OSError as error:
                msg = f"could not connect to {address}: found {shown(str(error))}"
                raise StorageError(msg, hint="check host and port") from error
            with connection:
                yield connection
            since = clock()


def import_socket(
    task: StreamImport,
    address: Address,
    *,
    wait_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
    bound: Callable[[int], None] | None = None,
) -> Imported:
    """Import the capture that comes from an address, until it is closed, or nobody connects any more.

    Parameters
    ----------
    task : StreamImport
    address : Address
    wait_s : float
        How long to wait for a first connection, and for another one where a capture is not closed yet.
    clock : callable
        Seconds.
    bound : callable, optional
        Is told the port that is listened on, once it is.

    Raises
    ------
    StorageError
        If the address cannot be listened on, or does not exist.
    CaptureFormatError, ProtocolError
        As `StreamImport.take_whole`; the connection is closed.
    """
    if task.closed:
        return task.result()
    for connection in _connections(address, wait_s, clock, bound):
        source = _Incoming(connection)
        task.take_whole(source, again=lambda source=source: not source.ended)  # type: ignore[misc]
        if task.closed:
            break
    return task.result()
