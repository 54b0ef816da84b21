"""Entries of a Delta table's log: reads what a commit did, and writes one whole where the table's features allow.

An entry is the JSON file of one version in `_delta_log`. `delta` follows a table by `read_entry` and commits by
`put_entry`; `repair` renders entries too, and the judge of foreign changes (`machine.judge`) gets each `Entry`.

Invariants
----------
1. An entry appears whole, under a name that nobody had: two writers never both get one version.
2. What cannot be understood is never passed over: it raises, or says that the table is to be read again. An entry
   without any action is damage, not a commit that did nothing: a power cut leaves such files behind.
3. An entry gets its name when it is on the disk; so what has the name is whole, also after a power cut.
4. An entry of ours says which version it was made for. Under another name it is damage: a copy of another entry.
5. Only a table whose every feature, property and mark of a column is named here as harmless gets entries of our own
   writer. On any other delta-rs commits, which knows more features than we do, or it is refused.
6. What asks the writer to look at each row, or to fill columns, is refused by name: the files of a log are written
   before the commit, and neither delta-rs nor anybody else would look at them.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_timely.log.machine.state import DataFile
    from spark_timely.log.store.storage import Beside, Storage, TableStorage


# Of `spark_timely.log.files.format`, which loads pyarrow; a test compares.
METADATA_KEY: Final = "timely.log"
# How many actions an entry of ours has: tells one that was cut at the end of a line.
_COUNT = "timelyActions"
_COUNTED = re.compile(rb'"timelyActions":(\d+)')
# The version that an entry of ours was made for: tells a copy of it in another's place.
_VERSION = "timelyVersion"
_MADE_FOR = re.compile(rb'"timelyVersion":(\d+)')
# Delta's own name for what no two attempts share: tells an entry of ours from one of another with the same content.
_ATTEMPT = "txnId"
ELSEWHERE: Final = re.compile("^(?:[A-Za-z][A-Za-z0-9+.-]*:|/)")
"""What the path of a file outside of the table begins with: a scheme, or a slash."""
# By which an entry of this library is known, also a copy of one: a digest of the files that it adds and removes.
_FILES = "timelyFiles"
# Up to which version the writer of an entry of ours had judged all entries, and found nothing open.
_JUDGED = "timelyJudged"
# The versions up to there that made files into which nobody had looked.
_UNLOOKED = "timelyUnlooked"
# Signs that need not be escaped in the paths of a table's log; those of our own files are among them.
_PLAIN = "/=_-.~+,@:"


class Removed(NamedTuple):
    """A file that a `remove` action takes out.

    Attributes
    ----------
    path : str
        Decoded.
    event : str
        Empty if the action does not say it.
    data_change : bool
        Whether rows may have changed by it.
    vector : str
        The deletion vector that the file had, as `vector_of` names it.
    """

    path: str
    event: str
    data_change: bool
    vector: str


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a table's log: the changes of one commit.

    Attributes
    ----------
    adds : list of dict
        The `add` actions, paths decoded. What is added with `dataChange` changes rows.
    removes : list of str
        Paths of the files removed, decoded.
    apps : frozenset of str
        App ids that it carries.
    changes_table : bool
        Whether schema, features, properties or deletion vectors may have changed.
    metadata : dict or None
        The `metaData` action, if there is one.
    made_for : int or None
        The version that it says it was made for; None if it does not say.
    removed : list of Removed
        The files in `removes`, in that order, with what the actions say of them.
    vectors : dict of str to str
        By path the deletion vectors of the files in `adds` that have one, as `vector_of` names them.
    ours : bool
        Whether it has the mark of a commit of this library.
    judged : int or None
        Up to which version its writer had judged all entries and found nothing open; None if it does not say.
    unlooked : frozenset of int
        The versions up to there that made files into which its writer had not looked.
    operation : str
        As its writer calls it, in capitals; empty if it does not say.
    timestamp : int or None
        When it was written by its writer's clock, milliseconds since 1970.
    restored : int or None
        The version that a RESTORE says it went back to; None if it names none.
    """

    adds: list[dict[str, Any]] = field(default_factory=list)
    removes: list[str] = field(default_factory=list)
    apps: frozenset[str] = frozenset()
    changes_table: bool = False
    metadata: dict[str, Any] | None = None
    made_for: int | None = None
    removed: list[Removed] = field(default_factory=list)
    vectors: dict[str, str] = field(default_factory=dict)
    ours: bool = False
    judged: int | None = None
    unlooked: frozenset[int] = frozenset()
    operation: str = ""
    timestamp: int | None = None
    restored: int | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether it is ours, or touches no file: where nothing was open nothing is after it."""
        return self.ours or not (self.adds or self.removed)


def vector_of(action: Mapping[str, Any]) -> str:
    """Return what tells the deletion vector of an `add` or `remove` from any other of its file; empty if it has none.

    Examples
    --------
    >>> vector_of({"path": "a", "deletionVector": {"storageType": "u", "pathOrInlineDv": "x", "offset": 1}})
    'ux@1'
    """
    said = action.get("deletionVector")
    if not said:
        return ""
    return f"{said.get('storageType')}{said.get('pathOrInlineDv')}@{said.get('offset') or 0}"


def entry_path(version: int) -> str:
    """Return where the entry of a version is.

    Examples
    --------
    >>> entry_path(7)
    '_delta_log/00000000000000000007.json'
    """
    return f"_delta_log/{version:020d}.json"


def read_entry(storage: Storage, version: int) -> Entry | None:
    """Read the entry of a version; None if there is none.

    Raises
    ------
    ValueError
        If it is damaged.
    """
    content = storage.find(entry_path(version))
    return None if content is None else parse_entry(content, version)


def parse_entry(content: bytes, version: int | None = None) -> Entry:
    """Return what an entry says.

    Parameters
    ----------
    content : bytes
    version : int, optional
        The version in its name.

    Raises
    ------
    ValueError
        If it is damaged: empty, cut, not JSON, or made for another version. The text says which.

    Examples
    --------
    >>> parse_entry(b'{"remove": {"path": "a%20b"}}').removes
    ['a b']
    >>> parse_entry(b"")
    Traceback (most recent call last):
    ...
    ValueError: empty
    """
    adds: list[dict[str, Any]] = []
    removed: list[Removed] = []
    vectors: dict[str, str] = {}
    apps: set[str] = set()
    info: dict[str, Any] = {}
    n_actions, changes = 0, False
    metadata: dict[str, Any] | None = None
    for line in content.splitlines():
        if not line.strip():
            continue
        try:
            action = json.loads(line)
        except ValueError as error:
            msg = f"not JSON, or cut: {error}"
            raise ValueError(msg) from error
        if not isinstance(action, dict):
            msg = f"no action: {action!r}"
            raise ValueError(msg)
        n_actions += 1
        for kind, said in action.items():
            if kind == "add":
                adds.append({**said, "path": unquote(said["path"])})
                if said.get("deletionVector"):
                    changes = True
                    vectors[adds[-1]["path"]] = vector_of(said)
            elif kind == "remove":
                event = (said.get("partitionValues") or {}).get("_event") or ""
                quiet = said.get("dataChange") is False
                removed.append(Removed(unquote(said["path"]), event, not quiet, vector_of(said)))
            elif kind == "txn":
                apps.add(str(said["appId"]))
            elif kind in ("metaData", "protocol"):
                changes = True
                metadata = said if kind == "metaData" else metadata
            elif kind == "commitInfo" and isinstance(said, dict):
                info = said
    made_for = info.get(_VERSION)
    _check_facts(n_actions, info.get(_COUNT), made_for, version)
    operation = str(info.get("operation") or "").upper()
    return Entry(
        adds=adds,
        removes=[each.path for each in removed],
        apps=frozenset(apps),
        changes_table=changes,
        metadata=metadata,
        made_for=made_for,
        removed=removed,
        vectors=vectors,
        ours=info.get(_FILES) == digest_of_files([add["path"] for add in adds], [each.path for each in removed]),
        judged=_number(info.get(_JUDGED)),
        unlooked=_numbers(info.get(_UNLOOKED)),
        operation=operation,
        timestamp=_number(info.get("timestamp")),
        restored=_restored(info) if operation == "RESTORE" else None,
    )


def marks(
    adds: Iterable[str], removes: Iterable[str], judged: int | None, unlooked: Iterable[int] = ()
) -> dict[str, str]:
    """Return what is said of a commit of ours beside its actions.

    Parameters
    ----------
    adds, removes : iterable of str
        Paths of the files that it adds and removes.
    judged : int or None
        Up to which version its writer had judged all entries, and found nothing open.
    unlooked : iterable of int
        The versions up to there that made files into which it has not looked.

    Examples
    --------
    >>> marks([], [], 7)
    {'timelyFiles': 'e3b0c44298fc1c149afbf4c8996fb924', 'timelyJudged': '7'}
    >>> marks([], [], 7, [3, 5])["timelyUnlooked"]
    '3,5'
    """
    said = {_FILES: digest_of_files(adds, removes)}
    if judged is None:
        return said
    left = ",".join(map(str, sorted(unlooked)))
    return {**said, _JUDGED: str(judged), **({_UNLOOKED: left} if left else {})}


def digest_of_files(adds: Iterable[str], removes: Iterable[str]) -> str:
    """Return a digest of which files an entry adds and removes: an entry that has another's mark is not ours."""
    lines = sorted([*(f"+{path}\n" for path in adds), *(f"-{path}\n" for path in removes)])
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def _number(value: object) -> int | None:
    """Return a number that an entry says as one or, as delta-spark writes parameters, as text."""
    try:
        return None if value is None else int(str(value))
    except ValueError:
        return None


