"""A receiver of HTTP requests on loopback, which keeps what it gets, and can be slow, away or unwilling."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """What was received.

    Attributes:
        status: the answer to the next requests.
        gate: requests are taken while it is set.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.status, self.gate = 200, threading.Event()
        self.gate.set()
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []

    def wait_for(self, number: int, seconds: float = 10.0) -> list[Any]:
        """Wait until so many requests have come; return their bodies."""
        until = time.monotonic() + seconds
        while len(self.bodies) < number and time.monotonic() < until:
            time.sleep(0.01)
        assert len(self.bodies) >= number, self.bodies
        return self.bodies

    @property
    def text(self) -> str:
        """Everything that was received."""
        return json.dumps([self.bodies, self.headers, self.paths])


@contextmanager
def receiver() -> Generator[Receiver]:
    """Run a receiver."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.gate.wait(60)
            if found.status < 300:
                found.headers.append(dict(self.headers))
                found.paths.append(self.path)
                found.bodies.append(json.loads(body))
            self.send_response(found.status)
            if 300 <= found.status < 400:
                self.send_header("Location", f"{found.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
