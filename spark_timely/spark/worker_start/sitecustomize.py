"""Start-up hook of Spark's Python processes: lets pyspark be found compiled.

Spark puts its own ``pyspark.zip`` first on the path of its Python processes. Python keeps no compiled
modules for a zip, so each process compiles all of pyspark (measured: 1.0 s of processor time, a process for
each streaming query). Where the zip belongs to the pyspark that is installed for this very interpreter, the
installed modules are the same and are compiled already: the zip is taken off the path.

`spark_timely.spark.session_settings` puts the folder of this file on the path of Spark's processes; Python imports
a module of this name by itself. Another one further down the path is run as well.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _without_zip(path: list[str]) -> list[str]:
    """Return a module path without the zip of a pyspark that is on it as a package, too."""
    kept = []
    for entry in path:
        home = os.path.dirname(os.path.dirname(os.path.dirname(entry)))
        is_zip = os.path.basename(entry) == "pyspark.zip" and os.path.basename(home) == "pyspark"
        if not (is_zip and os.path.dirname(home) in path and os.path.isfile(os.path.join(home, "__init__.py"))):
            kept.append(entry)
    return kept


def _run_next() -> None:
    """Run the module of this name that would have been found without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


sys.path[:] = _without_zip(sys.path)
_run_next()
