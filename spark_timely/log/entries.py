"""Entries of a Delta table's log: read what one commit did, and write one where that can be done safely.

Invariants
----------
1. An entry appears whole, under a name that nobody had: two writers never both get one version.
2. What cannot be understood is never passed over: it raises, or says that the table is to be read anew.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from spark_timely.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_timely.log.base import DataFile
    from spark_timely.log.storage import Storage

__all__ = ["Entry", "entry_path", "put_entry", "read_entry", "render_entry"]

# Signs that need not be escaped in the paths of a table's log; those of our own files are among them.
_PLAIN = "/=_-.~+,@:"


@dataclass(frozen=True, slots=True)
class Entry:
    """What one commit did.

    Attributes
    ----------
    adds : list of dict
        The `add` actions, paths decoded.
    removes : list of str
        Paths of the files removed, decoded.
    apps : frozenset of str
        App ids that it carries.
    changes_table : bool
        Whether schema, features, properties or deletion vectors may have changed.
    """

    adds: list[dict[str, Any]] = field(default_factory=list)
    removes: list[str] = field(default_factory=list)
    apps: frozenset[str] = frozenset()
    changes_table: bool = False


def entry_path(version: int) -> str:
    """Return where the entry of a version is.

    Examples
    --------
    >>> entry_path(7)
    '_delta_log/00000000000000000007.json'
    """
    return f"_delta_log/{version:020d}.json"


def read_entry(storage: Storage, version: int) -> Entry | None:
    """Read the entry of a version; None if there is none.

    Raises
    ------
    ValueError
        If it is damaged.
    """
    try:
        content = storage.read(entry_path(version)).to_pybytes()
    except DataLossError:
        return None
    adds, removes, apps, changes = [], [], set(), False
    for line in content.splitlines():  # one turn per action
        action = json.loads(line) if line.strip() else {}
        if not isinstance(action, dict):
            msg = f"no action: {action!r}"
            raise ValueError(msg)
        for kind, said in action.items():
            if kind == "add":
                adds.append({**said, "path": unquote(said["path"])})
                changes = changes or bool(said.get("deletionVector"))
            elif kind == "remove":
                removes.append(unquote(said["path"]))
            elif kind == "txn":
                apps.add(str(said["appId"]))
            elif kind in ("metaData", "protocol"):
                changes = True
    return Entry(adds, removes, frozenset(apps), changes)


def render_entry(
    adds: Sequence[DataFile],
    removes: Sequence[DataFile],
    apps: Mapping[str, int],
    *,
    data_change: bool,
    read_version: int,
) -> bytes:
    """Return the entry of a commit, as the Delta protocol has it."""
    now = time.time_ns() // 1_000_000
    actions: list[dict[str, Any]] = [{"txn": {"appId": a, "version": n, "lastUpdated": now}} for a, n in apps.items()]
    actions += [
        {
            "add": {
                "path": quote(file.path, safe=_PLAIN),
                "partitionValues": {"_event": file.event},
                "size": file.size_bytes,
                "modificationTime": now,
                "dataChange": data_change,
                "stats": file.stats,
            }
        }
        for file in adds
    ]
    actions += [
        {
            "remove": {
                "path": quote(file.path, safe=_PLAIN),
                "deletionTimestamp": now,
                "dataChange": data_change,
                "extendedFileMetadata": True,
                "partitionValues": {"_event": file.event},
                "size": file.size_bytes,
            }
        }
        for file in removes
    ]
    info = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": '["_event"]'},
        "readVersion": read_version,
        "isBlindAppend": not removes,
        "engineInfo": "spark-timely",
    }
    lines = [
        json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in ({"commitInfo": info}, *actions)
    ]
    return ("\n".join(lines) + "\n").encode()


def put_entry(directory: str, version: int, content: bytes) -> bool:
    """Write the entry of a version into a table on a local disk; return False if there is one.

    Parameters
    ----------
    directory : str
        Of the table.
    version : int
    content : bytes

    Raises
    ------
    OSError
        If it could not be written. It may have appeared all the same.

    Notes
    -----
    A hard link either gives a complete file its name, or fails because the name is taken. Not every file
    system has hard links; delta-rs asks for the same.
    """
    target = os.path.join(directory, entry_path(version))
    whole = os.path.join(directory, "_delta_log", f"_commit_{secrets.token_hex(8)}.json.tmp")
    try:
        with open(whole, "xb") as file:
            file.write(content)
        os.link(whole, target)
    except FileExistsError:
        return False
    finally:
        if os.path.exists(whole):
            os.unlink(whole)
    return True
