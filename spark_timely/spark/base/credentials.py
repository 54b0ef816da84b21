"""Credentials of cloud stores: named by an option, and carried where Spark does not show them.

Users name one by `spark_timely.credential` (`spark_timely.spark.session`); the source and the sink put what it stands
for in its place when they read their options. Spark prints the options of a source or a sink in plans, in errors and in
its event log. So an option holds the name of a credential alone. What the name stands for travels in the class of the
format, which Spark keeps pickled for one session and unpickles where the format works; or a function gives it in each
process.

Invariants
----------
1. A storage option whose value is a secret is no option of Spark's.
2. No text made here holds a value of a credential.
"""

from __future__ import annotations

import importlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from spark_timely.conf.options import option_key
from spark_timely.errors import InvalidOptionError, StorageError, shown
from spark_timely.log.store.storage import checked_options
from spark_timely.log.store.urls import check_names
from spark_timely.masking import is_secret, keep_secret, mask_exception, masked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "OPTION",
    "Credentials",
    "credentials_of",
    "joined_options",
    "keep_credentials",
    "named_here",
    "naming",
    "refuse_secrets",
    "resolved",
    "with_credential",
]

Credentials: TypeAlias = Mapping[str, Mapping[str, str]]
"""Storage options by the name of the credential."""

OPTION: Final = "credential"
_STORAGE: Final = "storage."
_PROVIDER: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
# Longer than names are: a secret key has 40 characters.
_LIKE_A_NAME = re.compile(r"[\w.:-]{1,32}")
# A function is asked again so long before what it gave ends: a request may wait, and clocks differ.
_BEFORE_S: Final = 300.0

_given: dict[str, tuple[dict[str, str], float]] = {}  # what functions gave, and when to ask again, in s since 1970
_lock = threading.Lock()


# What the names of a session stand for, in this process only. The session itself keeps the key alone, which its clones
# (a query's own session) have too, and other sessions of the same JVM have not.
_named: dict[str, Credentials] = {}
_NAMED_KEY: Final = "spark.timely.session"
naming = threading.RLock()
"""Held while the names of a session are changed."""


def credentials_of(spark: SparkSession, /) -> Credentials:
    """Return what the credentials' names of a session stand for; nothing in a process that did not name them."""
    key = spark.conf.get(_NAMED_KEY, None)
    return {} if key is None else _named.get(key, {})


def named_here() -> Credentials:
    """Return what names stand for in the sessions of this process; of a name that several know, in the newest of them.

    For what is written down before its session is known: a dataflow.
    """
    return {name: options for named in _named.values() for name, options in named.items()}


def joined_options(
    credential: str | None, storage_options: Mapping[str, str] | None, named: Credentials, /
) -> dict[str, str]:
    """Return storage options with those of a credential; given ones win.

    Parameters
    ----------
    credential : str or None
        One of `named`, or ``module:function``.
    storage_options : mapping or None
    named : mapping
        What names stand for.

    Raises
    ------
    InvalidOptionError, StorageError
        As `with_credential`.

    Examples
    --------
    >>> joined_options("lake", {"AWS_REGION": "eu-west-1"}, {"lake": {"aws_region": "us-east-1", "token": "x"}})
    {'token': 'x', 'AWS_REGION': 'eu-west-1'}
    """
    given = checked_options(storage_options)
    if credential is None:
        return given
    own = {name.lower() for name in given}
    found = resolved(str(credential), named)
    return {**{name: value for name, value in found.items() if name.lower() not in own}, **given}


def keep_credentials(spark: SparkSession, named: Credentials, /) -> None:
    """Keep what the names of a session stand for, in this process; under the lock `naming`."""
    key = spark.conf.get(_NAMED_KEY, None)
    if key is None:
        key = uuid.uuid4().hex
        spark.conf.set(_NAMED_KEY, key)
    _named[key] = named


