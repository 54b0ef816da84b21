"""Storage options: settings of a cloud store, and the promises that let a log be written where commits are not safe.

A commit of a Delta table is a file that takes its name only if nobody else has it. On a local disk that is a hard
link, in a cloud store a conditional put. Databricks volumes, and file systems such as FAT or some network mounts,
have neither: there the file is renamed after a look, and between the look and the rename another writer may have
come. Whoever knows that only one process at a time writes to the log, compaction and the command line included,
may say so; then it is written that way.

Invariants
----------
1. Without the promise nothing is written to a place that is known to lack such a step.
2. Reading needs no promise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from spark_timely.errors import InvalidOptionError
from spark_timely.masking import keep_secret

__all__ = ["check_place", "checked_options", "delta_options", "is_flushed", "is_promised", "links_missing", "promised"]

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


def checked_options(storage_options: Mapping[str, str] | None, /) -> dict[str, str]:
    """Return a copy of storage options; from then on no text of this process shows their secrets.

    Raises
    ------
    InvalidOptionError
        If a name or a value is no text.

    Examples
    --------
    >>> checked_options({"aws_region": 5})
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidOptionError: could not use storage option 'aws_region': found type=int — hint: ...
    """
    found = dict(storage_options or {})
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
    return found


def promised(
    storage_options: Mapping[str, str] | None, /, *, single_writer: bool, flush: bool = True
) -> dict[str, str]:
    """Return storage options that carry the promise of a single writer, and whether files are flushed.

    Parameters
    ----------
    storage_options : mapping or None
        Not modified.
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
    found = checked_options(storage_options)
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


def delta_options(storage_options: Mapping[str, str] | None, /) -> dict[str, str] | None:
    """Return storage options as delta-rs takes them: without ours; None where there are none.

    Examples
    --------
    >>> delta_options(promised({"region": "eu"}, single_writer=False, flush=False))
    {'region': 'eu'}
    """
    return {name: value for name, value in (storage_options or {}).items() if name != _FLUSH} or None


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
    spark_timely.errors.InvalidOptionError: could not write to log '/Volumes/main/raw/logs/a': found a Databricks \
volume, where two writers could overwrite each other's commits — hint: ...
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
