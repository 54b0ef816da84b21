"""The decorator that compiles kernels with numba where it is installed, and leaves them as Python elsewhere.

A kernel is a function that loops over arrays. Nothing else of the library imports numba: ``count_table`` takes `njit`
from here for each of its functions, and ``reachability_loops`` for copies of all of its functions, once a graph is
large enough. A function means the same either way: without numba it is the plain Python function, right but slow, and
callers that have another way ask `COMPILED` first.

Loading numba takes a third of a second, and compiling takes longer where no cache of compiled code can
be written. So modules of kernels are imported by the function that needs them, once the work at hand
is worth it, and never while a package is imported.

Invariants
----------
1. A kernel gives the same answer compiled and not.
2. Kernels take arrays and numbers, have no state, and touch nothing but the arrays they are given.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Final

__all__ = ["COMPILED", "inlined", "njit"]

P = ParamSpec("P")
R = TypeVar("R")

_FORBIDDEN = os.environ.get("SPARK_TIMELY_NO_NUMBA", "0") not in {"", "0"}


def _found() -> ModuleType | None:
    """Return numba, or nothing where it is missing or must not be used."""
    if _FORBIDDEN:
        return None
    try:
        return importlib.import_module("numba")
    except ImportError:
        return None


_NUMBA = _found()
COMPILED: Final[bool] = _NUMBA is not None
"""Whether `njit` compiles: numba is installed, and ``SPARK_TIMELY_NO_NUMBA=1`` is not set."""


def njit(function: Callable[P, R], /) -> Callable[P, R]:
    """Compile a loop over arrays on its first call, where numba is there to do it.

    Compiled code is kept in a cache beside the module, or in the user's cache folder; where neither can
    be written it is made again in every process.

    Parameters
    ----------
    function : callable
        Uses only what numba compiles in its no-Python mode.

    Returns
    -------
    callable
        Takes and returns what `function` does; `function` itself where numba is missing or
        ``SPARK_TIMELY_NO_NUMBA=1`` is set.

    Examples
    --------
    >>> @njit
    ... def double(value: int) -> int:
    ...     return 2 * value
    >>> double(21)
    42
    """
    if _NUMBA is None:
        return function
    compiled: Callable[P, R]
    try:
        compiled = _NUMBA.njit(cache=True)(function)
    except RuntimeError:
        # No place for a cache, as in a package that is read from a zip file.
        compiled = _NUMBA.njit(function)
    return compiled


def inlined(function: Callable[P, R], /) -> Callable[P, R]:
    """Compile as `njit` does, and paste the code into every kernel that calls it.

    For what is called once per element: a call with arrays costs several times what a few additions do.

    Parameters
    ----------
    function : callable
        Small; uses only what numba compiles in its no-Python mode.

    Returns
    -------
    callable

    Examples
    --------
    >>> @inlined
    ... def next_even(value: int) -> int:
    ...     return value + 2 - value % 2
    >>> next_even(4)
    6
    """
    if _NUMBA is None:
        return function
    pasted: Callable[P, R] = _NUMBA.njit(inline="always")(function)
    return pasted
