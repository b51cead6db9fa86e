"""Ports on this machine's loopback."""

from __future__ import annotations

import socket

from lake_assets.errors import ConfigError


def check_free(port: int, advice: str) -> None:
    """Raise ConfigError unless a server can be started on a port of 127.0.0.1.

    Args:
        advice: what to do if it is in use.
    """
    if not 1 <= port <= 65535:
        raise ConfigError(f"{port} is not a port: use a number from 1 to 65535. {advice}")
    with socket.socket() as probe:
        # A server that ended a moment ago leaves its port in TIME_WAIT, which a new server may take.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as e:
            raise ConfigError(f"port {port} on 127.0.0.1 is not available ({e.strerror}): {advice}") from e
