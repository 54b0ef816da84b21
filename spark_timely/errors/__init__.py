"""Error types: what is raised, when, and how to react.

Every message reads ``could not <attempt>: <what was found, name=value>`` and, after `` — hint: ``,
what to do. It is one line, because Spark shows its users the last line of a traceback only.

Invariants
----------
1. Everything that the library raises on purpose is a `TimelyError`.
2. Every error survives pickling with message, hint and context, since errors cross from Spark's
   workers to its driver.
3. ``str(error)`` is one line and needs no other line to be understood.
"""

from __future__ import annotations

from spark_timely.errors.base import (
    TimelyError,
    TimelyInternalError,
    shown,
)
from spark_timely.errors.data import (
    CaptureFormatError,
    NegativeMultiplicityError,
    OperatorError,
)
from spark_timely.errors.log import (
    DataLossError,
    LogDamagedError,
    LogFormatError,
    LogMissingError,
    MissingError,
    OwnershipError,
    PlanMismatchError,
    RolledBackError,
    StorageError,
    StreamMissingError,
    UpperMismatchError,
    WaitTimeoutError,
)
from spark_timely.errors.protocol import (
    CyclicSummaryError,
    NegativeCountError,
    ProtocolError,
    UnheldCapabilityError,
)
from spark_timely.errors.usage import (
    ClosedError,
    InvalidBoundsError,
    InvalidOptionError,
    InvalidShapeError,
    InvalidUsageError,
    LateDataError,
    NotBeyondError,
    SchemaMismatchError,
    SinceViolationError,
)

__all__ = [
    "CaptureFormatError",
    "ClosedError",
    "CyclicSummaryError",
    "DataLossError",
    "InvalidBoundsError",
    "InvalidOptionError",
    "InvalidShapeError",
    "InvalidUsageError",
    "LateDataError",
    "LogDamagedError",
    "LogFormatError",
    "LogMissingError",
    "MissingError",
    "NegativeCountError",
    "NegativeMultiplicityError",
    "NotBeyondError",
    "OperatorError",
    "OwnershipError",
    "PlanMismatchError",
    "ProtocolError",
    "RolledBackError",
    "SchemaMismatchError",
    "SinceViolationError",
    "StorageError",
    "StreamMissingError",
    "TimelyError",
    "TimelyInternalError",
    "UnheldCapabilityError",
    "UpperMismatchError",
    "WaitTimeoutError",
    "shown",
]

# This package is the one place that errors are imported from, and the one that tracebacks, Spark's
# messages and pickles name; how its modules divide them is nobody's business.
for _name in __all__:
    if isinstance(_kind := globals()[_name], type):
        _kind.__module__ = __name__
