"""Offsets of the source: positions in a log as Spark keeps them, as canonical JSON.

Spark compares offsets as text and logs them; a micro-batch is planned again after a crash from its
two logged offsets alone. So an offset says everything that a plan needs, always in the same words.

Invariants
----------
1. Equal offsets have equal JSON text, through any number of round trips.
2. An offset that was resolved says where the query began and what it reads: the start offset of the
   first micro-batch is logged nowhere, its end offset is.
3. A symbolic offset, the start of a fresh checkpoint, depends on the options alone.
4. An offset that was resolved names commits that the log had when its position was reached, by identity: positions are
   numbers, which a log that was put back to an earlier state reaches again by other commits. While the position stays,
   they stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from spark_timely.datasource.alignment import alignment_of, check_delivery
from spark_timely.errors import (
    InvalidBoundsError,
    InvalidOptionError,
    InvalidShapeError,
    InvalidUsageError,
    LogFormatError,
    shown,
)
from spark_timely.log.cut import Cut
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import moment_text

if TYPE_CHECKING:
    from spark_timely.conf.options import SourceOptions
    from spark_timely.log.machine.identity import Commits
    from spark_timely.time.domain import TimeDomain

__all__ = [
    "OFFSET_VERSION",
    "Begin",
    "Bound",
    "Offset",
    "Scope",
    "continue_with",
    "first_offset",
    "ignored_start",
    "read_offset",
]

OFFSET_VERSION: Final = 1

Seqs = dict[str, int]


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a query with a fresh checkpoint begins.

    Attributes
    ----------
    kind : {"frontier", "latest", "version", "timestamp", "as_of"}
        What `value` is. All but ``latest``, ``version`` and ``timestamp`` are the same whenever
        they are looked at; those three must be pinned by an offset of their own.
    value : Antichain, int or None
        The frontier; the commit number; microseconds since the epoch; the frontier of the one time.
    """

    kind: str
    value: Antichain | int | None = None

    @property
    def constant(self) -> bool:
        """Whether it means the same whenever it is resolved."""
        return self.kind in ("frontier", "as_of")

    def to_json(self) -> object:
        """Return plain JSON values."""
        if self.kind == "latest":
            return "latest"
        value = self.value.to_json() if isinstance(self.value, Antichain) else self.value
        return {_BEGIN_WORDS[self.kind]: value}

    @classmethod
    def from_json(cls, found: object, arity: int) -> Begin:
        """Read what `to_json` gave."""
        if found == "latest":
            return cls("latest")
        if isinstance(found, Mapping) and len(found) == 1:
            word, value = next(iter(found.items()))
            kind = {text: kind for kind, text in _BEGIN_WORDS.items()}.get(word)
            if kind in ("frontier", "as_of"):
                return cls(kind, Antichain.from_json(value, arity))
            if kind is not None and isinstance(value, int):
                return cls(kind, value)
        raise _unreadable(found)


