"""Fast lookup of the newest frontier of a log on a local disk: delta-rs alone, without loading numpy and pyarrow.

``spark-timely frontier`` asks it first (`spark_timely.cli.quick`), since scripts do so again and again: to load numpy
and pyarrow takes longer than all that is done with them for a frontier. What is not plain is left to
`spark_timely.log.log.open_log`, which says what is wrong with it.

Invariants
----------
1. The answer is that of `Log.frontier` on a log opened at that moment, or there is none.
2. Nothing is written, and nothing is remembered.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Final

from spark_timely.log.store.entries import ELSEWHERE, METADATA_KEY, Entry, check_whole, parse_entry

# Of `spark_timely.log.files.format`, which loads pyarrow; a test compares.
FORMAT_VERSIONS: Final = (2, 3, 4)

# What the log of a table consists of where nothing is odd; else somebody else writes to it, or died in between.
_ENTRY = re.compile(r"(\d{20})\.(?:json|crc|checkpoint\.parquet)|_last_checkpoint")
# Part of what another path, or a URL, is written with.
_ODD = re.compile(r"[:%\\\0]")

# The rows of the newest commit of each stream, each once, and what all of them hold together.
_HELD = """
select t, sum(n) from (
  select distinct _stream, _seq, cast(_time as bigint) t, cast(_count as bigint) n from (
    select *, rank() over (partition by _stream order by _seq desc) place from log where _event = 'progress'
  ) where place = 1
) group by t
"""


def newest_frontier(path: str, /) -> tuple[str, list[int]] | None:
    """Return the type of a log's times and its frontier; None where the log is to be opened to find that out.

    Parameters
    ----------
    path : str
        As a user gives it.

    Returns
    -------
    tuple of str and list of int, or None
        A time as its type's number, none where the log is complete. None for product times, cloud URLs, tables with
        features, damaged ones, those that are no log, and where delta-rs is loaded already.

    Notes
    -----
    Cost: delta-rs opens the table, and reads its progress.

    Examples
    --------
    >>> newest_frontier("/nowhere") is None
    True
    """
    # Loaded: the rest may be as well, or this process may have been forked, where delta-rs hangs.
    if "deltalake" in sys.modules or not path or _ODD.search(path):
        return None
    where = os.path.abspath(os.path.expanduser(path))
    try:
        newest = _newest(where)
        return None if newest is None else _found(where, *newest)
    except Exception:  # noqa: BLE001 - whatever it is, who opens the log will find it, and say it well
        return None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of delta-rs
            raise
        return None


def _newest(where: str) -> tuple[int, Entry] | None:
    """Return the newest entry of the table's log; None unless each that counts is there as it was written."""
    folder = os.path.join(where, "_delta_log")
    names = os.listdir(folder)
    if not all(map(_ENTRY.fullmatch, names)):
        return None
    checkpoint = max((name[:20] for name in names if name.endswith(".checkpoint.parquet")), default="")
    entries = sorted(name for name in names if name.endswith(".json") and name[:20] >= checkpoint)
    newest = None
    for name in entries:  # those since the newest checkpoint, or before it was made
        with open(os.path.join(folder, name), "rb") as file:
            content = file.read()
        if name == entries[-1]:
            newest = int(name[:20]), parse_entry(content, int(name[:20]))
        else:
            check_whole(content, int(name[:20]))
    return newest


def _found(where: str, version: int, newest: Entry) -> tuple[str, list[int]] | None:
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(where)
    protocol, metadata = table.protocol(), table.metadata()
    facts = next((field.metadata for field in table.schema().fields if field.name == "_event"), {})
    log = json.loads(str(facts.get(METADATA_KEY, "{}")))
    plain = (
        protocol.min_reader_version == 1
        and metadata.configuration.get("delta.columnMapping.mode", "none") == "none"
        and list(metadata.partition_columns) == ["_event"]
        and log.get("version") in FORMAT_VERSIONS
        and len(log.get("times", ())) == 1
        and table.version() == version
        # The writer of the newest commit has judged all before it; else others may have changed rows.
        and (version <= log.get("guardedFrom", version) or (newest.ours and newest.judged == version - 1))
    )
    if not plain or any(map(ELSEWHERE.match, table.get_add_actions().column("path").to_pylist())):
        return None
    held = QueryBuilder().register("log", table).execute(_HELD).read_all()
    times, counts = (held.column(i).to_pylist() for i in range(2))
    if not times or None in times or min(counts) < 0:
        return None
    # As many as times that a stream holds, or held before its newest commit.
    open_ = [time for time, count in zip(times, counts, strict=True) if count]
    return log["times"][0], [min(open_)] if open_ else []
