"""Files of a log in an object store: S3, Azure, Google Cloud, or one that speaks the protocol of one of them.

`CloudStorage` is for object stores what `FileStorage` in `storage` is for a disk. `open_storage` gives the one or the
other for a path or URL: logs, dataflows, queries' checkpoints and the sink's tasks open their places by it.

Requests are made by `obstore`, the object store client that delta-rs is built on: plain GET, PUT, HEAD and LIST. Each
is a round trip of some tens of milliseconds, and is paid for, so a file is written by one PUT where it is small, and
read by one GET of its end, which brings the size, the footer, and mostly the whole file. What is read of a larger one
is fetched ahead, in few ranges side by side, once it is known (`expect`).

An entry of a table's log gets its name by a conditional PUT. The client asks again after errors of the store, so what
it says may be about its own first attempt: whether a file of that name is ours is settled by what is in it.

Invariants
----------
1. `put` without `replace` never takes a name that somebody else has, and never denies a name that it took itself. A
   store that cannot promise the first is not written to, unless a single writer is promised.
2. What is returned from a write is in the store as a whole.
3. An error of the network, of permissions or of the store's load is a `StorageError`, whatever was read: only a store
   that answers "no such file" makes it a `DataLossError`.
4. Nothing is ever made in the working directory of the process.
"""

from __future__ import annotations

import os
import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from spark_timely.errors import InvalidOptionError, StorageError, TimelyError, shown
from spark_timely.log.store.storage import (
    PROMISE_HINT,
    FileStorage,
    Gathered,
    checked_options,
    is_promised,
    missing,
    normal_path,
    plain,
)
from spark_timely.log.store.urls import HTTP, account_of, client_options, parse_url
from spark_timely.threads import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spark_timely.log.store.storage import Beside


_T = TypeVar("_T")
WHOLE_BYTES = 8 << 20
"""Up to here a file is written by one PUT."""

_END_BYTES = 128 << 10  # of a file, fetched when it is opened: its footer, or all of it
_HOLE_BYTES = 1 << 20  # read over rather than asked for separately
_AHEAD_BYTES = 32 << 20  # fetched at most before it is asked for
_KEPT_BYTES = 32 << 20  # of entries of the table's log
_MOST_MARKS = 4096
_AT_ONCE = 16  # requests
_DELETED_AT_ONCE = 1000  # files, by one request: as many as S3 takes
_TRIES = 3  # of what may be done twice, where the client gives up at once
# Until a store has answered once it is given up soon: nobody may be there. Later one that is overloaded is waited for.
_FIRST = {
    "retry_timeout": timedelta(seconds=2.5),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2},
}
_FIRST_HTTP = {"connect_timeout": timedelta(seconds=3), "timeout": timedelta(seconds=4)}
_PATIENT: dict[str, Any] = {"retry_timeout": timedelta(seconds=60)}
_PATIENT_HTTP = {"connect_timeout": timedelta(seconds=5)}
# A store copies a large file for longer than the client waits for other answers.
_COPYING_HTTP = {**_PATIENT_HTTP, "timeout": timedelta(minutes=10)}
_COPIED_BYTES = 5_000_000_000  # by one request, as much as S3 copies
_ALLOWING = {"S3": "AWS_ALLOW_HTTP", "Azure": "AZURE_ALLOW_HTTP"}


# delta-rs has a client for HDFS, but a file that it moves takes a name that somebody else has, so no commit of ours
# would exclude another (tried with 1.6.6).
_HDFS = (
    "mount the file system, give the local path and promise singleWriter=true, for such mounts take no hard links; or"
    " keep the log in an object store. The checkpoint of a query may stay there"
)
_AZURE_HINT = "write abfss://container@account.dfs.core.windows.net/… for a log in Azure, or az://container/…"
_INSTEAD = {
    **dict.fromkeys(("hdfs", "webhdfs", "swebhdfs", "viewfs"), _HDFS),
    **dict.fromkeys(("wasb", "wasbs"), _AZURE_HINT),
    **dict.fromkeys(("http", "https"), f"write s3://bucket/…, gs://bucket/…; {_AZURE_HINT}"),
    "s3n": "write s3://bucket/…",
}


