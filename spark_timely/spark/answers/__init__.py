"""Answers that need Spark: SQL over contents, copies into files, mirrors as Delta tables, large peeks.

`sql` reads contents at one time. `copy_to` writes them into a folder, which `copy_folder` keeps for one attempt.
`mirror` keeps a table up to date. `peek_job` answers a peek that has to read more than a process should.
"""

from __future__ import annotations
