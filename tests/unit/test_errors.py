"""Errors: one line, picklable, in the right family, with a text that does not change unnoticed."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable

import pytest

from spark_timely import errors
from spark_timely.errors import TimelyError, described, shown

KINDS = [kind for name in errors.__all__ if inspect.isclass(kind := getattr(errors, name))]


def example(kind: type[TimelyError]) -> TimelyError:
    """Return an error of a kind with every value set that its constructor takes."""
    values: dict[str, object] = {}
    for name in inspect.signature(kind).parameters:
        if name not in {"message", "hint", "context"}:
            values[name] = True if name == "determinate" else [len(name)]
    words = {name: value for name, value in values.items() if name != "determinate"}
    found = ", ".join(f"{name}={value!r}" for name, value in words.items()) or "path='a'"
    return kind(f"could not try a thing: found {found}", hint="try another", context={"path": "a"}, **values)


@pytest.mark.parametrize("kind", KINDS)
def test_error_survives_pickling(kind: type[TimelyError]) -> None:
    error = example(kind)
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(copied) is kind
        assert str(copied) == str(error)
        assert (copied.message, copied.hint, copied.context) == (error.message, error.hint, error.context)
        assert copied.args == error.args


@pytest.mark.parametrize("kind", KINDS)
def test_error_is_in_the_family_and_says_when_it_is_raised(kind: type[TimelyError]) -> None:
    assert issubclass(kind, TimelyError)
    assert kind.__doc__
    assert kind.__name__ not in kind.__doc__.splitlines()[0]
    assert kind.__module__ == "spark_timely.errors"


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_attributes_and_in_the_context(kind: type[TimelyError]) -> None:
    error = example(kind)
    for name in inspect.signature(kind).parameters:
        if name not in {"message", "hint", "context"}:
            assert getattr(error, name) == error.context[name]
    bare = kind("could not try")
    for name in inspect.signature(kind).parameters:
        if name not in {"message", "hint", "context", "determinate"}:
            assert getattr(bare, name) is None


@pytest.mark.golden
def test_messages_and_families(golden: Callable[[str, str], None]) -> None:
    lines = []
    for kind in KINDS:
        families = [base.__name__ for base in kind.__mro__[1:] if base not in {object, BaseException, Exception}]
        lines += [f"{kind.__name__}({', '.join(families)})", "----", str(example(kind)), ""]
    golden("errors.case", "\n".join(lines))


def test_built_in_families() -> None:
    assert issubclass(errors.InvalidUsageError, ValueError)
    assert issubclass(errors.MissingError, LookupError)
    assert issubclass(errors.LateDataError, errors.NotBeyondError)
    assert issubclass(errors.DataLossError, errors.StorageError)


def test_text_is_one_line_whatever_is_in_it() -> None:
    error = TimelyError("could not read:\n  found a\r\nb", hint="one\n two")
    assert str(error) == "[TIMELY_ERROR] could not read: found a b — hint: one two"


def test_without_hint_there_is_none_in_the_text() -> None:
    assert str(TimelyError("could not read")) == "[TIMELY_ERROR] could not read"


def test_each_kind_has_a_condition_of_its_own() -> None:
    conditions = {kind.condition: kind for kind in KINDS}
    assert len(conditions) == len(KINDS)
    assert conditions["TIMELY_LATE_DATA"] is errors.LateDataError
    assert conditions["TIMELY_INTERNAL"] is errors.TimelyInternalError
    assert conditions["TIMELY_ERROR"] is TimelyError


@pytest.mark.parametrize("kind", KINDS)
def test_text_begins_with_the_condition(kind: type[TimelyError]) -> None:
    assert str(example(kind)).startswith(f"[{kind.condition}] could not ")
    assert re.fullmatch("[0-9A-Z]{5}", kind.sqlstate)


def test_internal_error_asks_for_a_report() -> None:
    assert "report this bug" in str(errors.TimelyInternalError("could not count: found invariant 2 broken"))


def test_context_is_copied() -> None:
    context: dict[str, object] = {"a": 1}
    error = TimelyError("could not", context=context)
    context["a"] = 2
    assert error.context == {"a": 1}


def test_storage_error_is_indeterminate_unless_it_says_otherwise() -> None:
    assert not errors.StorageError("could not write").determinate
    assert errors.StorageError("could not write", determinate=True).determinate


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", r"'a\nb'"),
        ("z" * 198, "'" + "z" * 198 + "'"),
        ("z" * 199, "'" + "z" * 119 + " … " + "z" * 79 + "' (201 characters)"),
        ("ü" * 300 + ": the cause", "'" + "ü" * 119 + " … " + "ü" * 68 + ": the cause' (313 characters)"),
    ],
)
def test_shown_cuts_the_middle_and_tells_the_length(value: str, text: str) -> None:
    assert shown(value) == text


def test_shown_is_one_line_for_values_with_lines() -> None:
    class Lines:
        def __repr__(self) -> str:
            return "a\nb\r\nc"

    assert shown(Lines()).splitlines() == [shown(Lines())]


class Mute(Exception):
    """An error of a user that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


def test_what_cannot_be_shown_is_described_by_its_type() -> None:
    assert shown(Mute()) == "<Mute that cannot be shown>"
    assert described(Mute()) == "Mute: its text cannot be shown"
    assert described(TimelyError("could not read", hint="try again")) == "could not read"
