"""The options of a verb that argparse does not read: logs and their storage, pairs, keys, and where Spark runs.

The modules of the verbs turn the texts of `argparse` into values by these functions. Which options there are is in
`spark_timely.cli.verb_table`.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa

from spark_timely.errors import InvalidOptionError, InvalidUsageError, shown
from spark_timely.log.log import open_log
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import TableStorage, checked_options, normal_path, promised

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from spark_timely.log import Log

__all__ = ["asked_log", "keys_of", "names_of", "pairs_of", "reach", "refuse", "spark_of", "storage_options"]

_SETTINGS: Final = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",  # an instance has pools then
    # What is printed is UTC, wherever it is printed.
    "spark.sql.session.timeZone": "UTC",
}


def refuse(found: str, hint: str) -> NoReturn:
    """Refuse an option that cannot be read, or does not go with another one."""
    msg = f"could not read the command line: found {found}"
    raise InvalidOptionError(msg, hint=hint)


def pairs_of(option: str, pairs: Sequence[str], hint: str) -> Iterator[tuple[str, str]]:
    """Give the names and values of an option that is NAME=VALUE."""
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            refuse(f"{option} {shown(pair)}", hint)
        yield name, value


# --- logs ---------------------------------------------------------------------------------------


def asked_log(options: argparse.Namespace) -> Log:
    """Open the log that was named."""
    reach(options.log, storage_options(options))
    return open_log(options.log, storage_options=storage_options(options))


def reach(path: str, options: Mapping[str, str] | None) -> TableStorage:
    """Return access to a folder; in an object store after one look, which says soon where nobody is there."""
    storage = open_storage(path, checked_options(options, normal_path(path)))
    if not storage.local:
        storage.names("_delta_log")
    return storage


def storage_options(options: argparse.Namespace) -> dict[str, str] | None:
    """Return the storage options that were given, None where none were."""
    storage: dict[str, str] = {}
    for pair in options.storage:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            # Not what was given: it may be a secret.
            refuse("--storage without a name and '='", "give --storage KEY=VALUE")
        storage[key] = value
    return promised(storage, single_writer=options.single_writer) or None


# --- columns and keys ---------------------------------------------------------------------------


def names_of(text: str) -> list[str]:
    """Return the names of columns that stand with commas between them."""
    return [name.strip() for name in text.split(",")]


def keys_of(schema: pa.Schema, pairs: Sequence[str]) -> dict[Any, list[Any]] | None:
    """Return the keys that were given: the n-th values of several columns belong together."""
    values: dict[str, list[object]] = {}
    for name, text in pairs_of("--key", pairs, "write --key COLUMN=VALUE; for null --where 'COLUMN IS NULL'"):
        kind = schema.field(name).type if name in schema.names else pa.string()
        try:
            values.setdefault(name, []).append(_key_value(text, kind))
        except (ValueError, ArithmeticError):
            refuse(
                f"--key {shown(f'{name}={text}')} for a column of type {kind}",
                "write the value as the verb prints it with --json",
            )
    if len(values) < 2:
        return values or None
    counts = {name: len(found) for name, found in values.items()}
    if len(set(counts.values())) > 1:
        refuse(
            f"--key with {shown(counts)} values",
            "give as many values of each column: those of one key stand side by side",
        )
    return {tuple(values): list(zip(*values.values(), strict=True))}


def _key_value(text: str, kind: pa.DataType) -> object:
    """Return the value of a key that is written so, in a type that `peek` takes for the column."""
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[text] if text in ("true", "false") else _no_value(text)
    if pa.types.is_integer(kind):
        return int(text) if re.fullmatch(r"[+-]?[0-9]{1,20}", text) else _no_value(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_decimal(kind):
        return decimal.Decimal(text)
    if pa.types.is_binary(kind):
        return base64.b64decode(text, validate=True)
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return dt.datetime.fromisoformat(text)
    return text


def _no_value(text: str) -> object:
    msg = f"no value: {text!r}"
    raise ValueError(msg)


# --- Spark --------------------------------------------------------------------------------------


def spark_of(options: argparse.Namespace) -> Any:  # noqa: ANN401 - a session; Spark is not loaded before
    """Start Spark in this process, and return its session; it ends with the process."""
    try:
        from spark_timely.spark.session import session
    except ImportError as error:
        msg = f"could not start Spark: found {shown(error)}"
        raise InvalidUsageError(msg, hint="run pip install 'spark-timely[spark]'") from error
    return session("spark-timely", master=options.master, delta=False, **_SETTINGS)
