"""The files of a log in an object store: S3, Azure, Google, or one that speaks like them.

Requests are made by `obstore`, the object store client that delta-rs is built on: plain GET, PUT, HEAD and LIST. Each is
a journey of some tens of milliseconds, and is paid for, so a file is written by one PUT where it is small, and read by
one GET of its end, which brings the size, the footer, and mostly the whole file. What is read of a larger one is fetched
ahead, in few ranges side by side, once it is known (`expect`).

An entry of a table's log gets its name by a conditional PUT. The client asks again after errors of the store, so what
it says may be about its own first attempt: whether a file of that name is ours is settled by what is in it.

Invariants
----------
1. `put` without `replace` never takes a name that somebody else has, and never denies a name that it took itself.
2. What is returned from a write is in the store as a whole.
3. An error of the network, of permissions or of the store's load is a `StorageError`, whatever was read: only a store
   that answers "no such file" makes it a `DataLossError`.
4. Nothing is ever made in the working directory of the process.
"""

from __future__ import annotations

import os
import re
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from spark_timely.errors import InvalidOptionError, StorageError, shown
from spark_timely.log.store.storage import (
    checked_options,
    cloud_error,
    is_determinate,
    is_promised,
    missing,
    store_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


WHOLE_BYTES = 8 << 20
"""Up to here a file is written by one PUT."""

_END_BYTES = 128 << 10  # of a file, fetched when it is opened: its footer, or all of it
_HOLE_BYTES = 1 << 20  # read over rather than asked for separately
_AHEAD_BYTES = 32 << 20  # fetched at most before it is asked for
_KEPT_BYTES = 32 << 20  # of entries of the table's log
_AT_ONCE = 16
_FIRST_S, _PATIENT_S = 4.0, 60.0
_SCHEMES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "gcs": "gs"}


