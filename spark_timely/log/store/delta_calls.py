"""Calls of delta-rs, guarded: secrets are removed from its errors, and a panic becomes a `StorageError`.

`delta`, `checkpoints` and `scratch` call delta-rs inside of `delta_call`, and open tables as `DeltaTable`, which does
so too. (`newest` alone calls it bare, and answers nothing where it fails.)

Invariants
----------
1. No error leaves a call with a secret in its text.
2. A panic of delta-rs, which Python's `except Exception` does not see, becomes a `StorageError`. Interrupts and exits
   pass.
3. A process forked from one that has called delta-rs does not call it: its runtime has no threads there.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import deltalake

from spark_timely.errors import InvalidUsageError, StorageError
from spark_timely.masking import mask_exception

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


_called_in: int | None = None  # the process, or the one that it was forked from


@contextmanager
def delta_call(path: str | Path) -> Iterator[None]:
    """Call delta-rs about the log at a path, inside the block.

    Raises
    ------
    InvalidUsageError
        If this process was forked from one that has called delta-rs. Nothing was done.
    StorageError
        If delta-rs panics. What was to be written may have been.

    Examples
    --------
    >>> with delta_call("s3://bucket/log"):
    ...     pass
    """
    global _called_in
    if _called_in not in (None, os.getpid()):
        raise _forked(path)
    _called_in = os.getpid()
    try:
        yield
    except Exception as error:
        mask_exception(error)
        raise
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        if "fork" in str(error).lower():
            # Somebody else's call, before the fork.
            raise _forked(path) from error
        msg = f"could not use log {str(path)!r}: found that Delta's own library failed: {' '.join(str(error).split())}"
        raise StorageError(
            msg, hint="read the log again to see what was done; then try again", context={"path": str(path)}
        ) from error


def _forked(path: str | Path) -> InvalidUsageError:
    msg = f"could not use log {str(path)!r}: found a process that was forked from one that used a log"
    return InvalidUsageError(
        msg,
        hint="start processes by 'spawn' or 'forkserver', such as multiprocessing.get_context('spawn'): Delta's own"
        " library does not work in a forked one",
        context={"path": str(path), "pid": os.getpid()},
    )


class DeltaTable(deltalake.DeltaTable):
    """A handle of delta-rs, opened by `delta_call`."""

    def __init__(self, path: str | Path, *, storage_options: Mapping[str, str] | None = None) -> None:
        with delta_call(path):
            super().__init__(path, storage_options=None if storage_options is None else dict(storage_options))
