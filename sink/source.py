"""Ask how far the sources of a micro-batch are, where they move the frontier.

Invariants
----------
1. What cannot be told, or is not in the log's times, is refused before any row is written.
2. The answer is the same for a repeated micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.errors import InvalidOptionError, StorageError
from spark_timely.protocol.policy import FrontierPolicy
from spark_timely.spark.checkpoint import checkpoint_state
from spark_timely.spark.source_frontier import source_frontier

if TYPE_CHECKING:
    from spark_timely.conf.options import SinkOptions
    from spark_timely.protocol.policy import Policy
    from spark_timely.time.antichain import Antichain

__all__ = ["end_of_sources"]


def end_of_sources(options: SinkOptions, policy: Policy, batch: int | None, /) -> Antichain | None:
    """Return how far the sources of a micro-batch are at its end.

    Parameters
    ----------
    options : SinkOptions
        Names the checkpoint.
    policy : Policy
        Names the types of the log's times.
    batch : int or None
        Number of the micro-batch; None where it is not known.

    Returns
    -------
    Antichain or None
        None where nothing is known yet, and under every policy but ``source``.

    Raises
    ------
    InvalidOptionError
        If no checkpoint is given, or that of another query, or the sources' times are of other types than the
        log's.
    InvalidUsageError
        If the query reads or does something that hides what is complete.
    StorageError
        If the checkpoint cannot be read.

    Notes
    -----
    Cost: two small reads and two listings.
    """
    if policy.frontier is not FrontierPolicy.SOURCE:
        return None
    location = options.checkpoint_location
    if location is None:
        msg = "could not use frontier='source': found no checkpoint"
        raise InvalidOptionError(
            msg,
            hint="give checkpoint, the query's checkpointLocation, in place of app_id: how far the sources are stands"
            " there; without it use another frontier policy",
            context={"option": "checkpoint"},
        )
    if batch is None:
        msg = f"could not tell how far the sources are: found no micro-batch in checkpoint {location!r}"
        raise StorageError(
            msg,
            hint="put the checkpoint where Python can read it: a local path, or a cloud URL with 'storage.' options",
            determinate=True,
            context={"checkpoint": location},
        )
    newest = checkpoint_state(location, storage_options=options.storage_options).batch
    if newest is not None and newest != batch:
        msg = f"could not tell how far micro-batch {batch} is: found micro-batch {newest} as the newest of checkpoint"
        msg = f"{msg} {location!r}"
        raise InvalidOptionError(
            msg,
            hint="give the checkpoint of this very query, not that of another one",
            context={"option": "checkpoint"},
        )
    found = source_frontier(batch, location, storage_options=options.storage_options)
    wanted = policy.domain.types
    if found.times not in ((), wanted):
        has, wants = (", ".join(kind.value for kind in kinds) for kinds in (found.times, wanted))
        msg = f"could not use frontier='source': found sources with times of type ({has}), the log's are ({wants})"
        raise InvalidOptionError(
            msg,
            hint="a frontier moves only in times of its own type: capture the time that the sources give (option"
            " includeTime adds it), into a log of that type",
            context={"option": "frontier"},
        )
    return found.frontier
