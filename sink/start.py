"""Checks at the start of a query: refuses what none of its micro-batches could capture.

Spark makes the sink only with the first micro-batch, in a thread of the query's own: what is refused there is found
late, by the program that waits for the query. Checked here before: options, output mode, columns and their types, the
log, the stream's owner, and what is missing before the next micro-batch.

`spark_timely.spark.patches` asks for the check when a query starts, whether by Spark's ``start()`` or by
`spark_timely.start`. Through Connect the answer is made where Spark runs: there the source gets the `question`.

Invariants
----------
1. What is refused here would be refused by the first micro-batch with rows; what the sink would take passes.
2. Nothing is written or created.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from spark_timely import errors
from spark_timely.conf.options import SinkOptions
from spark_timely.errors import ClosedError, InvalidUsageError, TimelyError
from spark_timely.sink.plan import BatchId, make_plan, parse_sink, sink_options
from spark_timely.spark.base.checkpoint import (
    checkpoint_state,
    is_finished,
    planned_offsets,
    reachable,
    require_checkpoint,
)
from spark_timely.spark.base.compat import require_arrow_sink
from spark_timely.spark.base.credentials import Credentials, refuse_secrets, with_credential

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["answer", "batch_refused", "check_start", "question", "raise_answer"]

_FIELD: Final = "refusal"
# Stands for the id that a query gets when it starts: nobody owns a stream by it.
_NEW: Final = "a new query"


def batch_refused() -> InvalidUsageError:
    """Return the error for a batch write: it belongs to no micro-batch and could not be recognised when repeated."""
    msg = "could not write a DataFrame with write.format('timely'): only streaming writes can be repeated safely"
    return InvalidUsageError(
        msg, hint="use writeStream.format('timely'), or Log.writer(...).append for rows that you have at hand"
    )


def check_start(schema: StructType, options: SinkOptions, /, *, gapless: bool) -> None:
    """Refuse a query whose next micro-batch could not be captured.

    Parameters
    ----------
    schema : pyspark.sql.types.StructType
        Schema of the data.
    options : SinkOptions
        With the query's checkpoint.
    gapless : bool
        Whether each micro-batch of the query is written to the log, as a sink does.

    Raises
    ------
    TimelyError
        See `spark_timely.sink.plan.make_plan`.

    Notes
    -----
    Cost: as planning a micro-batch. Where the checkpoint or the log cannot be reached from here, what they would say is
    left to the first micro-batch.
    """
    if gapless:
        require_arrow_sink()
    ident, finished = _next_batch(options)
    try:
        make_plan(schema, options, ident, gapless=gapless, begun=False)
    except ClosedError:
        # A query that has used its input up may be run again: it does nothing.
        if not finished:
            raise


def _next_batch(options: SinkOptions) -> tuple[BatchId, bool]:
    """Return which micro-batch comes next, and whether the one before is done."""
    location = require_checkpoint(options.checkpoint_location)
    if not reachable(location):
        return BatchId(None, None), False
    storage = options.storage_options
    known = checkpoint_state(location, storage_options=storage)
    if known.query is None:
        return BatchId(_NEW, None), False
    if known.batch is None:
        return BatchId(known.query, 0), False
    if is_finished(location, known.batch, storage_options=storage):
        return BatchId(known.query, known.batch + 1), True
    planned = planned_offsets(location, known.batch, storage_options=storage)
    return BatchId(known.query, known.batch, planned=planned), False


def question(schema: StructType, output_mode: str, /, *, gapless: bool) -> str:
    """Return the value of the option that asks elsewhere what `check_start` asks here."""
    return json.dumps({"schema": schema.jsonValue(), "mode": output_mode, "gapless": gapless})


def answer(asked: str, options: Mapping[str, str], credentials: Credentials, /) -> StructType:
    """Check a query where its sink will run, and put what is refused into columns: they reach the user as they are.

    Parameters
    ----------
    asked : str
        See `question`.
    options : mapping
        Of the sink.
    credentials : mapping
        What the session's names of credentials stand for.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    refusal: dict[str, object] = {}
    try:
        facts = json.loads(asked)
        mode, gapless = facts["mode"], facts["gapless"]
        refuse_secrets(options)
        full = with_credential(options, credentials)
        parsed = sink_options(full, output_mode=mode) if gapless else parse_sink(full)
        check_start(StructType.fromJson(facts["schema"]), parsed, gapless=gapless)
    except TimelyError as error:
        refusal = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
    return StructType([StructField(_FIELD, StringType(), metadata={_FIELD: json.dumps(refusal)})])


def raise_answer(columns: StructType, /) -> None:
    """Raise what `answer` put into its columns."""
    refusal = json.loads(columns[_FIELD].metadata[_FIELD])
    if refusal:
        kind: type[TimelyError] = getattr(errors, refusal["kind"])
        raise kind(refusal["message"], hint=refusal["hint"])