def _client(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    """Return storage options as the client takes them: of the store, of HTTP, of how often it tries."""
    store, http, retry = {}, {}, {}
    backoff: dict[str, Any] = {}
    for name, value in options.items():  # some
        key = name.lower()
        plain = key.removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
        if plain in _HTTP:
            http[plain] = value.lower() in ("true", "1", "yes", "on", "y", "t") if plain in _TRUTHS else value
        elif key in ("max_retries", "retry_timeout"):
            retry[key] = _number(name, value) if key == "max_retries" else _seconds(name, value)
        elif key.startswith("backoff_config."):
            part = key.removeprefix("backoff_config.")
            backoff[part] = _number(name, value) if part == "base" else _seconds(name, value)
        else:
            store[key] = value
    return store, http, retry | ({"backoff": backoff} if backoff else {})


_TRUTHS = frozenset(
    {"allow_http", "allow_invalid_certificates", "http1_only", "http2_only", "randomize_addresses"}
)
_HTTP = _TRUTHS | {
    "connect_timeout",
    "default_content_type",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|millis\w*|s|secs?|seconds?|m|mins?|minutes?|h|hours?)?\s*")
_UNITS = {"ms": 0.001, "mi": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(name: str, value: str) -> timedelta:
    found = _DURATION.fullmatch(value)
    if found is None:
        raise _unusable(name, value, "give a number and a unit, such as 30s")
    unit = found[2] or "s"
    scale = 0.001 if unit.startswith(("ms", "milli")) else _UNITS[unit[0]]
    return timedelta(seconds=float(found[1]) * scale)


def _number(name: str, value: str) -> int:
    if not value.strip().isdecimal():
        raise _unusable(name, value, "give digits")
    return int(value)


def _unusable(name: str, value: str, hint: str) -> InvalidOptionError:
    msg = f"could not use storage option {name!r}: found value={shown(value)}"
    return InvalidOptionError(msg, hint=hint, context={"option": name})


@lru_cache(maxsize=64)
def _opened(uri: str, options: tuple[tuple[str, str], ...], process: int, *, patient: bool) -> Any:  # noqa: ANN401
    """Return the client of a log's files; one for all that this process does there, so that connections are kept."""
    del process  # a forked process has none of the client's threads
    from obstore import exceptions
    from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

    store, http, retry = _client(dict(options))
    http = {"connect_timeout": timedelta(seconds=3), **http}
    # Who gives up soon at first says in seconds that nobody is there; later, a store that is overloaded is waited for.
    retry = {"retry_timeout": timedelta(seconds=_PATIENT_S if patient else _FIRST_S), **retry}
    found = urlsplit(uri)
    scheme = found.scheme.lower()
    path = unquote(found.path).strip("/")
    shared: dict[str, Any] = {"client_options": http, "retry_config": retry}
    try:
        if scheme == "file":
            return LocalStore(prefix="/" + path, mkdir=True)
        if scheme == "memory":
            return MemoryStore()
        if _SCHEMES.get(scheme) == "s3":
            return S3Store(found.netloc, prefix=path or None, config=store, **shared)
        if _SCHEMES.get(scheme) == "gs":
            return GCSStore(found.netloc, prefix=path or None, config=store, **shared)
        if scheme in ("az", "azure", "adl", "abfs", "abfss", "wasb", "wasbs"):
            container, at, host = found.netloc.rpartition("@")
            if at:
                store.setdefault("azure_storage_account_name", host.partition(".")[0])
            return AzureStore(container or host, prefix=path or None, config=store, **shared)
    except exceptions.UnknownConfigurationKeyError as error:
        raise cloud_error("look into", uri, error) from error
    except (exceptions.BaseError, ValueError, TypeError) as error:
        raise cloud_error("look into", uri, error) from error
    raise cloud_error("look into", uri, ValueError(f"Unknown scheme {scheme!r}"))


_reached: set[tuple[str, tuple[tuple[str, str], ...]]] = set()


class CloudStorage:
    """Files below a cloud URL.

    Parameters
    ----------
    uri : str
        As `spark_timely.log.store.storage.normal_path` gives it.
    options : mapping, optional
        Storage options: credentials and settings, as object stores' own tools name them.

    Attributes
    ----------
    uri : str
    local : bool
        False: a look is a journey.
    options : dict

    Notes
    -----
    Picklable: the client is opened where it is used. Safe for threads.
    """

    local = False

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self.uri = uri
        self.options = checked_options(options)
        self._marks: dict[str, tuple[object, ...]] = {}
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._entry_bytes = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.uri, self.options)

    @property
    def _key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        return self.uri, tuple(sorted(store_options(self.options).items()))

    def _call(self, what: str, call: str, *args: Any, file: str = "", **more: Any) -> Any:  # noqa: ANN401
        """Call the client; what it raises, but for files that are missing or there already, is a `StorageError`."""
        import obstore

        key = self._key
        store = _opened(*key, os.getpid(), patient=key in _reached)
        try:
            answer = getattr(obstore, call)(store, *args, **more)
        except FileNotFoundError as error:
            if re.search(r"NoSuchBucket|ContainerNotFound|BucketNotFound|bucket does not exist", str(error)):
                raise cloud_error(what, self.uri, error, file=file) from error
            _reached.add(key)
            raise
        except obstore.exceptions.AlreadyExistsError:
            _reached.add(key)
            raise
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise cloud_error(what, self.uri, error, file=file) from error
        _reached.add(key)
        return answer

    def full(self, path: str) -> str:
        """Return the URL of a file, as other programs take it."""
        return f"{self.uri}/{path}" if path else self.uri

    def read(self, path: str) -> pa.Buffer:
        """Return a whole file; raises `DataLossError` if there is none."""
        try:
            found = self._call("read", "get", path, file=path)
            content = self._body(found, path)
        except FileNotFoundError as error:
            raise missing(self.uri, path) from error
        self._marks[path] = _mark(found.meta)
        return content

    def _body(self, found: Any, path: str) -> pa.Buffer:  # noqa: ANN401 - obstore's classes are not public
        import obstore

        try:
            return pa.py_buffer(found.bytes())
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise cloud_error("read", self.uri, error, file=path) from error

    def find(self, path: str) -> bytes | None:
        """Return a whole file; None if there is none. Entries of the table's log, which never change, are kept."""
        try:
            found = self._call("read", "get", path, file=path)
        except FileNotFoundError:
            self._marks.pop(path, None)
            return None
        content = bytes(self._body(found, path))
        self._marks[path] = _mark(found.meta)
        self._keep(path, content)
        return content

    def _keep(self, path: str, content: bytes) -> None:
        if not path.startswith("_delta_log/") or not path.endswith(".json"):
            return
        with self._lock:
            before = self._entries.pop(path, b"")
            self._entries[path] = content
            self._entry_bytes += len(content) - len(before)
            while self._entry_bytes > _KEPT_BYTES:
                self._entry_bytes -= len(self._entries.popitem(last=False)[1])

    def copy_to(self, paths: Sequence[str], folder: str) -> None:
        """Copy files into a folder of a local disk, under the same paths; one that went meanwhile is left out."""

        def copy(path: str) -> None:
            with self._lock:
                content: bytes | None = self._entries.get(path)
            if content is None:
                content = self.find(path)
            if content is not None:
                with open(f"{folder}/{path}", "xb") as file:
                    file.write(content)

        with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(paths)))) as pool:
            list(pool.map(copy, paths))

    def open_input(self, path: str) -> CloudFile:
        """Open a file for reading anywhere in it; raises `DataLossError` if there is none."""
        try:
            return CloudFile(_Ranges(self, path))
        except FileNotFoundError as error:
            raise missing(self.uri, path) from error

    def end_of(self, path: str) -> tuple[int, int, pa.Buffer]:
        """Return the size of a file, and its last bytes with the place where they begin."""
        # Azure knows no ranges that are counted from the end.
        scheme = urlsplit(self.uri).scheme.lower()
        if scheme.startswith(("az", "adl", "abfs", "wasb")):
            found = self._call("read", "get", path, file=path, options={"range": (0, _END_BYTES)})
            size = int(found.meta["size"])
            if size > _END_BYTES:
                start = max(size - _END_BYTES, 0)
                return size, start, self.fetch(path, [start], [size])[0]
            return size, 0, self._body(found, path)
        found = self._call("read", "get", path, file=path, options={"range": {"suffix": _END_BYTES}})
        start, stop = found.range
        size = int(found.meta["size"])
        if stop != size:
            raise cloud_error("read", self.uri, ValueError(f"bytes {start} to {stop} of {size}"), file=path)
        return size, int(start), self._body(found, path)

    def fetch(self, path: str, starts: Sequence[int], stops: Sequence[int]) -> list[pa.Buffer]:
        """Return ranges of a file, fetched side by side; those that lie near each other as one."""
        try:
            found = self._call(
                "read", "get_ranges", path, file=path, starts=starts, ends=stops, coalesce=_HOLE_BYTES
            )
        except FileNotFoundError as error:
            raise missing(self.uri, path) from error
        parts = [pa.py_buffer(part) for part in found]
        for start, stop, part in zip(starts, stops, parts, strict=True):
            if part.size != stop - start:
                raise cloud_error("read", self.uri, ValueError(f"{part.size} bytes of {stop - start}"), file=path)
        return parts

    def open_output(self, path: str) -> pa.NativeFile:
        """Open a new file for writing; it appears as a whole when it is closed, and not at all after an error."""
        return _Output(_Upload(self, path))

    def write(self, path: str, content: bytes | pa.Buffer) -> None:
        """Write a whole file."""
        if len(content) > WHOLE_BYTES:
            with self.open_output(path) as sink:
                sink.write(content)
            return
        made = self._call("write", "put", path, memoryview(content), file=path, use_multipart=False)
        self._marks[path] = _mark({**made, "size": len(content)})

    def put(self, path: str, content: bytes, *, replace: bool, always: bool = False) -> None:
        """Give a file its name as a whole, if nobody has that name or it may be replaced.

        Raises
        ------
        FileExistsError
            If there is one, and it may not be replaced.
        StorageError
            If it could not be written. Unless `determinate`, it may have its name all the same.
        """
        del always
        if replace or is_promised(self.options):
            if not replace and self.exists(path):
                raise FileExistsError(path)
            self.write(path, content)
        else:
            self._put_new(path, content)
        self._keep(path, content)

    def _put_new(self, path: str, content: bytes) -> None:
        import obstore

        try:
            made = self._call("write", "put", path, content, file=path, mode="create", use_multipart=False)
        except obstore.exceptions.AlreadyExistsError as error:
            # It may be our own attempt that the client tried again after a lost reply.
            if self.find(path) != content:
                raise FileExistsError(path) from error
            return
        except StorageError as error:
            if error.determinate:
                raise
            found: bytes | None = None
            with suppress(StorageError):
                found = self.find(path)
            if found is None:
                raise
            if found != content:
                raise FileExistsError(path) from error
            return
        self._marks[path] = _mark({**made, "size": len(content)})

    def flush(self, paths: Iterable[str], *, always: bool = False) -> None:
        """Do nothing: what a store has taken, it keeps."""

    def flush_place(self) -> None:
        """Do nothing: there are no folders."""

    def flush_problem(self) -> str | None:
        """Return None: what a store has taken, it keeps."""
        return None

    def delete(self, *paths: str) -> None:
        """Delete files; nothing happens to those that are not there."""
        for path in paths:  # as many turns as files, where several are not deleted at once
            try:
                self._call("delete", "delete", [path], file=path)
            except FileNotFoundError:
                continue

    def exists(self, path: str) -> bool:
        """Return whether there is a file of that path."""
        return self.mark(path) is not None

    def mark(self, path: str) -> tuple[object, ...] | None:
        """Return what tells a file from another one in its place; None: none there. One HEAD."""
        try:
            found = self._call("look for", "head", path, file=path)
        except FileNotFoundError:
            self._marks.pop(path, None)
            return None
        self._marks[path] = _mark(found)
        return self._marks[path]

    def known_mark(self, path: str) -> tuple[object, ...] | None:
        """Return the mark of a file as it was last read, written or looked at by this object; None: it was not."""
        return self._marks.get(path)

    def names(self, directory: str = "", *, after: str = "") -> list[str]:
        """Return the names of files and directories in a directory; none if there is no such directory.

        Parameters
        ----------
        directory : str
        after : str
            Only names behind this one are needed; then directories are left out.
        """
        if after:
            return sorted(self._aged(directory, after))
        found = self._call("look into", "list_with_delimiter", directory or None)
        paths = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
        return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})

    def ages(self, directory: str) -> dict[str, float]:
        """Return the files of a directory and how many seconds they are older than its newest, by the store's clock."""
        found = self._aged(directory, "")
        newest = max(found.values(), default=0.0)
        return {name: newest - at for name, at in found.items()}

    def _aged(self, directory: str, after: str) -> dict[str, float]:
        import obstore

        offset = f"{directory}/{after}" if after else None
        listed = self._call("look into", "list", directory, offset=offset, chunk_size=1000)
        found: dict[str, float] = {}
        try:
            for part in listed:
                for meta in part:
                    below = meta["path"].removeprefix(f"{directory}/")
                    # Some stores pay no heed to where a list is to begin.
                    if "/" not in below and below > after:
                        found[below] = meta["last_modified"].timestamp()
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise cloud_error("look into", self.uri, error) from error
        return found