def _numbers(value: object) -> frozenset[int]:
    found = map(_number, str(value or "").split(","))
    return frozenset(number for number in found if number is not None)


def _restored(info: Mapping[str, Any]) -> int | None:
    said = info.get("operationParameters")
    return _number(said.get("version")) if isinstance(said, dict) else None


def removals(content: bytes) -> dict[str, tuple[int, int]]:
    """Return the files that an entry takes out of the table: when, in milliseconds since 1970, and how many bytes.

    Those of which it does not say when are left out.

    Parameters
    ----------
    content : bytes
        Of an entry that was read before.

    Examples
    --------
    >>> removals(b'{"remove": {"path": "a%20b", "deletionTimestamp": 7, "size": 9}}')
    {'a b': (7, 9)}
    """
    found = {}
    for line in content.splitlines():
        said = json.loads(line).get("remove") if b'"remove"' in line else None
        if said and said.get("deletionTimestamp") is not None:
            found[unquote(said["path"])] = (int(said["deletionTimestamp"]), int(said.get("size") or 0))
    return found


def _check_facts(n_actions: int, wanted: int | None, made_for: int | None, version: int | None) -> None:
    """Refuse an entry without actions, with fewer than it says, or of another version than in its name."""
    if not n_actions:
        msg = "empty"
        raise ValueError(msg)
    if wanted is not None and wanted != n_actions:
        msg = f"cut: {n_actions} of {wanted} actions"
        raise ValueError(msg)
    if made_for is not None and version is not None and made_for != version:
        msg = f"an entry made for version={made_for}"
        raise ValueError(msg)


