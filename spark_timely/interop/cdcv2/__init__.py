"""CDCv2, Differential's change protocol: messages about a collection, in any order and any number of copies.

A line is read into updates, or into a `Statement` of how many there are at which times (`reader.read_message`). A
`Ledger` of the statements (`statements`) says which times are complete; `CdcReader` (`reader`) keeps updates until
theirs are, and `CdcImport` (`collections`) commits them to a log. `export_collection` goes the other way.
"""

from __future__ import annotations
