"""A client of schema registries with Confluent's interface: schemas by their ids, as far as decoding needs them."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lake_assets.errors import SourceError, SourceUnavailableError
from lake_assets.lake import thresholds
from lake_assets.sources.kafka_spec import RegistrySpec

_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403


class UnknownSchemaError(Exception):
    """The registry has no schema with an id."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as it is registered.

    Attributes:
        kind: AVRO, PROTOBUF or JSON.
        text: its text.
        references: the texts of the schemas that it names, and of those that these name, each before its users.
    """

    kind: str
    text: str
    references: Mapping[str, str]


class SchemaRegistry:
    """The schemas of one registry."""

    def __init__(self, spec: RegistrySpec) -> None:
        self.spec = spec

    def check(self) -> None:
        """Ask whether it is one.

        Raises:
            SourceError: it is none, or refuses us.
            SourceUnavailableError: it does not answer.
        """
        if not isinstance(self._get("/schemas/types"), list):
            raise SourceError(self._no_registry())

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema with an id.

        Raises:
            UnknownSchemaError: there is none.
            SourceError, SourceUnavailableError: see `check`.
        """
        found = self._found(f"/schemas/ids/{number}", str(number))
        references: dict[str, str] = {}
        self._add_references(found, references)
        text = found["schema"]
        # Registries leave the kind out for Avro; Apicurio does for all kinds. Only Protobuf is no JSON.
        kind = found.get("schemaType") or ("AVRO" if text.lstrip()[:1] in ("{", "[", '"') else "PROTOBUF")
        return RegisteredSchema(kind, text, references)

    def serialized(self, number: int) -> str | None:
        """Return a schema of Protobuf as a descriptor, in base64; None: the registry has only texts."""
        text = self._found(f"/schemas/ids/{number}?format=serialized", str(number))["schema"]
        return text if isinstance(text, str) and not ({*text} & {*" {;\n"}) else None

    def _add_references(self, found: Mapping[str, Any], references: dict[str, str]) -> None:
        for reference in found.get("references") or ():
            name, subject, version = reference["name"], reference["subject"], reference["version"]
            if name not in references:
                path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}"
                named = self._found(path, f"{subject}, version {version}")
                self._add_references(named, references)
                references[name] = named["schema"]

    def _found(self, path: str, name: str) -> Any:
        found = self._get(path)
        if found is None:
            raise UnknownSchemaError(f"{self.spec.where} has no schema {name}")
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise SourceError(self._no_registry())
        return found

    def _get(self, path: str) -> Any:
        """Return what it answers; None: it does not know such a schema."""
        where = self.spec.where
        try:
            request = urllib.request.Request(self.spec.url + path, headers=self._headers())
            handlers = [_Here(), urllib.request.HTTPSHandler(context=self._context())]
            opened = urllib.request.build_opener(*handlers)
            with opened.open(request, timeout=thresholds.KAFKA_ANSWER_SECONDS) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as e:
            if e.code in (401, 403):
                raise SourceError(f"{where} refuses {self._who()}: HTTP {e.code} {e.reason}") from e
            if e.code == 404 and _error_code(e) in (_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA):
                return None
            if e.code < 500 and e.code != 429:
                raise SourceError(self._no_registry(f" (HTTP {e.code})")) from e
            raise SourceUnavailableError(f"{where} fails: HTTP {e.code} {e.reason}. It is tried again") from e
        except (OSError, ValueError) as e:  # no connection, no answer in time, wrong certificates; no JSON
            if isinstance(e, ValueError):
                raise SourceError(self._no_registry()) from e
            reason = getattr(e, "reason", None) or e
            raise SourceUnavailableError(f"{where} does not answer: {reason}. It is tried again") from e

    def _headers(self) -> dict[str, str]:
        spec = self.spec
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if spec.password:
            pair = f"{spec.user}:{spec.password.value(spec.where, 'password')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        if spec.token:
            headers["Authorization"] = f"Bearer {spec.token.value(spec.where, 'token')}"
        return headers

    def _context(self) -> ssl.SSLContext | None:
        if not self.spec.url.startswith("https:"):
            return None
        context = ssl.create_default_context()
        if self.spec.ca:
            context.load_verify_locations(self.spec.ca)
        return context

    def _who(self) -> str:
        spec = self.spec
        if spec.password:
            return f"user {spec.user}, whose password is read from the environment variable {spec.password.env}"
        if spec.token:
            return f"the token in the environment variable {spec.token.env}"
        return "a reader without a user: declare `user` and `password`, or `token`, in the source's `registry`"

    def _no_registry(self, detail: str = "") -> str:
        return (
            f"{self.spec.where} does not answer like a schema registry with Confluent's interface{detail}. Check `url` "
            "in the source's `registry`: some have that interface under a path (Apicurio: /apis/ccompat/v7)"
        )


class _Here(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: what signs us in would be sent to another server."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """Return no request."""


def _error_code(error: urllib.error.HTTPError) -> int | None:
    try:
        code = json.loads(error.read()).get("error_code")
    except (OSError, ValueError, AttributeError):
        return None
    return code if isinstance(code, int) else None