def check_whole(content: bytes, version: int | None = None) -> None:
    r"""Refuse an entry that is empty, lacks lines or is another's copy, without reading all of it: a few microseconds.

    Parameters
    ----------
    content : bytes
        Of an entry whose lines are known to be JSON. Only entries of ours say how many lines they have, and for which
        version they were made.
    version : int, optional
        The version in its name.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> check_whole(b'{"commitInfo": {"timelyActions":3}}\n{"remove": {"path": "a"}}\n')
    Traceback (most recent call last):
    ...
    ValueError: cut: 2 of 3 actions
    """
    actions = [line for line in content.splitlines() if line.strip()]
    facts = (fact.search(actions[0] if actions else b"") for fact in (_COUNTED, _MADE_FOR))
    wanted, made_for = (None if found is None else int(found[1]) for found in facts)
    _check_facts(len(actions), wanted, made_for, version)


def signed(content: bytes, version: int) -> bytes:
    r"""Return an entry that delta-rs made, with what ours say of themselves: how many actions, for which version.

    Parameters
    ----------
    content : bytes
        Whole. One without a `commitInfo` is returned as it is.
    version : int
        That it is to be put at.

    Examples
    --------
    >>> signed(b'{"commitInfo": {"operation": "ADD COLUMN"}}', 3)
    b'{"commitInfo":{"operation":"ADD COLUMN","timelyActions":1,"timelyVersion":3}}\n'
    """
    actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    actions.sort(key=lambda action: "commitInfo" not in action)  # first, where `check_whole` looks
    if actions and "commitInfo" in actions[0]:
        actions[0]["commitInfo"].update({_COUNT: len(actions), _VERSION: version})
    return ("\n".join(json.dumps(action, separators=(",", ":")) for action in actions) + "\n").encode()


