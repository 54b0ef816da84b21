"""Removal of secrets from texts and errors: credentials in URLs, and values of storage options in use.

Paths, endpoints and options come back in the texts of Delta, Arrow and cloud stores. So one function, `masked`, takes
secrets out of a text, and every text that leaves the library goes through it: errors with their context and causes,
lines of Python's logging, answers of the command line, and the reasons that a capture log keeps for people.

Invariants
----------
1. A secret is taken out before a text is cut: half of a secret would not be found.
2. A value of an option is a secret unless its name is on the list of harmless ones.
3. Masking a masked text changes nothing.
4. Masking an exception or a value never fails, whatever it is: this runs while other errors are handled. An object
   without a secret is returned itself, not a copy.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import MemberDescriptorType
from urllib.parse import quote, quote_plus, unquote

__all__ = [
    "forget_secrets",
    "is_secret",
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
# Shorter ones are parts of words, so they are masked only where they stand alone.
_ALONE_CHARACTERS = 12
_MOST_SECRETS = 4096
# How much of one value is looked at, of how many exceptions, and how deep a value with a secret in it is copied.
_MOST_PARTS = 1_000_000
_MOST_EXCEPTIONS = 10_000
_MOST_LEVELS = 50

# Names of options whose values say where and how, not by which right. As object stores spell them, lower case.
_PREFIXES = r"(?:aws_|azure_|azure_storage_|google_|gcs_|gs_|oss_|s3_|hf_|fs_)?"
_HARMLESS = re.compile(
    _PREFIXES + r"(?:(?:default_)?region|endpoint(?:_url)?|endpoint_url_s3|endpoint_url_sts|base_url"
    r"|s3_endpoint|metadata_endpoint|authority_host"
    r"|bucket(?:_name)?|container(?:_name)?|root|account(?:_name)?|storage_account_name|project(?:_id)?|profile"
    r"|allow_http|allow_invalid_certificates|allow_unsafe_rename|s3_allow_unsafe_rename|timely_flush"
    r"|virtual_hosted_style_request|use_emulator|use_fabric_endpoint|skip_signature|unsigned_payload|s3_express"
    r"|imdsv1_fallback|checksum_algorithm|conditional_put|copy_if_not_exists|s3_locking_provider|request_payer"
    r"|(?:connect_|read_|retry_|pool_idle_)?timeout|max_retries|pool_max_idle_per_host|http[12]_only|http2_.*|proxy_url|proxy_excludes"
    r"|user_agent|randomize_addresses|backoff_config_.*|backoff_.*|disable_tagging|dynamodb_table|delta_dynamo_table_name"
    r"|role_session_name|server_side_encryption|storage_class|(?:default_)?content_type)"
)
_SECRET_NAME = (
    r"[\w.-]*(?:signature|token|secret|passw|credential|access[_-]?key|account[_-]?key|shared[_-]?key|api[_-]?key"
    r"|private[_-]?key|client[_-]?key|encryption[_-]?key)[\w.-]*|sig|sas|key|pwd|auth|authorization|code|jwt"
)
_NAMED = re.compile(rf"{_SECRET_NAME}", re.IGNORECASE)
_PARAMETER = re.compile(rf"((?:[?&;]|%3F|%26)(?:{_SECRET_NAME})(?:=|%3D))[^&\s'\"<>]+", re.IGNORECASE)
# User and password: up to the last @ before the path; or a password that holds slashes, where what is behind the
# colon is no port. Stores of buckets have no ports, so there a password may be anything. The user of Azure's URLs is
# the container. Bounded, so that the cost grows with the length of a text, not with its square.
_USER = re.compile(
    r"(?:\b(?P<scheme>(?P<bucket>(?i:s3[an]?|gc?s|az|azure|abfss?|wasbs?|adl|oss|cos|obs)(?=:))|[A-Za-z][A-Za-z0-9+.-]*)"
    r":)?//(?P<user>[^/\s\"]*|[^/\s\"@:]+:(?!\d*(?:[/\s]|$))[^\s\"@]{0,2000}"
    r"|(?(bucket)[^/\s\"@:]+:(?:[^\s\"@]{0,2000}|\S[^\n@]{0,200})|(?!)))@"
)
# The same where a URL is the value of a parameter of another.
_QUOTED_USER = re.compile(
    r"(%2F%2F)(?:(?!%2F|%3A|%40)[^/\s\"&])*%3A(?:(?!%2F)[^/\s\"&])*(%40)",
    re.IGNORECASE,
)
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
    if "%2" in text:
        text = _QUOTED_USER.sub(rf"\g<1>{_MASK}\g<2>", text)
    if "=" in text or "%3" in text:
        text = _PARAMETER.sub(rf"\g<1>{_MASK}", text)
    return text


def _without_user(match: re.Match[str]) -> str:
    scheme = match["scheme"]
    return match[0] if _is_container(match) else f"{'' if scheme is None else scheme + ':'}//{_MASK}@"


def _is_container(match: re.Match[str]) -> bool:
    scheme = match["scheme"]
    return scheme is not None and scheme.lower() in _CONTAINERS and ":" not in match["user"]


def masked_value(value: object, /) -> object:
    """Return a value without the secrets in its texts: itself where there are none.

    Parameters
    ----------
    value : object
        Of any kind. Not modified. Mappings, lists, tuples and sets are looked into.

    Returns
    -------
    object
        The value, or a copy of the collections with a secret in them, as dict, list, tuple, set or frozenset. Parts
        without secrets are not copied.

    Notes
    -----
    Never fails. Looks at each collection once, and at 1,000,000 parts at most. In a copy, what cannot be read, what
    contains itself, and what is deeper than 50 levels becomes ``***``.

    Examples
    --------
    >>> masked_value({"paths": ["s3://a:b@c/d"], "n": 3})
    {'paths': ['s3://***@c/d'], 'n': 3}
    """
    return _Copy().of(value, 0) if _holds_secret(value) else value


def _holds_secret(value: object) -> bool:
    seen: dict[int, object] = {}  # keeps them alive, so that no other object gets the number of one
    todo, left = [value], _MOST_PARTS
    while todo:
        one = todo.pop()
        try:
            if issubclass(type(one), str):
                if _masked_text(one) is not one:
                    return True
            elif id(one) not in seen and (parts := _parts(one, left)):
                seen[id(one)] = one
                left = max(0, left - len(parts))
                todo += parts
        except Exception:  # noqa: BLE001 - objects of users may fail at any question
            continue
    return False


def _parts(value: object, most: int) -> list[object]:
    """Return what a collection consists of, names of a mapping among it; nothing for other values."""
    # Not isinstance: it asks the object for its class.
    if issubclass(type(value), list | tuple | set | frozenset):
        return list(islice(value, most))  # type: ignore[call-overload]
    if issubclass(type(value), Mapping):
        return [part for pair in islice(value.items(), most) for part in pair]  # type: ignore[attr-defined]
    return []


def _masked_text(text: object) -> object:
    plain = str.__str__(text)
    safe = masked(plain)
    return text if safe == plain else safe


class _Copy:
    """Copies a value that has a secret in it, each part once."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[object, object]] = {}  # the part and its copy, by the number of the part
        self._left = _MOST_PARTS

    def of(self, value: object, level: int) -> object:
        try:
            if issubclass(type(value), str):
                return _masked_text(value)
            if id(value) not in self._made and (parts := _parts(value, self._left + 1)):
                self._left -= len(parts)
                if self._left < 0 or level == _MOST_LEVELS:
                    return _MASK
                self._made[id(value)] = value, _MASK  # for what contains itself
                self._made[id(value)] = value, self._collection(value, parts, level)
            return self._made.get(id(value), (value, value))[1]
        except Exception:  # noqa: BLE001 - objects of users may fail at any question
            return _MASK

    def _collection(self, value: object, parts: list[object], level: int) -> object:
        new = [self.of(part, level + 1) for part in parts]
        if all(one is other for one, other in zip(parts, new, strict=True)):
            return value
        if issubclass(type(value), Mapping):
            return dict(zip(new[::2], new[1::2], strict=True))
        return next(kind for kind in (list, tuple, set, frozenset) if issubclass(type(value), kind))(new)


