"""No secret leaves in a text: errors and their causes, log lines, answers of the command line."""

from __future__ import annotations

import itertools
import json
import logging
import operator
import os
import pickle
import traceback
from collections import UserDict, namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely import masking
from spark_timely.cli.command import main
from spark_timely.cli.output import Console, aligned
from spark_timely.errors import InvalidUsageError, StorageError, TimelyError, UpperMismatchError, shown
from spark_timely.log.log import open_log
from spark_timely.log.store.cloud import CloudStorage
from spark_timely.log.store.storage import normal_path
from spark_timely.masking import keep_secret, mask_exception, masked, masked_logger, masked_value
from spark_timely.protocol.note import OutputFailure
from tests.unit.conf.test_options import sink

SECRET = "s3cr/et+VALUE=="


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("at s3://AK:SECRET@bucket/x", "at s3://***@bucket/x"),
        ("at s3://AK:SEC/RET@bucket/x", "at s3://***@bucket/x"),
        ("at s3://AK:SEC@RET@bucket/x", "at s3://***@bucket/x"),
        ("GET http://user:pass@host:9000/b, again", "GET http://***@host:9000/b, again"),
        ("https://TOKEN@host/x", "https://***@host/x"),
        ("abfss://c:SECRET@a.dfs.core.windows.net/x", "abfss://***@a.dfs.core.windows.net/x"),
        (
            "https://a.blob.core.windows.net/c?sv=2&sig=SEC%3D&se=3",
            "https://a.blob.core.windows.net/c?sv=2&sig=***&se=3",
        ),
        ("'abfss://c@a/x?SIG=SECRET'", "'abfss://c@a/x?SIG=***'"),
        ("x?X-Amz-Credential=A%2FB&X-Amz-Signature=C", "x?X-Amz-Credential=***&X-Amz-Signature=***"),
        ("x?X-Amz-Security-Token=A&x-goog-signature=B", "x?X-Amz-Security-Token=***&x-goog-signature=***"),
        ("x%3Fsig=SECRET%26token%3DSECRET", "x%3Fsig=***"),
        ("AccountName=a;AccountKey=SECRET==;EndpointSuffix=b", "AccountName=a;AccountKey=***"),
        ("x?password=a&client_secret=b&sas=c&key=d", "x?password=***&client_secret=***&sas=***&key=***"),
        # A store of buckets has no port.
        ("at s3://AK:80/SECRET@bucket/x", "at s3://***@bucket/x"),
        ("at GS://AK:80/SECRET@bucket/x", "at GS://***@bucket/x"),
        ("abfss://c:80/SECRET@a.dfs.core.windows.net/x", "abfss://***@a.dfs.core.windows.net/x"),
        ("at s3://AK:SEC RET@bucket/x", "at s3://***@bucket/x"),
        ('at s3a://AK:SEC"RET@bucket/x', "at s3a://***@bucket/x"),
        ("to=http%3A%2F%2Fuser%3ASECRET%40host%2Fx%40y", "to=http%3A%2F%2F***%40host%2Fx%40y"),
        ("to=s3%3a%2f%2fAK%3aSEC%2BRET%40b", "to=s3%3a%2f%2f***%40b"),
        # What is no secret stays.
        ("to=http%3A%2F%2Fhost%3A80%2Fx%40y", "to=http%3A%2F%2Fhost%3A80%2Fx%40y"),
        ("to=abfss%3A%2F%2Fcontainer%40account", "to=abfss%3A%2F%2Fcontainer%40account"),
        ("http://host:80/me@host", "http://host:80/me@host"),
        ("found s3://bucket: no right for me@host", "found s3://bucket: no right for me@host"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("http://host:8080/x and me@host", "http://host:8080/x and me@host"),
        ("s3://bucket/a/me@host/x?keys=3&signal=4", "s3://bucket/a/me@host/x?keys=3&signal=4"),
        ("found token='a', key=3 // a comment", "found token='a', key=3 // a comment"),
    ],
)
def test_secrets_of_urls_are_masked_and_nothing_else(text: str, safe: str) -> None:
    assert masked(text) == safe
    assert masked(safe) == safe, "a masked text is left alone"


@pytest.mark.parametrize("spell", [str, quote, lambda text: quote(text, safe=""), repr, json.dumps])
def test_values_of_options_in_use_are_masked_in_any_spelling(spell: Callable[[str], str]) -> None:
    CloudStorage("s3://bucket/x", {"aws_secret_access_key": SECRET + "'\""})
    assert "VALUE" not in masked(f"403 for {spell(SECRET + chr(39) + chr(34))}!")


