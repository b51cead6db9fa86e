"""The token that a Spark Connect server on loopback asks for.

Whoever reaches a server runs code as its owner, and every user of a machine reaches its loopback. The token is kept
where the server's owner alone can read it, and clients of the same owner take it from there.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from urllib.parse import urlparse

import platformdirs

from lake_assets.runtime.private_files import make_private, write_private

# What Spark's server reads it from.
VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def token_for(port: int) -> str:
    """The token of a server on this port: the one that the environment says, or a new one."""
    if given := os.environ.get(VARIABLE):
        return given
    file = _file(port)
    make_private(file.parent)
    token = secrets.token_urlsafe(32)
    write_private(file, token)
    return token


def with_token(remote: str) -> str:
    """The address of a server on loopback with the token that it names, or that is kept for it, as a header."""
    parsed = urlparse(remote)
    if parsed.hostname not in _LOOPBACK:
        return remote
    base, _, parameters = remote.partition("/;")
    said = [p for p in parameters.split(";") if p]
    named = next((p.removeprefix("token=") for p in said if p.startswith("token=")), None)
    token = named or _kept(parsed.port or 15002)
    if not token or any(p.startswith("authorization=") for p in said):
        return remote
    # As a token, Spark's client would ask 127.0.0.1 for TLS, and gRPC add it to each call in a thread of its own:
    # that waits for ever in the calls that a process makes while it ends.
    said = [p for p in said if not p.startswith("token=")]
    return f"{base.rstrip('/')}/;{';'.join([*said, f'authorization=Bearer%20{token}'])}"


def _kept(port: int) -> str | None:
    try:
        return _file(port).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None


def _file(port: int) -> Path:
    return platformdirs.user_state_path("lake-assets") / f"spark-connect-{port}.token"