_BEGIN_WORDS: Final = {"frontier": "frontier", "version": "version", "timestamp": "timestamp", "as_of": "asOf"}


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a query stops: before a frontier, or after a commit number or a moment.

    Attributes
    ----------
    kind : {"up_to", "version", "timestamp"}
        What `value` is; the frontier is exclusive, the others are inclusive.
    value : Antichain or int
        The frontier; the commit number; microseconds since the epoch.
    """

    kind: str
    value: Antichain | int

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        value = self.value.to_json() if isinstance(self.value, Antichain) else self.value
        return {_BOUND_WORDS[self.kind]: value}

    @classmethod
    def from_json(cls, found: object, arity: int) -> Bound:
        """Read what `to_json` gave."""
        if isinstance(found, Mapping) and len(found) == 1:
            word, value = next(iter(found.items()))
            kind = {text: kind for kind, text in _BOUND_WORDS.items()}.get(word)
            if kind == "up_to":
                return cls(kind, Antichain.from_json(value, arity))
            if kind is not None and isinstance(value, int):
                return cls(kind, value)
        raise _unreadable(found)


_BOUND_WORDS: Final = {"up_to": "upTo", "version": "version", "timestamp": "timestamp"}


@dataclass(frozen=True, slots=True)
class Scope:
    """What a query reads: the constants that its offsets carry.

    Attributes
    ----------
    delivery : {"complete", "arrival"}
        In frontier order, or in the order captured.
    as_of : Antichain or None
        The one time up to which contents come first.
    snapshot : bool
        With `as_of`: whether they come at all.
    until : Bound or None
        Where it stops.
    streams : tuple of str or None
        The streams that it reads, sorted; None is all.
    start : Begin or None
        Under ``arrival``, once resolved: the commit number or the moment from which on messages are
        given out, also of streams that open later.
    content : {"rows", "events"} or None
        Whether progress rows are given out too; None where an earlier version did not write it down.
    times : tuple of str or None
        Types of the times' coordinates, so that a frontier can be read without the log; None where an
        earlier version did not write them down.
    """

    delivery: str = "complete"
    as_of: Antichain | None = None
    snapshot: bool = True
    until: Bound | None = None
    streams: tuple[str, ...] | None = None
    start: Begin | None = None
    content: str | None = None
    times: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values; what is not set is left out."""
        found: dict[str, object] = {"delivery": self.delivery}
        if self.times is not None:
            found["times"] = list(self.times)
        if self.content is not None:
            found["content"] = self.content
        if self.as_of is not None:
            found["asOf"] = self.as_of.to_json()
            found["snapshot"] = self.snapshot
        if self.until is not None:
            found["until"] = self.until.to_json()
        if self.streams is not None:
            found["streams"] = list(self.streams)
        if self.start is not None:
            found["from"] = self.start.to_json()
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any], arity: int) -> Scope:
        """Read what `to_json` gave; other keys are left alone."""
        streams, times = found.get("streams"), found.get("times")
        return cls(
            delivery=found["delivery"],
            as_of=Antichain.from_json(found["asOf"], arity) if "asOf" in found else None,
            snapshot=bool(found.get("snapshot", True)),
            until=Bound.from_json(found["until"], arity) if "until" in found else None,
            streams=None if streams is None else tuple(streams),
            start=Begin.from_json(found["from"], arity) if "from" in found else None,
            content=found.get("content"),
            times=None if times is None else tuple(times),
        )


