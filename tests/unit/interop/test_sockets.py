"""Captures over TCP: producers that break off, come again, send twice, and come all at once."""

from __future__ import annotations

import contextlib
import errno
import io
import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from spark_timely.errors import CaptureFormatError, InvalidUsageError, StorageError, UnheldCapabilityError
from spark_timely.interop.importing import CaptureTypes, Imported, StreamImport
from spark_timely.interop.sockets import Address, Producers, _Incoming, import_socket
from spark_timely.interop.writer import capture_bytes
from spark_timely.log import MemoryLog

TYPES = CaptureTypes.parse("u64", "u64", timely="0.31")
WAIT_S = 30.0  # until a test gives up; none of them comes near it


def capture(n: int = 30, base: int = 0) -> bytes:
    events: list[object] = []
    for i in range(n):
        events += [(i, [base + i, base + i + 1]), {i: -1, i + 1: 1}]
    return capture_bytes([*events, {n: -1}], time="u64", record="u64")


def log_of(streams: int = 1) -> MemoryLog:
    return MemoryLog.create(TYPES.payload, minimum=(0,), streams=streams)


class Listener:
    """An import that listens, in a thread."""

    def __init__(self, log: MemoryLog, stream: str = "w", *, wait_s: float = WAIT_S) -> None:
        self.result: Imported | None = None
        self.error: BaseException | None = None
        ports: queue.Queue[int] = queue.Queue()

        def run() -> None:
            try:
                task = StreamImport(log, stream, TYPES, name=stream, max_delay_s=0.0)
                address = Address("127.0.0.1", 0, listen=True)
                self.result = import_socket(task, address, wait_s=wait_s, bound=ports.put)
            except BaseException as error:  # noqa: BLE001 - shown by the test that asks
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self.port = ports.get(timeout=WAIT_S)

    def send(self, data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S) as connection:
            connection.sendall(data)

    def done(self) -> Imported:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


def digest(log: MemoryLog) -> str:
    log.refresh()
    report = log.verify()
    assert report.legal, report.problems
    return report.digest


def expected(*captures: bytes) -> str:
    log = log_of(len(captures))
    for i, data in enumerate(captures):
        StreamImport(log, f"e{i}", TYPES, name="x").take_whole(io.BytesIO(data))
    return digest(log)


def test_producer_that_breaks_off_and_returns_is_imported_once() -> None:
    data, log = capture(), log_of()
    listener = Listener(log)
    for cut in (3, 100, 117, 60, len(data) - 1):  # within a length, an event, and earlier than before
        listener.send(data[:cut])
    listener.send(data)
    done = listener.done()
    assert (done.closed, done.position, done.events) == (True, len(data), 61)
    assert digest(log) == expected(data)


def test_producer_that_sends_all_of_it_again_adds_nothing() -> None:
    data, log = capture(), log_of()
    unclosed = data[: len(data) - 36]
    listener = Listener(log)
    listener.send(unclosed)
    listener.send(unclosed)
    listener.send(data)
    assert listener.done().new_events == 61
    assert digest(log) == expected(data)
    # A later import of the same has nothing to wait for.
    task = StreamImport(log, "w", TYPES, name="w")
    assert import_socket(task, Address("127.0.0.1", 1, listen=True), wait_s=0.0).new_events == 0


def test_producer_that_returns_with_other_bytes_is_refused() -> None:
    log = log_of()
    listener = Listener(log)
    listener.send(capture()[:200])
    listener.send(capture(base=5))
    with pytest.raises(CaptureFormatError, match="found other bytes"):
        listener.done()
    assert log.verify().legal


def test_many_producers_at_once() -> None:
    captures = [capture(20, base=100 * i) for i in range(6)]
    log = log_of(len(captures))
    listeners = [Listener(log.another(), f"w{i}") for i in range(len(captures))]
    threads = []
    for listener, data in zip(listeners, captures, strict=True):

        def produce(listener: Listener = listener, data: bytes = data) -> None:
            listener.send(data[:150])
            listener.send(data)

        threads.append(threading.Thread(target=produce))
        threads[-1].start()
    for thread in threads:
        thread.join(WAIT_S)
    assert all(listener.done().closed for listener in listeners)
    assert digest(log) == expected(*captures)


