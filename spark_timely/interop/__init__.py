"""Import and export of captures of the real Timely and Differential Dataflow, by files and sockets.

Their types are declared in a small language (`schema`). In: bytes (`reader`, by the `layout` of each type) or lines of
JSON (`jsonl`), from a file or a socket (`sockets`), become events in columns (`chunk`, `records`). They are judged by
the protocol, and each record gets one time of its message (`stamps`). A `StreamImport` (`importing`) commits them to a
log, with the position in the capture. Out: `export_log` (`exporting`) reads a log by ranges of times, and
`CaptureEncoder` (`writer`) writes the events; `selection` takes a part of the columns, and `rust` declares them in
Rust. `cdcv2` does both for messages of CDCv2, Differential's protocol. The command line runs all of it: ``spark-timely
import``, ``export`` and ``types``.

Examples
--------
>>> from spark_timely.interop import CaptureReader
>>> CaptureReader.__name__
'CaptureReader'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.lazy import lazy_names

if TYPE_CHECKING:
    from spark_timely.interop.cdcv2.conversion import CdcImport as CdcImport
    from spark_timely.interop.cdcv2.reader import CdcReader as CdcReader
    from spark_timely.interop.exporting import export_log as export_log
    from spark_timely.interop.importing import CaptureTypes as CaptureTypes
    from spark_timely.interop.importing import StreamImport as StreamImport
    from spark_timely.interop.reader import CaptureReader as CaptureReader
    from spark_timely.interop.rust import rust_types as rust_types
    from spark_timely.interop.writer import CaptureEncoder as CaptureEncoder

__all__ = [
    "CaptureEncoder",
    "CaptureReader",
    "CaptureTypes",
    "CdcImport",
    "CdcReader",
    "StreamImport",
    "export_log",
    "rust_types",
]

# Loaded on first use: the sink imports `statements` in every task.
_EXPORTS = {
    "CaptureEncoder": "spark_timely.interop.writer",
    "CaptureReader": "spark_timely.interop.reader",
    "CaptureTypes": "spark_timely.interop.importing",
    "CdcImport": "spark_timely.interop.cdcv2.conversion",
    "CdcReader": "spark_timely.interop.cdcv2.reader",
    "StreamImport": "spark_timely.interop.importing",
    "export_log": "spark_timely.interop.exporting",
    "rust_types": "spark_timely.interop.rust",
}

__getattr__, __dir__ = lazy_names(__name__, _EXPORTS)