def _mark(meta: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what a store says of a file that no other file in its place has: its tag, where it gives one."""
    tag = meta.get("e_tag")
    return (tag, meta["size"]) if tag else (str(meta.get("last_modified")), meta["size"])


class _Ranges:
    """A file that is read by ranges; those that were fetched are kept until they were passed by."""

    def __init__(self, storage: CloudStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._size, start, end = storage.end_of(path)
        self._end = (start, end)
        self._starts: list[int] = []
        self._parts: list[pa.Buffer] = []
        self._wanted: list[tuple[int, int]] = []
        self._at = 0
        self.closed = False

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Say which ranges will be read, in this order; they are fetched together, some ahead."""
        self._wanted = [(start, stop) for start, stop in ranges if start < self._end[0]]
        self._starts, self._parts = [], []

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def read(self, n: int = -1) -> bytes | pa.Buffer:
        start = self._at
        stop = self._size if n < 0 else min(start + n, self._size)
        if stop <= start:
            return b""
        self._at = stop
        return self._range(start, stop)

    def _range(self, start: int, stop: int) -> bytes | pa.Buffer:
        base, end = self._end
        if start >= base:
            return end.slice(start - base, stop - start)
        found = self._fetched(start, stop)
        if found is None:
            self._fetch_ahead(start, stop)
            found = self._fetched(start, stop)
        if found is None:
            (found,) = self._storage.fetch(self._path, [start], [stop])
        return found

    def _fetched(self, start: int, stop: int) -> pa.Buffer | None:
        at = bisect_right(self._starts, start) - 1
        if at < 0:
            return None
        inside = start - self._starts[at]
        return self._parts[at].slice(inside, stop - start) if inside + stop - start <= self._parts[at].size else None

    def _fetch_ahead(self, start: int, stop: int) -> None:
        """Fetch the expected range that is asked for, and those behind it, up to a bound."""
        first = next((i for i, (low, high) in enumerate(self._wanted) if low <= start and stop <= high), None)
        if first is None:
            return
        chosen, total = [], 0
        for low, high in self._wanted[first:]:
            if chosen and total + high - low > _AHEAD_BYTES:
                break
            chosen.append((low, high))
            total += high - low
        self._wanted = self._wanted[:first] + self._wanted[first + len(chosen) :]
        chosen.sort()
        lows, highs = [low for low, _ in chosen], [high for _, high in chosen]
        self._starts, self._parts = lows, self._storage.fetch(self._path, lows, highs)

    def close(self) -> None:
        self.closed = True
        self._starts, self._parts = [], []


class CloudFile(pa.PythonFile):
    """A file of an object store, open for reading."""

    def __init__(self, ranges: _Ranges) -> None:
        super().__init__(ranges, mode="r")
        self._ranges = ranges

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Say which ranges will be read, as (first byte, byte behind the last), in the order of reading."""
        self._ranges.expect(ranges)


class _Upload:
    """A file on its way into a store: kept until it is larger than one PUT may be, then sent in parts."""

    def __init__(self, storage: CloudStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._parts: list[bytes] = []
        self._held = 0
        self._size = 0
        self._sink: Any = None
        self.failed = False
        self.closed = False

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._size

    def write(self, content: bytes) -> int:
        part = bytes(content)
        self._parts.append(part)
        self._held += len(part)
        self._size += len(part)
        if self._held > WHOLE_BYTES:
            self._send()
        return len(part)

    def _send(self) -> None:
        import obstore

        if self._sink is None:
            self._sink = self._storage._call(
                "write", "open_writer", self._path, file=self._path, buffer_size=WHOLE_BYTES
            )
        body, self._parts, self._held = b"".join(self._parts), [], 0
        try:
            self._sink.write(body)
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            self.failed = True
            raise cloud_error("write", self._storage.uri, error, file=self._path, determinate=True) from error

    def flush(self) -> None:
        """Keep everything until the file is closed."""

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.failed:
            self._give_up()
            return
        if self._sink is None:
            self._storage.write(self._path, b"".join(self._parts))
            return
        import obstore

        self._send()
        try:
            self._sink.close()
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            # The store may have put it together, and the reply got lost: there as a whole, or not at all.
            found = self._storage.mark(self._path)
            if found is None or found[1] != self._size:
                raise cloud_error("write", self._storage.uri, error, file=self._path, determinate=True) from error

    def _give_up(self) -> None:
        """Let the store forget what was sent of a file that will not be whole."""
        if self._sink is not None:
            with suppress(Exception):  # its parts are deleted by the store's own rule for uploads that do not end
                self._sink.__exit__(OSError, OSError("given up"), None)


class _Output(pa.PythonFile):
    """A file of an object store, open for writing."""

    def __init__(self, upload: _Upload) -> None:
        super().__init__(upload, mode="w")
        self._upload = upload

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        # What is not whole must not appear.
        self._upload.failed = self._upload.failed or kind is not None
        self.close()
