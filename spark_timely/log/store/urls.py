"""URLs of object stores: parses them, and recognizes two spellings of one place.

One log may be written as ``s3://`` and ``s3a://``, as ``az://container`` and ``abfss://container@account…``, with
slashes at the end or doubled, with a scheme or an account in capitals. A path keeps its scheme, for Spark may have a
file system for one alone; where places are compared, their identities are.

Invariants
----------
1. Two URLs that the client of a store takes to one place have one identity.
2. Only schemes and accounts are without case: buckets, containers and what is behind them stay as they are.
3. Where the id of a table is known it decides, not this.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from spark_timely.log.store.keys import SCHEMES

__all__ = ["StoreUrl", "account_of", "clean_url", "endpoint_of", "identity", "nearest_log", "parse_url", "same_place"]

_SLASHES: Final = re.compile("//+")
# Hosts of Azure itself. Others, such as an emulator's, say nothing of the account.
_AZURE_HOST: Final = re.compile(r"([^.@]+)\.(?:dfs|blob)\..+", re.IGNORECASE)
_ENDPOINT: Final = (
    "aws_endpoint_url_s3",
    *(
        f"{prefix}{name}"
        for prefix in ("aws_", "azure_storage_", "azure_", "")
        for name in ("endpoint_url", "endpoint")
    ),
)
_ACCOUNT: Final = ("azure_storage_account_name", "account_name")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """The parts of an object store's URL.

    Attributes
    ----------
    store : str
        As in `spark_timely.log.store.keys.SCHEMES`.
    bucket : str
        Bucket, or container.
    path : str
        Behind it, without slashes at its ends, escapes taken for what they mean.
    account : str
        Of Azure, in lower case; empty where the URL names none.
    sure : bool
        Whether the host is Azure's own, so that its account is the one that is meant.
    """

    store: str
    bucket: str
    path: str
    account: str = ""
    sure: bool = False


def clean_url(url: str, /) -> str:
    """Return a URL without slashes at its end or doubled ones, its scheme and the host of an account in lower case.

    Examples
    --------
    >>> clean_url("S3://Bucket//A/b//"), clean_url("abfss://c@Lake.dfs.core.windows.net/P/")
    ('s3://Bucket/A/b', 'abfss://c@lake.dfs.core.windows.net/P')
    >>> clean_url("memory://x/")
    'memory://x'
    """
    scheme, _, rest = url.partition("://")
    if SCHEMES.get(scheme.lower()) is None:
        return url.rstrip("/")
    place, _, path = rest.partition("/")
    bucket, at, host = place.rpartition("@")
    place = f"{bucket}@{host.lower()}" if at else place
    path = _SLASHES.sub("/", path).strip("/")
    return f"{scheme.lower()}://{place}/{path}" if path else f"{scheme.lower()}://{place}"


def parse_url(url: str, /) -> StoreUrl | None:
    """Return what a URL of an object store names; None for a local path and for other schemes.

    Examples
    --------
    >>> parse_url("s3a://bucket/a%20log/")
    StoreUrl(store='S3', bucket='bucket', path='a log', account='', sure=False)
    >>> parse_url("abfss://logs@Lake.dfs.core.windows.net/a")
    StoreUrl(store='Azure', bucket='logs', path='a', account='lake', sure=True)
    """
    scheme, colon, rest = url.partition("://")
    store = SCHEMES.get(scheme.lower()) if colon else None
    if store is None:
        return None
    place, _, path = rest.partition("/")
    path = _SLASHES.sub("/", unquote(path)).strip("/")
    bucket, at, host = place.rpartition("@") if store == "Azure" else (place, "", "")
    if not at:
        return StoreUrl(store, place, path)
    return StoreUrl(store, bucket, path, host.partition(".")[0].lower(), _AZURE_HOST.fullmatch(host) is not None)


def account_of(url: StoreUrl, options: Mapping[str, str] | None, /) -> str:
    """Return the account of Azure that a URL and its options name; empty where none does.

    Examples
    --------
    >>> account_of(StoreUrl("Azure", "logs", "a"), {"AZURE_STORAGE_ACCOUNT_NAME": "Lake"})
    'lake'
    """
    if url.store != "Azure" or url.sure:
        return url.account
    given = {name.lower(): value for name, value in (options or {}).items()}
    found = next((given[name] for name in _ACCOUNT if given.get(name)), "")
    return (found or url.account or os.environ.get(_ACCOUNT[0].upper(), "")).lower()


def endpoint_of(options: Mapping[str, str] | None, /) -> str:
    """Return the endpoint that storage options name, without a slash at its end; empty where they name none.

    Examples
    --------
    >>> endpoint_of({"AWS_ENDPOINT_URL": "http://minio:9000/"}), endpoint_of(None)
    ('http://minio:9000', '')
    """
    given = {name.lower(): value for name, value in (options or {}).items()}
    return next((given[name].rstrip("/").lower() for name in _ENDPOINT if given.get(name)), "")


def identity(place: str, options: Mapping[str, str] | None = None, /) -> str:
    """Return one text for all ways to write a place.

    Parameters
    ----------
    place : str
        Path or URL.
    options : mapping or None
        Storage options: for Azure they may name the account.

    Examples
    --------
    >>> identity("s3a://bucket//log/"), identity("s3://bucket/log")
    ('s3://bucket/log', 's3://bucket/log')
    >>> identity("az://logs/a", {"azure_storage_account_name": "lake"})
    'azure://logs@lake/a'
    >>> identity("abfss://logs@LAKE.dfs.core.windows.net/a/")
    'azure://logs@lake/a'
    >>> identity("/data/log")
    '/data/log'
    """
    url = parse_url(place)
    if url is None:
        return place
    account = account_of(url, options)
    return f"{url.store.lower()}://{url.bucket}{'@' if account else ''}{account}/{url.path}"


def nearest_log(place: str, storage: Mapping[str, Mapping[str, str]], /) -> str | None:
    """Return the log whose storage options reach a place for which none are given, such as a checkpoint.

    Parameters
    ----------
    place : str
        Path or URL.
    storage : mapping
        Storage options by path or URL of logs.

    Returns
    -------
    str or None
        One in the same bucket, else one in the same store. None where there is none, and for a disk, which needs none.

    Examples
    --------
    >>> logs = {"s3://a/x": {"region": "one"}, "s3://b/x": {"region": "two"}, "/data/log": {}}
    >>> nearest_log("s3a://b/checkpoint", logs), nearest_log("gs://b/checkpoint", logs)
    ('s3://b/x', None)
    """
    url = parse_url(place)
    found: str | None = None
    for path, options in storage.items():
        other = parse_url(path)
        if url is None or other is None or other.store != url.store:
            continue
        if (other.bucket, account_of(other, options)) == (url.bucket, account_of(url, options)):
            return path
        found = found or path
    return found


def same_place(
    one: str, other: str, /, options: Mapping[str, str] | None = None, others: Mapping[str, str] | None = None
) -> bool:
    """Return whether two paths or URLs are one place.

    Parameters
    ----------
    one, other : str
    options, others : mapping, optional
        Storage options of the one, and of the other: the same unless given.

    Returns
    -------
    bool
        True also where one of two URLs of Azure names an account and nothing says of the other one that it is another.

    Examples
    --------
    >>> same_place("s3://bucket/log", "s3a://bucket/log/"), same_place("s3://bucket/log", "s3://bucket/Log")
    (True, False)
    >>> same_place("az://logs/a", "abfss://logs@lake.dfs.core.windows.net/a")
    True
    """
    if one == other:
        return True
    mine, theirs = parse_url(one), parse_url(other)
    if mine is None or theirs is None:
        return False
    if (mine.store, mine.bucket, mine.path) != (theirs.store, theirs.bucket, theirs.path):
        return False
    accounts = account_of(mine, options), account_of(theirs, options if others is None else others)
    return accounts[0] == accounts[1] or not all(accounts)
