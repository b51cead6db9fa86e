"""The token that a Spark Connect server on loopback requires.

Any client of a server runs code as its owner, and every user of a machine can reach its loopback. The token is in a
file that only the server's owner can read, where the same owner's clients find it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from urllib.parse import urlparse

import platformdirs

from lake_assets.runtime.private_files import make_private, write_private

# The variable from which Spark's server reads it.
VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def token_for(port: int) -> str:
    """Return the token for a server on this port: the environment's, or a new one."""
    if token := os.environ.get(VARIABLE):
        return token
    file = _file(port)
    make_private(file.parent)
    token = secrets.token_urlsafe(32)
    write_private(file, token)
    return token


def with_token(remote: str) -> str:
    """Add the token of the address, or the stored one, to a loopback address as a header."""
    parsed = urlparse(remote)
    if parsed.hostname not in _LOOPBACK:
        return remote
    base, _, parameters = remote.partition("/;")
    settings = [p for p in parameters.split(";") if p]
    named = next((p.removeprefix("token=") for p in settings if p.startswith("token=")), None)
    token = named or _stored(parsed.port or 15002)
    if not token or any(p.startswith("authorization=") for p in settings):
        return remote
    # With `token`, Spark's client would require TLS of 127.0.0.1, and gRPC would add it to each call in another
    # thread, which hangs in calls made while the process exits.
    settings = [p for p in settings if not p.startswith("token=")]
    return f"{base.rstrip('/')}/;{';'.join([*settings, f'authorization=Bearer%20{token}'])}"


def _stored(port: int) -> str | None:
    try:
        return _file(port).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None


def _file(port: int) -> Path:
    return platformdirs.user_state_path("lake-assets") / f"spark-connect-{port}.token"
