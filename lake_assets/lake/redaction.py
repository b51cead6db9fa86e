"""Remove passwords and keys from messages and logs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlparse

HIDDEN = "***"
_NAMES = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|signature|\bsas\b|"
    r"(access|account|private|api|shared|sse|encryption|decryption)[-_.]?key",
    re.IGNORECASE,
)
# A password in an address (which may contain @), a secret parameter, a secret in JSON, a server's token.
_SECRET = (
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|signature|sig|credential|"
    r"(?:secret|access|account|private|api|shared)[-_.]?(?:access[-_.]?)?key)"
)
_IN_ADDRESSES = re.compile(
    r"(?<=://)([^\s:/@]*):[^\s/]+@"
    rf"|({_SECRET}=)[^\s&;'\"]+"
    rf"|([\"']{_SECRET}[\"']\s*[:=]\s*[\"'])[^\"']+"
    r"|(authorization(?:=|[\"']?:\s*[\"']?)(?:Basic|Bearer)(?:%20|\s+))[^\s;,'\"]+",
    re.IGNORECASE,
)

# A text in single quotes: in errors and reasons, these are values of rows as well as names. An apostrophe within a word
# begins and ends none, and Python's `repr` has double quotes around a text with an apostrophe.
_QUOTED = re.compile(
    r"""(?:(?<!\w)|(?<=\bb))'(?:(?:[^'\\]|\\.|'(?=\w)){0,1000}'(?!\w)|(?:[^'\\]|\\.)*')"""
    r"""|(?:(?<!\w)|(?<=\bb))"(?=\S)(?:[^"\\']|\\.)*'(?:[^"\\]|\\.)*\"""",
    re.DOTALL,
)


def without_quoted(text: str) -> str:
    """Return a text without what is in single quotes, which may be values of rows."""
    return _QUOTED.sub("'…'", text)


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret."""
    return _NAMES.search(name) is not None


def hide(value: Any, name: str = "") -> Any:
    """Return a setting, or a mapping of settings, with secrets replaced."""
    if isinstance(value, Mapping):
        return {k: hide(v, str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [hide(v, name) for v in value]
    if value and is_secret(name):
        return HIDDEN
    return hide_in(value) if isinstance(value, str) else value


def hide_in(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace passwords in addresses, and `secrets`, in a text."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _IN_ADDRESSES.sub(_redacted, text)


def secrets_in(settings: Any, name: str = "") -> Iterator[str]:
    """Yield the secret values in settings, including passwords in addresses."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from secrets_in(value, str(key))
    elif isinstance(settings, str) and settings:
        if is_secret(name):
            # A switch, such as `token-refresh-enabled`, is none, and would be hidden wherever the word stands.
            if settings.lower() not in ("true", "false"):
                yield settings
        elif "@" in settings and (password := _password(settings)):
            yield from {password, unquote(password)}


def _password(address: str) -> str | None:
    try:
        return urlparse(address).password
    except ValueError:
        return None


def _redacted(match: re.Match[str]) -> str:
    if match[1] is not None:
        return f"{match[1]}:{HIDDEN}@"
    return f"{match[2] or match[3] or match[4]}{HIDDEN}"


def hide_in_error(error: BaseException, hidden: Callable[[str], str]) -> None:
    """Replace secrets in the texts of an error and of those that caused it: Dagster shows all of them.

    Args:
        hidden: returns a text without secrets.
    """
    at: BaseException | None = error
    seen = set[int]()
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        at.args = tuple(hidden(a) if isinstance(a, str) else a for a in at.args)
        for name, value in list(vars(at).items()):  # where errors of Spark have their text
            if isinstance(value, str) and (text := hidden(value)) != value:
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(at, name, text)
        cause = at.__cause__ or at.__context__
        if cause is not None and hidden(str(cause)) != str(cause):
            hide_in_error(cause, hidden)
            if hidden(str(cause)) != str(cause):  # its text is Java's
                at.__cause__ = RuntimeError(hidden(f"{type(cause).__name__}: {cause}")).with_traceback(
                    cause.__traceback__
                )
                cause = None
        at = cause
