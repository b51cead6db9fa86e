"""Values in Protobuf, with the schema that a registry has of them."""

from __future__ import annotations

import base64
import importlib.resources
import tempfile
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import orjson

from lake_assets.errors import SourceError
from lake_assets.sources.connect_nodes import (
    DATE,
    DECIMAL,
    ENUM,
    TIME,
    ZONED_TIMESTAMP,
    Convert,
    Node,
    SchemaError,
    ValueProblem,
    base64_text,
    decimal_text,
    double,
    moment_text,
    optional,
    plain_convert,
    single,
)

_ROOT = "schema.proto"


class ProtobufReader:
    """Reads values of one schema: of any message in it.

    Attributes:
        file: the schema.
    """

    def __init__(self, serialized: str | None, text: str, references: Mapping[str, str], *, is_plain: bool) -> None:
        """Read the schema.

        Args:
            serialized: the schema as a descriptor in base64, if the registry has it.

        Raises:
            SchemaError: it is none, or cannot be written exactly.
            SourceError: the registry has it as text only, and there is no compiler.
        """
        from google.protobuf import descriptor_pb2, descriptor_pool

        self.is_plain = is_plain
        pool = descriptor_pool.DescriptorPool()
        if serialized and not references:
            files = [descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(serialized))]
        else:
            files = list(_compiled(text, references))
        try:
            for file in (*_well_known(), *files):
                pool.Add(file)
            self.file: Any = pool.FindFileByName(files[-1].name)
        except TypeError as e:
            raise SchemaError(f"its schema cannot be read: {e}") from e
        self._messages: dict[tuple[int, ...], tuple[bytes, Any, Callable[[Any], Any]]] = {}

    def read(self, raw: bytes, start: int) -> tuple[bytes, Any]:
        """Return the schema of the value whose message indexes begin at `start`, and the value, as JSON has them.

        Raises:
            ValueProblem: the bytes are no value of the schema.
        """
        indexes, start = _indexes(raw, start)
        if indexes not in self._messages:
            self._messages[indexes] = self._message(indexes)
        schema, message, convert = self._messages[indexes]
        try:
            value = message.FromString(raw[start:])
        except Exception as e:  # protobuf's DecodeError, or what its implementation raises
            raise ValueProblem(f"its bytes are no value of its Protobuf schema ({e})") from e
        return schema, convert(value)

    def _message(self, indexes: tuple[int, ...]) -> tuple[bytes, Any, Callable[[Any], Any]]:
        from google.protobuf import message_factory

        try:
            found = list(self.file.message_types_by_name.values())[indexes[0]]
            for i in indexes[1:]:
                found = found.nested_types[i]
        except IndexError:
            raise ValueProblem(f"its Protobuf schema has no message {list(indexes)}") from None
        node = _message_node(found, self.is_plain, "", ())
        assert node.convert is not None
        return orjson.dumps(node.schema), message_factory.GetMessageClass(found), node.convert