def refuse_secrets(given: Mapping[str, object], /) -> None:
    """Refuse credentials among the options that Spark sees.

    Parameters
    ----------
    given : mapping
        Names in any case, and values.

    Raises
    ------
    InvalidOptionError
        Names the option, without its value.

    Examples
    --------
    >>> refuse_secrets({"path": "s3://bucket/log", "storage.aws_region": "eu-west-1"})
    >>> refuse_secrets({"storage.azure_storage_account_key": "a2V5"})
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidOptionError: [TIMELY_INVALID_OPTION] could not take option \
'storage.azure_storage_account_key': found a credential, and Spark shows options in plans, errors and its event log \
— hint: ...
    """
    found = {name: str(value) for name, value in given.items() if name.lower().startswith(_STORAGE) and value}
    keep_secret({name[len(_STORAGE) :]: value for name, value in found.items()})
    # First of all: what no store knows would be taken for a secret.
    check_names([name[len(_STORAGE) :] for name in found], ())
    for name, value in found.items():  # a few
        if is_secret(name[len(_STORAGE) :], value):
            msg = (
                f"could not take option {name!r}: found a credential, and Spark shows options in plans, errors and its"
                " event log"
            )
            raise InvalidOptionError(
                msg,
                hint="call spark_timely.credential(spark, 'name', {…}) and give the option credential='name', or set"
                " the store's variables in the environment",
                context={"option": name},
            )


def with_credential(given: Mapping[str, object], named: Credentials, /, *, ask: bool = True) -> dict[str, object]:
    """Return options with those of their credential as `storage.…`; given ones win.

    Parameters
    ----------
    given : mapping
        Options of the source or the sink, names in any case. Not modified.
    named : mapping
        What the session's names stand for.
    ask : bool
        Whether a function is asked now. Otherwise its name stays, for a process that asks later.

    Returns
    -------
    dict
        Without the name of a credential that is in `named`: other processes may not know it.

    Raises
    ------
    InvalidOptionError
        If there is no credential of that name, or the function gives no storage options.
    StorageError
        If the function fails.

    Examples
    --------
    >>> with_credential({"credential": "lake"}, {"lake": {"aws_region": "eu-west-1"}})
    {'storage.aws_region': 'eu-west-1'}
    """
    name = next((value for key, value in given.items() if option_key(key) == OPTION), None)
    if name is None or (not ask and _PROVIDER.fullmatch(str(name))):
        return dict(given)
    if str(name) in named:
        given = {key: value for key, value in given.items() if option_key(key) != OPTION}
    own = {key[len(_STORAGE) :].lower() for key in given if key.lower().startswith(_STORAGE)}
    found = resolved(str(name), named)
    return {**given, **{f"{_STORAGE}{key}": value for key, value in found.items() if key.lower() not in own}}


def resolved(name: str, named: Credentials, /) -> dict[str, str]:
    """Return the storage options of a credential.

    Parameters
    ----------
    name : str
        One of `named`, or ``module:function``.
    named : mapping

    Raises
    ------
    InvalidOptionError, StorageError
        See `with_credential`.

    Notes
    -----
    What a function gives is kept in this process until five minutes before it expires, or for good where it names no
    end.
    """
    if name in named:
        return checked_options(named[name])
    if not _PROVIDER.fullmatch(name):
        if not _LIKE_A_NAME.fullmatch(name):
            keep_secret({"secret": name})  # itself in the place of its name
        msg = f"could not use credential {masked(shown(name))}: found no credential of that name in this session"
        hint = "call spark_timely.credential(spark, name, {…}) before, or give a function as 'module:function'"
        raise InvalidOptionError(msg, hint=hint, context={"option": OPTION})
    with _lock:
        kept = _given.get(name)
        if kept is None or time.time() >= kept[1]:
            kept = _given[name] = _asked(name)
    return dict(kept[0])


def _asked(name: str) -> tuple[dict[str, str], float]:
    """Return what a function gives, and when to ask it again."""
    answer = _called(name)
    end: object = None
    if isinstance(answer, tuple) and len(answer) == 2:
        answer, end = answer
    if not isinstance(answer, Mapping) or not (end is None or isinstance(end, int | float)):
        msg = f"could not use credential {name!r}: found type={type(answer).__name__} as its answer"
        hint = "return a dict of storage options, or that and the end in seconds since 1970"
        raise InvalidOptionError(msg, hint=hint, context={"option": OPTION})
    return checked_options(answer), float("inf") if end is None else end - _BEFORE_S


def _called(name: str) -> object:
    module, _, function = name.partition(":")
    try:
        ask: Callable[[], object] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        msg = f"could not use credential {name!r}: found no such function, {shown(str(error))}"
        hint = "give a module that the driver and the executors can import"
        raise InvalidOptionError(msg, hint=hint, context={"option": OPTION}) from error
    try:
        return ask()
    except Exception as error:
        mask_exception(error)
        msg = f"could not get credential {name!r}: found {type(error).__name__}: {masked(shown(str(error)))}"
        raise StorageError(msg, hint="correct the function, or what it asks", determinate=True) from error