def test_producer_may_return_after_errors_other_than_a_reset() -> None:
    class Broken:
        def __init__(self, error: OSError) -> None:
            self.error = error
            self.options: dict[int, int] = {}

        def settimeout(self, seconds: float) -> None:
            pass

        def setsockopt(self, level: int, name: int, value: int) -> None:
            self.options[name] = value

        def recv_into(self, buffer: memoryview) -> int:
            raise self.error

    for error, ended in (
        (TimeoutError("timed out"), False),  # ours: nothing came within a moment
        (TimeoutError(errno.ETIMEDOUT, "no answer"), True),  # the system's: nobody is there any more
        (OSError(errno.EHOSTUNREACH, "no route"), True),
        (ConnectionResetError(errno.ECONNRESET, "reset"), True),
    ):
        connection = Broken(error)
        source = _Incoming(connection)  # type: ignore[arg-type]
        assert (source.readinto(memoryview(bytearray(8))), source.ended) == (0, ended)
        assert connection.options[socket.SO_KEEPALIVE] == 1  # else one that is gone would never be missed


def test_import_that_is_to_stop_commits_what_came_and_leaves() -> None:
    data, log, stop = capture(), log_of(), threading.Event()
    with Producers(Address("127.0.0.1", 0, listen=True)) as producers:
        task = StreamImport(log, "w", TYPES, name="w", max_delay_s=0.0)
        results: list[Imported] = []
        thread = threading.Thread(
            target=lambda: results.append(import_socket(task, producers, wait_s=WAIT_S, stop=stop.is_set)), daemon=True
        )
        thread.start()
        with socket.create_connection(("127.0.0.1", producers.port), timeout=WAIT_S) as connection:
            connection.sendall(data[:500])
            gate = threading.Event()
            for _ in range(int(WAIT_S / 0.02)):
                if task.position:
                    break
                gate.wait(0.02)
            stop.set()  # while the connection is open
            thread.join(WAIT_S)
    assert not thread.is_alive()
    assert 0 < results[0].position <= 500
    assert not results[0].closed


def test_server_that_repeats_itself_is_not_asked_for_ever() -> None:
    data, log, served = capture(), log_of(), []
    ticks = iter(range(40))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):  # until the test is over
                while True:
                    connection, _ = server.accept()
                    served.append(1)
                    with connection, contextlib.suppress(ConnectionError):
                        connection.sendall(data[:200])

        threading.Thread(target=serve, daemon=True).start()
        task = StreamImport(log, "w", TYPES, name="w")
        address = Address("127.0.0.1", server.getsockname()[1], listen=False)
        # Seconds: at the beginning, after the first connection, which brought something, and after each other one.
        done = import_socket(task, address, wait_s=2.0, clock=lambda: float(next(ticks)))
        server.shutdown(socket.SHUT_RDWR)
    assert (done.closed, done.events, len(served)) == (False, 4, 3)


