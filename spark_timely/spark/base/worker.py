"""Worker set-up: quick imports and short errors in the Python processes that Spark starts for source and sink.

The readers and writers of `datasource` and `sink` call it first, and all tasks that go through `shipping`. How such a
process begins, before any of our code is loaded, is in ``worker_start/``.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any, TypeVar

from spark_timely.errors import TimelyError, TimelyInternalError

if TYPE_CHECKING:
    from types import ModuleType

_T = TypeVar("_T", bound=type)

# What Spark runs in the processes that plan, open and commit, and in which no code of a user runs.
_PLANNERS = frozenset(
    {
        "pyspark.sql.streaming.python_streaming_source_runner",
        "pyspark.sql.worker.create_data_source",
        "pyspark.sql.worker.plan_data_source_read",
        "pyspark.sql.worker.python_streaming_sink_runner",
        "pyspark.sql.worker.write_into_data_source",
    }
)

_settled = False


def settle_worker() -> None:
    """Take what is loaded so far out of garbage collection, once per worker process; does nothing outside a task.

    PySpark's worker collects garbage after every task; walking through the imported modules again
    costs more than a small task itself (measured: 40 trivial tasks 1.2–1.6 s, then 0.3–0.5 s).

    Examples
    --------
    >>> settle_worker()
    """
    global _settled
    if not _settled and _in_task():
        gc.collect()
        gc.freeze()
        _settled = True


def settle_planner() -> None:
    """Let pyarrow do without pandas in a process of Spark's that only plans; does nothing in any other.

    pyarrow loads pandas when it first meets a NumPy array or a Python list, to know a Series if it is given
    one. In these processes nobody gives it one, and each query, or with a sink each micro-batch, starts some
    of them: 0.2 to 0.3 s and 30 MB each (measured). pyarrow asks once, and goes without where pandas is
    missing; after that pandas can be loaded as ever.

    Examples
    --------
    >>> settle_planner()
    """
    if "pandas" in sys.modules or not _plans():
        return
    import numpy as np
    import pyarrow as pa

    hidden = _WithoutPandas()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array(np.zeros(1)).to_numpy()
    finally:
        sys.meta_path.remove(hidden)


def short_errors(kind: _T, /) -> _T:
    """Make Spark show an error of this library as one line where a public method of the class raises it.

    Decorates what Spark calls. Its processes send a traceback to the user, and leave frames out that the variable
    ``SPARK_HIDE_TRACEBACK`` hides, as the setting ``spark.sql.execution.pyspark.udf.hideTraceback.enabled`` does. It is
    set when an error leaves our code: the process sends that and ends, so no other function's frames are hidden.

    Parameters
    ----------
    kind : type
        Changed in place.
    """
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            wrap = _short_generator if inspect.isgeneratorfunction(method) else _short
            setattr(kind, name, wrap(method))
    return kind


def _short(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def short(*args: object, **keywords: object) -> object:
        with _hidden_frames():
            return method(*args, **keywords)

    return short


def _short_generator(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(method)
    def short(*args: object, **keywords: object) -> Iterator[Any]:
        with _hidden_frames():
            yield from method(*args, **keywords)

    return short


@contextmanager
def _hidden_frames() -> Iterator[None]:
    try:
        yield
    except TimelyInternalError:
        raise
    except TimelyError:
        if _in_task() or _plans():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


class _WithoutPandas(MetaPathFinder):
    """Make the import of pandas fail, as where it is not installed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Refuse pandas, and leave all other modules to the finders after this one."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


def _in_task() -> bool:
    """Tell whether a task of Spark runs in this process, without loading pyspark: where one runs, it is loaded."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.TaskContext.get() is not None


def _plans() -> bool:
    """Tell whether this is a planner: run by its name, or made by Spark's daemon, which is given the name."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = "" if spec is None else spec.name
    return name in _PLANNERS or (name == "pyspark.daemon" and not _PLANNERS.isdisjoint(sys.argv[1:]))
