"""Features and properties of Delta tables: pure decisions whether this library may write to a table that has them.

Invariants
----------
1. Only a table whose every feature, property and mark of a column is named here as harmless gets entries of our own
   writer. On any other delta-rs commits, which knows more features than we do, or it is refused.
2. What asks the writer to look at each row, or to fill columns, is refused by name: the files of a log are written
   before the commit, and neither delta-rs nor anybody else would look at them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_timely.log.files.format import METADATA_KEY

# What older writer versions stand for begins with constraints, at 3. Invariants, of 2, are looked for below.
_WRITER_VERSIONS = (1, 2, 7)
_READER_VERSIONS = (1, 3)
_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
# They say how files are laid out, how long is kept what, and how often something is done; or are looked at here.
_PROPERTIES = frozenset(
    {
        "delta.appendOnly",
        "delta.autoOptimize.autoCompact",
        "delta.autoOptimize.optimizeWrite",
        "delta.checkpoint.writeStatsAsJson",
        "delta.checkpoint.writeStatsAsStruct",
        "delta.checkpointInterval",
        "delta.checkpointPolicy",
        "delta.dataSkippingNumIndexedCols",
        "delta.dataSkippingStatsColumns",
        "delta.deletedFileRetentionDuration",
        "delta.enableExpiredLogCleanup",
        "delta.isolationLevel",
        "delta.logRetentionDuration",
        "delta.minReaderVersion",
        "delta.minWriterVersion",
        "delta.parquet.compression.codec",
        "delta.randomizeFilePrefixes",
        "delta.randomPrefixLength",
        "delta.sampleRetentionDuration",
        "delta.setTransactionRetentionDuration",
        "delta.targetFileSize",
        "delta.tuneFileSizesForRewrites",
    }
)
# Those whose one value is harmless.
_VALUES = {
    "delta.checkpointPolicy": "classic",
    "delta.columnMapping.mode": "none",
    "delta.enableChangeDataFeed": "false",
    "delta.enableDeletionVectors": "false",
    "delta.enableInCommitTimestamps": "false",
    "delta.enableRowTracking": "false",
    "delta.enableTypeWidening": "false",
}
_MARKS = frozenset({METADATA_KEY, "comment"})
_CONSTRAINT = "delta.constraints."
_JUDGED = re.compile(r"delta\.(invariants|generationExpression|identity\..+)")


@dataclass(frozen=True, slots=True)
class TableRules:
    """The demands of a table on its writers.

    Parameters
    ----------
    unknown : tuple of str
        Features, properties and marks of columns that are not known to be harmless; with any, delta-rs commits.
    refused : tuple of str
        Those that nobody would keep: with any, the table is not written.

    Attributes
    ----------
    harmless : bool
        Whether entries of our own may be written: there are none of these.
    """

    unknown: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    harmless: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "harmless", not self.unknown and not self.refused)


def table_rules(
    *,
    reader: int,
    writer: int,
    features: Collection[str],
    properties: Mapping[str, str],
    schema_json: str,
) -> TableRules:
    """Judge a table by its protocol, its properties, and the metadata of its columns.

    Parameters
    ----------
    reader, writer : int
        Least versions of the protocol.
    features : collection of str
        Of readers and writers.
    properties : mapping
    schema_json : str
        As the table's log has it.

    Examples
    --------
    >>> rules = table_rules(
    ...     reader=1, writer=7, features={"appendOnly", "rowTracking"}, properties={"delta.constraints.c": "v > 0"},
    ...     schema_json='{"type": "struct", "fields": []}')
    >>> rules.unknown, rules.refused
    (("feature 'rowTracking'",), ("constraint 'c' (v > 0)",))
    """
    unknown = [f"feature {name!r}" for name in sorted(set(features) - _FEATURES)]
    if writer not in _WRITER_VERSIONS:
        unknown.append(f"writer version {writer}")
    if reader not in _READER_VERSIONS:
        unknown.append(f"reader version {reader}")
    refused = []
    for name, value in sorted(properties.items()):
        if name.startswith(_CONSTRAINT):
            refused.append(f"constraint {name.removeprefix(_CONSTRAINT)!r} ({value})")
        elif name in _VALUES:
            if str(value).lower() != _VALUES[name]:
                unknown.append(f"property {name}={value}")
        elif name not in _PROPERTIES:
            unknown.append(f"property {name}")
    for column, marks in _columns(json.loads(schema_json), ""):
        for mark in sorted(set(marks) - _MARKS):
            if _JUDGED.fullmatch(mark):
                refused.append(f"{mark} of column {column!r}")
            else:
                unknown.append(f"{mark} of column {column!r}")
    return TableRules(tuple(unknown), tuple(refused))


def _columns(type_: Any, above: str) -> Iterator[tuple[str, Mapping[str, Any]]]:  # noqa: ANN401 - JSON
    """Yield names and metadata of all columns of a type, those inside others too."""
    if not isinstance(type_, dict):
        return
    for column in type_.get("fields", ()):
        name = f"{above}{column['name']}"
        yield name, column.get("metadata") or {}
        yield from _columns(column["type"], f"{name}.")
    for part in ("elementType", "keyType", "valueType"):
        yield from _columns(type_.get(part), above)