def secret_in_url(url: str, /) -> str | None:
    """Return which kind of secret a URL holds; None if it holds none.

    Examples
    --------
    >>> secret_in_url("s3://AK:SECRET@bucket/x"), secret_in_url("s3://bucket/x?sig=a"), secret_in_url("s3://bucket/x")
    ('a user or password', 'a signature, key or token', None)
    """
    # The user alone is no secret where a store is asked in its name.
    if any(":" in unquote(match["user"]) for match in _USER.finditer(url)):
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
        _pattern = re.compile("|".join(map(_alone, longest_first)))


def _alone(secret: str) -> str:
    """Return the pattern of a secret: of a short one only where no word continues at its ends."""
    if len(secret) >= _ALONE_CHARACTERS:
        return re.escape(secret)
    # The last character of an escape, as of %3D or \\n, belongs to no word.
    before = r"(?:(?<!\w)|(?<=%[\da-fA-F]{2})|(?<=\\[nrt])|(?<=\\x[\da-f]{2})|(?<=\\u[\da-f]{4}))"
    starts, ends = re.match(r"\w", secret), re.search(r"\w\Z", secret)
    return (before if starts else "") + re.escape(secret) + (r"(?!\w)" if ends else "")


def _secrets(name: str, value: str) -> Iterator[str]:
    """Yield the texts under which an option's value, or the secret part of it, may come back."""
    plain_name = re.sub(r"[.-]", "_", name.strip().lower())
    parts = [part for match in _USER.finditer(value) for part in _passwords(match)]
    if "//" not in value:  # an endpoint needs no scheme
        parts += [part for match in _USER.finditer(f"//{value}") if ":" in match["user"] for part in _passwords(match)]
    parts += [match[0].partition("=")[2] for match in _PARAMETER.finditer(f"?{value}")]
    if _is_hidden(plain_name, value):
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


