"""What was declared of captures: the types of their times and records, and how a log remembers them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from spark_timely.errors import InvalidUsageError, LogFormatError, SchemaMismatchError, shown
from spark_timely.interop.schema import Type, arrow_schema, parse_type, type_text
from spark_timely.interop.times import TimeLayout
from spark_timely.log import Log
from spark_timely.log.files.format import canonical_type
from spark_timely.log.machine.state import StreamState

__all__ = ["CaptureTypes", "check_log", "import_owner"]

_OWNER = "import "


@dataclass(frozen=True, slots=True)
class CaptureTypes:
    """What was declared of captures: the types of their times and records.

    Parameters
    ----------
    time, record : Type

    Examples
    --------
    >>> CaptureTypes.parse("u64", "(String, u64)").owner
    'import u64 (string, u64)'
    """

    time: Type
    record: Type

    @classmethod
    def parse(cls, time: str, record: str) -> CaptureTypes:
        """Read both; raises `InvalidUsageError`."""
        types = cls(parse_type(time), parse_type(record))
        TimeLayout(types.time)
        return types

    @property
    def owner(self) -> str:
        """Owner of the streams that captures of these types become: an import with others is not theirs."""
        return f"{_OWNER}{type_text(self.time)} {type_text(self.record)}"

    @property
    def payload(self) -> pa.Schema:
        """Payload columns of a log of these records.

        Raises
        ------
        SchemaMismatchError
            If records hold nothing, or something that a table cannot have.
        """
        schema = arrow_schema(self.record)
        for field in schema:
            canonical_type(field.type, field.name)
        return schema

    @property
    def layout(self) -> TimeLayout:
        """Layout of the times."""
        return TimeLayout(self.time)


def import_owner(state: StreamState) -> CaptureTypes | None:
    """Return the types with which a stream was imported, None if it was not.

    A type has balanced parentheses, so the text is cut where the first of both is whole.
    """
    text = (state.owner or "").removeprefix("cdcv2 ")
    if not text.startswith(_OWNER):
        return None
    words = text[len(_OWNER) :].split(" ")
    for i in range(1, len(words)):
        try:
            return CaptureTypes.parse(" ".join(words[:i]), " ".join(words[i:]))
        except InvalidUsageError:
            continue
    return None


def check_log(log: Log, types: CaptureTypes) -> None:
    """Refuse a log of another kind, with other columns or other times, for imports of these types.

    Raises
    ------
    SchemaMismatchError, LogFormatError
    """
    wanted = types.layout.domain
    if log.kind != "stream" or (log.domain.types, log.domain.minimum) != (wanted.types, wanted.minimum):
        msg = (
            f"could not import into log {log.path!r}: found kind={log.kind!r}, times"
            f" {[type_.value for type_ in log.domain.types]} from {log.domain.minimum!r}"
        )
        hint = (
            f"times of type {type_text(types.time)} need a stream log, {[type_.value for type_ in wanted.types]}"
            f" from {wanted.minimum!r}"
        )
        raise SchemaMismatchError(msg, hint=hint)
    fields = [(field.name, canonical_type(field.type, field.name), field.nullable) for field in types.payload]
    found = [(field.name, field.type, field.nullable) for field in log.format.declared]
    if found != fields:
        msg = f"could not import into log {log.path!r}: found columns {shown(log.schema.names)} of other types or names"
        raise SchemaMismatchError(msg, hint=f"records of type {type_text(types.record)} need {shown(fields)}")
    if log.format.merged:
        msg = f"could not import into log {log.path!r}: found columns {shown(log.format.merged)} that came later"
        raise LogFormatError(msg, hint="import into a log of its own")
