"""Values in Avro, as Kafka Connect's converter for Avro writes them, or any other producer.

Connect's types, names and parameters are in properties of the Avro schema (`connect.name`, ...). They are put into the
schema that each record gets, so that its value means the same as the JSON of Connect's JSON converter.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from fastavro import parse_schema, schemaless_reader

from lake_assets.sources.connect_nodes import (
    DATE,
    DECIMAL,
    ENUM,
    MICRO_TIME,
    MICRO_TIMESTAMP,
    NANO_TIMESTAMP,
    TIME,
    TIMESTAMP,
    UUID,
    Node,
    SchemaError,
    ValueProblem,
    base64_text,
    double,
    entries,
    items,
    optional,
    plain_convert,
    single,
)

_PRIMITIVES: Mapping[str, Node] = {
    "boolean": Node({"type": "boolean"}),
    "int": Node({"type": "int32"}),
    "long": Node({"type": "int64"}),
    "float": Node({"type": "float"}, single),
    "double": Node({"type": "double"}, double),
    "string": Node({"type": "string"}),
    "bytes": Node({"type": "bytes"}, base64_text),
}
_LOGICAL = {
    ("int", "date"): DATE,
    ("int", "time-millis"): TIME,
    ("long", "time-micros"): MICRO_TIME,
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "local-timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): MICRO_TIMESTAMP,
    ("long", "local-timestamp-micros"): MICRO_TIMESTAMP,
    ("long", "timestamp-nanos"): NANO_TIMESTAMP,
    ("long", "local-timestamp-nanos"): NANO_TIMESTAMP,
    ("string", "uuid"): UUID,
}
_MAP_ENTRY = ("io.confluent.connect.avro.MapEntry", "MapEntry")


class AvroReader:
    """Reads values of one schema.

    Attributes:
        schema: Connect's schema of them, as JSON.
    """

    def __init__(self, text: str, references: Mapping[str, str], *, is_plain: bool) -> None:
        """Read the schema.

        Raises:
            SchemaError: it is none, or cannot be written exactly.
        """
        try:
            schemas = [orjson.loads(t) for t in (*references.values(), text)]
            named: dict[str, Any] = {}
            for schema in schemas:
                self._parsed = parse_schema(_without_logical(schema), named_schemas=named)
            types = _Types(is_plain)
            for schema in schemas:
                types.declare(schema, "")
            node = types.node(schemas[-1], "", "", ())
        except SchemaError:
            raise
        except Exception as e:  # fastavro's of several kinds, KeyError, ...: whatever a wrong schema leads to
            raise SchemaError(f"its schema cannot be read: {type(e).__name__}: {e}") from e
        self.schema = orjson.dumps(node.schema)
        self._convert = node.convert

    def read(self, raw: bytes, start: int) -> Any:
        """Return the value that begins at `start`, as JSON has it.

        Raises:
            ValueProblem: the bytes are no value of the schema.
        """
        stream = io.BytesIO(raw)
        stream.seek(start)
        try:
            value = schemaless_reader(stream, self._parsed, None)
        except Exception as e:  # fastavro's and Python's of many kinds
            raise ValueProblem(f"its bytes are no value of its Avro schema ({type(e).__name__}: {e})") from e
        if left := len(raw) - stream.tell():
            raise ValueProblem(f"{left} bytes are left after the value of its Avro schema")
        return value if self._convert is None else self._convert(value)


def _without_logical(schema: Any) -> Any:
    """Return a schema of which fastavro reads plain numbers and bytes."""
    if isinstance(schema, list):
        return [_without_logical(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    # Defaults and names that look like schemas do no harm: nothing is resolved against another schema.
    return {
        n: [{**f, "type": _without_logical(f["type"])} for f in v]
        if n == "fields"
        else _without_logical(v)
        if n in ("type", "items", "values")
        else v
        for n, v in schema.items()
        if n != "logicalType"
    }


class _Types:
    """Connect's types of the types of a schema."""

    def __init__(self, is_plain: bool) -> None:
        self.is_plain = is_plain
        self.named: dict[str, tuple[dict[str, Any], str]] = {}

    def declare(self, schema: Any, space: str) -> None:
        """Remember the named types in a schema, with their namespaces."""
        if isinstance(schema, list):
            for part in schema:
                self.declare(part, space)
        elif isinstance(schema, dict):
            kind = schema["type"]
            if kind in ("record", "error", "enum", "fixed"):
                name, space = _full_name(schema, space)
                self.named[name] = (schema, space)
            for field in schema.get("fields", ()):
                self.declare(field["type"], space)
            for part in ("items", "values"):
                self.declare(schema.get(part), space)
            if isinstance(kind, dict | list):
                self.declare(kind, space)

    def node(self, schema: Any, space: str, path: str, around: tuple[str, ...]) -> Node:
        """Return the type of a schema.

        Args:
            space: the namespace around it.
            path: where it is, for errors.
            around: the records around it.
        """
        if isinstance(schema, list):
            return self._union(schema, space, path, around)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema]
            name = schema if schema in self.named or not space else f"{space}.{schema}"
            if name not in self.named:
                raise SchemaError(f"{path or 'the schema'} has the type {schema}, which cannot be read")
            found, its_space = self.named[name]
            return self._declared(found, its_space, path, around, name)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.node(kind, space, path, around)
        if kind in ("record", "error", "enum", "fixed"):
            name, space = _full_name(schema, space)
            return self._declared(schema, space, path, around, name)
        return self._annotated(schema, self._unnamed(schema, kind, space, path, around))

    def _unnamed(self, schema: Mapping[str, Any], kind: str, space: str, path: str, around: tuple[str, ...]) -> Node:
        if kind == "array":
            if _is_entry(schema["items"]):
                return self._entries(schema["items"], space, path, around)
            item = self.node(schema["items"], space, f"{path}[]", around)
            return Node({"type": "array", "items": item.schema}, items(item))
        if kind == "map":
            key, value = _PRIMITIVES["string"], self.node(schema["values"], space, f"{path}{{}}", around)
            of_map = {"type": "map", "keys": _required(key.schema), "values": value.schema}
            convert = entries(key, value)
            return Node(of_map, None if value.convert is None else lambda v: convert(v.items()))
        return self.node(kind, space, path, around)

    def _entries(self, record: Mapping[str, Any], space: str, path: str, around: tuple[str, ...]) -> Node:
        """Return the type of a map whose keys are not text: an array of entries."""
        _, space = _full_name(record, space)
        fields = {f["name"]: self.node(f["type"], space, f"{path}{{}}", around) for f in record["fields"]}
        key, value = fields["key"], fields["value"]
        convert = entries(key, value)
        schema = {"type": "map", "keys": _required(key.schema), "values": _required(value.schema)}
        return Node(schema, lambda pairs: convert((p["key"], p["value"]) for p in pairs))

    def _union(self, parts: list[Any], space: str, path: str, around: tuple[str, ...]) -> Node:
        others = [p for p in parts if p != "null" and not (isinstance(p, dict) and p.get("type") == "null")]
        if len(others) != 1:
            raise SchemaError(
                f"{path or 'the schema'} is a union of {len(others)} types besides null, and a column has one type"
            )
        node = self.node(others[0], space, path, around)
        return node if len(parts) == 1 else optional(node)

    def _declared(self, schema: dict[str, Any], space: str, path: str, around: tuple[str, ...], name: str) -> Node:
        kind = schema["type"]
        if kind == "fixed":
            return self._annotated(schema, _PRIMITIVES["bytes"])
        if kind == "enum":
            allowed = {"name": ENUM, "parameters": {"allowed": ",".join(schema["symbols"])}}
            return self._annotated(schema, Node({"type": "string", **allowed}))
        if name in around:
            raise SchemaError(f"{path} has the type {name}, which contains itself")
        fields: list[dict[str, Any]] = []
        changed: list[tuple[str, Callable[[Any], Any]]] = []
        for field in schema["fields"]:
            there = f"{path}.{field['name']}" if path else field["name"]
            node = self.node(field["type"], space, there, (*around, name))
            default = field.get("default")
            own = {**_required(node.schema), "field": field["name"]}
            if default is not None and "default" not in own:
                own["default"] = _default(default, own)
            fields.append(own)
            if node.convert is not None:
                changed.append((field["name"], node.convert))
        record = Node({"type": "struct", "fields": fields, "name": name}, _fields(changed))
        return self._annotated(schema, record)

    def _annotated(self, schema: Mapping[str, Any], node: Node) -> Node:
        """Return a type with what the schema says of it for Connect."""
        kind, found = node.schema["type"], dict(node.schema)
        if kind == "int32" and schema.get("connect.type") in ("int8", "int16"):
            found["type"] = schema["connect.type"]
        logical = schema.get("logicalType")
        if logical == "decimal" and kind == "bytes":
            precision = {"connect.decimal.precision": str(schema["precision"])} if schema["precision"] != 64 else {}
            found |= {"name": DECIMAL, "parameters": {"scale": str(schema.get("scale", 0)), **precision}}
        elif named := _LOGICAL.get((str(schema["type"]), str(logical))):
            found["name"] = named
        for ours, theirs in (("name", "name"), ("version", "version"), ("doc", "doc"), ("parameters", "parameters")):
            if (value := schema.get(f"connect.{theirs}")) is not None:
                found[ours] = value
        if "connect.default" in schema:
            found["default"] = _default(schema["connect.default"], found)
        node = Node(found, node.convert)
        return Node(found, plain_convert(node)) if self.is_plain else node


