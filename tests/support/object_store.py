"""An object store on a free port of this machine: moto's, with its requests recorded, and faults on demand."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

import boto3
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

from lake_assets import Lake, LakeConfig

KEY, SECRET = "planted-key", "pl4nted-secret"


class Request(NamedTuple):
    """A request that arrived: its method, path (bucket and key) and parameters."""

    method: str
    path: str
    parameters: Mapping[str, str]

    @property
    def is_listing(self) -> bool:
        return "list-type" in self.parameters


# Returns the status and the code of an error, or None.
Fault = Callable[[Request], tuple[str, str] | None]


@dataclass
class StoreServer:
    """The server. `requests` are those since `forget`."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    fault: Fault | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """The options of a lake that reads this store."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": KEY,
            "s3.secret-access-key": SECRET,
        }

    @cached_property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def forget(self) -> None:
        self.requests.clear()

    def listings(self) -> list[Request]:
        return [r for r in self.requests if r.is_listing]

    @contextlib.contextmanager
    def failing(self, fault: Fault) -> Generator[None]:
        self.fault = fault
        try:
            yield
        finally:
            self.fault = None


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own for a test."""

    server: StoreServer
    name: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, content: bytes | Iterable[bytes]) -> str:
        body = content if isinstance(content, bytes) else b"".join(content)
        self.server.client.put_object(Bucket=self.name, Key=key, Body=body)
        return key

    def put_many(self, contents: Mapping[str, bytes]) -> None:
        """Put objects without a request for each."""
        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for key, content in contents.items():
            backend.put_object(self.name, key, content)

    def delete(self, key: str) -> None:
        self.server.client.delete_object(Bucket=self.name, Key=key)

    def all_keys(self) -> list[str]:
        pages = self.server.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [o["Key"] for page in pages for o in page.get("Contents", ())]

    def lake(self, home: Path, **more: Any) -> Lake:
        """A lake whose landing folders may be in this store."""
        return Lake(LakeConfig(home=home, storage=self.server.options, **more))


@contextlib.contextmanager
def running_store() -> Generator[StoreServer]:
    """Run the store in a thread."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = StoreServer()
    moto = DomainDispatcherApplication(create_backend_app)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        query = {k: v[0] for k, v in parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True).items()}
        request = Request(environ["REQUEST_METHOD"], unquote(environ["PATH_INFO"]).lstrip("/"), query)
        server.requests.append(request)
        error = server.fault(request) if server.fault else None
        if error is None:
            return moto(environ, start_response)
        status, code = error
        start_response(status, [("Content-Type", "application/xml")])
        if request.method == "HEAD":  # a body after it would be bytes that no client expects
            return []
        return [f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>planted</Message></Error>".encode()]

    served = make_server("127.0.0.1", 0, app, threaded=True)
    server.port = served.server_port
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


_numbers = iter(range(1_000_000))


def new_bucket(server: StoreServer) -> Bucket:
    """Create a bucket with a name of its own."""
    bucket = Bucket(server, f"bucket-{next(_numbers)}")
    server.client.create_bucket(Bucket=bucket.name)
    server.forget()
    return bucket
