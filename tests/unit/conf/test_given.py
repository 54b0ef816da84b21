"""The typed options agree with the table, and with the parameters of the functions that take them."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import spark_timely
from spark_timely.conf.given import (
    DistanceLike,
    DurationLike,
    FrontierLike,
    MomentLike,
    NamesLike,
    SinkGiven,
    SizeLike,
    SourceGiven,
)
from spark_timely.conf.kinds import Option
from spark_timely.conf.options import SINK_OPTIONS, SOURCE_OPTIONS, parse_options

KINDS: dict[str, Any] = {
    "str": str,
    "name": str,
    "names": NamesLike,
    "int": int,
    "bool": bool,
    "bytes": SizeLike,
    "duration": DurationLike,
    "distance": DistanceLike,
}
# Under which parameter a function takes an option of the table by itself.
PARAMETERS = {
    "path": "path",
    "checkpoint_location": "checkpoint",
    "on_finish": "on_finish",
    "idle_timeout": "idle_timeout",
}


def type_of(option: Option) -> Any:
    kind = Literal[option.choices] if option.kind == "enum" else KINDS[option.kind]
    return kind if option.default is not None else kind | None


def test_every_option_is_typed_as_the_table_has_it() -> None:
    table = SINK_OPTIONS.options
    wanted = {name: type_of(option) for name, option in table.items() if name not in PARAMETERS}
    assert get_type_hints(SinkGiven) == wanted
    assert list(SinkGiven.__annotations__) == list(wanted)


def test_every_option_of_the_source_is_typed_too() -> None:
    kinds = KINDS | {"antichain": FrontierLike, "seq": MomentLike, "wallclock": MomentLike}
    left_out = {"path", "logs", "log_options", "run", "alarm"}  # a parameter; for clocks alone
    for name, option in SOURCE_OPTIONS.options.items():
        if name in left_out:
            continue
        kind = Literal[option.choices] if option.kind == "enum" else kinds[option.kind]
        assert get_type_hints(SourceGiven)[name] == (kind if option.default is not None else kind | None), name
    assert list(SourceGiven.__annotations__) == [name for name in SOURCE_OPTIONS.options if name not in left_out]


def test_other_options_are_parameters_of_start() -> None:
    # Also run without optional packages (`make lane-base`), of which it is one.
    pytest.importorskip("pyspark", reason="the parameters of start and capture are annotated with Spark's classes")
    start, capture = (inspect.signature(function).parameters for function in (spark_timely.start, spark_timely.capture))
    assert {PARAMETERS[name] for name in SINK_OPTIONS.options if name in PARAMETERS} <= set(start)
    assert not set(SinkGiven.__annotations__) & (set(start) | set(capture))
    choices = SINK_OPTIONS.options["on_finish"].choices
    assert get_args(get_type_hints(spark_timely.start, localns=_spark_names())["on_finish"]) == choices


def _spark_names() -> dict[str, object]:
    """Return stand-ins for what `start` names for type checkers alone."""
    return {"DataFrame": object, "SparkSession": object}


def test_every_value_of_a_type_is_read() -> None:
    values: dict[Any, tuple[object, ...]] = {
        str: ("a",),
        int: (3,),
        bool: (True,),
        timedelta: (timedelta(days=2),),
        list[str]: (["a", "b"],),
        tuple[str, ...]: (("a", "b"),),
        type(None): (None,),
    }
    sized = {"size": "64mb", "long": "12 hours"}
    for name, hint in get_type_hints(SinkGiven).items():
        option = SINK_OPTIONS.options[name]
        for part in _parts(hint):
            words = get_args(part) if get_origin(part) is Literal else values[part]
            if part is str and option.kind in ("bytes", "distance", "duration"):
                words = (sized["size" if option.kind == "bytes" else "long"],)
            for word in words:
                parse_options(SINK_OPTIONS, {"path": "log", name: word})


def _parts(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union."""
    if get_origin(hint) in (Literal, list, tuple) or isinstance(hint, type):
        return (hint,)
    return tuple(part for each in get_args(hint) for part in _parts(each))
