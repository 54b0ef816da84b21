"""Captures of the real Timely and Differential Dataflow: in from files and sockets, and out again.

Bytes or lines of JSON become events in columns (`CaptureReader`) by a type in the language of `schema`; a
`StreamImport` commits them to a log, and knows how far it came. `export_log` and `CaptureEncoder` go the other way.
`CdcReader` and `CdcImport` do the same for the messages of CDCv2.

Examples
--------
>>> from spark_timely.interop import CaptureReader
>>> CaptureReader.__name__
'CaptureReader'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_timely.interop.cdcv2 import CdcReader as CdcReader
    from spark_timely.interop.collections import CdcImport as CdcImport
    from spark_timely.interop.exporting import export_log as export_log
    from spark_timely.interop.importing import StreamImport as StreamImport
    from spark_timely.interop.reader import CaptureReader as CaptureReader
    from spark_timely.interop.writer import CaptureEncoder as CaptureEncoder

__all__ = ["CaptureEncoder", "CaptureReader", "CdcImport", "CdcReader", "StreamImport", "export_log"]

# Loaded on first use: the sink imports `statements` in every task.
_MODULES = {
    "CaptureEncoder": "writer",
    "CaptureReader": "reader",
    "CdcImport": "collections",
    "CdcReader": "cdcv2",
    "StreamImport": "importing",
    "export_log": "exporting",
}


def __getattr__(name: str) -> object:
    """Load a name from its module and keep it."""
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
