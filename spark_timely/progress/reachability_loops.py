"""Which life the loops of reachability lead for a graph: compiled, or interpreted.

Loading numba takes a good part of a second, and compiling many seconds where no compiled code is kept yet. A small
graph is worth neither. So the modules of loops exist twice: as they are imported, compiled where numba is there;
and as plain copies under other names, which know nothing of numba. Both give the same answers.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from importlib.abc import InspectLoader

__all__ = ["SMALL", "Loops", "loops_for"]

# A graph of no more vertices is worked on by interpreted loops: about 3 microseconds per vertex that moves.
SMALL = 256

_ARRANGING = "spark_timely.progress.kernels_reach"
_WORKING = "spark_timely.progress.kernels_reach_work"


class Loops(NamedTuple):
    """The loops for one graph, and whether they take arrays (compiled) or lists."""

    arranging: ModuleType
    working: ModuleType
    compiled: bool


def loops_for(n_vertices: int) -> Loops:
    """Return the loops for a graph of that size.

    Examples
    --------
    >>> loops_for(10).compiled
    False
    """
    return _compiled() if n_vertices > SMALL else _interpreted()


@cache
def _compiled() -> Loops:
    kernels = importlib.import_module("spark_timely.progress.kernels")
    if not kernels.COMPILED:
        return _interpreted()
    return Loops(importlib.import_module(_ARRANGING), importlib.import_module(_WORKING), compiled=True)


@cache
def _interpreted() -> Loops:
    return Loops(_plain(_ARRANGING), _plain(_WORKING), compiled=False)


def _plain(name: str) -> ModuleType:
    """Return a copy of a module that runs its loops as they are written."""
    spec = importlib.util.find_spec(name)
    if spec is None or (code := cast("InspectLoader", spec.loader).get_code(name)) is None:
        msg = f"no module {name}"
        raise ImportError(msg)
    module = ModuleType(f"{name}_plain")
    exec(code, module.__dict__)  # the library's own module, under a second name
    return module