@pytest.mark.parametrize(
    ("options", "text", "safe"),
    [
        ({"aws_region": "eu-central-1", "AWS_ENDPOINT_URL": "http://host"}, "eu-central-1 http://host", None),
        ({"aws_endpoint": "http://me:hush@host"}, "hush, http://host", "***, http://host"),
        ({"allow_http": "true", "made_up": "false", "other": "30s"}, "true false 30s", None),
        ({"made_up": "something"}, "something", "***"),
        ({"aws_session_token": "abc"}, "abc", None),
        ({"sas_token": "sv=1&sig=hush%2Bhush"}, "hush+hush", "***"),
        ({"google_service_account_key": '{"type": "x", "private_key": "line one\\nline two"}'}, "line two", "***"),
        ({"aws_secret_access_key": "line one\nline two"}, "line one line two", "***"),
        ({"fs.azure.account.key": "hush"}, "hush", "***"),
        # A short value is masked where it stands alone.
        ({"access_key": "test"}, "could not read stream 'latest': s3://contest/log", None),
        (
            {"access_key": "test"},
            "found test, 'test', http://test:1/x?y=test.",
            "found ***, '***', http://***:1/x?y=***.",
        ),
        (
            {"secret": "hush"},
            "%27hush%27 %3Dhush%26 \\nhush\\n \\u0027hush\\x27",
            "%27***%27 %3D***%26 \\n***\\n \\u0027***\\x27",
        ),
        ({"secret": "/hu=="}, "x/hu==x", "x***x"),
        ({"secret": "elevenchars"}, "elevencharsx", None),
        ({"secret": "twelve_chars"}, "xtwelve_charsx", "x***x"),
        ({"secret": "hush"}, "s3://hush:x@b http://h?sig=hushx", "s3://***@b http://h?sig=***"),
        (
            {
                "aws_role_session_name": "spark",
                "aws_server_side_encryption": "AES256",
                "aws_storage_class": "STANDARD",
                "default_content_type": "text/plain",
            },
            "spark-timely AES256 STANDARD text/plain",
            None,
        ),
        # An endpoint needs no scheme.
        ({"aws_endpoint": "admin:hunter22@minio:9000"}, "no admin:hunter22@minio:9000", "no ***@minio:9000"),
        ({"proxy_url": "admin:hunter22@minio:9000"}, "no hunter22, admin, minio", "no ***, admin, minio"),
        ({"user_agent": "someone@host"}, "someone", None),
    ],
)
def test_harmless_options_and_short_values_are_not_masked(options: dict[str, str], text: str, safe: str | None) -> None:
    keep_secret(options)
    assert masked(text) == (text if safe is None else safe)


def test_error_holds_no_secret_in_text_repr_and_pickle() -> None:
    keep_secret({"account_key": SECRET})
    error = InvalidUsageError(
        f"found {SECRET}",
        hint=f"not {SECRET}",
        context={"path": f"s3://a:{SECRET}@b", "all": [SECRET, {"x": (SECRET,)}], "n": 3},
    )
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert "VALUE" not in f"{each}{each!r}{each.message}{each.hint}{each.context}{each.args}"
        assert each.context["n"] == 3
    assert "VALUE" not in str(UpperMismatchError("x", current=SECRET).context)


def test_long_value_is_masked_before_it_is_cut() -> None:
    keep_secret({"account_key": SECRET})
    assert "s3cr" not in shown("x" * 190 + SECRET)


def test_cause_of_an_error_holds_no_secret() -> None:
    keep_secret({"account_key": SECRET})
    first, second = OSError(5, f"bad {SECRET}", f"/x/{SECRET}"), ValueError(f"no {SECRET}")
    second.desc = f"more {SECRET}"  # type: ignore[attr-defined]
    try:
        try:
            try:
                raise first
            except OSError as error:
                raise second from error
        except ValueError as error:
            msg = "could not open"
            raise TimelyError(msg) from error
    except TimelyError as error:
        told = "".join(traceback.format_exception(error))
    assert "ValueError: no ***" in told
    assert "VALUE" not in told + second.desc  # type: ignore[attr-defined]
    assert (first.errno, first.strerror) == (5, "bad ***")


def test_exceptions_in_a_ring_are_masked_once() -> None:
    one, other = OSError("http://a:b@c"), OSError("x")
    one.__context__, other.__context__ = other, one
    mask_exception(one)
    assert str(one) == "http://***@c"


@dataclass(frozen=True)
class Frozen(Exception):
    why: object


