"""Access to the files of a log by relative path: read, write, list, delete, flush; on a local disk or in memory.

`Storage` is the interface: stores, readers and writers of Parquet files, and checkpoints of queries use it. Here are
the one of a local disk, which goes through pyarrow's own file system, and the one of this process. Object stores are in
`cloud`, which also opens what a path or URL names. (A *store*, in `base`, is above: it knows commits of a table.)

A commit of a Delta table is a file that takes its name only if nobody else has it. On a local disk that is a hard
link, in a cloud store a conditional put. Databricks volumes, and file systems such as FAT or some network mounts,
have neither: there the file is renamed after a look, and between the look and the rename another writer may have
come. A user who knows that only one process at a time writes to the log, compaction and the command line included,
may promise so among the storage options; then it is written that way.

Invariants
----------
1. A path given to a method is relative to the log; none is ever written twice.
2. A file becomes part of the log only by a commit that names it, so a half-written one harms nobody.
3. A writer of a file flushes it before a commit names it: what is acknowledged outlasts a power cut. A local file
   has two parts that the system writes at its leisure: what is in it, and its name in its folder. After a flush both
   are on the disk, or the place has said that it cannot do so.
4. Without the promise of a single writer nothing is written to a place that is known to lack hard links and
   conditional puts. Reading needs no promise.
"""

from __future__ import annotations

import errno
import math
import os
import re
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs as pafs

from spark_timely.conf.kinds import in_utf8
from spark_timely.errors import DataLossError, InvalidOptionError, InvalidUsageError, StorageError, shown
from spark_timely.log.store.urls import check_names, clean_url, parse_url
from spark_timely.masking import keep_secret, masked_logger, secret_in_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""What a file system says that cannot flush a file or a folder: network mounts, volumes."""

NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""What a file system without hard links says."""


def flush_file(path: str, /) -> None:
    """Put what is in a file on the disk.

    Raises
    ------
    OSError
        If it is not there, or the disk failed. See `UNSUPPORTED`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     flush_file(file.name)
    """
    _flush(path, os.O_RDONLY)


def flush_folder(path: str, /) -> None:
    """Put the names in a folder on the disk: those that came, and that others went.

    Raises
    ------
    OSError
        If it is not there, or the disk failed. See `UNSUPPORTED`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     flush_folder(folder)
    """
    _flush(path, os.O_RDONLY | os.O_DIRECTORY)