def test_many_producers_that_break_off_are_imported_once() -> None:
    captures = [capture(10, base=100 * i) for i in range(12)]
    log = log_of(len(captures))
    listeners = [Listener(log.another(), f"w{i}") for i in range(len(captures))]
    for cut in (50, 300, len(captures[0])):
        threads = [
            threading.Thread(target=listener.send, args=(data[:cut],))
            for listener, data in zip(listeners, captures, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    assert all(listener.done().closed for listener in listeners)
    assert digest(log) == expected(*captures)


def test_capture_comes_over_ipv6_or_its_absence_is_reported() -> None:
    data, log = capture(), log_of()
    try:  # Python may know IPv6 and the machine, or its container, have no address of it
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        with pytest.raises(StorageError, match=r"could not listen on tcp-listen://\[::1\]:0"):
            Producers(Address.parse("tcp-listen://[::1]:0"))
        return
    with Producers(Address.parse("tcp-listen://[::1]:0")) as producers:
        threading.Thread(target=_send_to, args=("::1", producers.port, data), daemon=True).start()
        task = StreamImport(log, "w", TYPES, name="w")
        assert import_socket(task, producers, wait_s=WAIT_S).closed
    assert digest(log) == expected(data)


def _send_to(host: str, port: int, data: bytes) -> None:
    with socket.create_connection((host, port), timeout=WAIT_S) as connection:
        connection.sendall(data)


@pytest.mark.parametrize("text", ["tcp://nowhere..invalid:1", "tcp-listen://a..b:1"])
def test_host_that_is_none_is_refused_clearly(text: str) -> None:
    task = StreamImport(log_of(), "w", TYPES, name="w")
    with pytest.raises(StorageError, match=r"could not (connect to|listen on) tcp"):
        import_socket(task, Address.parse(text), wait_s=WAIT_S)


def test_nobody_comes() -> None:
    log = log_of()
    done = Listener(log, wait_s=0.0).done()
    assert (done.closed, done.position, log.frontier().to_json()) == (False, 0, [0])


@contextlib.contextmanager
def serving(*parts: bytes) -> Iterator[int]:
    """Serve a capture part by part: the connection breaks after each."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)

        def serve() -> None:
            for part in parts:
                connection, _ = server.accept()
                with connection, contextlib.suppress(ConnectionError):
                    connection.sendall(part)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_producer_we_connect_to_is_asked_again_after_a_break() -> None:
    data, log = capture(), log_of()
    with serving(data[:77], data) as port:
        task = StreamImport(log, "w", TYPES, name="w")
        done = import_socket(task, Address("127.0.0.1", port, listen=False), wait_s=WAIT_S)
    assert done.closed
    assert digest(log) == expected(data)


def test_consumer_that_refuses_hangs_up_and_says_no_more() -> None:
    log = log_of()
    listener = Listener(log)
    illegal = capture_bytes([{0: -1, 5: 1}, (0, [1])] * 1000, time="u64", record="u64")
    # Timely's own reader would be gone just so: writes succeed until the system says that nobody is there.
    gone = contextlib.suppress(BrokenPipeError, ConnectionResetError)
    with socket.create_connection(("127.0.0.1", listener.port), timeout=WAIT_S) as connection, gone:
        for _ in range(10_000):
            connection.sendall(illegal)
    with pytest.raises(UnheldCapabilityError, match="at event=1, "):
        listener.done()
    assert log.verify().legal


def test_slow_producer_is_committed_while_it_goes() -> None:
    data, log = capture(), log_of()
    listener = Listener(log)
    with socket.create_connection(("127.0.0.1", listener.port), timeout=WAIT_S) as connection:
        connection.sendall(data[:500])
        other = log.another()
        gate = threading.Event()
        for _ in range(int(WAIT_S / 0.02)):
            other.refresh()
            if other.frontier().to_json() > [0]:
                break
            gate.wait(0.02)
        assert other.frontier().to_json() > [0]
        connection.sendall(data[500:])
    assert listener.done().closed
    assert digest(log) == expected(data)


@pytest.mark.parametrize(
    "text", ["tcp://", "tcp://here", "tcp://h:99999", "udp://h:1", "tcp://h:1/x", "tcp-listen://:1"]
)
def test_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError, match="could not read address"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:80", "tcp-listen://[::1]:8000", "tcp://[fe80::1%eth0]:9"])
def test_address_is_written_as_it_was_read(text: str) -> None:
    assert str(Address.parse(text)) == text


def test_port_that_is_taken_is_refused_clearly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        task = StreamImport(log_of(), "w", TYPES, name="w")
        address = Address("127.0.0.1", server.getsockname()[1], listen=True)
        with pytest.raises(StorageError, match="could not listen"):
            import_socket(task, address, wait_s=0.0)
