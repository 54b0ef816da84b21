"""Lazy names of a package, loaded when they are first used.

The packages that users import (`spark_timely`, its parts `log`, `answers`, `spark` and `interop`, and `functions`) get
their ``__getattr__`` from here. Spark's planner and committer processes import the library over and over: what they do
not use costs them nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(package: str, targets: Mapping[str, str], /) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module whose names are in other modules.

    Parameters
    ----------
    package : str
        The module's own ``__name__``.
    targets : mapping of str to str
        By name the module that has it; `module:attribute` where it has another name there, `module:` for the module.

    Examples
    --------
    >>> load, names = lazy_names(__name__, {"hundred": "string:digits"})
    >>> load("hundred"), "hundred" in names()
    ('0123456789', True)
    """

    def load(name: str) -> object:
        if name not in targets:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        module_name, colon, attribute = targets[name].partition(":")
        module = import_module(module_name)
        value: object = module if colon and not attribute else getattr(module, attribute or name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *targets})

    return load, names
