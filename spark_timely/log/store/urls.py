"""URLs and options of object stores: two spellings of one place, and which store takes which option.

Storages are opened by it (`storage`, `cloud`). Logs, dataflows and mirrors compare places by `identity` and
`same_place`; the sink and cuts keep the options that a place knows (`own_options`). Named credentials for such
places are in `spark_timely.spark.base.credentials`.

One log may be written as ``s3://`` and ``s3a://``, as ``az://container`` and ``abfss://container@account…``, with
slashes at the end or doubled, with a scheme or an account in capitals. A path keeps its scheme, for Spark may have a
file system for one alone; where places are compared, their identities are.

The names of options are those of `object_store`, the library below both obstore and delta-rs, in any case. Each store
has its own, with and without its prefix (`aws_region`, `region`); those of HTTP and of repeated requests all stores
have. Options come in for a log, and are used for the checkpoint of its query too, which may be elsewhere. So an option
fits where one of the places knows it. A local disk takes options of all stores and has no use for them: then a job
whose paths are settings runs on a disk too.

Invariants
----------
1. Two URLs that the client of a store takes to one place have one identity.
2. Only schemes and accounts are without case: buckets, containers and what is behind them stay as they are.
3. Where the id of a table is known it decides, not this.
4. An option that no place knows is refused before anything is read or written.
5. A text made here holds names of options, never values.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from spark_timely.errors import InvalidOptionError

__all__ = [
    "HTTP",
    "SCHEMES",
    "StoreUrl",
    "account_of",
    "check_names",
    "clean_url",
    "client_options",
    "delta_options",
    "endpoint_of",
    "identity",
    "nearest_log",
    "own_options",
    "parse_url",
    "same_place",
]


SCHEMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("s3", "s3a"), "S3"),
    **dict.fromkeys(("gs", "gcs"), "Google"),
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), "Azure"),
}
"""Stores by the scheme of a URL, in lower case."""

HTTP: Final = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "default_content_type",
    "http1_only",
    "http2_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_max_frame_size",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
    "randomize_addresses",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
)
"""Settings of HTTP, which all stores have."""
_BACKOFF: Final = ("init_backoff", "max_backoff", "base")
# What delta-rs takes for all stores and nobody here needs: pools of its threads, and a promise for local disks.
_OF_DELTA: Final = frozenset(
    {
        "multi_threaded",
        "worker_threads",
        "thread_name",
        "enable_io",
        "enable_time",
        "object_store_concurrency_limit",
    }
)
# By which delta-rs keeps its own writers apart, and what its client of credentials takes. Commits are put under a
# condition here, so two ways of keeping writers apart would not see each other: these are passed on to nobody.
_OF_DELTA_S3: Final = frozenset(
    {
        "aws_s3_locking_provider",
        "aws_s3_allow_unsafe_rename",
        "delta_dynamo_table_name",
        "delta_dynamo_billing_mode",
        "delta_dynamo_max_elapsed_request_time",
        "aws_endpoint_url_dynamodb",
        "aws_region_dynamodb",
        "aws_access_key_id_dynamodb",
        "aws_secret_access_key_dynamodb",
        "aws_session_token_dynamodb",
        "aws_s3_pool_idle_timeout_seconds",
        "aws_sts_pool_idle_timeout_seconds",
        "aws_s3_get_internal_server_error_retries",
        "aws_ec2_metadata_disabled",
        "aws_ec2_metadata_timeout",
        "aws_force_credential_load",
    }
)
# Ours: see `spark_timely.log.store.storage.promised`. Of the promise delta-rs knows on local disks.
_FLUSH: Final = "timely_flush"
_OWN: Final = frozenset({"allow_unsafe_rename", _FLUSH})
_NOT_OF_CLIENTS: Final = _OWN | _OF_DELTA | _OF_DELTA_S3
_NOT_OF_DELTA: Final = _OF_DELTA_S3 | {_FLUSH}


def _both(prefix: str, names: str) -> set[str]:
    """Return names with and without a prefix."""
    return {each for name in names.split() for each in (name, prefix + name)}


_COMMON: Final = frozenset(
    {
        *HTTP,
        "max_retries",
        "retry_timeout",
        *(f"{group}{name}" for group in ("", "backoff.", "backoff_config.") for name in _BACKOFF),
        *_OF_DELTA,
        *_OWN,
    }
)
_S3: Final = frozenset(
    {
        *_both(
            "aws_",
            "access_key_id secret_access_key session_token token region default_region bucket bucket_name endpoint"
            " endpoint_url endpoint_url_sts virtual_hosted_style_request s3_express imdsv1_fallback metadata_endpoint"
            " unsigned_payload checksum_algorithm container_credentials_relative_uri container_credentials_full_uri"
            " container_authorization_token_file web_identity_token_file role_arn role_session_name skip_signature"
            " copy_if_not_exists conditional_put disable_tagging disable_bulk_delete request_payer"
            " server_side_encryption sse_kms_key_id sse_bucket_key_enabled sse_customer_key_base64",
        ),
        "aws_endpoint_url_s3",
        *(f"aws_{name}" for name in HTTP),
        *_OF_DELTA_S3,
    }
)
_AZURE: Final = frozenset(
    {
        *_both(
            "azure_storage_",
            "account_name account_key access_key master_key client_id client_secret tenant_id authority_id"
            " authority_host sas_key sas_token token use_emulator endpoint encryption_key",
        ),
        *_both(
            "azure_",
            "client_id client_secret tenant_id authority_id authority_host endpoint msi_endpoint identity_endpoint"
            " object_id msi_resource_id federated_token_file use_fabric_endpoint use_azure_cli skip_signature"
            " container_name disable_tagging fabric_token_service_url fabric_workload_host fabric_session_token"
            " fabric_cluster_identifier credential_type",
        ),
        "bearer_token",
        *(f"azure_{name}" for name in HTTP),
    }
)
_GOOGLE: Final = frozenset(
    {
        *_both(
            "google_",
            "service_account service_account_path service_account_key bucket bucket_name base_url"
            " application_credentials bearer_token skip_signature",
        ),
        *(f"google_{name}" for name in HTTP),
    }
)
_STORES: Final[Mapping[str, frozenset[str]]] = {"S3": _S3, "Azure": _AZURE, "Google": _GOOGLE}
_EVERY: Final = frozenset().union(_COMMON, *_STORES.values())
_EXAMPLES: Final = {"S3": ("aws_region", "s3://"), "Azure": ("azure_storage_account_name", "abfss://")} | {
    "Google": ("google_service_account", "gs://")
}
# What other libraries call it, or delta-rs alone can do; and what to do here.
_ROLE: Final = (
    "give the keys and the token of the role, or a function that asks for them (credential='module:function')"
)
_ELSEWHERE: Final[Mapping[str, str]] = {
    "aws_profile": "give the keys of the profile, or a function that reads them (credential='module:function')",
    "profile": "give the keys of the profile, or a function that reads them (credential='module:function')",
    "aws_iam_role_arn": _ROLE,
    "aws_iam_role_session_name": _ROLE,
    "aws_s3_assume_role_arn": _ROLE,
    "aws_s3_role_session_name": _ROLE,
    "aws_s3_addressing_style": "give aws_virtual_hosted_style_request=true for 'virtual', false for 'path'",
    "key": "did you mean 'aws_access_key_id'?",
    "secret": "did you mean 'aws_secret_access_key'?",
    "anon": "did you mean 'skip_signature'?",
}
_PAGE: Final = "docs/how-to/object-stores.md lists the names"


def _store_of(place: str) -> str | None:
    """Return the store of a path or URL; None for a disk, and for what is no store known here."""
    return SCHEMES.get(place.partition("://")[0].lower()) if "://" in place else None


_KNOWN: Final[Mapping[str | None, frozenset[str]]] = {
    None: _EVERY,
    **{store: _COMMON | names for store, names in _STORES.items()},
}


def _names_of(place: str) -> frozenset[str]:
    return _KNOWN[_store_of(place)]


def check_names(options: Iterable[str], places: Iterable[str], /) -> None:
    """Refuse a storage option that none of the places knows, naming the nearest one.

    Parameters
    ----------
    options : iterable of str
        Names of storage options, in any case.
    places : iterable of str
        Paths or URLs that the options are for, the log first. Without any, as for a credential that is named, an option
        of any store is taken.

    Raises
    ------
    InvalidOptionError

    Examples
    --------
    >>> check_names(["AWS_REGION", "max_retries"], ["s3://bucket/log"])
    >>> check_names(["aws_regoin"], ["s3://bucket/log"])
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidOptionError: [TIMELY_INVALID_OPTION] could not use storage option 'aws_regoin' of log \
's3://bucket/log': found no option of that name for S3 — hint: did you mean 'aws_region'?
    >>> check_names(["aws_region"], ["abfss://logs@lake.dfs.core.windows.net/a"])
    Traceback (most recent call last):
    ...
    spark_timely.errors.InvalidOptionError: [TIMELY_INVALID_OPTION] could not use storage option 'aws_region' of log \
