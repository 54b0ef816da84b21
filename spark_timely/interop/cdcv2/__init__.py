"""CDCv2, Differential's change protocol: messages about a collection, in any order and any number of copies.

``spark-timely import`` and ``export`` use it. A line is read into updates, or into a `Statement` of how many there are
at which times (`reader.read_message`). A `Ledger` of the statements (`statements`) says which times are complete.
`CdcReader` (`reader`) keeps updates until their times are complete, and `CdcImport` (`conversion`) commits them to a
log. `conversion.export_collection` goes the other way. Captures of timely's own events are the rest of `interop`.
"""

from __future__ import annotations
