"""The ledger of an instance: marks of folders that belong to no live collection, kept beside the commands.

A mark says what becomes of a folder, such as that its collection was dropped. `spark_timely.compute.drive.folders` sets
marks and deletes the folders. Marks are rows of the command log as commands are, of numbers below 0, so that a command
and the marks that go with it are one commit. Reducing the commands does not touch them.

Invariants
----------
1. Each folder of the instance is named by a command or by a mark, from before it is made until it is gone.
2. What is deleted has a mark. A mark that is `left` deletes nothing, and is there as long as its folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, cast, get_args

from spark_timely.compute.command import Command, parse_command
from spark_timely.compute.history import Row
from spark_timely.errors import LogFormatError, shown

__all__ = ["FOLDER", "Ledger", "Mark", "MarkState", "commands_of"]

MARK_VERSION: Final = 2
"""Version of the marks' texts: one that reads commands refuses them by it."""

MarkState: TypeAlias = Literal["passing", "dropped", "asked", "proven", "left"]

FOLDER: Final = re.compile(r"[^/\x00]+")
"""A name in the folder of collections. `Mark` refuses ``.`` and ``..`` as well."""

# Number of the row that says from which epoch on invariant 1 holds; marks have those below.
_SINCE: Final = -1


@dataclass(frozen=True, slots=True)
class Mark:
    """Say what becomes of a folder.

    Attributes
    ----------
    folder : str
        Its name in the folder of collections.
    state : str
        ``passing``: of a dataflow that ends with its process. ``dropped``: with its collection. ``asked``: somebody
        named it. ``proven``: it was looked at, and is what was to be deleted. ``left``: it stays.
    log_id : str or None
        Id of the log in it; None where it was not known.

    Examples
    --------
    >>> Mark("totals-3f9a", "dropped", "7d")
    Mark(folder='totals-3f9a', state='dropped', log_id='7d')
    """

    folder: str
    state: MarkState
    log_id: str | None = None

    def __post_init__(self) -> None:
        """Check what was read: a name that leads elsewhere would be deleted there."""
        if (
            not isinstance(self.folder, str)
            or not FOLDER.fullmatch(self.folder)
            or self.folder in (".", "..")
            or self.state not in get_args(MarkState)
            or not isinstance(self.log_id, str | None)
        ):
            msg = f"could not read the mark of a folder: found {shown([self.folder, self.state, self.log_id])}"
            raise LogFormatError(msg, hint="only the instance writes its command log: restore it to a version before")

    @property
    def stays(self) -> bool:
        """Whether nothing of it is deleted."""
        return self.state == "left"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The marks of an instance.

    Attributes
    ----------
    since : int or None
        The epoch from which on invariant 1 holds; None while no start has said so.
    marks : dict of str to Mark
        By folder.

    Examples
    --------
    >>> ledger = Ledger(3).put(Mark("a", "dropped", "7d"), Mark("b", "passing"))
    >>> Ledger.read(ledger.rows()) == ledger, list(ledger.without("a").marks)
    (True, ['b'])
    """

    since: int | None = None
    marks: Mapping[str, Mark] = field(default_factory=dict)
    _numbers: Mapping[str, int] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, rows: Iterable[Row]) -> Ledger:
        """Return what the rows of the command log say; commands are passed over.

        Raises
        ------
        LogFormatError
            If a row below 0 is no mark.
        """
        since, marks, numbers = None, {}, {}
        for number, text in rows:
            if number >= 0:
                continue
            facts = _facts(text)
            if number == _SINCE:
                since = _whole(facts.get("since"), text)
                continue
            mark = Mark(
                cast("str", facts.get("folder")),
                cast("MarkState", facts.get("state")),
                cast("str | None", facts.get("log_id")),
            )
            marks[mark.folder], numbers[mark.folder] = mark, number
        return cls(since, marks, numbers)

    def rows(self) -> list[Row]:
        """Return the rows of the command log that say it. A mark keeps its number while it is there."""
        found = [] if self.since is None else [(_SINCE, _text(since=self.since))]
        for folder, mark in self.marks.items():
            given = {} if mark.log_id is None else {"log_id": mark.log_id}
            found.append((self._numbers[folder], _text(folder=folder, state=mark.state, **given)))
        return found

    def put(self, *marks: Mark) -> Ledger:
        """Return the ledger with marks, in place of those of the same folders."""
        found, numbers = dict(self.marks), dict(self._numbers)
        for mark in marks:
            numbers.setdefault(mark.folder, min(numbers.values(), default=_SINCE) - 1)
            found[mark.folder] = mark
        return replace(self, marks=found, _numbers=numbers)

    def without(self, *folders: str) -> Ledger:
        """Return the ledger without the marks of folders."""
        gone = set(folders)
        return replace(
            self,
            marks={folder: mark for folder, mark in self.marks.items() if folder not in gone},
            _numbers={folder: number for folder, number in self._numbers.items() if folder not in gone},
        )

    def begun(self, epoch: int) -> Ledger:
        """Return the ledger of a start: invariant 1 holds from the first one on."""
        return self if self.since is not None else replace(self, since=epoch)


def commands_of(rows: Iterable[Row], /) -> list[Command]:
    """Return the commands that rows of the command log say; marks are passed over.

    Examples
    --------
    >>> commands_of([(-1, '{"since":1,"v":2}'), (0, '{"command":"schedule","id":"a","v":1}')])
    [Schedule(id='a')]
    """
    return [parse_command(text) for number, text in rows if number >= 0]


def _text(**facts: object) -> str:
    return json.dumps({**facts, "v": MARK_VERSION}, sort_keys=True, separators=(",", ":"))


def _facts(text: str) -> dict[str, object]:
    try:
        facts = json.loads(text)
    except ValueError:
        facts = None
    if not isinstance(facts, dict) or facts.get("v") != MARK_VERSION:
        msg = f"could not read the mark of a folder: found {shown(text)}"
        raise LogFormatError(msg, hint="use the version of spark-timely that wrote the command log")
    return facts


def _whole(value: object, text: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        msg = f"could not read the ledger of an instance: found {shown(text)}"
        raise LogFormatError(msg, hint="use the version of spark-timely that wrote the command log")
    return value
