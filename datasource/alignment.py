"""Which options speak of times, and ends of micro-batches on multiples of a step of them (``alignTo``).

With ``alignTo`` no window of time is cut by a micro-batch.

Multiples are counted from 0: of dates and timestamps from 1970-01-01 in UTC, as Spark's ``window`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.errors import InvalidOptionError, shown
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.conf.options import SourceOptions
    from spark_timely.time.domain import TimeDomain

__all__ = ["aligned", "alignment_of", "check_delivery"]


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
            msg, hint="only a time of one coordinate has multiples in order; leave alignTo out", context=context
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
                hint="under delivery=arrival positions are commits: use startingVersion, startingTimestamp, "
                "endingVersion, endingTimestamp and the limits on files, bytes and rows",
                context={"option": name},
            )