def _fields(changed: list[tuple[str, Callable[[Any], Any]]]) -> Callable[[Any], Any] | None:
    if not changed:
        return None

    def convert(record: dict[str, Any]) -> dict[str, Any]:
        for name, of_field in changed:
            record[name] = of_field(record[name])
        return record

    return convert


def _required(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"optional": False, **schema}


def _is_entry(schema: Any) -> bool:
    if not isinstance(schema, dict) or schema.get("type") != "record":
        return False
    names = {str(f.get("name")) for f in schema.get("fields", ())}
    marked = schema.get("connect.internal.type") == "MapEntry" or schema.get("name") in _MAP_ENTRY
    return marked and names == {"key", "value"}


def _default(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a default, which Avro's schemas have in JSON: bytes as text of one character for each."""
    if value is None:
        return None
    match schema["type"]:
        case "bytes":
            return base64_text(value.encode("latin-1"))
        case "array":
            return [_default(v, schema["items"]) for v in value]
        case "map" if isinstance(value, dict):
            return {k: _default(v, schema["values"]) for k, v in value.items()}
        case "struct":
            return {f["field"]: _default(value.get(f["field"]), f) for f in schema["fields"]}
        case _:
            return value


def _full_name(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    """Return the full name of a named type, and the namespace of what is in it."""
    name, declared = schema["name"], schema.get("namespace")
    if "." in name:
        return name, name.rpartition(".")[0]
    within = declared if declared is not None else space
    return (f"{within}.{name}" if within else name), within
