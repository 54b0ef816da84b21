"""What may not be shown: credentials in URLs, and the values of storage options that are in use.

Paths, endpoints and options come back in the texts of the libraries below. So one function, `masked`, takes secrets
out of a text, and every text that leaves goes through it: errors with their context and what they were raised from,
log lines, answers of the command line, and what is written for people into a log.

Invariants
----------
1. A secret is taken out before a text is cut: half of a secret would not be found.
2. A value of an option is a secret unless its name is on the list of harmless ones.
3. Masking a masked text changes nothing.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote

__all__ = [
    "forget_secrets",
    "keep_secret",
    "looks_secret",
    "mask_exception",
    "masked",
    "masked_logger",
    "masked_value",
    "secret_in_url",
]

_MASK = "***"
# Shorter values are in too many words.
_LEAST_CHARACTERS = 4
_MOST_SECRETS = 4096

# Names of options whose values say where and how, not by which right. As object stores spell them, lower case.
_PREFIXES = r"(?:aws_|azure_|azure_storage_|google_|gcs_|gs_|oss_|s3_|hf_|fs_)?"
_HARMLESS = re.compile(
    _PREFIXES + r"(?:(?:default_)?region|endpoint(?:_url)?|endpoint_url_s3|s3_endpoint|metadata_endpoint|authority_host"
    r"|bucket(?:_name)?|container(?:_name)?|root|account(?:_name)?|storage_account_name|project(?:_id)?|profile"
    r"|allow_http|allow_invalid_certificates|allow_unsafe_rename|s3_allow_unsafe_rename|timely_flush"
    r"|virtual_hosted_style_request|use_emulator|use_fabric_endpoint|skip_signature|unsigned_payload|s3_express"
    r"|imdsv1_fallback|checksum_algorithm|conditional_put|copy_if_not_exists|s3_locking_provider|request_payer"
    r"|(?:connect_|retry_|pool_idle_)?timeout|max_retries|pool_max_idle_per_host|http[12]_only|http2_.*|proxy_url"
    r"|user_agent|randomize_addresses|backoff_config_.*|backoff_.*|disable_tagging|dynamodb_table|delta_dynamo_table_name)"
)
_SECRET_NAME = (
    r"[\w.-]*(?:signature|token|secret|passw|credential|access[_-]?key|account[_-]?key|shared[_-]?key|api[_-]?key"
    r"|private[_-]?key|client[_-]?key|encryption[_-]?key)[\w.-]*|sig|sas|key|pwd|auth|authorization|code|jwt"
)
_NAMED = re.compile(rf"{_SECRET_NAME}", re.IGNORECASE)
_PARAMETER = re.compile(rf"((?:[?&;]|%3F|%26)(?:{_SECRET_NAME})(?:=|%3D))[^&\s'\"<>]+", re.IGNORECASE)
# User and password: up to the last @ before the path; or a password that holds slashes, where what is behind the
# colon is no port. The user of Azure's URLs is the container.
_USER = re.compile(r"(?:\b([A-Za-z][A-Za-z0-9+.-]*):)?//(?:([^/\s\"]*)@|([^/\s\"@:]+:(?!\d*(?:[/\s]|$))[^\s\"@]*)@)")
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs", "adl", "azure")
_DULL = re.compile(r"true|false|none|null|default|\d{1,8}[a-z]{0,2}", re.IGNORECASE)

_known: dict[str, None] = {}  # the oldest first
_pattern: re.Pattern[str] | None = None
_lock = threading.Lock()


def masked(text: str, /) -> str:
    """Return a text without the secrets that are in it.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
        With ``***`` in place of users and passwords of URLs, of the values of parameters of URLs such as `sig` or
        `X-Amz-Signature`, and of the values of storage options in use.

    Examples
    --------
    >>> masked("no bucket at s3://AK:SECRET@bucket/x")
    'no bucket at s3://***@bucket/x'
    >>> masked("GET https://acct.blob.core.windows.net/c?sv=1&sig=abc%3D failed")
    'GET https://acct.blob.core.windows.net/c?sv=1&sig=*** failed'
    >>> masked("abfss://container@account.dfs.core.windows.net/log")
    'abfss://container@account.dfs.core.windows.net/log'
    """
    if _pattern is not None:
        text = _pattern.sub(_MASK, text)
    if "//" in text:
        text = _USER.sub(_without_user, text)
    if "=" in text or "%3" in text:
        text = _PARAMETER.sub(rf"\g<1>{_MASK}", text)
    return text


def _without_user(match: re.Match[str]) -> str:
    scheme, user = match[1], match[2]
    if scheme is not None and scheme.lower() in _CONTAINERS and user is not None and ":" not in user:
        return match[0]
    return f"{'' if scheme is None else scheme + ':'}//{_MASK}@"


def masked_value(value: object, /) -> object:
    """Return a value without the secrets in its texts; collections are copied, other values returned as they are.

    Examples
    --------
    >>> masked_value({"paths": ["s3://a:b@c/d"], "n": 3})
    {'paths': ['s3://***@c/d'], 'n': 3}
    """
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {masked_value(name): masked_value(item) for name, item in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(masked_value(item) for item in value)  # type: ignore[attr-defined,call-arg]
    return value


def secret_in_url(url: str, /) -> str | None:
    """Return which kind of secret a URL holds; None if it holds none.

    Examples
    --------
    >>> secret_in_url("s3://AK:SECRET@bucket/x"), secret_in_url("s3://bucket/x?sig=a"), secret_in_url("s3://bucket/x")
    ('a user or password', 'a signature, key or token', None)
    """
    # The user alone is no secret where a store is asked in its name.
    if any(":" in (match[2] or match[3] or "") for match in _USER.finditer(url)):
        return "a user or password"
    return "a signature, key or token" if _PARAMETER.search(url) else None


def looks_secret(name: str, /) -> bool:
    """Return whether a value of this name is a secret, as far as a name tells.

    Examples
    --------
    >>> looks_secret("sas_token"), looks_secret("region")
    (True, False)
    """
    return _NAMED.fullmatch(name) is not None


def keep_secret(options: Mapping[str, object] | None, /) -> None:
    """Remember the values of storage options, so that no text of this process shows them.

    Parameters
    ----------
    options : mapping or None
        Values under names that are known as harmless, and values of fewer than four characters, are left alone,
        but for users and passwords in them.

    Examples
    --------
    >>> keep_secret({"aws_secret_access_key": "wJalr/XUtn", "aws_region": "eu-central-1"})
    >>> masked("no region eu-central-1 for wJalr/XUtn, wJalr%2FXUtn")
    'no region eu-central-1 for ***, ***'
    """
    new: set[str] = set()
    for name, value in (options or {}).items():  # a few
        if isinstance(value, str):
            new.update(_secrets(str(name), value))
    if new <= _known.keys():
        return
    global _pattern
    with _lock:
        _known.update(dict.fromkeys(new))
        while len(_known) > _MOST_SECRETS:
            del _known[next(iter(_known))]
        longest_first = sorted(_known, key=len, reverse=True)
        _pattern = re.compile("|".join(map(re.escape, longest_first)))


def _secrets(name: str, value: str) -> Iterator[str]:
    """Yield the texts under which an option's value, or the secret part of it, may come back."""
    plain_name = re.sub(r"[.-]", "_", name.strip().lower())
    parts = [part for match in _USER.finditer(value) for part in _passwords(match)]
    parts += [match[0].partition("=")[2] for match in _PARAMETER.finditer(f"?{value}")]
    if not _HARMLESS.fullmatch(plain_name) and (looks_secret(plain_name) or not _DULL.fullmatch(value)):
        parts += [value, " ".join(value.split()), *value.splitlines(), *_leaves(value)]
    for part in parts:
        for spelled in (part, unquote(part)):
            if len(spelled.strip()) >= _LEAST_CHARACTERS and spelled != _MASK:
                yield spelled.strip()
                yield quote(spelled)
                yield quote(spelled, safe="")
                yield quote_plus(spelled)
                yield repr(spelled)[1:-1]
                yield json.dumps(spelled)[1:-1]


