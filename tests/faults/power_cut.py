"""What a power cut may leave on a local disk: recorded while a program runs, laid out as folders to look at.

The system keeps what is written in memory, and puts it on the disk at its leisure, in any order, but for what was
flushed: `os.fsync` of a file puts its content there, of a folder the names in it. So at any moment the disk may hold,
of each file that was not flushed, nothing, its beginning or all; and of each folder that was not flushed, for each
name that came, went or was replaced, what was before or what is now.

`PowerCut` watches one folder. Each call of Python that writes, names, removes or flushes a file below it is a moment,
before and after; so is whatever a test says (`moment`). At each it keeps what is on the disk for sure, and what
is there if all goes well. What other libraries write is seen at the next moment, as not flushed.

Invariants
----------
1. Nothing but `os.fsync` makes anything sure.
2. What is kept of a moment does not change after it: files are kept by content, folders by the names in them.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["CHOICES", "Choice", "Moment", "PowerCut", "choices", "lay_out"]

_CALLS = ("link", "unlink", "remove", "rename", "replace", "mkdir", "rmdir", "fsync")


@dataclass(frozen=True, slots=True)
class Moment:
    """What the disk may hold at one moment, and what had been acknowledged by then.

    Attributes
    ----------
    number : int
    what : str
        The call before or after which it is.
    told : tuple
        What the test had noted as acknowledged.
    """

    number: int
    what: str
    told: tuple[Any, ...]
    _folders: Mapping[int, Mapping[str, int]] = field(repr=False)
    _contents: Mapping[int, bytes] = field(repr=False)
    _sure_names: Mapping[int, Mapping[str, int]] = field(repr=False)
    _sure_contents: Mapping[int, bytes] = field(repr=False)
    _root: int = field(repr=False)

    def disk(self, choice: Choice) -> dict[str, bytes | None]:
        """Return what the disk holds, by a choice for each thing that was not flushed: contents, None for folders."""
        found: dict[str, bytes | None] = {}
        self._folder(found, "", self._root, choice)
        return found

    def lay_out(self, target: Path, choice: Choice) -> None:
        """Make a folder as the disk may be found.

        Parameters
        ----------
        target : Path
            Must not exist.
        choice : Choice
        """
        lay_out(self.disk(choice), target)

    def _folder(self, disk: dict[str, bytes | None], path: str, node: int, choice: Choice) -> None:
        now, sure = self._folders.get(node, {}), self._sure_names.get(node, {})
        for name in sorted(now.keys() | sure.keys()):  # as many turns as names
            here = f"{path}/{name}" if path else name
            found = now.get(name)
            if found != sure.get(name):
                came, went = found is not None, name in sure
                how = "replaced" if came and went else "came" if came else "went"
                if not choice.name(here, how):
                    found = sure.get(name)
            if found is None:
                continue
            if found in self._folders or found in self._sure_names:
                disk[here] = None
                self._folder(disk, here, found, choice)
            else:
                whole, certain = self._contents.get(found), self._sure_contents.get(found)
                if whole is None or whole == certain:
                    disk[here] = certain or b""
                else:
                    disk[here] = choice.content(here, certain or b"", whole)


def lay_out(disk: Mapping[str, bytes | None], target: Path) -> None:
    """Make a folder of what `Moment.disk` gives."""
    target.mkdir()
    for path, content in disk.items():  # folders come before what is in them
        if content is None:
            (target / path).mkdir()
        else:
            (target / path).write_bytes(content)


class Choice:
    """What became of things that were not flushed.

    Parameters
    ----------
    name : callable
        Whether a change of a name, by its path and kind (`came`, `went`, `replaced`), is on the disk.
    content : callable
        What a file holds, by its path, what is sure of it, and all of it.
    """

    def __init__(self, name: Callable[[str, str], bool], content: Callable[[str, bytes, bytes], bytes]) -> None:
        self.name = name
        self.content = content


def _whole(_path: str, _sure: bytes, whole: bytes) -> bytes:
    return whole


def _empty(_path: str, sure: bytes, _whole_content: bytes) -> bytes:
    return sure


def _cut(_path: str, sure: bytes, whole: bytes) -> bytes:
    return whole[: max(len(sure), len(whole) // 2)]


CHOICES: dict[str, Choice] = {
    "nothing": Choice(lambda _, __: False, _empty),
    "names, empty": Choice(lambda _, __: True, _empty),
    "names, cut": Choice(lambda _, __: True, _cut),
    "everything": Choice(lambda _, __: True, _whole),
    "only what went": Choice(lambda _, how: how == "went", _empty),
    "only what came": Choice(lambda _, how: how != "went", _whole),
    "only the table's log": Choice(lambda path, _: path.startswith("_delta_log"), _whole),
    "only the data": Choice(lambda path, _: not path.startswith("_delta_log"), _whole),
}
"""The choices that tell most, by name."""


def choices(seed: int, n_random: int = 2) -> Iterator[tuple[str, Choice]]:
    """Yield the named choices, and some by a seeded generator.

    Examples
    --------
    >>> len(list(choices(1, n_random=3))) - len(CHOICES)
    3
    """
    yield from CHOICES.items()
    for n in range(n_random):
        yield f"random {seed} {n}", _random_choice(random.Random(f"{seed} {n}"))


def _random_choice(rng: random.Random) -> Choice:
    return Choice(
        lambda _, __: rng.random() < 0.5,
        lambda path, sure, whole: rng.choice([_empty, _cut, _whole])(path, sure, whole),
    )


class PowerCut:
    """Records what a power cut may leave of a folder, while a block runs.

    Parameters
    ----------
    root : Path
        There already, and on the disk as it is.
    shadow : Path
        On the same disk and outside of `root`: keeps removed files, so that their numbers are not given to others.

    Attributes
    ----------
    moments : list of Moment
    told : list
        What was acknowledged so far: the test appends to it.

    Examples
    --------
    >>> import tempfile
    >>> base = Path(tempfile.mkdtemp())
    >>> (base / "disk").mkdir()
    >>> with PowerCut(base / "disk", base / "shadow") as power:
    ...     _ = (base / "disk" / "a").write_text("a")
    ...     power.moment("written")
    >>> power.moments[-1].lay_out(base / "lost", CHOICES["nothing"])
    >>> power.moments[-1].lay_out(base / "kept", CHOICES["everything"])
    >>> [sorted(found.name for found in (base / name).iterdir()) for name in ("lost", "kept")]
    [[], ['a']]
    """

    def __init__(self, root: Path, shadow: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.moments: list[Moment] = []
        self.told: list[Any] = []
        self._shadow = shadow
        self._kept: set[int] = set()
        self._known: dict[int, tuple[tuple[int, int], bytes]] = {}
        self._sure_names: dict[int, dict[str, int]] = {}
        self._sure_contents: dict[int, bytes] = {}
        self._folders_before: set[int] = set()
        self._calls: dict[str, Any] = {name: getattr(os, name) for name in _CALLS}
        self._busy = False

    def __enter__(self) -> PowerCut:
        self._shadow.mkdir()
        folders, contents = self._look()
        self._sure_names, self._sure_contents = dict(folders), dict(contents)
        for name in _CALLS:
            setattr(os, name, self._watched(name))
        self.moment("begin")
        return self

    def __exit__(self, *_: object) -> None:
        for name, call in self._calls.items():
            setattr(os, name, call)
        self.moment("end")
        shutil.rmtree(self._shadow, ignore_errors=True)

    def moment(self, what: str) -> None:
        """Keep what the disk may hold now."""
        folders, contents = self._look()
        self.moments.append(
            Moment(
                len(self.moments),
                what,
                tuple(self.told),
                folders,
                contents,
                {node: dict(names) for node, names in self._sure_names.items()},
                dict(self._sure_contents),
                os.stat(self.root).st_ino,
            )
        )

    def _watched(self, name: str) -> Callable[..., Any]:
        call = self._calls[name]

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._busy or not self._concerned(name, args):
                return call(*args, **kwargs)
            self._busy = True
            try:
                text = f"{name} {', '.join(str(a)[-60:] for a in args)}"
                self.moment(f"before {text}")
                result = call(*args, **kwargs)
                if name == "fsync":
                    self._flushed(args[0])
                self.moment(f"after {text}")
            finally:
                self._busy = False
            return result

        return watched

    def _concerned(self, name: str, args: tuple[Any, ...]) -> bool:
        if name == "fsync":
            return self._below(os.readlink(f"/proc/self/fd/{args[0]}"))
        return any(isinstance(a, str | os.PathLike) and self._below(os.path.abspath(os.fspath(a))) for a in args)

    def _below(self, path: str) -> bool:
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        return real == str(self.root) or real.startswith(f"{self.root}/")

    def _flushed(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        folders, contents = self._look()
        if stat.S_ISDIR(found.st_mode):
            self._sure_names[found.st_ino] = dict(folders.get(found.st_ino, {}))
        elif found.st_ino in contents:
            self._sure_contents[found.st_ino] = contents[found.st_ino]

    def _look(self) -> tuple[dict[int, dict[str, int]], dict[int, bytes]]:
        """Return the names in each folder and the content of each file, by their numbers."""
        folders: dict[int, dict[str, int]] = {}
        contents: dict[int, bytes] = {}
        for where, _, _ in os.walk(self.root):
            names: dict[str, int] = {}
            with os.scandir(where) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    names[entry.name] = found.st_ino
                    if entry.is_file(follow_symlinks=False):
                        contents[found.st_ino] = self._content(entry.path, found)
            node = os.stat(where).st_ino
            folders[node] = names
            if node not in self._folders_before:
                self._sure_names.pop(node, None)  # of a folder that was removed, whose number it got
        self._folders_before = set(folders)
        # Of files that went, and that are on the disk for sure under some name.
        for node in self._sure_contents:
            if node not in contents and node in self._known:
                contents[node] = self._known[node][1]
        return folders, contents

    def _content(self, path: str, found: os.stat_result) -> bytes:
        mark = (found.st_size, found.st_mtime_ns)
        known = self._known.get(found.st_ino)
        if known is None or known[0] != mark:
            known = (mark, Path(path).read_bytes())
            self._known[found.st_ino] = known
        if found.st_ino not in self._kept:
            with contextlib.suppress(OSError):
                self._calls["link"](path, self._shadow / str(found.st_ino))
            self._kept.add(found.st_ino)
        return known[1]