def _flush(path: str, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


logger = masked_logger(__name__)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_VOLUME = re.compile(r"dbfs:/Volumes/", re.IGNORECASE)
_BEHIND = re.compile(r"[?#]")
_HOST = re.compile(r"[\w.-]+")
# Tried with delta-rs 1.6.6: it writes a table's log at such a path, and looks for it at the decoded one,
# with a backslash for a slash; no way to spell the path as a URL makes both agree.
_DECODED = re.compile(r"%[0-9A-Fa-f]{2}|\\")
# What a table's log is made of. Staged files, of commits that a kill cut short, have other names.
_TABLE_ENTRY = re.compile(r"\d{20}\.(json|crc|checkpoint\..+|\d{20}\.compacted\.json)|_last_checkpoint")


_NOT_FLUSHED = "the file system cannot flush folders: a power cut can take the latest commits"
_warned: set[str] = set()

# Errors of cloud stores are trees drawn in colours, over several lines.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def normal_path(path: str | os.PathLike[str], *, literal: bool = False) -> str:
    """Return a path as the library uses it: absolute for local files and volumes, other URLs without needless slashes.

    Schemes are in lower case, and so are accounts of Azure.

    Parameters
    ----------
    path : str or path
    literal : bool
        Whether ``%20`` and ``~`` are part of a name, in a `file:` URL too: so Spark reads its own paths, such as a
        checkpoint's.

    Raises
    ------
    InvalidUsageError
        If it is empty or no path, or a local one that holds a backslash or a `%` with two hexadecimal
        digits behind: part of it would be taken for another path. If a scheme other than `file:` is
        followed by one slash only, a `file:` URL names a host, or another URL holds credentials, names no bucket, or
        holds a `?` or a `#`.

    Examples
    --------
    >>> normal_path("file:///tmp/a%20b/")
    '/tmp/a b'
    >>> normal_path("S3://bucket//log/")
    's3://bucket/log'
    >>> normal_path("file:/tmp/a#b?c")
    '/tmp/a#b?c'
    >>> normal_path("dbfs:/Volumes/main/raw/logs/a")
    '/Volumes/main/raw/logs/a'
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str) or not text.strip():
        msg = f"could not use a path: found path={shown(path)}"
        raise InvalidUsageError(msg, hint="give the path of the log as a text")
    if "\0" in text:
        raise _unusable(text, "the character NUL in it", "give the path without it: no file system allows it")
    if not in_utf8(text):
        msg = f"could not use path {shown(text)}: found a name that is no text in UTF-8"
        raise InvalidUsageError(msg, hint="rename the folder: the table's library takes no other names")
    if text[:5].lower() == "file:":
        text = _path_of_file_url(text, literal=literal)
    if _VOLUME.match(text):
        text = text[5:]  # Spark's name of a path that every process sees
    if one := _ONE_SLASH.match(text):
        hint = f"write {one[1]}://… with the bucket or host, or a local path"
        if one[1].lower() == "dbfs":
            hint = "give the path as Python sees it: /Volumes/… or /dbfs/…"
        raise _unusable(text, f"the scheme {one[1]!r} with one slash", hint)
    if _URL.match(text):
        if secret := secret_in_url(text):
            hint = (
                "give credentials as options of the storage (`storage.…` in Spark, storage_options in Python,"
                " --storage on the command line): a path is written into logs and checkpoints"
            )
            raise _unusable(text, f"{secret} in it", hint)
        return _store_url(text, literal=literal)
    where = os.path.abspath(text if literal else os.path.expanduser(text))
    odd = None if literal else _DECODED.search(where)
    if odd:
        hint = "rename the directory: Delta's own library takes this for an escaped character and looks elsewhere"
        raise _unusable(where, f"{odd[0]!r} in it", hint)
    return where


def _unusable(path: str, found: str, hint: str) -> InvalidUsageError:
    return InvalidUsageError(f"could not use path {path!r}: found {found}", hint=hint, context={"path": path})


def _store_url(url: str, *, literal: bool) -> str:
    """Return a URL that is no file's as the library uses it; refuse one that names another place than it seems to."""
    parsed = parse_url(url)
    if parsed is not None and not parsed.bucket:
        raise _unusable(url, "no bucket in it", "write two slashes behind the scheme, then the bucket")
    # delta-rs takes what is behind them for no part of the path.
    odd = None if literal or parsed is None else _BEHIND.search(url)
    if odd is not None:
        shown = f"{url[: odd.start()]}{odd[0]}…"  # what is behind it may be anything, a secret too
        raise _unusable(shown, f"{odd[0]!r} in it", "name the folder without it: in a URL the path ends there")
    return clean_url(url)


def _path_of_file_url(url: str, *, literal: bool) -> str:
    """Return the path of a `file:` URL; `#` and `?` are part of it, as they are for Spark."""
    path = url[5:]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        path = slash + rest
        if host.lower() not in ("", "localhost"):
            # What is no plain name may hold a user, a password or a key.
            named = host if _HOST.fullmatch(host) else "***"
            given = f"file://{named}{slash}{rest}"
            hint = "write file:///… with three slashes for a local path; mount a share to use it"
            raise _unusable(given, f"the host {named!r} in it", hint)
    if not path:
        raise _unusable(url, "nothing behind the scheme", "write file:///… and the path")
    # Two slashes at the start of a path may mean something else to a system.
    return re.sub("^/+", "/", path if literal else unquote(path))


class Storage(Protocol):
    """Access to the files of one log."""

    @property
    def uri(self) -> str:
        """Absolute path or URL of the log."""

    @property
    def local(self) -> bool:
        """Whether the files are near: on a local disk, or in this process."""

    def read(self, path: str) -> pa.Buffer:
        """Return a whole file; raises `DataLossError` if there is none."""

    def find(self, path: str) -> bytes | None:
        """Return a whole file; None if there is none."""

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for reading anywhere in it; raises `DataLossError` if there is none."""

    def open_output(self, path: str) -> pa.NativeFile:
        """Open a new file for writing; directories are made."""

    def write(self, path: str, content: bytes | pa.Buffer) -> None:
        """Write a whole file."""

    def flush(self, paths: Iterable[str], *, always: bool = False) -> None:
        """Make files that were written, and their names, outlast a power cut, where this is left to us."""

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens if there is none."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete files, with few requests; nothing happens about those that are not there."""

    def sizes(self, directory: str) -> Mapping[str, tuple[int, float]]:
        """Return of each file in a directory its bytes, and when it was written: seconds since 1970, by its clock."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file of that path."""

    def names(self, directory: str = "", *, after: str = "") -> list[str]:
        """Return the names of files and directories in a directory; none if there is no such directory.

        With `after` those behind it alone, where directories may be left out.
        """


Beside: TypeAlias = "Mapping[str, tuple[object, ...] | None]"
"""Files that have to be there, and their marks where these are known."""


class OtherPlaceError(Exception):
    """Another folder is in the place of the one that was meant. Nothing was put."""


class TableStorage(Storage, Protocol):
    """Access to the files of one log whose table is on a disk or in an object store, not in this process."""

    @property
    def options(self) -> Mapping[str, str]:
        """Storage options as they were given."""

    def full(self, path: str) -> str:
        """Return the absolute path or URL of a file, as other programs take it."""

    def put(
        self, path: str, content: bytes, *, replace: bool, always: bool = False, beside: Beside | None = None
    ) -> None:
        """Give a file its name as a whole, if nobody has that name or it may be replaced.

        Parameters
        ----------
        path : str
            In a folder that is there.
        content : bytes
        replace : bool
            Whether a file of that name may be there; it is there or replaced as a whole at every moment.
        always : bool
            Whether to flush although somebody wishes otherwise.
        beside : Beside, optional
            Files that are in the place that is meant. On a local disk another folder may take the log's place at any
            moment: the file is put where these are, or not at all.

        Raises
        ------
        OtherPlaceError
            If one of them is not there. Nothing was put. `OSError` if one went at that very moment: it may have been.
        FileExistsError
            If there is one, and it may not be replaced.
        OSError
            If it could not be given its name.
        StorageError
            If it could not be written, or flushed. Unless `determinate`, it may have its name all the same.
        """

    def give_name(self, path: str, name: str) -> None:
        """Give a whole file a name that nobody has; whether it has its old one too is left open.

        Parameters
        ----------
        path : str
        name : str
            In a folder that is there.

        Raises
        ------
        FileExistsError
            On a disk, if there is a file of that name. A store replaces it: use names that nobody else gives.
        FileNotFoundError
            If there is no such file.
        OSError, StorageError
            If that could not be done.
        """

    def mark(self, path: str) -> tuple[object, ...] | None:
        """Return what tells a file from another one in its place, as far as the storage knows; None: none there."""

    def known_mark(self, path: str) -> tuple[object, ...] | None:
        """Return the mark of a file that this object has just read or written, where that saves a request."""

    def kept(self, path: str) -> bytes | None:
        """Return an entry of the table's log as this object has read or written it, where that saves a request."""

    def forget(self) -> None:
        """Keep no entry and no mark any longer: another table may be in the place of the one that they are of."""

    def copy_to(self, paths: Sequence[str], folder: str) -> None:
        """Put files, or links to them, into a folder of a local disk, under the same paths.

        Raises
        ------
        FileNotFoundError
            If one of them is not there.
        """

    def ages(self, directory: str) -> Mapping[str, float]:
        """Return the files of a directory, and how many seconds each is older than the newest, by the store's clock.

        Where entries that are not behind may be deleted at once, as on a local disk, that is infinity.
        """

    def folders(self, directory: str = "") -> list[str]:
        """Return the names of the directories in a directory; none if it may not be looked into."""

    def flush_place(self) -> None:
        """Make the name of the log's own folder outlast a power cut, where this is left to us."""

    def flush_problem(self) -> str | None:
        """Return why a commit would not outlast a power cut here; None where it does."""


class FileStorage:
    """Files below a local directory.

    Parameters
    ----------
    uri : str
        As `normal_path` gives it.
    options : mapping, optional
        Of them only ours matter here: see `promised`.

    Attributes
    ----------
    uri : str
        Absolute path of the log.
    local : bool
        True: the log is near to read, and has folders of its own.
    options : dict

    Notes
    -----
    Picklable: the file system is opened where it is used.
    """

    local = True

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self.uri = uri
        self.options = checked_options(options)
        self._fs: pafs.FileSystem | None = None
        self._made: set[str] = set()
        self._lasting: set[str] = set()  # folders whose names were flushed

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.uri, self.options)

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The pyarrow file system; paths in it are what `full` gives."""
        if self._fs is None:
            self._fs = pafs.LocalFileSystem(use_mmap=False)
        return self._fs

    def full(self, path: str) -> str:
        """Return the absolute path of a file, as other programs take it."""
        return f"{self.uri}/{path}"

    def read(self, path: str) -> pa.Buffer:
        """Return a whole file."""
        with self.open_input(path) as source:
            try:
                return source.read_buffer()
            except OSError as error:
                raise _unreadable(self.uri, path, error) from error

    def find(self, path: str) -> bytes | None:
        """Return a whole file; None if there is none."""
        # To look costs less than an error.
        if not os.path.exists(self.full(path)):
            return None
        try:
            return bytes(self.read(path))
        except DataLossError:
            return None

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for reading anywhere in it."""
        try:
            return self.filesystem.open_input_file(self.full(path))
        except FileNotFoundError as error:
            raise missing(self.uri, path) from error
        except OSError as error:
            raise _unreadable(self.uri, path, error) from error

    def open_output(self, path: str) -> pa.NativeFile:
        """Open a new file for writing."""
        try:
            parent = os.path.dirname(self.full(path))
            if parent not in self._made:
                os.makedirs(parent, exist_ok=True)
                self._made.add(parent)
            return self.filesystem.open_output_stream(self.full(path))
        except FileNotFoundError:
            # The directory was removed meanwhile: make it again, once.
            self._lasting.clear()
            os.makedirs(os.path.dirname(self.full(path)), exist_ok=True)
            return self.filesystem.open_output_stream(self.full(path))
        except OSError as error:
            raise not_written(self.uri, path, error) from error

    def write(self, path: str, content: bytes | pa.Buffer) -> None:
        """Write a whole file."""
        try:
            with self.open_output(path) as sink:
                sink.write(content)
        except OSError as error:
            raise not_written(self.uri, path, error) from error

    def flush(self, paths: Iterable[str], *, always: bool = False) -> None:
        """Make files that were written, and their names, outlast a power cut.

        Where the file system cannot do it, or somebody wishes otherwise
        (`flush=False`), nothing happens; the first is logged once.

        Parameters
        ----------
        paths : iterable of str
            Files or folders; an empty text is the log itself.
        always : bool
            Whether to flush although somebody wishes otherwise: before something is deleted that the files replace.

        Raises
        ------
        StorageError
            If one of them is not there, or the disk failed.

        Notes
        -----
        Cost: one call per file, and one per folder: some tenths of a millisecond each on a local SSD.
        """
        if not (always or is_flushed(self.options)):
            return
        names = list(dict.fromkeys(paths))
        files = [name for name in names if name and not os.path.isdir(self.full(name))]
        folders = {os.path.dirname(name) for name in files} | (set(names) - set(files))
        for name in files:
            self.flush_content(name)
        # The names of the folders themselves, once.
        new = {up for name in folders for up in _upwards(name)} - self._lasting
        for name in sorted(folders | {os.path.dirname(up) for up in new}, key=len, reverse=True):
            self._flush(flush_folder, self.full(name) if name else self.uri)
        self._lasting |= new

    def flush_content(self, path: str) -> None:
        """Make what is in a file outlast a power cut; its name may not. Raises `StorageError`."""
        self._flush(flush_file, self.full(path))

    def flush_place(self) -> None:
        """Make the name of the log's own folder, and of those above it, outlast a power cut.

        Raises
        ------
        StorageError
            If the disk failed.
        """
        if not is_flushed(self.options):
            return
        folder = self.uri
        while True:  # up through the folders above
            # What may not be read was there before.
            if os.access(folder, os.R_OK):
                self._flush(flush_folder, folder)
            above = os.path.dirname(folder)
            if above == folder:
                return
            folder = above

    def _flush(self, call: Callable[[str], None], path: str) -> None:
        try:
            call(path)
        except OSError as error:
            if error.errno in UNSUPPORTED:
                if self.uri not in _warned:
                    _warned.add(self.uri)
                    logger.warning("log %r: %s", self.uri, _NOT_FLUSHED)
                return
            msg = f"could not flush {path!r} of log {self.uri!r}: found {plain(error)}"
            raise StorageError(
                msg,
                hint="check the disk and the permissions, then try again",
                context={"path": self.uri},
                determinate=True,
            ) from error

    def flush_problem(self) -> str | None:
        """Return why a commit would not outlast a power cut here; None where it does. One call to the disk."""
        if not is_flushed(self.options):
            return "files are not flushed, as was asked for (flush=false): a power cut can take the latest commits"
        try:
            flush_folder(self.uri)
        except OSError as error:
            return _NOT_FLUSHED if error.errno in UNSUPPORTED else f"files cannot be flushed: {plain(error)}"
        return None

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens if there is none."""
        try:
            os.unlink(self.full(path))
        except FileNotFoundError:
            pass
        except OSError as error:
            msg = f"could not delete file {path!r} of log {self.uri!r}: found {plain(error)}"
            raise StorageError(
                msg,
                hint="delete it by hand, or leave it: it is not part of the log and does no harm",
                determinate=False,
            ) from error

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete files; nothing happens about those that are not there."""
        for path in paths:  # some microseconds a file
            self.delete(path)

    def sizes(self, directory: str) -> dict[str, tuple[int, float]]:
        """Return of each file in a directory its bytes, and when it was written; none if there is no such directory."""
        found = {}
        try:
            with os.scandir(self.full(directory)) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        if entry.is_file(follow_symlinks=False):
                            said = entry.stat(follow_symlinks=False)
                            found[entry.name] = (said.st_size, said.st_mtime)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise _unreachable(self.uri, error) from error
        return found

    def exists(self, path: str) -> bool:
        """Return whether there is a file of that path."""
        return os.path.exists(self.full(path))

    def put(
        self, path: str, content: bytes, *, replace: bool, always: bool = False, beside: Beside | None = None
    ) -> None:
        """Give a complete, flushed file its name in a folder that is there: see `TableStorage.put`.

        Notes
        -----
        A hard link either gives a complete file its name, or fails because the name is taken. Not every file system has
        hard links; delta-rs asks for the same. The name is on the disk when the call returns.
        """
        target = self.full(path)
        folder = os.path.dirname(path)
        name = f"{folder}/_commit_{secrets.token_hex(8)}.json.tmp" if folder else f".{path}.{secrets.token_hex(8)}.tmp"
        whole = self.full(name)
        try:
            try:
                with open(whole, "xb") as file:
                    file.write(content)
            except OSError as error:
                raise not_written(self.uri, path, error) from error
            if always or is_flushed(self.options):
                self.flush_content(name)
            if beside is not None and os.link in os.supports_dir_fd:
                self._name_beside(name, path, beside, replace=replace)
            elif replace:
                os.replace(whole, target)
            else:
                os.link(whole, target)
        finally:
            if os.path.exists(whole):
                os.unlink(whole)
        try:
            self.flush([folder], always=always)
        except StorageError as error:
            # It has its name, and may keep it.
            raise StorageError(error.message, hint=error.hint, context={"path": self.uri}) from error

    def give_name(self, path: str, name: str) -> None:
        """Give a file one more name that nobody has; without hard links that name in place of the old one.

        Notes
        -----
        A link takes no name that is taken. Without links the name is looked at first, and somebody may take it before
        the file has it. Nothing is flushed.
        """
        source, target = self.full(path), self.full(name)
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
            os.rename(source, target)

    def _name_beside(self, name: str, path: str, beside: Beside, *, replace: bool) -> None:
        """Give a file its name in the very folder in which certain files are, whatever its path leads to by now."""
        root = os.open(self.uri, os.O_RDONLY)
        try:
            for other, mark in beside.items():
                found = _mark(other, root)
                if found is None or (mark is not None and found != mark):
                    msg = f"found {other!r} is not there any more in {self.uri!r}"
                    raise OtherPlaceError(msg)
            give = os.replace if replace else os.link
            give(name, path, src_dir_fd=root, dst_dir_fd=root)
            if any(mark is not None and _mark(other, root) != mark for other, mark in beside.items()):
                # Deleted between the look and the link.
                msg = f"found files gone beside {path!r} in {self.uri!r}"
                raise OSError(msg)
        finally:
            os.close(root)

    def mark(self, path: str) -> tuple[object, ...] | None:
        """Return what tells a file from another one in its place, as far as the disk knows; None: none there."""
        return _mark(self.full(path))

    def known_mark(self, path: str) -> tuple[object, ...] | None:
        """Return the mark of a file: to look is cheap."""
        return self.mark(path)

    def kept(self, path: str) -> bytes | None:
        """Return None: what is on a disk is near."""
        del path
        return None

    def forget(self) -> None:
        """Do nothing: nothing is kept."""

    def copy_to(self, paths: Sequence[str], folder: str) -> None:
        """Link to files from a folder of this disk, under the same paths; all of the place that the path leads to."""
        root = os.path.realpath(self.uri)
        for path in paths:
            os.symlink(os.path.join(root, path), f"{folder}/{path}")

    def ages(self, directory: str) -> Mapping[str, float]:
        """Return the names in a directory, each as old as can be: a look at a local disk takes no time."""
        return dict.fromkeys(self.names(directory), math.inf)

    def names(self, directory: str = "", *, after: str = "") -> list[str]:
        """Return the names in a directory; none if there is no such directory."""
        try:
            found = sorted(os.listdir(self.full(directory) if directory else self.uri))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unreachable(self.uri, error) from error
        return [name for name in found if name > after] if after else found

    def folders(self, directory: str = "") -> list[str]:
        """Return the names of the directories in a directory; none if it may not be looked into."""
        try:
            with os.scandir(self.full(directory) if directory else self.uri) as found:
                return sorted(entry.name for entry in found if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return []


class MemoryStorage:
    """Files in this process, for tests and for logs that need no disk."""

    def __init__(self, uri: str = "memory") -> None:
        self.uri = uri
        self.local = True
        self._files: dict[str, pa.Buffer] = {}
        self._written: dict[str, float] = {}
        self._lock = threading.Lock()

    def read(self, path: str) -> pa.Buffer:
        """Return a whole file."""
        with self._lock:
            content = self._files.get(path)
        if content is None:
            raise missing(self.uri, path)
        return content

    def find(self, path: str) -> bytes | None:
        """Return a whole file; None if there is none."""
        with self._lock:
            content = self._files.get(path)
        return None if content is None else bytes(content)

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for reading anywhere in it."""
        return pa.BufferReader(self.read(path))

    def open_output(self, path: str) -> pa.NativeFile:
        """Open a new file for writing."""
        return pa.PythonFile(Gathered(partial(self.write, path)), mode="w")

    def write(self, path: str, content: bytes | pa.Buffer) -> None:
        """Write a whole file."""
        with self._lock:
            self._files[path] = pa.py_buffer(content)
            self._written[path] = time.time()

    def flush(self, paths: Iterable[str], *, always: bool = False) -> None:
        """Do nothing: the files are in this process, and end with it."""

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens if there is none."""
        with self._lock:
            self._files.pop(path, None)
            self._written.pop(path, None)

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete files; nothing happens about those that are not there."""
        for path in paths:
            self.delete(path)

    def sizes(self, directory: str) -> dict[str, tuple[int, float]]:
        """Return of each file in a directory its bytes, and when it was written."""
        with self._lock:
            return {
                path.removeprefix(f"{directory}/"): (content.size, self._written.get(path, 0.0))
                for path, content in self._files.items()
                if os.path.dirname(path) == directory
            }

    def exists(self, path: str) -> bool:
        """Return whether there is a file of that path."""
        with self._lock:
            return path in self._files

    def names(self, directory: str = "", *, after: str = "") -> list[str]:
        """Return the names in a directory."""
        prefix = f"{directory}/" if directory else ""
        with self._lock:
            paths = [p for p in self._files if p.startswith(prefix)]
        return sorted(name for name in {p[len(prefix) :].split("/")[0] for p in paths} if name > after)


class Gathered:
    """A file that pyarrow writes to: kept in memory until it is closed, then written as a whole unless it failed."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._parts: list[bytes] = []
        self._size = 0
        self.failed = False
        self.closed = False

    def writable(self) -> bool:
        """Say that it is written."""
        return True

    def readable(self) -> bool:
        """Say that it is not read."""
        return False

    def seekable(self) -> bool:
        """Say that it is written from begin to end."""
        return False

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._size

    def write(self, content: bytes) -> int:
        """Keep some bytes; return their number."""
        part = bytes(content)
        self._parts.append(part)
        self._size += len(part)
        return len(part)

    def flush(self) -> None:
        """Keep everything until the file is closed."""

    def close(self) -> None:
        """Write the whole, once."""
        if self.closed:
            return
        self.closed = True
        parts, self._parts = self._parts, []
        if not self.failed:
            self._write(b"".join(parts))


def _upwards(folder: str) -> Iterator[str]:
    """Yield a folder and those above it, up to the log's own, which is left out."""
    while folder:
        yield folder
        folder = os.path.dirname(folder)


def _mark(path: str, root: int | None = None) -> tuple[object, ...] | None:
    """Return what tells a file from another one in its place; None if there is none."""
    try:
        found = os.stat(path, dir_fd=root)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def foreign_names(names: Iterable[str]) -> list[str]:
    """Return what in a log's directory is no part of a log, nor left behind by the making of one.

    Examples
    --------
    >>> foreign_names(["_delta_log", "_event=message", "_cdcv2", "notes.txt"])
    ['notes.txt']
    """
    return [name for name in names if name not in ("_delta_log", "_cdcv2") and not name.startswith("_event=")]


def has_table(storage: Storage) -> bool:
    """Return whether there is a Delta table, whole or damaged. One look at one directory.

    A table's log without any entry is none: somebody began to create a table there and was killed,
    and who comes next may begin again.

    Examples
    --------
    >>> storage = MemoryStorage()
    >>> storage.write("_delta_log/_commit_ab12.json.tmp", b"")
    >>> has_table(storage)
    False
    >>> storage.write("_delta_log/00000000000000000000.json", b"{}")
    >>> has_table(storage)
    True
    """
    return any(_TABLE_ENTRY.fullmatch(name) for name in storage.names("_delta_log"))


def plain(error: Exception) -> str:
    r"""Return the text of a library's error as one line for a message, without colours.

    Examples
    --------
    >>> plain(OSError("no host\n  \x1b[31m↳\x1b[0m invalid argument"))
    "'no host ↳ invalid argument'"
    """
    return shown(" ".join(_COLOUR.sub("", str(error)).split()))


def _unreachable(uri: str, error: Exception) -> StorageError:
    return StorageError(
        f"could not look into log {uri!r}: found {plain(error)}",
        hint="check the path and the permissions, then try again",
        context={"path": uri},
        determinate=True,
    )


def not_written(uri: str, path: str, error: Exception) -> StorageError:
    """Return the error for a file that could not be written, and is not part of the log."""
    return StorageError(
        f"could not write file {path!r} of log {uri!r}: found {plain(error)}",
        hint="check space and permissions, then try again",
        determinate=True,
    )


def missing(uri: str, path: str) -> DataLossError:
    """Return the error for a file that is not there."""
    return DataLossError(
        f"could not read file {path!r} of log {uri!r}: found no such file",
        hint="restore the file; it may have been deleted by hand or by VACUUM",
        context={"file": path, "path": uri},
    )


def _unreadable(uri: str, path: str, error: Exception) -> StorageError:
    return StorageError(
        f"could not read file {path!r} of log {uri!r}: found {plain(error)}",
        hint="check the storage and permissions, then try again",
        context={"file": path, "path": uri},
        determinate=True,
    )


# delta-rs's own name of the promise; it has a meaning for local paths only.
_PROMISE = "allow_unsafe_rename"
# Ours: travels with the storage options, because every process that writes gets those.
_FLUSH = "timely_flush"
# As Python sees volumes and the older DBFS: mounts, which take no hard link.
_MOUNTS = re.compile(r"/(Volumes|dbfs)(/|$)")
# What delta-rs 1.6 says where a link is refused: EPERM, ENOSYS, ENOTSUP (the last also as macOS numbers it).
_NO_LINK = re.compile(r"unable to rename file.*\(os error (1|38|45|95)\)", re.IGNORECASE | re.DOTALL)

PROMISE_HINT = (
    "if surely only one process at a time writes to this log, compaction and the command line included, set"
    " singleWriter=true (in Python single_writer=True, on the command line --single-writer)"
)


def checked_options(storage_options: Mapping[str, str] | None, /, *places: str | None) -> dict[str, str]:
    """Return a copy of storage options; from then on no text of this process shows their secrets.

    Parameters
    ----------
    storage_options : mapping or None
    *places : str or None
        Paths or URLs that they are for, the log first; None is no place. Names are looked at where there is one.

    Raises
    ------
    InvalidOptionError
        If they are no mapping, a name or a value is no text, or none of the places knows an option.

    Examples
    --------
    >>> checked_options({"aws_region": 5})
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidOptionError: [TIMELY_INVALID_OPTION] could not use storage option 'aws_region': \
found type=int — hint: ...
    """
    if storage_options is not None and not isinstance(storage_options, Mapping):
        # Not the value: it may be a secret.
        msg = f"could not use storage options: found type={type(storage_options).__name__}"
        raise InvalidOptionError(msg, hint="give a dict of texts, such as {'aws_region': 'eu-west-1'}")
    found = dict(storage_options or {})
    if found:
        keep_secret(found)
    for name, value in found.items():  # a few
        # Not the value: it may be a secret.
        if not isinstance(name, str):
            msg = f"could not use a storage option: found a name of type={type(name).__name__}"
            raise InvalidOptionError(msg, hint="give texts as names and values of storage options")
        if not isinstance(value, str):
            msg = f"could not use storage option {name!r}: found type={type(value).__name__}"
            raise InvalidOptionError(
                msg,
                hint="give texts as values: write '5' for 5, 'true' for True",
                context={"option": name},
            )
        if not in_utf8(name + value):
            msg = f"could not use storage option {shown(name)}: found a text that is none in UTF-8"
            raise InvalidOptionError(msg, hint="give texts in UTF-8", context={"option": name})
    if found and (where := [place for place in places if place is not None]):
        check_names(found, where)
    return found


def promised(
    storage_options: Mapping[str, str] | None, /, *places: str | None, single_writer: bool, flush: bool = True
) -> dict[str, str]:
    """Return storage options that carry the promise of a single writer, and whether files are flushed.

    Parameters
    ----------
    storage_options : mapping or None
        Not modified.
    *places : str or None
        As for `checked_options`.
    single_writer : bool
        Whether surely only one process at a time writes to the log.
    flush : bool
        Whether what is written is flushed to the disk before it is acknowledged; matters on local disks.

    Returns
    -------
    dict

    Examples
    --------
    >>> promised(None, single_writer=True)
    {'allow_unsafe_rename': 'true'}
    >>> is_flushed(promised(None, single_writer=False, flush=False))
    False
    """
    found = checked_options(storage_options, *places)
    if single_writer:
        found[_PROMISE] = "true"
    if not flush:
        found[_FLUSH] = "false"
    return found


def is_flushed(storage_options: Mapping[str, str] | None, /) -> bool:
    """Return whether what is written is to be flushed to the disk.

    Examples
    --------
    >>> is_flushed(None)
    True
    """
    return (storage_options or {}).get(_FLUSH) != "false"


def check_place(path: str, storage_options: Mapping[str, str] | None, /) -> None:
    """Refuse to write to a volume without the promise of a single writer.

    Parameters
    ----------
    path : str
        As `spark_timely.log.store.storage.normal_path` gives it.
    storage_options : mapping or None
        May carry the promise.

    Raises
    ------
    InvalidOptionError

    Examples
    --------
    >>> check_place("/data/log", None)
    >>> check_place("/Volumes/main/raw/logs/a", promised(None, single_writer=True))
    >>> check_place("/Volumes/main/raw/logs/a", None)
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidOptionError: [TIMELY_INVALID_OPTION] could not write to log '/Volumes/main/raw/logs/a': \
found a Databricks volume, where two writers could overwrite each other's commits — hint: ...
    """
    if not _MOUNTS.match(path) or is_promised(storage_options):
        return
    msg = (
        f"could not write to log {path!r}: found a Databricks volume, where two writers could overwrite each other's"
        " commits"
    )
    raise InvalidOptionError(
        msg,
        hint=f"write to the URL of an external location (s3://…, abfss://…, gs://…) with its credentials;"
        f" {PROMISE_HINT}; reading needs neither",
        context={"path": path, "option": "singleWriter"},
    )


def links_missing(error: Exception, /) -> bool:
    r"""Return whether an error of delta-rs says that the file system takes no hard links.

    Parameters
    ----------
    error : Exception

    Returns
    -------
    bool
        Then nothing was committed.

    Examples
    --------
    >>> links_missing(OSError("Unable to rename file\n  Operation not permitted (os error 1)"))
    True
    >>> links_missing(OSError("Unable to rename file\n  Permission denied (os error 13)"))
    False
    """
    return _NO_LINK.search(str(error)) is not None


def is_promised(storage_options: Mapping[str, str] | None, /) -> bool:
    """Return whether storage options carry the promise of a single writer.

    Examples
    --------
    >>> is_promised(promised(None, single_writer=True)), is_promised(None)
    (True, False)
    """
    value = next((value for name, value in (storage_options or {}).items() if name.lower() == _PROMISE), "")
    return value.lower() in ("true", "1", "yes", "on", "y", "t")
