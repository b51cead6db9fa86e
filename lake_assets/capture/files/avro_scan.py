"""Read a few fields of the records of an Avro file, and skip the others without making objects of them.

A schema is compiled to a Python function that calls PyIceberg's decoder for one field after the other. It reads an
entry of a manifest seven times as fast as fastavro skips its fields; a loop over the fields takes twice as long.

The decoder checks no lengths: in a broken file it would read memory outside the content. So lengths are checked here,
and zeros follow the content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from textwrap import indent
from typing import Any, cast

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder

# The class that PyIceberg chooses: compiled, if it is installed so.
DECODER = cast("Callable[[bytes], BinaryDecoder]", type(new_decoder(b"")))
# Reads a value of a content that ends at a byte.
Read = Callable[[BinaryDecoder, int], Any]
# This many pairs of numbers are read at once: however broken the content is, each of the zeros after it ends a number.
_PAIRS = 64
_ZEROS = bytes(2 * _PAIRS + 16)

_SCAN = """
def scan(decoder, end, blocks):
    read_int, read_ints, read, skip, tell = (
        decoder.read_int, decoder.read_ints, decoder.read, decoder.skip, decoder.tell
    )
    for count, block_end in blocks:
        for left in range(count - 1, -1, -1):
            start = tell()
{reads}
            yield start, {values}
            if not left:
                break  # what follows in the last record of a block is of no use
{skips}
        skip(checked(block_end - tell(), end))
"""
# How values of the most frequent types are skipped.
_INT = "read_int()"
_OPTIONAL_INT = "read_int() if read_int() else None"
_BYTES = "skip(checked(read_int(), end))"
_NUMBERS = f"""\
while count := read_int():
    if 0 < count <= {_PAIRS}:
        read_ints(count * WIDTH)
    else:
        items(decoder, end, count, read_WIDTH)
"""
_BYTES_BY_NUMBER = """\
while count := read_int():
    if count < 0:
        items(decoder, end, count, read_bytes)
    for _ in range(count):
        read_int()
        size = read_int()
        skip(size if 0 <= size <= end else checked(size, end))
"""


class RecordScan:
    """Reads some fields of the records of one schema."""

    def __init__(self, schema: dict[str, Any], fields: Sequence[str]) -> None:
        """
        Args:
            fields: names of the fields to read; a field of a record within the record is named `a.b`.
        """
        source, names = _source(schema, fields)
        exec(source, names)  # the source numbers the fields: it contains no text of the schema
        self._scan: Callable[[BinaryDecoder, int, Sequence[tuple[int, int]]], Iterator[tuple[Any, ...]]] = names["scan"]

    def records(self, content: bytes, blocks: Sequence[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
        """Yield the start of each record, and the values of its fields; None if the schema lacks a field.

        Texts are returned as bytes, lists as None.

        Args:
            blocks: number of records and end of each block in the content.

        Raises:
            EOFError, ValueError: the content is broken.
        """
        return self._scan(DECODER(content + _ZEROS), len(content), blocks)


def _source(schema: dict[str, Any], fields: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the source of a function that reads records, and the names that it uses."""
    names: dict[str, Any] = {"checked": _checked, "items": _items, "read_bytes": _bytes}
    names |= {"read_1": _PRIMITIVES["long"], "read_2": _in_turn([_PRIMITIVES["long"]] * 2)}
    named: dict[str, Any] = {}
    steps, values = list[str](), dict[str, str]()
    reads = 0
    for at, (name, kind) in enumerate(_leaves(schema, "")):
        names[f"field_{at}"] = _reader(kind, named)
        way = _way(kind)
        if name in fields:
            value = way if way in (_INT, _OPTIONAL_INT) else f"field_{at}(decoder, end)"
            steps.append(f"value_{at} = {value}")
            values[name], reads = f"value_{at}", len(steps)
        else:
            steps.append(way or f"field_{at}(decoder, end)")
    source = _SCAN.format(
        reads=indent("\n".join(steps[:reads]), " " * 12),
        values=", ".join(str(values.get(field)) for field in fields),
        skips=indent("\n".join(steps[reads:]), " " * 12),
    )
    return source, names


