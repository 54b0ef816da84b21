"""Clones of a log, for errors: names the log of which another log is a deep clone.

A deep clone of a table copies the log's facts, its id among them, so a reader that comes from the one to the other is
refused. Where that happens, the sink, replays, dataflows and cuts ask `of_clone`. It finds in the entries of the
table's log which table it was made from, and returns words for the error.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from spark_timely.errors import StorageError, shown
from spark_timely.log.store.entries import entry_path
from spark_timely.threads import at_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.log.store.storage import Storage

__all__ = ["of_clone"]

_TABLE: Final = re.compile(r"delta\.`(.*)`")
# Entries that are read where the oldest one is not of a clone, the newest first; and how many at a time.
_MOST_ENTRIES: Final = 200
_AT_ONCE: Final = 16


def of_clone(storage: Storage, /) -> str:
    """Return what a log is a clone of, for errors about another log than was expected.

    Parameters
    ----------
    storage : Storage
        Of the log.

    Returns
    -------
    str
        Such as `, a clone of '/a' at version 3`; empty where the table's log does not say it.

    Notes
    -----
    Cost: the oldest entry of the table's log is read, or else the newest 200: call it for errors alone.
    """
    try:
        names = storage.names("_delta_log")
        versions = sorted((int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.json", name)), reverse=True)
        for some in (versions[-1:], versions[:_MOST_ENTRIES]):
            for actions in _entries(storage, some):
                for action in actions:
                    commit = action.get("commitInfo") or {}
                    if commit.get("operation") == "CLONE":
                        return _source(commit.get("operationParameters") or {})
    except (StorageError, ValueError, TypeError, AttributeError):
        return ""  # the error that is raised matters more
    return ""


def _entries(storage: Storage, versions: Sequence[int]) -> list[list[dict[str, Any]]]:
    """Return the actions of entries that are there."""

    def read(version: int) -> list[dict[str, Any]]:
        content = storage.find(entry_path(version)) or b""
        return [json.loads(line) for line in content.splitlines() if line.strip()]

    return at_once(read, list(versions), _AT_ONCE)


def _source(parameters: dict[str, object]) -> str:
    source, version = parameters.get("source"), parameters.get("sourceVersion")
    if not source:
        return ""
    table = _TABLE.fullmatch(str(source))
    at = f" at version {version}" if version is not None else ""
    return f", a clone of {shown(table[1] if table else str(source))}{at}"