class NoArguments(Exception):
    @property
    def args(self) -> NoReturn:  # type: ignore[override]
        raise KeyError(1)


class Shut(Exception):
    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(name)

    def __getattribute__(self, name: str) -> NoReturn:
        raise ValueError(name)

    def __str__(self) -> NoReturn:
        raise ValueError

    __repr__ = __hash__ = __str__  # type: ignore[assignment]

    def __eq__(self, other: object) -> NoReturn:
        raise ValueError


class Slotted(Exception):
    __slots__ = ("kept", "unset")

    def __init__(self, kept: object) -> None:
        super().__init__()
        self.kept = kept


class Grown(UserDict[Any, Any]):
    """A mapping of another class."""


class Unreadable(Mapping[Any, Any]):
    def __getitem__(self, name: Any) -> NoReturn:
        raise ValueError(name)

    __len__ = __iter__ = items = keys = __hash__ = __repr__ = __getitem__  # type: ignore[assignment]


class Endless(Unreadable):
    def items(self) -> Any:
        return ((n, "x") for n in itertools.count())


class Sour:
    """An object that answers no question, not even of which class it is."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise ValueError(name)

    __repr__ = __str__ = __eq__ = __hash__ = __len__ = __iter__ = __getattribute__  # type: ignore[assignment]


class Posing(Sour):
    __class__ = str  # type: ignore[assignment]


class Text(str):
    """A text that does not let itself be looked at."""

    __slots__ = ()

    def __contains__(self, part: object) -> NoReturn:
        raise ValueError

    __eq__ = __ne__ = __str__ = __repr__ = __len__ = __contains__  # type: ignore[assignment]
    __hash__ = str.__hash__


Pair = namedtuple("Pair", "a b")


def ring() -> list[Any]:
    made: list[Any] = []
    made += [made, {"again": made}]
    return made


def deep(leaf: object = 1) -> list[Any]:
    made = [leaf]
    for _ in range(100_000):
        made = [made]
    return made


def wide(leaf: object = 1) -> list[Any]:
    """Return a value of 2^60 paths and 60 objects."""
    made = [leaf]
    for _ in range(60):
        made = [made, made]
    return made


@pytest.mark.parametrize("kind", [Frozen, Shut, ImportError, Slotted, OSError, "inner"])
def test_exception_that_cannot_be_set_is_masked_all_the_same(kind: Any) -> None:
    keep_secret({"account_key": SECRET})
    error = inner = Frozen(SECRET) if kind == "inner" else kind(1, "x", SECRET) if kind is OSError else kind(SECRET)
    if kind == "inner":
        error = Exception(inner)
    mask_exception(error)
    seen = [vars(BaseException)["args"].__get__(inner), object.__getattribute__(inner, "__dict__")]
    if kind is not Shut:
        seen += [getattr(inner, "kept", ""), str(error)]
    assert "VALUE" not in repr(seen)
    assert "***" in repr(seen)


def test_library_raises_its_own_error_while_any_is_being_handled() -> None:
    keep_secret({"account_key": SECRET})
    for error in (
        Frozen("x"),
        NoArguments("x"),
        Shut("x"),
        Exception(Sour(), Posing(), Unreadable()),
        Exception(ring()),
    ):
        with pytest.raises(InvalidUsageError, match="could not use a path"):
            fail_while_handling(error)


def fail_while_handling(error: Exception) -> None:
    try:
        raise error
    except type(error):
        normal_path(3)  # type: ignore[arg-type]


_CLEAN: dict[str, Callable[[], object]] = {
    "another mapping": lambda: Grown(k="v"),
    "view": lambda: MappingProxyType({"k": "v"}),
    "environment": lambda: os.environ,
    "named tuple": lambda: Pair(1, "x"),
    "nested": lambda: ["a", {"b": ("c", {"d"})}],
    "ring": ring,
    "deep": deep,
    "wide": wide,
    "sour": Sour,
    "posing": Posing,
    "text": lambda: Text("x"),
    "unreadable": Unreadable,
    "surrogate": lambda: "\ud800",
    "sour in a list": lambda: [Sour(), {1: Unreadable()}],
}


@pytest.mark.parametrize("kind", _CLEAN)
def test_what_holds_no_secret_keeps_its_identity(kind: str) -> None:
    keep_secret({"account_key": SECRET})
    value = _CLEAN[kind]()
    error = Exception(value)
    error.kept = value  # type: ignore[attr-defined]
    args = error.args
    mask_exception(error)
    assert error.args is args
    assert error.kept is value  # type: ignore[attr-defined]
    assert masked_value(value) is value


def test_secret_in_a_value_of_another_class_is_masked() -> None:
    keep_secret({"account_key": SECRET})
    assert masked_value(Grown(k=SECRET, n=[1])) == {"k": "***", "n": [1]}
    assert masked_value(Pair(1, SECRET)) == (1, "***")
    assert masked_value(Text(SECRET)) == "***"
    assert masked_value({("a", SECRET): 1}) == {("a", "***"): 1}
    assert masked_value([Unreadable(), SECRET]) == ["***", "***"]


def test_deep_secret_is_masked_and_its_neighbours_are_kept() -> None:
    keep_secret({"account_key": SECRET})
    again: list[Any] = [SECRET]
    again.append(again)
    near = [1, "x"]
    made: Any = masked_value({"ring": again, "near": near, "deep": deep(SECRET), "wide": wide(SECRET)})
    assert made["ring"] == ["***", "***"]
    assert made["near"] is near
    for name in ("deep", "wide"):
        one = made[name]
        while type(one) is list:
            one = one[0]
        assert one == "***"


def test_looking_for_secrets_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_MOST_PARTS", 1000)
    keep_secret({"account_key": SECRET})
    endless = Endless()
    assert masked_value(endless) is endless
    assert masked_value([SECRET, endless]) == ["***", "***"]
    error = first = Exception("x")
    for _ in range(5_000):
        error.__cause__ = Exception("x")
        error = error.__cause__  # type: ignore[assignment]
    mask_exception(first)


_odd_texts = st.sampled_from(["s3://a:b@c", "", "%2F%2Fa%3Ab%40c"])
_odd = st.one_of(*map(st.builds, (Sour, Posing, Unreadable, ring, Grown, object)))


def values(names: st.SearchStrategy[str], texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        names | texts | _odd | st.integers() | st.floats() | st.binary() | st.none(),
        lambda some: (
            st.lists(some, max_size=3)
            | st.lists(some, max_size=3).map(tuple)
            | st.dictionaries(names | st.tuples(names), some, max_size=3)
            | st.dictionaries(names, some, max_size=3).map(Grown)
            | st.frozensets(names, max_size=3)
        ),
        max_leaves=6,
    )


_clean = values(st.text(st.characters(exclude_characters="@=%"), max_size=5), st.builds(Text, st.just("//x")))
_any = values(st.text(max_size=5) | _odd_texts, st.builds(Text, _odd_texts))
_KINDS: tuple[Any, ...] = (Exception, OSError, Frozen, Shut, NoArguments, Slotted, KeyError, ImportError, SystemExit)


def errors(some: st.SearchStrategy[Any]) -> st.SearchStrategy[BaseException]:
    made = st.builds(
        lambda kind, held: kind(*held[: 1 if kind in (Frozen, Slotted) else None]),
        st.sampled_from(_KINDS),
        st.lists(some, min_size=1, max_size=3),
    )
    return st.builds(lambda one, other, last: chained(one, chained(other, last)), made, made, made)


def chained(error: BaseException, cause: BaseException) -> BaseException:
    vars(BaseException)["__cause__"].__set__(error, cause)  # past classes that refuse it
    return error


def held_by(error: Any) -> list[Any]:
    """Return the arguments and the attribute of each exception of a chain."""
    found = []
    while error is not None:
        own = object.__getattribute__(error, "__dict__")
        found += [vars(BaseException)["args"].__get__(error), own.get("kept")]
        error = vars(BaseException)["__cause__"].__get__(error)
    return found


def kept_in(error: BaseException, value: object) -> BaseException:
    object.__getattribute__(error, "__dict__")["kept"] = value
    return error


@given(error=st.builds(kept_in, errors(_any), _any))
def test_masking_raises_never_and_a_second_time_changes_nothing(error: BaseException) -> None:
    mask_exception(error)
    before = held_by(error)
    mask_exception(error)
    assert len(before) == 6
    assert all(map(operator.is_, before, held_by(error)))


@given(error=st.builds(kept_in, errors(_clean), _clean))
def test_exception_without_a_secret_is_never_changed(error: BaseException) -> None:
    before = held_by(error)
    mask_exception(error)
    assert all(map(operator.is_, before, held_by(error)))


def test_log_lines_hold_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    keep_secret({"account_key": SECRET})
    logger = masked_logger("spark_timely.test_masking")
    with caplog.at_level(logging.DEBUG, logger.name):
        try:
            raise OSError(SECRET)
        except OSError:
            logger.exception("log %r: %s", "s3://a:b@c", SECRET)
    assert "log 's3://***@c': ***" in caplog.text
    assert "VALUE" not in caplog.text


def test_log_line_that_cannot_be_made_is_no_error_of_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    keep_secret({"account_key": SECRET})
    logger = masked_logger("spark_timely.test_masking")
    logger.warning("found %s and %d", Sour(), SECRET)
    assert "could not show a log line of test_masking.py" in caplog.text
    assert "VALUE" not in caplog.text


def test_note_of_a_failure_holds_no_secret() -> None:
    keep_secret({"account_key": SECRET})
    failure = OutputFailure.of("out", OSError("x" * 3_900 + SECRET * 10), "run")
    assert "s3cr" not in failure.message


@pytest.mark.parametrize(
    "path",
    [
        "s3://AK:80/SECRET@bucket/x",
        "s3://AK:SEC SECRET@bucket/x",
        "s3://AK%3ASECRET@bucket/x",
        "s3://AK:SECRET@bucket/x",
        "abfss://c@a/x?sv=1&sig=SECRET",
        "https://a.blob.core.windows.net/c?sig=SECRET",
    ],
)
def test_path_with_a_secret_is_refused(path: str) -> None:
    with pytest.raises(InvalidUsageError, match="could not use path") as caught:
        open_log(path)
    assert "SECRET" not in f"{caught.value}{caught.value.context}"
    assert "options of the storage" in str(caught.value)


@pytest.mark.parametrize("path", ["hdfs://me@host/x", "abfss://c@account.dfs.core.windows.net/x", "s3://b/me@host"])
def test_path_without_a_secret_is_taken(path: str) -> None:
    assert normal_path(path) == path


def test_texts_of_delta_libraries_are_masked() -> None:
    options = {
        "aws_region": "us-east-1",
        "aws_access_key_id": "AKSECRETID",
        "aws_secret_access_key": SECRET,
        "allow_http": "true",
        "aws_endpoint": "http://user:PASSWORD@127.0.0.1:9",
        "max_retries": "0",
        "retry_timeout": "1s",
    }
    with pytest.raises(StorageError) as caught:
        open_log("s3://bucket/x", storage_options=options)
    told = "".join(traceback.format_exception(caught.value)) + str(caught.value.context)
    assert "127.0.0.1:9" in told
    assert "PASSWORD" not in told
    with pytest.raises(StorageError, match="127") as raw:
        CloudStorage("s3://bucket/x", options).exists("x")
    assert "PASSWORD" not in "".join(traceback.format_exception(raw.value))


def test_option_of_the_storage_is_no_text_of_a_later_error() -> None:
    with pytest.raises(ValueError, match="could not read the options") as caught:
        sink(path="x", **{"storage.account_key": "hunter2", "hunter2": "x"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["stats", "s3://AK:SECRET@bucket/x"],
        ["stats", "abfss://c@a/x?sig=SECRET", "--json"],
        ["SECRET", "--storage", "account_key=SECRET"],
        ["--storage", "account_key=SECRET", "stats", "x"],
        ["stats", "SECRET", "--storage=account_key=SECRET"],
        ["frontier", "/nowhere/SECRET", "--storage", "account_key=SECRET", "--json"],
        ["account_key=SECRET"],
    ],
)
def test_command_line_tells_no_secret(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) in (2, 3)
    out, err = capsys.readouterr()
    assert err
    assert "SECRET" not in out + err


def test_answers_of_the_command_line_hold_no_secret() -> None:
    import io

    keep_secret({"account_key": SECRET})
    for as_is in (False, True):
        out = io.StringIO()
        console = Console(out, json_mode=False)
        console.answer({"a": [SECRET]}, as_is=as_is)
        console.table(["a"], [["x" * 30 + SECRET]], as_is=as_is)
        assert out.getvalue().count("VALUE") == (2 if as_is else 0)
        console.line(SECRET)
        console.say({}, aligned([("a", SECRET)]))
        assert out.getvalue().count("VALUE") == (2 if as_is else 0)


def test_values_of_other_types_are_left_alone() -> None:
    value = (3, None, b"x", {"a": {1}})
    assert masked_value(value) == value


def test_functions_for_spark_show_no_options() -> None:
    from spark_timely.spark.capture.start import _Capture
    from spark_timely.spark.dataflows.dataflow import _Part

    part = _Part("d", (), {"s3://b/x": {"account_key": SECRET}})
    assert "VALUE" not in f"{part}{_Capture('s3://b/x', '/c', {'storage.account_key': SECRET})}"