def _leaves(schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield name and type of the fields of a record, and of records within it in their place."""
    for field in schema["fields"]:
        name, kind = prefix + field["name"], field["type"]
        if isinstance(kind, dict) and kind["type"] == "record":
            yield from _leaves(kind, f"{name}.")
        else:
            yield name, kind


def _way(kind: Any) -> str | None:
    """Return the source that skips a frequent type; None for any other type."""
    if isinstance(kind, list):
        way = _way(kind[1]) if len(kind) == 2 and kind[0] == "null" else None
        return _OPTIONAL_INT if way == _INT else way and f"if read_int():\n{indent(way, '    ')}"
    name = _simple(kind)
    if name != "array":
        return {"int": _INT, "long": _INT, "string": _BYTES, "bytes": _BYTES}.get(name)
    items = kind["items"]
    ways = [_way(f["type"]) for f in items["fields"]] if _simple(items) == "record" else [_way(items)]
    if ways in ([_INT], [_INT, _INT]):
        return _NUMBERS.replace("WIDTH", str(len(ways)))
    return _BYTES_BY_NUMBER if ways == [_INT, _BYTES] else None


def _simple(kind: Any) -> str:
    """Return the name of a type, without its logical type."""
    return str(kind["type"] if isinstance(kind, dict) else kind)


def _reader(kind: Any, named: dict[str, Any]) -> Read:
    """Return a function that reads a value of any Avro type; `named` types may be used by their names later."""
    if isinstance(kind, list):
        options = [_reader(k, named) for k in kind]
        return lambda decoder, end: _option(options, decoder.read_int())(decoder, end)
    if isinstance(kind, str):
        return _PRIMITIVES[kind] if kind in _PRIMITIVES else _reader(named[kind], named)
    if "name" in kind:
        named[kind["name"]] = kind
    match kind["type"]:
        case "record":
            return _in_turn([_reader(f["type"], named) for f in kind["fields"]])
        case "array":
            return _all_items(_reader(kind["items"], named))
        case "map":
            return _all_items(_in_turn([_bytes, _reader(kind["values"], named)]))
        case "fixed":
            size = kind["size"]
            return lambda decoder, end: _exactly(decoder, end, size)
        case "enum":
            return _PRIMITIVES["int"]
        case simple:
            return _reader(simple, named)


def _option(options: Sequence[Read], number: int) -> Read:
    if not 0 <= number < len(options):
        raise ValueError(f"type {number} of {len(options)} types")
    return options[number]


def _in_turn(reads: Sequence[Read]) -> Read:
    def read_all(decoder: BinaryDecoder, end: int) -> None:
        for read in reads:
            read(decoder, end)

    return read_all


def _all_items(read: Read) -> Read:
    def read_all(decoder: BinaryDecoder, end: int) -> None:
        while count := decoder.read_int():
            _items(decoder, end, count, read)

    return read_all


def _items(decoder: BinaryDecoder, end: int, count: int, read: Read) -> None:
    if count < 0:  # then the length of the items follows
        _bytes(decoder, end)
    for _ in range(count):
        read(decoder, end)


def _bytes(decoder: BinaryDecoder, end: int) -> bytes:
    return _exactly(decoder, end, decoder.read_int())


def _exactly(decoder: BinaryDecoder, end: int, length: int) -> bytes:
    if not 0 <= length <= end - decoder.tell():
        raise EOFError(f"a value of {length} bytes is incomplete")
    return decoder.read(length)


def _checked(length: int, end: int) -> int:
    if not 0 <= length <= end:
        raise ValueError(f"a value of {length} bytes in {end} bytes")
    return length


_PRIMITIVES: dict[str, Read] = {
    "null": lambda decoder, end: None,
    "boolean": lambda decoder, end: _exactly(decoder, end, 1) != b"\0",
    "int": lambda decoder, end: decoder.read_int(),
    "long": lambda decoder, end: decoder.read_int(),
    "float": lambda decoder, end: _exactly(decoder, end, 4),
    "double": lambda decoder, end: _exactly(decoder, end, 8),
    "bytes": _bytes,
    "string": _bytes,
}
