"""Remove passwords and keys from messages and logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlparse

HIDDEN = "***"
_NAMES = re.compile(
    r"passw|secret|token|credential|(access|account|private|api|shared)[-_.]?key|\bsas\b|signature", re.IGNORECASE
)
# A password in an address, a secret parameter, a server's token.
_IN_ADDRESSES = re.compile(
    r"(?<=://)([^\s:/@]*):[^\s@/]+@|((?:password|token|secret)=)[^\s&;'\"]+|(authorization=Bearer%20)[^\s;'\"]+",
    re.IGNORECASE,
)


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
    return f"{match[2] or match[3]}{HIDDEN}"