@dataclass(frozen=True, slots=True)
class Offset:
    """One position of one query in one log.

    Symbolic while `begin` is set; else resolved, with the query's own beginning in `origin`.

    Attributes
    ----------
    scope : Scope
        What the query reads.
    begin : Begin or None
        Where it begins, not resolved yet.
    position : Antichain, dict of str to int, or None
        Under ``complete`` a frontier: everything not beyond it was delivered. Under ``arrival`` per
        stream the number of the next commit; a stream that is not named has delivered none.
    origin : Antichain, dict of str to int, or None
        The position at which the query began.
    log_id : str or None
        Which log: a path may be given to another one.
    commits : mapping of str to (int, str)
        Under ``complete`` the newest commits of the log when the position was reached, under ``arrival`` the last ones
        before the position; of very many streams those that were made last. Empty in what an earlier version wrote.

    Examples
    --------
    >>> commits = {"main": (3, "9f3b")}
    >>> offset = Offset(Scope(), position=Antichain.of(5), origin=Antichain.of(0), log_id="a1", commits=commits)
    >>> offset.to_json()
    {'version': 1, 'delivery': 'complete', 'log': 'a1', 'origin': [0], 'frontier': [5], \
'commits': {'main': [3, '9f3b']}}
    >>> read_offset(offset.to_json(), 1) == offset
    True
    """

    scope: Scope
    begin: Begin | None = None
    position: Antichain | Seqs | None = None
    origin: Antichain | Seqs | None = None
    log_id: str | None = None
    commits: Commits = field(default_factory=dict)

    @property
    def frontier(self) -> Antichain:
        """The position under ``complete``."""
        return _frontier(self.position)

    @property
    def seqs(self) -> Seqs:
        """The position under ``arrival``."""
        return _seqs(self.position)

    @property
    def origin_frontier(self) -> Antichain:
        """The origin under ``complete``."""
        return _frontier(self.origin)

    @property
    def origin_seqs(self) -> Seqs:
        """The origin under ``arrival``."""
        return _seqs(self.origin)

    def moved(self, position: Antichain | Seqs, commits: Commits | None = None) -> Offset:
        """Return this offset at another position, reached with some commits."""
        return replace(self, position=position, commits=commits or {})

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values, always in the same order."""
        found: dict[str, object] = {"version": OFFSET_VERSION, **self.scope.to_json()}
        if self.begin is not None:
            found["begin"] = self.begin.to_json()
            return found
        if self.log_id is not None:
            found["log"] = self.log_id
        found["origin"] = _position_to_json(self.origin)
        word = "frontier" if self.scope.delivery == "complete" else "seqs"
        found[word] = _position_to_json(self.position)
        if self.commits:
            found["commits"] = {name: list(self.commits[name]) for name in sorted(self.commits)}
        return found


def read_offset(found: object, arity: int, /) -> Offset:
    """Read an offset from what `Offset.to_json` gave, through JSON text or not.

    Parameters
    ----------
    found : object
        Plain JSON values.
    arity : int
        Number of coordinates of the log's times.

    Returns
    -------
    Offset

    Raises
    ------
    LogFormatError
        If a newer version of the library wrote it.
    InvalidUsageError
        If it is no offset of this source, or of a log with another kind of time.

    Examples
    --------
    >>> read_offset({"version": 1, "delivery": "complete", "begin": {"frontier": [3]}}, 1).begin
    Begin(kind='frontier', value=Antichain.of(3))
    """
    if not isinstance(found, Mapping) or not isinstance(found.get("version"), int):
        raise _unreadable(found)
    if found["version"] > OFFSET_VERSION:
        msg = (
            f"could not read the checkpoint: found an offset of version={found['version']!r}, known is {OFFSET_VERSION}"
        )
        raise LogFormatError(msg, hint="a newer spark-timely wrote it; upgrade, or begin with a new checkpoint")
    try:
        scope = Scope.from_json(found, arity)
        if "begin" in found:
            return Offset(scope, begin=Begin.from_json(found["begin"], arity))
        word = "frontier" if scope.delivery == "complete" else "seqs"
        return Offset(
            scope,
            position=_position_from_json(found[word], scope, arity),
            origin=_position_from_json(found["origin"], scope, arity),
            log_id=found.get("log"),
            commits=_commits_from_json(found.get("commits", {})),
        )
    except (KeyError, TypeError, InvalidShapeError) as error:
        raise _unreadable(found) from error


def first_offset(options: SourceOptions, domain: TimeDomain, kind: str, /) -> Offset:
    """Return the symbolic offset at which a fresh checkpoint begins; the same for the same options.

    Parameters
    ----------
    options : SourceOptions
    domain : TimeDomain
        Of the log.
    kind : str
        Kind of the log, ``stream`` or ``collection``.

    Returns
    -------
    Offset

    Raises
    ------
    InvalidOptionError
        If an option does not fit the delivery or the log.
    InvalidBoundsError
        If the query would end before it begins.
    InvalidUsageError
        If a time is none of the log's.

    Examples
    --------
    >>> from spark_timely.conf import SOURCE_OPTIONS, parse_options
    >>> from spark_timely.time.domain import TimeDomain
    >>> options = parse_options(SOURCE_OPTIONS, {"path": "log", "startingFrontier": "[7]", "upTo": "[9]"})
    >>> first_offset(options, TimeDomain(("long",)), "stream").to_json()
    {'version': 1, 'delivery': 'complete', 'times': ['long'], 'content': 'rows', 'until': {'upTo': [9]}, \
'begin': {'frontier': [7]}}
    """
    check_delivery(options)
    alignment_of(options, domain)
    begin = _begin(options, domain, kind)
    until = _until(options, domain)
    if until is not None:
        _check_order(begin, until, domain)
    scope = Scope(
        delivery=options.delivery,
        as_of=begin.value if begin.kind == "as_of" and isinstance(begin.value, Antichain) else None,
        snapshot=options.snapshot,
        until=until,
        streams=None if options.stream_filter is None else tuple(sorted(options.stream_filter)),
        content="events" if options.content == "events" else "rows",
        times=tuple(kind.value for kind in domain.types),
    )
    return Offset(scope, begin=begin)


def _begin(options: SourceOptions, domain: TimeDomain, kind: str) -> Begin:
    if options.as_of is not None:
        if kind != "collection":
            msg = f"could not read as of a time: found option asOf={shown(options.as_of)} for a log of kind {kind!r}"
            raise InvalidOptionError(
                msg,
                hint="only a collection log has contents; for a stream log use startingFrontier",
                context={"option": "asOf"},
            )
        with _naming("asOf", options.as_of):
            return Begin("as_of", Antichain.of(domain.parse_time(_single(options.as_of, domain))))
    for name, given in (
        ("frontier", options.starting_frontier),
        ("version", options.starting_version),
        ("timestamp", options.starting_timestamp),
    ):
        if given == "latest":
            return Begin("latest")
        if given is None or given == "earliest":
            continue
        if name != "frontier":
            return Begin(name, int(str(given)))
        with _naming("startingFrontier", given):
            return Begin(name, domain.parse_frontier(given))
    return Begin("frontier", domain.minimum_frontier)


@contextmanager
def _naming(option: str, value: object) -> Iterator[None]:
    """Let a refusal of a time name the option that gave it."""
    try:
        yield
    except InvalidUsageError as error:
        msg = f"{error.message}, in option {option}={shown(value)}"
        raise InvalidOptionError(msg, hint=error.hint, context={"option": option}) from error


def _single(value: object, domain: TimeDomain) -> object:
    """Take ``[5]`` for the time 5, and ``[[1, 2]]`` for (1, 2): the way a frontier of it is written."""
    alone = isinstance(value, (list, tuple)) and len(value) == 1
    if alone and (domain.arity == 1 or isinstance(value[0], (list, tuple))):  # type: ignore[index]
        return value[0]  # type: ignore[index]
    return value


def _until(options: SourceOptions, domain: TimeDomain) -> Bound | None:
    if options.up_to is not None:
        with _naming("upTo", options.up_to):
            return Bound("up_to", domain.parse_frontier(options.up_to))
    if options.cut is not None:
        return Bound("up_to", Cut.from_json(options.cut).frontier)
    if options.ending_version is not None:
        return Bound("version", int(options.ending_version))
    if options.ending_timestamp is not None:
        return Bound("timestamp", int(options.ending_timestamp))
    return None


def _check_order(begin: Begin, until: Bound, domain: TimeDomain) -> None:
    if isinstance(begin.value, Antichain) and isinstance(until.value, Antichain):
        wrong = until.value.less_than_frontier(begin.value)
        low, high = domain.render_frontier(begin.value), domain.render_frontier(until.value)
    elif begin.kind == until.kind and isinstance(begin.value, int) and isinstance(until.value, int):
        wrong = until.value < begin.value
        text = moment_text if begin.kind == "timestamp" else str
        low, high = text(begin.value), text(until.value)
    else:
        return
    if wrong:
        names = _OPTION_NAMES[begin.kind], _OPTION_NAMES[until.kind + "_end"]
        msg = f"could not read a range that ends before it begins: found {names[0]}={low}, {names[1]}={high}"
        raise InvalidBoundsError(msg, hint=f"give a {names[1]} that is not before {names[0]}", lower=low, upper=high)


_OPTION_NAMES: Final = {
    "frontier": "startingFrontier",
    "version": "startingVersion",
    "timestamp": "startingTimestamp",
    "as_of": "asOf",
    "up_to_end": "upTo",
    "version_end": "endingVersion",
    "timestamp_end": "endingTimestamp",
}


def continue_with(offset: Offset, fresh: Offset, options: SourceOptions, /) -> Offset:
    """Return a checkpoint's offset under the options that the query has now.

    Options of the beginning are for a fresh checkpoint only. The end is the one that is given now, none
    if none is: it may be moved or taken away by a restart. The delivery, the streams and whether there
    are progress rows may not change, because what was delivered so far would mean something else.

    Parameters
    ----------
    offset : Offset
        From the checkpoint.
    fresh : Offset
        What the present options would begin with.
    options : SourceOptions
        The present options.

    Returns
    -------
    Offset

    Raises
    ------
    InvalidOptionError
        If an option contradicts the checkpoint.

    Examples
    --------
    >>> from spark_timely.conf import SOURCE_OPTIONS, parse_options
    >>> options = parse_options(SOURCE_OPTIONS, {"path": "log"})
    >>> offset = Offset(Scope(), position=Antichain.of(5), origin=Antichain.of(0))
    >>> continue_with(offset, Offset(Scope(), begin=Begin("latest")), options) == offset
    True
    """
    # What an earlier version did not write down is taken for what it is now. The types of a log's times
    # never change, and a log that was deleted and created again has another id.
    content = offset.scope.content or fresh.scope.content
    times = offset.scope.times or fresh.scope.times
    for name, old, new in (
        ("delivery", offset.scope.delivery, fresh.scope.delivery),
        ("content", content, fresh.scope.content),
        # A filter that is left out is the one of the checkpoint.
        ("streamFilter", offset.scope.streams, fresh.scope.streams if "stream_filter" in options.given else ...),
    ):
        if new not in (old, ...):
            msg = (
                f"could not continue from the checkpoint: it was begun with {name}={_words(old)}, "
                f"found {name}={_words(new)}"
            )
            raise InvalidOptionError(
                msg, hint=f"give the {name} it was begun with, or a new checkpoint", context={"option": name}
            )
    scope = replace(offset.scope, until=fresh.scope.until, content=content, times=times)
    return offset if scope == offset.scope else replace(offset, scope=scope)


def ignored_start(offset: Offset, fresh: Offset, options: SourceOptions, /) -> str | None:
    """Return the option of the beginning that a checkpoint overrules, None where it says the same.

    Parameters
    ----------
    offset : Offset
        The first one that the checkpoint gave in this run.
    fresh : Offset
        What the present options would begin with.
    options : SourceOptions
        The present options.

    Returns
    -------
    str or None
        Name of the option.
    """
    named = [name for attribute, name in _START_OPTIONS.items() if attribute in options.given]
    begin = fresh.begin
    if not named or begin is None or begin in (offset.begin, offset.scope.start):
        return None
    if begin.kind == "as_of" and (offset.scope.as_of, offset.scope.snapshot) == (begin.value, options.snapshot):
        return None
    begun_there = begin.kind == "frontier" and offset.begin is None and offset.origin == begin.value
    return None if begun_there else named[0]


_START_OPTIONS: Final = {
    "as_of": "asOf",
    "starting_frontier": "startingFrontier",
    "starting_version": "startingVersion",
    "starting_timestamp": "startingTimestamp",
}


def _words(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _position_to_json(position: Antichain | Seqs | None) -> object:
    if isinstance(position, Antichain):
        return position.to_json()
    return {name: (position or {})[name] for name in sorted(position or {})}


def _position_from_json(found: object, scope: Scope, arity: int) -> Antichain | Seqs:
    if scope.delivery == "complete":
        return Antichain.from_json(found, arity)
    if not isinstance(found, Mapping):
        raise TypeError(found)
    return {str(name): int(seq) for name, seq in found.items()}


def _commits_from_json(found: object) -> Commits:
    if not isinstance(found, Mapping):
        raise TypeError(found)
    commits: dict[str, tuple[int, str]] = {}
    for name, commit in found.items():  # one turn per stream
        if not isinstance(commit, (list, tuple)) or [type(each) for each in commit] != [int, str]:
            raise TypeError(found)
        commits[str(name)] = commit[0], commit[1]
    return commits


def _frontier(position: Antichain | Seqs | None) -> Antichain:
    if not isinstance(position, Antichain):
        msg = f"could not take a position as a frontier: found {shown(position)}"
        raise InvalidUsageError(msg)
    return position


def _seqs(position: Antichain | Seqs | None) -> Seqs:
    if not isinstance(position, dict):
        msg = f"could not take a position as commit numbers: found {shown(position)}"
        raise InvalidUsageError(msg)
    return position


def _unreadable(found: object) -> InvalidUsageError:
    return InvalidUsageError(
        f"could not read the checkpoint: found {shown(found)}, which is no offset of this log",
        hint="the checkpoint belongs to another query or log; use a new one",
    )
