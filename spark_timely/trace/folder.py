"""The folder of an index: its numbered spines, of which the newest counts, and the files of its runs.

A spine is the list of an index's runs at one state (`spine`); this module alone reads and writes it as a file.
`dataflow.engine.arrangements` writes and cleans up by it; `log.arrangements` and `arrangement` ask for the newest
spine.

A spine is written only where none of its number is: of two that follow the same one, one is written. A damaged spine is
skipped: the one before it counts, and the next one that is written gets a number after all that are there.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from spark_timely.trace.spine import RunFile, Spine

__all__ = ["delete", "delete_former", "greatest_number", "is_whole", "newest_spine", "unknown_runs", "write_spine"]

_log = logging.getLogger("spark_timely.dataflow")

_UNKNOWN_S: Final = 86_400.0
_SPINE: Final = re.compile(r"spine-(\d{20})\.json")
_OURS: Final = re.compile(r"run-[^/\x00]+|spine-\d{20}\.json(?:\.[0-9a-f]{32}\.tmp)?")


def is_whole(folder: str, run: RunFile) -> bool:
    """Return whether a run's file is there, with the bytes that it should have."""
    try:
        return os.path.getsize(os.path.join(folder, run.name)) == run.size_bytes
    except OSError:
        return False


def _spine_name(number: int) -> str:
    return f"spine-{number:020d}.json"


def newest_spine(folder: str, known: Spine | None) -> Spine | None:
    """Return the newest spine in a folder; the known one if it is that."""
    try:
        names = [name for name in os.listdir(folder) if _SPINE.fullmatch(name)]
    except OSError:
        return None
    names.sort(reverse=True)
    for name in names:  # the first, unless files are damaged
        if known is not None and name == _spine_name(known.number):
            found = known
        else:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    found = Spine.from_json(file.read())
            except (OSError, ValueError):
                continue
            if name != _spine_name(found.number):
                continue
        # What follows it comes after all that are there, damaged ones too.
        return found if name == names[0] else replace(found, number=greatest_number(folder))
    return None


def greatest_number(folder: str) -> int:
    """Return the greatest number of the spines in a folder, damaged ones too; -1 where there are none."""
    found = (_SPINE.fullmatch(name) for name in os.listdir(folder))
    return max((int(each[1]) for each in found if each is not None), default=-1)


def write_spine(folder: str, spine: Spine) -> bool:
    """Write a spine; return whether none of its number was there."""
    path = os.path.join(folder, _spine_name(spine.number))
    unfinished = f"{path}.{uuid.uuid4().hex}.tmp"
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(spine.to_json())
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(unfinished, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(unfinished)
    delete(folder, [_spine_name(spine.number - back) for back in range(3, 6) if spine.number >= back])
    return True


def unknown_runs(folder: str, spine: Spine, now: float) -> list[str]:
    """Return old files that no spine has: of processes that were killed."""
    kept = {run.name for run in spine.runs} | {name for name, _ in spine.gone}
    found = []
    for entry in os.scandir(folder):
        if entry.name not in kept and entry.name.startswith("run-") and now - entry.stat().st_mtime > _UNKNOWN_S:
            found.append(entry.name)
    return found


def delete_former(folder: str, now: float) -> None:
    """Delete an index that an earlier version has kept in a folder, once nobody has written there for a day.

    Its readers read the log from then on. What is no file of an index stays, and the folder with it.
    """
    try:
        found = [] if os.path.islink(folder) else list(os.scandir(folder))
        written = [entry.stat(follow_symlinks=False).st_mtime for entry in found]
    except OSError:  # it is not there, or others delete it too
        return
    if not found or now - max(written) <= _UNKNOWN_S:
        return
    ours = [entry.name for entry in found if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)]
    delete(folder, sorted(ours, reverse=True))  # spines first: what they name is no index any more
    with suppress(OSError):  # not empty
        os.rmdir(folder)


def delete(folder: str, names: Sequence[str]) -> None:
    """Delete files of an index; those that are not there, or cannot be deleted, are passed over.

    Names come from files too: one that is no index's, or leads out of the folder, is passed over as well.
    """
    for name in names:
        if not _OURS.fullmatch(name):
            _log.warning("a file stays that is no index's: %r", os.path.join(folder, name))
            continue
        try:
            os.unlink(os.path.join(folder, name))
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.warning("a file of an index stays: %s", error)