def render_entry(
    adds: Sequence[DataFile],
    removes: Sequence[DataFile],
    apps: Mapping[str, int],
    *,
    data_change: bool,
    read_version: int,
    version: int,
    metadata: Mapping[str, Any] | None = None,
    judged: int | None = None,
    unlooked: Iterable[int] = (),
) -> bytes:
    """Return the entry of a commit, as the Delta protocol has it, to be put at a version and at no other."""
    now = time.time_ns() // 1_000_000
    actions: list[dict[str, Any]] = [] if metadata is None else [{"metaData": metadata}]
    actions += [{"txn": {"appId": a, "version": n, "lastUpdated": now}} for a, n in apps.items()]
    actions += [
        {
            "add": {
                "path": quote(file.path, safe=_PLAIN),
                "partitionValues": {"_event": file.event},
                "size": file.size_bytes,
                "modificationTime": now,
                "dataChange": data_change,
                "stats": file.stats,
            }
        }
        for file in adds
    ]
    actions += [
        {
            "remove": {
                "path": quote(file.path, safe=_PLAIN),
                "deletionTimestamp": now,
                "dataChange": data_change,
                "extendedFileMetadata": True,
                "partitionValues": {"_event": file.event},
                "size": file.size_bytes,
            }
        }
        for file in removes
    ]
    info = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": '["_event"]'},
        "readVersion": read_version,
        "isBlindAppend": not removes,
        "engineInfo": "spark-timely",
        _ATTEMPT: secrets.token_hex(16),
        **marks([file.path for file in adds], [file.path for file in removes], judged, unlooked),
        _COUNT: len(actions) + 1,
        _VERSION: version,
    }
    lines = [
        json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in ({"commitInfo": info}, *actions)
    ]
    return ("\n".join(lines) + "\n").encode()


def put_entry(storage: TableStorage, version: int, content: bytes, beside: Beside | None = None) -> bool:
    """Write the entry of a version into a table; return False if there is one.

    Parameters
    ----------
    storage : TableStorage
        Of the table.
    version : int
    content : bytes
    beside : Beside, optional
        Files of the table: the entry is put where they are.

    Raises
    ------
    OSError, StorageError, OtherPlaceError
        As `TableStorage.put`.
    """
    try:
        storage.put(entry_path(version), content, replace=False, beside=beside)
    except FileExistsError:
        return False
    return True


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
_OF_COLUMNS = re.compile(r"delta\.(invariants|generationExpression|identity\..+)")


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
            if _OF_COLUMNS.fullmatch(mark):
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