def _is_hidden(plain_name: str, value: str) -> bool:
    """Return whether the whole value is a secret, by its option's name in lower case, with underscores."""
    return not _HARMLESS.fullmatch(plain_name) and (looks_secret(plain_name) or not _DULL.fullmatch(value))


def is_secret(name: str, value: str, /) -> bool:
    """Return whether the value of a storage option is a secret, or holds one.

    Parameters
    ----------
    name : str
        Of the option, in any case.
    value : str

    Examples
    --------
    >>> is_secret("azure_storage_account_key", "a2V5"), is_secret("AWS_REGION", "eu-west-1")
    (True, False)
    >>> is_secret("proxy_url", "http://me:word@proxy")
    True
    """
    plain_name = re.sub(r"[.-]", "_", name.strip().lower())
    return _is_hidden(plain_name, value) or secret_in_url(value) is not None


def _passwords(match: re.Match[str]) -> list[str]:
    user = match["user"]
    return [] if _is_container(match) else [user, user.partition(":")[2]]


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

    Python shows the whole chain in a traceback. What holds no secret is left alone. Never fails, also where the class
    refuses to be changed.

    Parameters
    ----------
    error : BaseException or None
        Changed in place: its arguments and attributes with a secret in them, and those of exceptions among them. At
        most 10,000 exceptions are looked at.

    Examples
    --------
    >>> error = OSError("GET http://me:SECRET@host/x")
    >>> mask_exception(error)
    >>> str(error)
    'GET http://***@host/x'
    """
    seen: set[int] = set()
    todo: list[object] = [error]
    while todo and len(seen) < _MOST_EXCEPTIONS:
        one = todo.pop()
        if issubclass(type(one), BaseException) and id(one) not in seen:
            seen.add(id(one))
            todo += [_CONTEXT.__get__(one), _CAUSE.__get__(one)]
            with suppress(Exception):  # a class of a user may fail at any question
                todo += _mask_one(one)  # type: ignore[arg-type]


# What Python itself reads and writes: attributes of these names in a user's class may fail, or be read-only.
_ARGUMENTS, _ATTRIBUTES, _CAUSE, _CONTEXT = (
    vars(BaseException)[name] for name in ("args", "__dict__", "__cause__", "__context__")
)
_EXCEPTIONS = vars(BaseExceptionGroup)["exceptions"]


def _mask_one(error: BaseException) -> list[object]:
    """Mask one exception, and return what it holds: others may be among it."""
    args = _ARGUMENTS.__get__(error)
    safe = masked_value(args)
    if safe is not args:
        _ARGUMENTS.__set__(error, safe)
    held: list[object] = [*args]
    if issubclass(type(error), BaseExceptionGroup):
        held += _EXCEPTIONS.__get__(error)
    attributes = _ATTRIBUTES.__get__(error)
    for name, value in list(dict.items(attributes)):
        held.append(value)
        safe = masked_value(value)
        if safe is not value:
            dict.__setitem__(attributes, name, safe)
    # Kept outside of them, such as the name of a file of an OSError, and what has a slot.
    for kind in type(error).__mro__:
        for member in vars(kind).values():
            if type(member) is MemberDescriptorType:
                with suppress(Exception):  # unset, or read-only
                    value = member.__get__(error)
                    held.append(value)
                    safe = masked_value(value)
                    if safe is not value:
                        member.__set__(error, safe)
    return held


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
        try:
            text = record.getMessage()
        except Exception as error:  # noqa: BLE001 - what is logged is no reason for its caller to fail
            text = f"could not show a log line of {record.filename}:{record.lineno}: found {type(error).__name__}"
        record.msg, record.args = masked(text), ()
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
