"""Pickling of values for Spark's tasks, with a check of the Python that unpickles them.

The source, the sink and each runner that gives Spark a task pickle by it: classes derive from `Shipped`, functions of
``mapInArrow`` go through `for_task`. A worker whose Python lacks this library cannot say so by code of the library: it
would fail with a bare ``ModuleNotFoundError``. So what is pickled for a task is wrapped in bytes, beside the text of a
function. It looks at the Python that it runs in, and only then opens the bytes.

Invariants
----------
1. `_open` needs nothing but the standard library: no name of this module, nor of any other of ours.
2. What comes out of the bytes is what went in: a function or an object is the same with and without the check.
3. A task runs with the version of this library that planned it, and with the same major version of pyarrow: others may
   read what was pickled as something else, and give other answers than the tasks beside them.
4. A task imports what its session ships, wherever Spark looks for it (`_session_files`).
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.serializers import CloudPickleSerializer

from spark_timely.errors import InvalidUsageError
from spark_timely.spark.base.worker import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Carried", "Shipped", "for_task"]


class Carried:
    """A function of a task, or what it needs, that is pickled with the check.

    Parameters
    ----------
    value : callable
        Unpickled it is this itself.
    """

    def __init__(self, value: Callable[..., Any]) -> None:
        self._value = value

    def __call__(self, *given: Any) -> Any:  # noqa: ANN401 - as the function has it
        """Call it where it was made."""
        return self._value(*given)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the function and the check."""
        return _checked(self._value)


class Shipped:
    """A base of what Spark pickles for its tasks: readers, writers, and the data source that they come from."""

    def __reduce_ex__(self, protocol: Any) -> tuple[object, ...]:  # noqa: ANN401 - as object has it
        """Pickle the object as ever, and the check."""
        reduced = object.__reduce_ex__(self, protocol)
        assert isinstance(reduced, tuple)  # no name of a module, as of a function
        _, arguments, *state = reduced
        return _checked(_Reduced((_new, arguments, *state)))


class _Reduced:
    """Stands in the pickle for the object that it was reduced from."""

    def __init__(self, reduced: tuple[Any, ...]) -> None:
        self._reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def _new(kind: type, *arguments: object) -> object:
    """Make an object, as ``copyreg.__newobj__`` does, which pickle allows for an object of the class alone."""
    made: object = kind.__new__(kind, *arguments)
    return made


def for_task(work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], /) -> Callable[..., Any]:
    """Return a function for ``mapInArrow`` that checks the Python of its task, and settles the worker.

    Parameters
    ----------
    work : callable
        Gets the batches of a partition, and gives those of the result.
    """

    def settled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        return work(batches)

    carried = Carried(settled)

    # Pickled by its code, which names nothing of ours (invariant 1).
    def run(batches):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - pickled with what it names
        yield from carried(batches)

    return run


def _checked(value: object) -> tuple[object, ...]:
    given = _pickled(value), _own_version(), _arrow_version(), InvalidUsageError.condition, _session_files()
    return eval, (_CALL, {"source": _source(), "scope": {}, "given": given})


# Pickled as text, since a worker cannot import it; so pickle itself can, and not only Spark's.
_CALL: Final = "exec(source, scope) or scope['_open'](*given)"


@functools.cache
def _source() -> str:
    return f"from __future__ import annotations\n{inspect.getsource(_open)}"


def _session_files() -> tuple[str, ...]:
    """Return where a session's own files of Python lie, seen from the folder with the files of all sessions.

    `addArtifacts` ships for one session: its files are in a folder with the session's id. Spark copies them to the
    executors for each task, but does not tell the tasks of a streaming sink which session it is (4.2): their Python
    looks in the folder of all sessions, and finds nothing. The process that plans the sink does know: it looks in the
    session's own. Empty where nothing is shipped so, and in a client, for which the planning process pickles again.
    """
    own = [path for path in sys.path if _is_id(os.path.basename(path))]
    return tuple(
        os.path.relpath(path, os.path.dirname(root))
        for root in own
        for path in sys.path
        if path == root or path.startswith(root + os.sep)
    )


def _is_id(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


def _pickled(value: object) -> bytes:
    made: bytes = CloudPickleSerializer().dumps(value)  # type: ignore[no-untyped-call]  # as it is in pyspark
    return made


def _own_version() -> str:
    found: str = sys.modules[__name__.partition(".")[0]].__version__
    return found


@functools.cache
def _arrow_version() -> str:
    return version("pyarrow")


def _open(payload: bytes, version: str, arrow: str, condition: str, files: tuple[str, ...]) -> object:
    """Unpickle in a task, or say in one line what its Python lacks and how it gets it."""
    import importlib
    import os
    import pickle
    import platform
    import sys

    def refuse(found: str, hint: str) -> NoReturn:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # Spark shows the last line alone
        where = f"{sys.executable!r} on host {platform.node()!r}"
        msg = f"[{condition}] could not run a task of Spark's with {where}: found {found} — hint: {hint}"
        raise ModuleNotFoundError(msg) from None

    name, python = "spark_timely", "spark.sql.execution.pyspark.python"
    packed = f"ship a packed environment with spark.archives and name its Python with {python}"
    here = [os.path.join(folder, file) for file in files for folder in sys.path]  # see `_session_files`
    added = [path for path in here if path not in sys.path and os.path.exists(path)]
    if added:
        sys.path[1:1] = added  # where Spark puts them
        importlib.invalidate_caches()
    try:
        library = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            refuse(f"no module {error.name!r}, which spark_timely needs", f"install it there, or {packed}")
        hint = (
            f"install spark-timely=={version} there, ship it with --py-files or spark.addArtifacts(path, pyfile=True),"
            f" or {packed}"
        )
        refuse("no spark_timely", hint)
    found = getattr(library, "__version__", None)
    if found != version:
        hint = f"use spark-timely=={version} on both sides, or {packed}"
        refuse(f"spark_timely=={found} for a plan of spark_timely=={version}", hint)
    pyspark = sys.modules.get("pyspark")
    if pyspark is not None and pyspark.TaskContext.get() is not None:
        try:
            import pyarrow
        except ModuleNotFoundError:
            refuse("no pyarrow", f"install pyarrow=={arrow} there, or {packed}")
        if pyarrow.__version__.split(".")[0] != arrow.split(".")[0]:
            hint = f"use pyarrow=={arrow} on both sides, or {packed}"
            refuse(f"pyarrow=={pyarrow.__version__} for a plan of pyarrow=={arrow}", hint)
    try:
        return pickle.loads(payload)
    except ModuleNotFoundError as error:
        hint = f"install it there, ship it with --py-files or spark.addArtifacts(path, pyfile=True), or {packed}"
        refuse(f"no module {error.name!r}", hint)
