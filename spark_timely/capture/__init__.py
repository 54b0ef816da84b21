"""Events of a captured stream, the rules they keep, and the planning of a replay.

The package is callable: ``spark_timely.capture(df, batch_id, path=...)`` captures one micro-batch
in ``foreachBatch``; see `spark_timely.spark.foreach_batch.capture`. A package and a function of the
same name cannot both be the attribute ``capture`` of ``spark_timely``, so the package stands for both.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Protocol, cast


class _Function(Protocol):
    def __call__(self, *args: object, **options: object) -> object: ...


def _function() -> _Function:
    # Loaded on call only: the function needs pyspark, this layer must not.
    module = import_module("spark_timely.spark.foreach_batch")
    return cast("_Function", module.capture)


class _CallablePackage(ModuleType):
    """The package object, which passes calls on to the function of the same name."""

    def __call__(self, *args: object, **options: object) -> object:
        """Capture one micro-batch; see `spark_timely.spark.foreach_batch.capture`."""
        return _function()(*args, **options)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        # cloudpickle knows plain modules only, and user functions refer to this one.
        return import_module, (self.__name__,)

    @property
    def __signature__(self) -> inspect.Signature:
        """Signature of the function that a call reaches."""
        return inspect.signature(_function())


sys.modules[__name__].__class__ = _CallablePackage