def _indexes(raw: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """Return which message a value is, and where it begins: a number of zigzag varints, 0 for the first message."""
    count, start = _varint(raw, start)
    if count == 0:
        return (0,), start
    if not 0 < count <= 100:
        raise ValueProblem(f"its Protobuf message has {count} indexes")
    found: list[int] = []
    for _ in range(count):
        index, start = _varint(raw, start)
        found.append(index)
    return tuple(found), start


def _varint(raw: bytes, start: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if start >= len(raw) or shift > 63:
            raise ValueProblem("its Protobuf message has no indexes")
        byte = raw[start]
        start += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), start


def _well_known() -> list[Any]:
    from google.protobuf import (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    modules = (
        descriptor_pb2,
        any_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
    files = [descriptor_pb2.FileDescriptorProto.FromString(m.DESCRIPTOR.serialized_pb) for m in modules]
    return [*files, *_compiled_own()]


def _compiled_own() -> list[Any]:
    """Return the messages that Confluent's and Google's schemas name: a decimal, a day, a time of day."""
    from google.protobuf import descriptor_pb2

    field = descriptor_pb2.FieldDescriptorProto
    whole, short = field.TYPE_INT32, field.TYPE_UINT32
    declared = (
        ("confluent/type/decimal.proto", "confluent.type", "Decimal",
         (("value", field.TYPE_BYTES), ("precision", short), ("scale", whole))),
        ("google/type/date.proto", "google.type", "Date", (("year", whole), ("month", whole), ("day", whole))),
        ("google/type/timeofday.proto", "google.type", "TimeOfDay",
         (("hours", whole), ("minutes", whole), ("seconds", whole), ("nanos", whole))),
    )  # fmt: skip
    files: list[Any] = []
    for name, package, message, fields in declared:
        file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
        of_message = file.message_type.add(name=message)
        for number, (of_field, kind) in enumerate(fields, 1):
            of_message.field.add(name=of_field, number=number, type=kind, label=field.LABEL_OPTIONAL)
        files.append(file)
    return [*files, _meta()]


def _meta() -> Any:
    """Return Confluent's options of messages and fields, which tell what Connect's types were."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name="confluent/meta.proto",
        package="confluent",
        syntax="proto3",
        dependency=["google/protobuf/descriptor.proto"],
    )
    field = descriptor_pb2.FieldDescriptorProto
    meta = file.message_type.add(name="Meta")
    meta.field.add(name="doc", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry = meta.nested_type.add(name="ParamsEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    of_meta = {"type": field.TYPE_MESSAGE, "label": field.LABEL_REPEATED, "type_name": ".confluent.Meta.ParamsEntry"}
    meta.field.add(name="params", number=2, **of_meta)
    meta.field.add(name="tags", number=3, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    for name, options in (
        ("file_meta", "FileOptions"),
        ("message_meta", "MessageOptions"),
        ("field_meta", "FieldOptions"),
        ("enum_meta", "EnumOptions"),
        ("enum_value_meta", "EnumValueOptions"),
    ):
        of_meta = {"label": field.LABEL_OPTIONAL, "type": field.TYPE_MESSAGE, "type_name": ".confluent.Meta"}
        file.extension.add(name=name, number=1088, extendee=f".google.protobuf.{options}", **of_meta)
    return file


def _compiled(text: str, references: Mapping[str, str]) -> list[Any]:
    """Return the descriptors of a schema and of what it imports, by the compiler of Protobuf."""
    from google.protobuf import descriptor_pb2

    try:
        from grpc_tools import protoc
    except ImportError:
        raise SourceError(
            "the schema registry has the schemas of Protobuf as text only, and the compiler that reads them is not "
            "installed: pip install 'lake-assets[kafka-protobuf]'"
        ) from None
    known = {f.name for f in _well_known()}
    with tempfile.TemporaryDirectory(prefix="lake-assets-proto-") as folder:
        target = Path(folder) / "descriptors"
        for file in _compiled_own():
            _write(Path(folder), file.name, _SOURCES[file.name])
        for name, of_file in {**references, _ROOT: text}.items():
            if name not in known:
                _write(Path(folder), name, of_file)
        include = importlib.resources.files("grpc_tools") / "_proto"
        command = [
            "protoc",
            f"-I{folder}",
            f"-I{include}",
            "--include_imports",
            f"--descriptor_set_out={target}",
            _ROOT,
        ]
        if protoc.main(command) != 0:
            raise SchemaError(
                "its schema cannot be read: the compiler of Protobuf rejects it (see the service's output)"
            )
        found = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes())
    return [f for f in found.file if f.name not in known]


def _write(folder: Path, name: str, text: str) -> None:
    file = folder / name
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise SchemaError(f"its schema imports {name!r}, which is no name of a schema")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


_SOURCES = {
    "confluent/type/decimal.proto": 'syntax = "proto3"; package confluent.type; '
    "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
    "google/type/date.proto": 'syntax = "proto3"; package google.type; '
    "message Date { int32 year = 1; int32 month = 2; int32 day = 3; }",
    "google/type/timeofday.proto": 'syntax = "proto3"; package google.type; '
    "message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }",
    "confluent/meta.proto": 'syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto"; '
    "message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; } "
    + " ".join(
        f"extend google.protobuf.{o} {{ Meta {n} = 1088; }}"
        for n, o in (
            ("file_meta", "FileOptions"),
            ("message_meta", "MessageOptions"),
            ("field_meta", "FieldOptions"),
            ("enum_meta", "EnumOptions"),
            ("enum_value_meta", "EnumValueOptions"),
        )
    ),
}


# --- types -------------------------------------------------------------------------------------------------------

_INT32, _INT64 = Node({"type": "int32"}), Node({"type": "int64"})
_UNSIGNED = Node(
    {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "0", "connect.decimal.precision": "20"}},
    lambda v: base64_text(v.to_bytes(9, "big", signed=True)),
)


def _scalars() -> dict[int, Node]:
    from google.protobuf.descriptor import FieldDescriptor as F

    return {
        **dict.fromkeys((F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32), _INT32),
        **dict.fromkeys((F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64, F.TYPE_UINT32, F.TYPE_FIXED32), _INT64),
        **dict.fromkeys((F.TYPE_UINT64, F.TYPE_FIXED64), _UNSIGNED),
        F.TYPE_FLOAT: Node({"type": "float"}, single),
        F.TYPE_DOUBLE: Node({"type": "double"}, double),
        F.TYPE_BOOL: Node({"type": "boolean"}),
        F.TYPE_STRING: Node({"type": "string"}),
        F.TYPE_BYTES: Node({"type": "bytes"}, base64_text),
    }


def _message_node(message: Any, is_plain: bool, path: str, around: tuple[str, ...]) -> Node:
    if message.full_name in around:
        raise SchemaError(f"{path} has the type {message.full_name}, which contains itself")
    if special := _special(message, is_plain):
        return special
    fields: list[dict[str, Any]] = []
    readings: list[tuple[str, bool, Callable[[Any], Any]]] = []
    for field in message.fields:
        node = _field_node(field, is_plain, f"{path}.{field.name}".strip("."), (*around, message.full_name))
        may_lack = field.has_presence
        fields.append({"optional": may_lack, **node.schema, "field": field.name})
        readings.append((field.name, may_lack, node.convert or (lambda v: v)))
    schema = {"type": "struct", "fields": fields, "name": message.full_name}

    def convert(value: Any) -> dict[str, Any]:
        return {
            name: None if may_lack and not value.HasField(name) else of_field(getattr(value, name))
            for name, may_lack, of_field in readings
        }

    return Node(schema, convert)


def _field_node(field: Any, is_plain: bool, path: str, around: tuple[str, ...]) -> Node:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = (_value_node(f, is_plain, path, around) for f in (message.fields[0], message.fields[1]))
        of_key, of_value = (n.convert or (lambda v: v) for n in (key, value))
        schema = {"type": "map", "keys": key.schema, "values": value.schema}
        if key.schema["type"] == "string":
            return Node(schema, lambda pairs: {of_key(k): of_value(v) for k, v in pairs.items()})
        return Node(schema, lambda pairs: [[of_key(k), of_value(v)] for k, v in pairs.items()])
    node = _value_node(field, is_plain, path, around)
    if field.is_repeated:
        of_item = node.convert or (lambda v: v)
        return Node({"type": "array", "items": node.schema}, lambda values: [of_item(v) for v in values])
    return node


def _value_node(field: Any, is_plain: bool, path: str, around: tuple[str, ...]) -> Node:
    if field.message_type is not None:
        return _message_node(field.message_type, is_plain, path, around)
    if field.enum_type is not None:
        names = {v.number: v.name for v in field.enum_type.values}
        allowed = {"allowed": ",".join(names.values())}
        # A number without a name is of a newer schema than the registered one.
        return Node({"type": "string", "name": ENUM, "parameters": allowed}, lambda v: names.get(v, str(v)))
    node = _scalars()[field.type]
    return Node(node.schema, plain_convert(node)) if is_plain else node


def _special(message: Any, is_plain: bool) -> Node | None:
    """Return the type of a message that stands for a value."""
    name = message.full_name
    if name.startswith("google.protobuf.") and name.endswith("Value") and len(message.fields) == 1:
        inner = _value_node(message.fields[0], is_plain, "", ())
        of_value = inner.convert or (lambda v: v)
        return Node(optional(inner).schema, lambda m: of_value(m.value))
    convert: Convert
    match name:
        case "google.protobuf.Timestamp":
            # As text, in which no nanosecond is lost and no year is too early.
            return Node({"type": "string", "name": ZONED_TIMESTAMP}, lambda m: moment_text(m.seconds, m.nanos, 9) + "Z")
        case "confluent.type.Decimal":
            # Each value has a scale of its own.
            return Node(
                {"type": "string"}, lambda m: decimal_text(int.from_bytes(m.value, "big", signed=True), m.scale)
            )
        case "google.type.Date":
            convert = (lambda m: _day(m).isoformat()) if is_plain else (lambda m: (_day(m) - date(1970, 1, 1)).days)
            return Node({"type": "int32", "name": DATE}, convert)
        case "google.type.TimeOfDay":
            node = Node({"type": "int32", "name": TIME})
            of_millis = plain_convert(node) if is_plain else None
            return Node(node.schema, lambda m: of_millis(_millis(m)) if of_millis else _millis(m))
        case _:
            return None


def _day(message: Any) -> date:
    try:
        return date(message.year, message.month, message.day)
    except ValueError as e:
        raise ValueProblem(f"{message.year}-{message.month}-{message.day} is no day: {e}") from e


def _millis(message: Any) -> int:
    if message.nanos % 1_000_000:
        raise ValueProblem("a time of day has microseconds, which Connect's type for it does not hold")
    return ((message.hours * 60 + message.minutes) * 60 + message.seconds) * 1000 + message.nanos // 1_000_000