'abfss://logs@lake.dfs.core.windows.net/a': found an option of S3 for a log in Azure — hint: ...
    """
    where = list(dict.fromkeys(places))
    known = frozenset().union(*map(_names_of, where)) if where else _EVERY
    for name in options:  # a few
        if name.lower() not in known:
            raise _refusal(name, where, known)


def _refusal(name: str, where: list[str], known: frozenset[str]) -> InvalidOptionError:
    key = name.lower()
    stores = list(dict.fromkeys(store for place in where if (store := _store_of(place)) is not None))
    attempt = f"could not use storage option {name!r}" + (f" of log {where[0]!r}" if where else "")
    context: dict[str, object] = {"option": name, **({"path": where[0]} if where else {})}
    owners = [store for store, names in _STORES.items() if key in names]
    if owners and stores:
        example, url = _EXAMPLES[stores[0]][0], _EXAMPLES[owners[0]][1]
        return InvalidOptionError(
            f"{attempt}: found an option of {' and '.join(owners)} for a log in {' and '.join(stores)}",
            hint=f"give those of {stores[0]}, such as {example!r}, or the URL of a log in {owners[0]}, {url}…",
            context=context,
        )
    hint = _ELSEWHERE.get(key)
    if hint is None:
        near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else _PAGE
    whose = " or ".join(stores) or "any store"
    return InvalidOptionError(f"{attempt}: found no option of that name for {whose}", hint=hint, context=context)


def own_options(place: str, options: Mapping[str, str] | None, /) -> dict[str, str]:
    """Return those of some storage options that a place knows; what no store knows is left among them.

    Parameters
    ----------
    place : str
        Path or URL: of a log, or of a checkpoint whose log is elsewhere.
    options : mapping or None
        Not modified.

    Examples
    --------
    >>> own_options("s3://bucket/log", {"aws_region": "eu-west-1", "azure_storage_account_name": "lake"})
    {'aws_region': 'eu-west-1'}
    """
    known = _names_of(place)
    return {
        name: value for name, value in (options or {}).items() if name.lower() in known or name.lower() not in _EVERY
    }


def client_options(place: str, options: Mapping[str, str] | None, /) -> dict[str, str]:
    """Return those of some storage options that the client of a store takes: see `own_options`.

    Left out are ours, which say how logs are written, and those of delta-rs that have no use here.

    Examples
    --------
    >>> client_options("s3://bucket/log", {"region": "eu", "timely_flush": "false", "thread_name": "x"})
    {'region': 'eu'}
    """
    found = own_options(place, options)
    return {name: value for name, value in found.items() if name.lower() not in _NOT_OF_CLIENTS}


def delta_options(options: Mapping[str, str] | None, /) -> dict[str, str] | None:
    """Return storage options as delta-rs takes them: without ours, and its own ways to exclude; None if there are none.

    Examples
    --------
    >>> delta_options({"region": "eu", "timely_flush": "false"})
    {'region': 'eu'}
    """
    return {name: value for name, value in (options or {}).items() if name.lower() not in _NOT_OF_DELTA} or None


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
        As in `spark_timely.log.store.urls.SCHEMES`.
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