def _client(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    """Return storage options as the client takes them: of the store, of HTTP, of how often it tries."""
    store: dict[str, Any] = {}
    http: dict[str, Any] = {}
    retry: dict[str, Any] = {}
    backoff: dict[str, Any] = {}
    for name, value in options.items():  # some
        key = name.lower()
        plain = key.removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
        if plain in HTTP:
            http[plain] = _is_true(value) if plain in _TRUTHS else value
        elif key in ("max_retries", "retry_timeout"):
            retry[key] = _number(name, value) if key == "max_retries" else _seconds(name, value)
        elif (part := key.removeprefix("backoff_config.").removeprefix("backoff.")) in _BACKOFF:
            backoff[part] = _number(name, value) if part == "base" else _seconds(name, value)
        else:
            store[key] = value
    return store, http, retry | ({"backoff": backoff} if backoff else {})


_BACKOFF = frozenset({"init_backoff", "max_backoff", "base"})
_TRUTHS = frozenset({"allow_http", "allow_invalid_certificates", "http1_only", "http2_only", "randomize_addresses"})
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|millis\w*|s|secs?|seconds?|m|mins?|minutes?|h|hours?)?\s*")
_UNITS = {"ms": 0.001, "mi": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _is_true(value: str) -> bool:
    return value.lower() in ("true", "1", "yes", "on", "y", "t")


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


_memories: dict[str, Any] = {}


@lru_cache(maxsize=64)
def _opened(uri: str, options: tuple[tuple[str, str], ...], *, patient: bool, copies: bool = False) -> Any:  # noqa: ANN401 - obstore's classes are not public
    """Return the client of a log's files; one for all that this process does there, so that connections are kept."""
    import obstore
    from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

    config, http, retry = _client(dict(options))
    store: Any = config
    shared: dict[str, Any] = {
        "client_options": {**(_COPYING_HTTP if copies else _PATIENT_HTTP if patient else _FIRST_HTTP), **http},
        "retry_config": {**(_PATIENT if patient else _FIRST), **retry},
    }
    scheme = uri.partition("://")[0].lower()
    found = parse_url(uri)
    # What is given replaces all of this kind that the client itself would find in the environment: this alone.
    allowed = os.environ.get(_ALLOWING.get(found.store, "")) if found is not None else None
    if allowed is not None:
        shared["client_options"].setdefault("allow_http", _is_true(allowed))
    try:
        if scheme == "file":
            return LocalStore(prefix="/" + unquote(urlsplit(uri).path).strip("/"), mkdir=True)
        if scheme == "memory":
            return _memories.setdefault(uri, MemoryStore())
        if found is not None:
            if found.store == "Azure" and (account := account_of(found, store)):
                # Where the URL names Azure's own host, its account is meant, whatever the options are for.
                store = {name: value for name, value in store.items() if "account_name" not in name}
                store["azure_storage_account_name"] = account
            kind: Any = {"S3": S3Store, "Google": GCSStore, "Azure": AzureStore}[found.store]
            return kind(found.bucket, prefix=found.path or None, config=store, **shared)
    except obstore.exceptions.UnknownConfigurationKeyError as error:
        named = re.search(r"key: '([^']*)'", str(error))
        msg = f"could not use a storage option of log {uri!r}: found {named[1] if named else shown(str(error))!r}"
        raise InvalidOptionError(
            msg, hint="name options as object stores' own tools do: docs/how-to/object-stores.md lists them"
        ) from error
    except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
        raise cloud_error(uri, "look into", error) from error
    hint = _INSTEAD.get(scheme, "write s3://, gs:// or abfss:// with the bucket, or a local path")
    msg = f"could not look into log {uri!r}: found an unknown scheme"
    raise StorageError(msg, hint=hint, context={"path": uri, "store": ""}, determinate=True)


# By URL and options: stores that have answered this process, and those that were seen to refuse a name that is taken.
_reached: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
_excluding: set[tuple[str, tuple[tuple[str, str], ...]]] = set()


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
        self._marks: OrderedDict[str, tuple[object, ...]] = OrderedDict()
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._entry_bytes = 0
        self._lock = threading.Lock()
        self._key = uri, tuple(sorted(client_options(uri, self.options).items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.uri, self.options)

    def _call(self, what: str, call: str, *args: Any, file: str = "", **more: Any) -> Any:  # noqa: ANN401
        """Call the client; what it raises, but for files that are missing or there already, is a `StorageError`."""
        import obstore

        # Not at the top: it loads delta-rs, and a process that reads local files alone does without.
        from spark_timely.log.store.delta_calls import delta_call

        key = self._key
        try:
            with delta_call(self.uri):
                # Of a large file the first byte tells that somebody is there; all of it may take long.
                patient = key in _reached or file.endswith(".parquet")
                store = _opened(*key, patient=patient, copies=patient and call == "copy")
                answer = getattr(obstore, call)(store, *args, **more)
        except TimelyError:
            raise
        except FileNotFoundError as error:
            # A write finds no bucket, or no upload: one whose completion was done, and its reply got lost.
            if call == "put" or _NO_PLACE.search(str(error)):
                raise cloud_error(self.uri, what, error, file=file) from error
            _reached.add(key)
            raise
        except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
            _reached.add(key)
            raise
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise cloud_error(self.uri, what, error, file=file) from error
        _reached.add(key)
        return answer

    def full(self, path: str) -> str:
        """Return the URL of a file, as other programs take it."""
        return f"{self.uri}/{path}" if path else self.uri

    def read(self, path: str) -> pa.Buffer:
        """Return a whole file; raises `DataLossError` if there is none."""
        try:
            found, content = self._get(path)
        except FileNotFoundError as error:
            raise missing(self.uri, path) from error
        self._note(path, found.meta)
        return content

    def _get(self, path: str, options: Mapping[str, object] | None = None) -> tuple[Any, pa.Buffer]:
        """Return the client's answer to a GET, and its body."""
        import obstore

        def get() -> tuple[Any, pa.Buffer]:
            found = self._call("read", "get", path, file=path, options=options)
            try:
                return found, pa.py_buffer(found.bytes())
            except (obstore.exceptions.BaseError, OSError, ValueError) as error:
                raise cloud_error(self.uri, "read", error, file=path) from error

        return self._again(get)

    def _again(self, act: Callable[[], _T]) -> _T:
        """Do what may be done twice; again where an answer broke off, which the client takes for the last word."""
        for _ in range(_TRIES - 1):
            try:
                return act()
            except StorageError as error:
                if self.options.get("max_retries") == "0" or not _broke_off(error):
                    raise
        return act()

    def find(self, path: str) -> bytes | None:
        """Return a whole file; None if there is none. Entries of the table's log, which never change, are kept."""
        try:
            found, body = self._get(path)
        except FileNotFoundError:
            self._marks.pop(path, None)
            return None
        content = bytes(body)
        self._note(path, found.meta)
        self._keep(path, content)
        return content

    def _note(self, path: str, meta: Mapping[str, Any]) -> None:
        if path.startswith("_delta_log/"):
            with self._lock:
                self._marks[path] = _mark(meta)
                while len(self._marks) > _MOST_MARKS:
                    self._marks.popitem(last=False)

    def _keep(self, path: str, content: bytes) -> None:
        if not path.startswith("_delta_log/") or not path.endswith(".json"):
            return
        with self._lock:
            before = self._entries.pop(path, b"")
            self._entries[path] = content
            self._entry_bytes += len(content) - len(before)
            while self._entry_bytes > _KEPT_BYTES:
                self._entry_bytes -= len(self._entries.popitem(last=False)[1])

    def kept(self, path: str) -> bytes | None:
        """Return an entry of the table's log as this object has read or written it; None where it has not."""
        with self._lock:
            return self._entries.get(path)

    def forget(self) -> None:
        """Keep no entry and no mark any longer: another table may be in the place of the one that they are of."""
        with self._lock:
            self._entries.clear()
            self._marks.clear()
            self._entry_bytes = 0

    def copy_to(self, paths: Sequence[str], folder: str) -> None:
        """Fetch files side by side into a folder of a local disk, under the same paths; entries that are kept are not.

        Raises
        ------
        FileNotFoundError
            If one of them is not there.
        """

        def copy(path: str) -> None:
            content = self.kept(path)
            if content is None:
                content = self.find(path)
            if content is None:
                raise FileNotFoundError(path)
            with open(f"{folder}/{path}", "xb") as file:
                file.write(content)

        at_once(copy, list(paths), _AT_ONCE)

    def open_input(self, path: str) -> CloudFile:
        """Open a file for reading anywhere in it; raises `DataLossError` if there is none."""
        try:
            return CloudFile(_Ranges(self, path), mode="r")
        except FileNotFoundError as error:
            raise missing(self.uri, path) from error

    def end_of(self, path: str) -> tuple[int, int, pa.Buffer]:
        """Return the size of a file, and its last bytes with the place where they begin."""
        # Azure knows no ranges that are counted from the end.
        url = parse_url(self.uri)
        if url is not None and url.store == "Azure":
            found, content = self._get(path, options={"range": (0, _END_BYTES)})
            size = int(found.meta["size"])
            if size > _END_BYTES:
                start = max(size - _END_BYTES, 0)
                return size, start, self.fetch(path, [start], [size])[0]
            return size, 0, content
        found, content = self._get(path, options={"range": {"suffix": _END_BYTES}})
        start, stop = found.range
        size = int(found.meta["size"])
        if stop != size:
            raise cloud_error(self.uri, "read", ValueError(f"bytes {start} to {stop} of {size}"), file=path)
        return size, int(start), content

    def fetch(self, path: str, starts: Sequence[int], stops: Sequence[int]) -> list[pa.Buffer]:
        """Return ranges of a file, fetched side by side; those that lie near each other as one."""
        try:
            found = self._again(
                lambda: self._call(
                    "read", "get_ranges", path, file=path, starts=starts, ends=stops, coalesce=_HOLE_BYTES
                )
            )
        except FileNotFoundError as error:
            raise missing(self.uri, path) from error
        parts = [pa.py_buffer(part) for part in found]
        for start, stop, part in zip(starts, stops, parts, strict=True):
            if part.size != stop - start:
                raise cloud_error(self.uri, "read", ValueError(f"{part.size} bytes of {stop - start}"), file=path)
        return parts

    def open_output(self, path: str) -> pa.NativeFile:
        """Open a new file for writing; it appears as a whole when it is closed, and not at all after an error."""
        # Sent by one PUT, or in parts where it is larger.
        return _Output(Gathered(partial(self.write, path)), mode="w")

    def write(self, path: str, content: bytes | pa.Buffer) -> None:
        """Write a whole file."""
        if len(content) > WHOLE_BYTES:
            self._send(path, content)
            return
        try:
            made = self._call("write", "put", path, _body_of(content), file=path, use_multipart=False)
        except StorageError as error:
            # No entry names it yet, so it is not part of the log, whatever became of it.
            error.context["determinate"] = True
            raise
        self._note(path, {**made, "size": len(content)})

    def _send(self, path: str, content: bytes | pa.Buffer) -> None:
        """Write a large file in parts; what was sent of one that fails is deleted, where the store still answers."""
        try:
            self._call("write", "put", path, _body_of(content), file=path, use_multipart=True, chunk_size=WHOLE_BYTES)
        except StorageError as error:
            # The store may have put it together, and the reply got lost: it is there as a whole, or not at all.
            found = None
            with suppress(StorageError):
                found = self.mark(path)
            if found is None or found[1] != len(content):
                error.context["determinate"] = True
                raise

    def put(
        self, path: str, content: bytes, *, replace: bool, always: bool = False, beside: Beside | None = None
    ) -> None:
        """Give a file its name as a whole, if nobody has that name or it may be replaced.

        A URL leads to no other place while a process lives: nothing is looked for beside it.

        Raises
        ------
        FileExistsError
            If there is one, and it may not be replaced.
        StorageError
            If it could not be written. Unless `determinate`, it may have its name all the same.
        """
        del always, beside
        if replace or is_promised(self.options):
            if not replace and self.exists(path):
                raise FileExistsError(path)
            try:
                self.write(path, content)
            except StorageError as error:
                raise self._unclear(error) from error
        else:
            self._put_new(path, content)
        self._keep(path, content)

    def give_name(self, path: str, name: str) -> None:
        """Copy a file within the store, which has no other way to name it; whatever has the name is replaced.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        StorageError

        Notes
        -----
        Cost: one request; the bytes stay in the store. A file of more than 5 GB comes here and goes back.
        """
        try:
            self._again(lambda: self._call("write", "copy", path, name, file=name))
        except StorageError:
            found = self.mark(path)
            if found is None or int(str(found[-1])) <= _COPIED_BYTES:
                raise
            self._copy_through_here(path, name)

    def _copy_through_here(self, path: str, name: str) -> None:
        import obstore

        whole = self._call("read", "get", path, file=path)
        try:
            with self._call("write", "open_writer", name, file=name, buffer_size=WHOLE_BYTES) as writer:
                for part in whole.stream(WHOLE_BYTES):
                    writer.write(part)
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise cloud_error(self.uri, "write", error, file=name) from error

    def _unclear(self, error: StorageError) -> StorageError:
        """Return an error behind a put that may have happened."""
        context = {name: value for name, value in error.context.items() if name != "determinate"}
        return StorageError(error.message, hint=error.hint, context=context, determinate=False)

    def _put_new(self, path: str, content: bytes) -> None:
        import obstore

        found: bytes | None
        unclear = False  # whether an attempt may have been done

        def create() -> Any:  # noqa: ANN401 - obstore's classes are not public
            nonlocal unclear
            try:
                return self._create(path, content)
            except StorageError as error:
                unclear = unclear or not error.determinate
                raise

        try:
            # Twice is once: of all that have this name in mind one gets it, and what is in it says who.
            made = self._again(create)
        except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError) as error:
            # It may be our own attempt whose reply got lost.
            try:
                found = self.find(path)
            except StorageError as unread:
                # A caller that takes this for a refusal would delete what a file of ours names.
                raise self._unclear(unread) from error
            if found != content:
                raise FileExistsError(path) from error
            return
        except StorageError as error:
            if not unclear:
                raise
            found = None
            with suppress(StorageError):
                found = self.find(path)
            if found is None and error.determinate:
                # What a later attempt was refused for tells nothing of an earlier one.
                raise self._unclear(error) from error
            if found is None:
                raise
            if found != content:
                raise FileExistsError(path) from error
            return
        self._note(path, {**made, "size": len(content)})

    def _create(self, path: str, content: bytes) -> Any:  # noqa: ANN401 - obstore's classes are not public
        """Ask the store to make a file unless there is one."""
        return self._call("write", "put", path, content, file=path, mode="create", use_multipart=False)

    def check_excludes(self, path: str) -> bool:
        """Refuse a store that lets a second writer take a name that is taken. Once in a process, for a log.

        Parameters
        ----------
        path : str
            A small file that is there: it is put again as it is, with the condition that nobody has the name.

        Returns
        -------
        bool
            Whether it was there, as far as that was looked at. A file that was deleted meanwhile is there again.

        Raises
        ------
        StorageError
            If that succeeded twice, or the store does not know the condition. Nothing was changed.
        """
        import obstore

        if is_promised(self.options) or self._key in _excluding:
            return True
        content = self.kept(path) or self.find(path)
        if content is None:
            return False  # deleted with all the rest
        for turn in range(2):  # where it succeeds once, the file may have been deleted a moment ago
            try:
                # Whatever became of an attempt whose reply got lost, the file is as it was.
                self._again(lambda: self._create(path, content))
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                _excluding.add(self._key)
                return turn == 0
            except StorageError as error:
                if error.context.get("store") not in ("NotImplemented", "501"):
                    raise
                raise self._not_excluding(error.context["store"]) from error
        raise self._not_excluding(None)

    def _not_excluding(self, found: object) -> StorageError:
        how = "ignores conditional puts" if found is None else f"refuses conditional puts ({found})"
        return StorageError(
            f"could not write to log {self.uri!r}: found a store that {how}, by which a commit takes its name only if"
            " nobody else has it",
            hint=f"use a store, or a version of it, that has them; {PROMISE_HINT}",
            context={"path": self.uri, "option": "singleWriter"},
            determinate=True,
        )

    def flush(self, paths: Iterable[str], *, always: bool = False) -> None:
        """Do nothing: what a store has taken, it keeps."""

    def flush_place(self) -> None:
        """Do nothing: there are no folders."""

    def flush_problem(self) -> str | None:
        """Return None: what a store has taken, it keeps."""
        return None

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens if there is none."""
        with suppress(FileNotFoundError):
            self._again(lambda: self._call("delete", "delete", path, file=path))
        self._marks.pop(path, None)

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete files, many by one request where the store knows that; nothing happens about those not there."""
        for first in range(0, len(paths), _DELETED_AT_ONCE):
            part = list(paths[first : first + _DELETED_AT_ONCE])
            try:
                self._again(lambda: self._call("delete", "delete", part))  # noqa: B023 - called in this turn
            except FileNotFoundError:
                # A store that deletes one by one, and stops there.
                for path in part:
                    self.delete(path)
            for path in part:
                self._marks.pop(path, None)

    def sizes(self, directory: str) -> dict[str, tuple[int, float]]:
        """Return of each file in a directory its bytes, and when it was written, by the store's clock."""
        return self._listed(directory, "")

    def exists(self, path: str) -> bool:
        """Return whether there is a file of that path."""
        return self.mark(path) is not None

    def mark(self, path: str) -> tuple[object, ...] | None:
        """Return what tells a file from another one in its place; None: none there. One HEAD."""
        try:
            found = self._again(lambda: self._call("look for", "head", path, file=path))
        except FileNotFoundError:
            self._marks.pop(path, None)
            return None
        self._note(path, found)
        return _mark(found)

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
        found = self._again(lambda: self._call("look into", "list_with_delimiter", directory or None))
        paths = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
        return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})

    def folders(self, directory: str = "") -> list[str]:
        """Return the names of the directories in a directory."""
        found = self._again(lambda: self._call("look into", "list_with_delimiter", directory or None))
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])

    def ages(self, directory: str) -> dict[str, float]:
        """Return the files of a directory and how many seconds they are older than its newest, by the store's clock."""
        found = self._aged(directory, "")
        newest = max(found.values(), default=0.0)
        return {name: newest - at for name, at in found.items()}

    def _aged(self, directory: str, after: str) -> dict[str, float]:
        return {name: at for name, (_, at) in self._listed(directory, after).items()}

    def _listed(self, directory: str, after: str) -> dict[str, tuple[int, float]]:
        """Return the files of a directory behind a name: bytes, and when each was written."""
        import obstore

        offset = f"{directory}/{after}" if after else None

        def look() -> dict[str, tuple[int, float]]:
            listed = self._call("look into", "list", directory, offset=offset, chunk_size=1000)
            found: dict[str, tuple[int, float]] = {}
            try:
                for part in listed:
                    for meta in part:
                        below = meta["path"].removeprefix(f"{directory}/")
                        # Some stores pay no heed to where a list is to begin.
                        if "/" not in below and below > after:
                            found[below] = (int(meta["size"]), meta["last_modified"].timestamp())
            except (obstore.exceptions.BaseError, OSError, ValueError) as error:
                raise cloud_error(self.uri, "look into", error) from error
            return found

        return self._again(look)


