"""`upsert`: a log of changes applied to a table, as a dataflow with one operator and one output.

Users call `ContinualTask.upsert`. It is no body that runs once per time, as other continual tasks have: the operator
works on a table of what it kept, many times in one job, and reads of that what belongs to keys that change.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from spark_timely.dataflow.kept_logs import KEPT
from spark_timely.dataflow.views import Replay
from spark_timely.errors import InvalidUsageError
from spark_timely.log import Log
from spark_timely.log.store.storage import normal_path
from spark_timely.spark.dataflows.dataflow import Dataflow

__all__ = ["upsert_task"]


def upsert_task(
    name: str,
    *,
    input: str | os.PathLike[str] | Log,
    output: str | os.PathLike[str],
    checkpoint: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    credential: str | None = None,
    **options: Any,  # noqa: ANN401 - those of Stream.upsert
) -> Dataflow:
    """Return a dataflow that applies a log of changes to a table. See `ContinualTask.upsert`.

    Raises
    ------
    InvalidUsageError
        If the input is a collection, or parameters do not go together.
    SchemaMismatchError
        If a column is missing, or of a type that does not fit.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> from spark_timely.log.log import create_log
    >>> folder = tempfile.mkdtemp()
    >>> log = create_log(folder + "/changes", pa.schema([("id", pa.int64()), ("at", pa.int64())]), minimum=(0,))
    >>> upsert_task("orders", input=log, output=folder + "/orders", keys="id", sequence_by="at")
    Dataflow('orders', inputs=1, outputs=1)
    """
    path = normal_path(output)
    # Spark knows a query by its checkpoint: tasks that write into one log have one each.
    place = hashlib.sha256(str(name).encode(errors="replace")).hexdigest()[:16]
    flow = Dataflow(name, checkpoint=checkpoint or f"{path.rstrip('/')}/{KEPT}/task-{place}")
    if isinstance(input, Log):  # has its own
        changes = flow.replay(input)
    else:
        changes = flow.replay(input, credential=credential, storage_options=storage_options)
    if changes.view.updates:
        assert isinstance(changes.view, Replay)
        msg = f"could not begin task {name!r}: found its input {changes.view.path!r} to be a collection"
        raise InvalidUsageError(
            msg, hint="give a stream log of changes: a collection is current, and takes its rows away itself"
        )
    table = changes.upsert(**options)
    table.capture(path, credential=credential, storage_options=storage_options)
    return flow
