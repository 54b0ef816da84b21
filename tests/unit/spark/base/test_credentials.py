"""Names of credentials, functions that give them, and options that are refused."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from spark_timely.errors import InvalidOptionError, StorageError
from spark_timely.spark.base.credentials import joined_options, refuse_secrets, resolved, with_credential

SECRET = "hidden-word-of-a-test"


@pytest.fixture
def provider(request: pytest.FixtureRequest) -> Iterator[Callable[[object], str]]:
    """Return a function that makes a module whose function gives an answer, and returns its name."""
    made: list[str] = []

    def make(answer: object) -> str:
        name = f"provider_{abs(hash(request.node.name))}_{len(made)}"
        module = ModuleType(name)
        module.calls = 0  # type: ignore[attr-defined]

        def ask() -> object:
            module.calls += 1  # type: ignore[attr-defined]
            return answer() if callable(answer) else answer

        module.ask = ask  # type: ignore[attr-defined]
        sys.modules[name] = module
        made.append(name)
        return f"{name}:ask"

    yield make
    for name in made:
        del sys.modules[name]


def _calls(name: str) -> int:
    return int(sys.modules[name.partition(":")[0]].calls)


def test_name_stands_for_its_options_and_given_ones_win() -> None:
    named = {"lake": {"aws_region": "a", "aws_secret_access_key": SECRET}}
    given = {"path": "x", "Credential": "lake", "storage.AWS_REGION": "b"}
    expected = {"path": "x", "storage.AWS_REGION": "b", "storage.aws_secret_access_key": SECRET}
    assert with_credential(given, named) == expected


def test_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match=r"credential 'lake': found no credential of that name.*hint: call"):
        with_credential({"credential": "lake"}, {})


@pytest.mark.parametrize("given", ['{"aws_secret_access_key": "SECRETSECRET"}', "SECRET/SECRET+" + "x" * 26])
def test_secret_in_the_place_of_a_credential_is_not_shown(given: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"could not use credential .*\*\*\*.*: found no credential") as told:
        with_credential({"credential": given}, {})
    assert "SECRET" not in str(told.value)


def test_function_is_asked_once_where_it_names_no_end(provider: Callable[[object], str]) -> None:
    name = provider({"sas_token": SECRET})
    assert [resolved(name, {}), resolved(name, {})] == [{"sas_token": SECRET}] * 2
    assert _calls(name) == 1


@pytest.mark.parametrize(("seconds", "calls"), [(60, 2), (3600, 1)])
def test_function_is_asked_again_before_the_end(provider: Callable[[object], str], seconds: int, calls: int) -> None:
    name = provider(({"sas_token": SECRET}, time.time() + seconds))
    resolved(name, {})
    resolved(name, {})
    assert _calls(name) == calls


def test_function_stays_a_name_where_it_is_not_asked(provider: Callable[[object], str]) -> None:
    given = {"credential": provider({"sas_token": SECRET})}
    assert with_credential(given, {}, ask=False) == given
    assert _calls(given["credential"]) == 0


def test_function_that_fails_tells_no_secret(provider: Callable[[object], str]) -> None:
    def fail() -> object:
        refuse_by_url = "no token at https://me:hidden-word-of-a-test@host/x"
        raise OSError(refuse_by_url)

    with pytest.raises(StorageError, match="found OSError: 'no token at https") as caught:
        resolved(provider(fail), {})
    assert SECRET not in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize("answer", [None, "text", ({"a": "b"}, "soon")])
def test_function_with_another_answer_is_refused(provider: Callable[[object], str], answer: object) -> None:
    with pytest.raises(InvalidOptionError, match=r"found type=\w+ as its answer"):
        resolved(provider(answer), {})


def test_function_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="'no_such_module:ask': found no such function"):
        resolved("no_such_module:ask", {})


@pytest.mark.parametrize(
    "name",
    [
        "aws_access_key_id",
        "AWS_SECRET_ACCESS_KEY",
        "aws_session_token",
        "azure_storage_account_key",
        "azure_storage_access_key",
        "azure_storage_master_key",
        "azure_storage_sas_key",
        "sas_token",
        "azure_storage_client_secret",
        "bearer_token",
        "google_service_account_key",
    ],
)
def test_credentials_among_sparks_options_are_refused(name: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"option 'storage.{name}': found a credential") as caught:
        refuse_secrets({"path": "x", f"storage.{name}": SECRET})
    assert SECRET not in str(caught.value)


def test_settings_of_a_store_pass() -> None:
    refuse_secrets(
        {"storage.aws_region": "eu-west-1", "storage.allow_http": "true", "storage.aws_endpoint": "http://127.0.0.1:9"}
    )


@pytest.mark.parametrize("value", ["eu-west-1", SECRET])
def test_misspelt_option_is_no_credential(value: str) -> None:
    with pytest.raises(InvalidOptionError, match="no option of that name for any store — hint: did you mean") as caught:
        refuse_secrets({"path": "s3://bucket/log", "storage.aws_regoin": value})
    assert value not in str(caught.value)


def test_options_beside_a_credential_win() -> None:
    named = {"lake": {"aws_region": "a", "aws_secret_access_key": SECRET}}
    assert joined_options("lake", {"AWS_Region": "b"}, named) == {"aws_secret_access_key": SECRET, "AWS_Region": "b"}
    assert joined_options(None, {"aws_region": "b"}, named) == {"aws_region": "b"}
    with pytest.raises(InvalidOptionError, match="found no credential of that name"):
        joined_options("pond", None, named)
