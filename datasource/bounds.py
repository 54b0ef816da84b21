"""Bounds of a replay: where a query begins, where it stops, and where micro-batches end, by its options.

The `planner` asks here for the offset of a fresh checkpoint, what a restart continues with, and where a micro-batch may
end. With ``alignTo`` micro-batches end at multiples of its value, so that none cuts a window of time in two. Multiples
are counted from 0: of dates and timestamps from 1970-01-01 in UTC, as Spark's ``window`` does.

Invariants
----------
1. Where a fresh checkpoint begins depends on the options alone.
2. A restart changes nothing that was delivered so far: options of the beginning are for a fresh checkpoint only, and
   the delivery, the streams and the content stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_timely.conf.options import SOURCE_OPTIONS
from spark_timely.errors import InvalidBoundsError, InvalidOptionError, InvalidUsageError, shown
from spark_timely.log.cut import Cut
from spark_timely.spark.base.offsets import Begin, Bound, Offset, Selection
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import moment_text

if TYPE_CHECKING:
    from spark_timely.conf.options import SourceOptions
    from spark_timely.time.domain import TimeDomain


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
    selection = Selection(
        delivery=options.delivery,
        as_of=begin.value if begin.kind == "as_of" and isinstance(begin.value, Antichain) else None,
        snapshot=options.snapshot,
        until=until,
        streams=None if options.stream_filter is None else tuple(sorted(options.stream_filter)),
        content="events" if options.content == "events" else "rows",
        times=tuple(kind.value for kind in domain.types),
    )
    return Offset(selection, begin=begin)


def _begin(options: SourceOptions, domain: TimeDomain, kind: str) -> Begin:
    if options.as_of is not None:
        if kind != "collection":
            msg = f"could not read as of a time: found option asOf={shown(options.as_of)} for a log of kind {kind!r}"
            raise InvalidOptionError(
                msg,
                hint="use startingFrontier for a stream log: only a collection log has contents",
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
    >>> offset = Offset(Selection(), position=Antichain.of(5), origin=Antichain.of(0))
    >>> continue_with(offset, Offset(Selection(), begin=Begin("latest")), options) == offset
    True
    """
    # What an earlier version did not write down is taken for what it is now. The types of a log's times
    # never change, and a log that was deleted and created again has another id.
    content = offset.selection.content or fresh.selection.content
    times = offset.selection.times or fresh.selection.times
    for name, old, new in (
        ("delivery", offset.selection.delivery, fresh.selection.delivery),
        ("content", content, fresh.selection.content),
        # A filter that is left out is the one of the checkpoint.
        (
            "streamFilter",
            offset.selection.streams,
            fresh.selection.streams if "stream_filter" in options.given else ...,
        ),
    ):
        if new not in (old, ...):
            msg = (
                f"could not continue from the checkpoint: it was begun with {name}={_words(old)}, "
                f"found {name}={_words(new)}"
            )
            raise InvalidOptionError(
                msg, hint=f"give the {name} it was begun with, or a new checkpoint", context={"option": name}
            )
    selection = replace(offset.selection, until=fresh.selection.until, content=content, times=times)
    return offset if selection == offset.selection else replace(offset, selection=selection)


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
    starts = ("as_of", "starting_frontier", "starting_version", "starting_timestamp")
    named = [SOURCE_OPTIONS.options[attribute].name for attribute in starts if attribute in options.given]
    begin = fresh.begin
    if not named or begin is None or begin in (offset.begin, offset.selection.start):
        return None
    if begin.kind == "as_of" and (offset.selection.as_of, offset.selection.snapshot) == (begin.value, options.snapshot):
        return None
    begun_there = begin.kind == "frontier" and offset.begin is None and offset.origin == begin.value
    return None if begun_there else named[0]


def _words(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def alignment_of(options: SourceOptions, domain: TimeDomain, /) -> int | None:
    """Return the step of the option ``alignTo`` in units of a log's time, None if it was not given.

    Parameters
    ----------
    options : SourceOptions
    domain : TimeDomain
        Of the log.

    Raises
    ------
    InvalidOptionError
        If the log's times are of a product order, the step is zero, or it is no whole number of units.

    Examples
    --------
    >>> from spark_timely.conf import SOURCE_OPTIONS, parse_options
    >>> from spark_timely.time.domain import TimeDomain
    >>> options = parse_options(SOURCE_OPTIONS, {"path": "log", "alignTo": "2 days"})
    >>> alignment_of(options, TimeDomain(("date",)))
    2
    """
    given = options.align_to
    if given is None:
        return None
    context = {"option": "alignTo"}
    attempt = f"could not align micro-batches: found alignTo={given.text!r}"
    if domain.arity != 1:
        msg = f"{attempt} for times of {domain.arity} coordinates"
        raise InvalidOptionError(
            msg, hint="leave alignTo out: only a time of one coordinate has multiples in order", context=context
        )
    try:
        step = given.in_units(domain.types[0].value)
    except InvalidOptionError as error:
        msg = f"{attempt} for times of type {domain.types[0].value!r}"
        raise InvalidOptionError(msg, hint=error.hint, context=context) from error
    if step < 1:
        msg = f"{attempt}, which is no step"
        raise InvalidOptionError(msg, hint="give at least 1 unit of the time, or leave it out", context=context)
    return step


def aligned(frontier: Antichain, step: int, domain: TimeDomain, /) -> Antichain:
    """Return a frontier of one coordinate rounded down to a multiple of a step; the empty one stays empty.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> aligned(Antichain.of(13), 5, TimeDomain(("long",))), aligned(Antichain.of(-1), 5, TimeDomain(("long",)))
    (Antichain.of(10), Antichain.of(-5))
    """
    if frontier.is_empty:
        return frontier
    time = frontier.elements[0][0]
    # Below the least multiple of the type there is nothing to round down to.
    return Antichain.of(max(time // step * step, domain.types[0].lo))


def check_delivery(options: SourceOptions, /) -> None:
    """Refuse options that speak of times where positions are commits; raises `InvalidOptionError`."""
    if options.delivery != "arrival":
        return
    starting = options.starting_frontier
    for name, given in (
        ("asOf", options.as_of),
        ("startingFrontier", None if starting in ("earliest", "latest") else starting),
        ("upTo", options.up_to),
        ("cut", options.cut),
        ("maxTimesPerTrigger", options.max_times_per_trigger),
        ("alignTo", None if options.align_to is None else options.align_to.text),
        ("splitBy", "time" if options.split_by == "time" else None),
    ):
        if given is not None:
            msg = f"could not read in order of arrival: found option {name}={shown(given)}, which speaks of times"
            raise InvalidOptionError(
                msg,
                hint="use startingVersion, startingTimestamp, endingVersion, endingTimestamp and the limits on "
                "files, bytes and rows: under delivery=arrival positions are commits",
                context={"option": name},
            )