def _body_of(content: bytes | pa.Buffer) -> Any:  # noqa: ANN401 - obstore's classes are not public
    """Return what is to be written as the client takes it, without a copy."""
    import obstore

    return obstore.Bytes(memoryview(content).cast("B"))


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
        self._ahead = _AHEAD_BYTES
        self.closed = False

    def expect(self, ranges: Sequence[tuple[int, int]], *, at_once: bool) -> None:
        """Say which ranges will be read, in this order; they are fetched together, some ahead."""
        base = self._end[0]
        self._wanted = [(start, min(stop, base)) for start, stop in ranges if start < base]
        self._starts, self._parts = [], []
        self._ahead = self._size if at_once else _AHEAD_BYTES

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
        if stop > base:
            return bytes(self._range(start, base)) + bytes(end.slice(0, stop - base))
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
            if not self._wanted and not self._parts and self._size <= WHOLE_BYTES:
                # Nobody said what is read of it: of a small file, all.
                self._starts, self._parts = [0], self._storage.fetch(self._path, [0], [self._end[0]])
            return
        chosen: list[tuple[int, int]] = []
        total = 0
        for low, high in self._wanted[first:]:
            if chosen and total + high - low > self._ahead:
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


class CloudFile(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    """A file of an object store, open for reading."""

    def __init__(self, ranges: _Ranges, mode: str) -> None:
        del mode  # taken by pyarrow before this
        self._ranges = ranges

    def expect(self, ranges: Sequence[tuple[int, int]], *, at_once: bool = False) -> None:
        """Say which ranges will be read, as (first byte, byte behind the last), in the order of reading.

        They are fetched together when the first is read; all `at_once`, or some ahead of what is read.
        """
        self._ranges.expect(ranges, at_once=at_once)


class _Output(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    """A file of an object store, open for writing."""

    def __init__(self, whole: Gathered, mode: str) -> None:
        del mode  # taken by pyarrow before this
        self._whole = whole

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        # What is not whole must not appear.
        self._whole.failed = self._whole.failed or kind is not None
        self.close()


def open_storage(
    path: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None, *, literal: bool = False
) -> FileStorage | CloudStorage:
    """Return access to the files of the log at a path or URL, or of a checkpoint, whose path is `literal`.

    Examples
    --------
    >>> open_storage("/tmp/log").local
    True
    """
    where = normal_path(path, literal=literal)
    return (CloudStorage if "://" in where else FileStorage)(where, storage_options)


# What cloud stores say, in the order in which one may hold another; what that means, and what to do.
_NO_CREDENTIALS = "no credentials"
_CAUSES = (
    (
        "URL scheme is not allowed|BadScheme",
        "an endpoint without encryption",
        "set the storage option allow_http=true, or give an https endpoint",
    ),
    (
        "Failed to parse config",
        "storage options that cannot be read",
        "correct their values: numbers are digits, durations have a unit",
    ),
    (
        # Asked last, where a machine may get some from its cloud.
        r"loading credentials|token request|169\.254\.169\.254|/latest/api/token|/latest/meta-data",
        _NO_CREDENTIALS,
        "give them as storage options, or in the environment as the store's own tools take them",
    ),
    ("onnection ?[rR]efused", "that nobody answers", "check the endpoint and that the store runs"),
    ("dns error|lookup address", "no host of that name", "check the endpoint, the bucket, the region and the network"),
    ("timed ?out|TimedOut|timeout|deadline", "no answer in time", "check the network and the endpoint, then try again"),
    ("NoSuchBucket|BucketNotFound|ContainerNotFound", "no such bucket", "check its name, the region and the endpoint"),
    ("SlowDown|ServerBusy|\\b503 ", "that the store is overloaded", "try again later, or from fewer processes"),
    ("40[13] |Forbidden|Unauthorized|AccessDenied", "access denied", "check the credentials and what they may do"),
    (
        "error sending request|request or response body error",
        "a connection that broke off",
        "check the network and the endpoint, then try again",
    ),
)
_NO_PLACE = re.compile(r"NoSuchBucket|ContainerNotFound|BucketNotFound|bucket does not exist")
_HOST_OF_URL = re.compile(r"https?://([^/\s]+)")
# S3 is asked for deletions in bulk: what became of each is said in the client's words.
_CODE = re.compile(r"(?:<Code>\s*|\(code: )([A-Za-z0-9_.]+)\s*(?:</Code>|\))")
_SAID = re.compile(r"<Message>\s*([^<]+?)\s*</Message>")
_STATUS = re.compile(r"status(?: code)?:? (\d{3})\b|\b([45]\d\d) [A-Z][a-z]")
# What the client says of its own settings.
_HABIT = re.compile(r"retry_timeout: [^\s,]+")
_TRIED_AGAIN = re.compile(r"after [1-9]\d* retries")
_NOT_SENT = re.compile(r"onnection refused|ConnectionRefused|dns error|lookup address")
# An answer that broke off, unlike these, is no reason for the client to ask again.
_TIMED_OUT = re.compile(r"timed ?out|TimedOut|timeout|deadline")
_CHECK = "check the path, the permissions and the options of the storage, then try again"


def _broke_off(error: StorageError) -> bool:
    """Whether a store's answer was cut short, and the client did not ask again."""
    text = _HABIT.sub("", str(error.__cause__))
    answer = text.partition("Debug source:")[0]
    said = _CODE.search(answer) or _STATUS.search(answer) or _TRIED_AGAIN.search(answer)
    return not said and not _NOT_SENT.search(text) and not _TIMED_OUT.search(text) and "HTTP error" in answer


def cloud_error(uri: str, what: str, error: Exception, *, file: str = "") -> StorageError:
    """Return the error for what an object store, or its client, refused or could not do.

    Parameters
    ----------
    uri : str
        Of the log.
    what : str
        What was attempted: "read", "write", "look into" …
    error : Exception
        Of `obstore`. Its text holds the store's answer, the URL that was asked, and a dump of the client's state.
    file : str
        Relative to the log.

    Notes
    -----
    It is `determinate` where the first answer showed that nothing was done. Where the client asked again, an earlier
    attempt may have been done.

    Examples
    --------
    >>> cloud_error("s3://b/x", "read", OSError("status code: 403 Forbidden: <Code>Odd</Code>")).message
    "could not read log 's3://b/x': found Odd: access denied, status=403"
    """
    text = _HABIT.sub("", str(error))
    answer = text.partition("Debug source:")[0]
    found, hint = "", _CHECK
    for sign, cause, cure in _CAUSES:
        if re.search(sign, text):
            found, hint = cause, cure
            break
    code, said, status, asked = (pattern.search(answer) for pattern in (_CODE, _SAID, _STATUS, _HOST_OF_URL))
    number = status and (status[1] or status[2])
    if not found:
        found = shown(said[1]) if said else plain(OSError(answer))
    if code is not None:
        found = f"{code[1]}: {found}"
    if number:
        found += f", status={number}"
    if asked is not None and _NO_CREDENTIALS not in found:
        found += f", host={asked[1]!r}"
    where = f"file {file!r} of log {uri!r}" if file else f"log {uri!r}"
    sure = isinstance(error, TypeError | ValueError) or (number or "").startswith("4") or bool(_NOT_SENT.search(text))
    return StorageError(
        f"could not {what} {where}: found {found}",
        hint=hint,
        context={"path": uri, **({"file": file} if file else {}), "store": code[1] if code else number or ""},
        determinate=what not in ("write", "put") or (sure and not _TRIED_AGAIN.search(answer)),
    )
