"""A schema registry of the tests' own, on a port of 127.0.0.1: Apicurio, with Confluent's interface."""

from __future__ import annotations

import contextlib
import json
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from lake_assets.runtime.java import find_java
from tests.support.ivy_jars import archive, files_of
from tests.support.processes import free_port, started

_VERSION = "2.6.13.Final"


class Registry:
    """A registry, and what tests do to it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def register(
        self, subject: str, text: str, kind: str = "AVRO", references: Sequence[tuple[str, str, int]] = ()
    ) -> int:
        """Register a schema, and return its id."""
        named = [{"name": n, "subject": s, "version": v} for n, s, v in references]
        body = {"schema": text, "schemaType": kind, **({"references": named} if named else {})}
        return self._post(f"/subjects/{subject}/versions", body)["id"]

    def _post(self, path: str, body: Any) -> Any:
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())


@contextlib.contextmanager
def registry() -> Generator[Registry]:
    """Run a registry within the context; it forgets everything at the end."""
    (packed,) = files_of("apicurio", archive("io.apicurio", "apicurio-registry-app", _VERSION, "all", "tar.gz"))
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="apicurio-") as folder:
        with tarfile.open(packed) as opened:
            opened.extractall(folder, filter="data")
        jar = next(Path(folder).glob("*-runner.jar"))
        command = [
            str(find_java() / "bin" / "java"),
            *("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}", "-jar", str(jar)),
        ]
        log = Path(folder) / "log"
        with started(command, log) as process:
            url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
            until = time.monotonic() + 120
            while not _answers(url):
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < until, log.read_text()[-3000:]
                time.sleep(0.3)
            yield Registry(url)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/schemas/types", timeout=5):
            return True
    except (OSError, urllib.error.URLError):
        return False