def _passwords(match: re.Match[str]) -> list[str]:
    user = match[2] if match[2] is not None else match[3]
    scheme = match[1]
    if scheme is not None and scheme.lower() in _CONTAINERS and ":" not in user:
        return []
    return [user, user.partition(":")[2]]


def _leaves(value: str) -> list[str]:
    """Return the secret texts of an option that is a JSON object, such as the key of a service account."""
    try:
        found = json.loads(value)
    except ValueError:
        return []
    if not isinstance(found, dict):
        return []
    texts = [text for name, text in found.items() if isinstance(text, str) and looks_secret(name)]
    return [line for text in texts for line in (text, *text.splitlines())]


def mask_exception(error: BaseException | None, /) -> None:
    """Take the secrets out of an exception of any class, and of those that it was raised from.

    Python shows the whole chain in a traceback. What holds no secret is left alone.

    Parameters
    ----------
    error : BaseException or None
        Changed in place: its arguments, and its attributes that are texts.

    Examples
    --------
    >>> error = OSError("GET http://me:SECRET@host/x")
    >>> mask_exception(error)
    >>> str(error)
    'GET http://***@host/x'
    """
    seen: set[int] = set()
    todo = [error]
    while todo:  # as many turns as exceptions in the chain
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        _mask_one(one)
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions


def _mask_one(error: BaseException) -> None:
    error.args = tuple(masked_value(arg) for arg in error.args)
    if isinstance(error, OSError):
        # Kept beside the arguments.
        for name in ("strerror", "filename", "filename2"):
            text = getattr(error, name)
            if isinstance(text, str) and masked(text) != text:
                setattr(error, name, masked(text))
    for name, value in list(vars(error).items()):
        if type(value) in (str, dict, list, tuple):
            setattr(error, name, masked_value(value))


def forget_secrets() -> None:
    """Forget what was remembered, as a new process has nothing to hide.

    Examples
    --------
    >>> forget_secrets()
    """
    global _pattern
    with _lock:
        _known.clear()
        _pattern = None


class _Masking(logging.Filter):
    """Takes the secrets out of each line of a logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = masked(record.getMessage()), ()
        if record.exc_info:
            mask_exception(record.exc_info[1])
        return True


_masking = _Masking()


def masked_logger(name: str, /) -> logging.Logger:
    """Return a logger whose lines show no secrets.

    Parameters
    ----------
    name : str
        Of the logger.

    Examples
    --------
    >>> masked_logger("spark_timely.log").name
    'spark_timely.log'
    """
    logger = logging.getLogger(name)
    logger.addFilter(_masking)
    return logger


# The modules of dataflows share one logger, and take it by its name.
masked_logger("spark_timely.dataflow")
