"""Files that nobody should deliver: each is taken in, or is an error that names it."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pa_parquet

CSV = b"id,text\n" + b"1,a\n" * 500
LINES = b'{"id":1}\n' * 500


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def parquet(**columns: Any) -> bytes:
    return _written(pa.table(columns))


def _written(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pa_parquet.write_table(table, out)
    return out.getvalue()


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


NO_UTF8 = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xc3\x28"))
_TWICE = _written(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"]))
_FAR = pa.array([2**62, -(2**62)], pa.timestamp("us"))

# By name, and what its records or its error say; None: nothing is wrong with it.
FILES: dict[str, tuple[bytes, str | None]] = {
    "zero.jsonl": (b"", None),
    "marked.jsonl": (b"\xef\xbb\xbf" + LINES, None),
    "UTF-16 with high bytes first.jsonl": (b"\xfe\xff" + LINES.decode().encode("utf-16-be"), "starts like UTF-16"),
    "zero.jsonl.gz": (b"", "not a gzip stream"),
    "zero.csv": (b"", "the file is empty"),
    "zero.csv.gz": (b"", "the file is empty"),
    "zero.parquet": (b"", "not a complete Parquet"),
    "empty.jsonl.gz": (packed(b""), None),
    "cut.jsonl.gz": (packed(LINES)[:-10], "cut or damaged"),
    "cut.csv.gz": (packed(CSV)[:-10], "cut or damaged"),
    "checksum.jsonl.gz": (packed(LINES)[:-8] + b"\0" * 8, "CRC"),
    "checksum.csv.gz": (packed(CSV)[:-8] + b"\0" * 8, "CRC"),
    "damaged.jsonl.gz": (flipped(packed(os.urandom(4_000).hex().encode()), 60), "cut or damaged"),
    "damaged.csv.gz": (flipped(packed(b"a\n" + os.urandom(4_000).hex().encode()), 60), "cut or damaged|no CSV"),
    "garbage after.jsonl.gz": (packed(LINES) + b"garbage", "cut or damaged"),
    "packed twice.jsonl.gz": (packed(packed(b'{"id":1}\n')), "starts like a gzip stream"),
    "packed, and not said.jsonl": (packed(b'{"id":1}\n'), "starts like a gzip stream"),
    "packed, and not said.csv": (packed(CSV), "no CSV"),
    "not packed.jsonl.gz": (LINES, "Not a gzipped file"),
    "not packed.csv.gz": (CSV, "Not a gzipped file"),
    "shouted.jsonl.GZ": (packed(LINES), None),
    "shouted.CSV.Gz": (packed(CSV), None),
    "bomb.jsonl.gz": (packed(b"a" * (25 << 20)), "has more than"),
    "bomb.csv.gz": (packed(b"id\n" + (b"1" * 999 + b"\n") * 26_000), "has more than"),
    "UTF-16.jsonl": (('{"id":"ü"}\n' * 3).encode("utf-16"), "starts like UTF-16"),
    "UTF-16.csv": (CSV.decode().encode("utf-16"), "not UTF-8"),
    "UTF-32.csv": (CSV.decode().encode("utf-32"), "not UTF-8"),
    "Latin-1.csv": ("id\nä\n".encode("latin-1"), "not UTF-8"),
    "Latin-1.jsonl": ('{"id":"ä"}\n'.encode("latin-1"), "not UTF-8"),
    "BOM.csv": (b"\xef\xbb\xbf" + CSV, None),
    "NUL.csv": (b"id,b\0\n1,\0\n", None),
    "huge.csv": (b"id,b\n1," + b"x" * (17 << 20) + b"\n2,3\n", "larger than 1.0 MiB"),
    "huge quote.csv": (b'id,b\n1,"' + b"x" * (17 << 20), "begins on line 2 is never closed"),
    "huge.jsonl": (b'{"id":"' + b"x" * (2 << 20) + b'"}\n', "larger than 1.0 MiB"),
    "quote.csv": (b'id,b\n1,"2\n' + b"3,4\n" * 50, "begins on line 2 is never closed"),
    "quote at the end.csv": (b'id,b\n1,2\n\n3,"4', "begins on line 4 is never closed"),
    "twice.csv": (b"id,id\n1,2\n", "two columns have one name: 'id'"),
    "JSON.csv": (LINES, None),
    "lines.parquet": (LINES, "not a complete Parquet"),
    "cut.parquet": (parquet(id=[1, 2])[:-20], "not a complete Parquet"),
    "beginning.parquet": (parquet(id=[1, 2])[:40], "not a complete Parquet"),
    "twice.parquet": (_TWICE, "two columns have one name: 'id'"),
    "no UTF-8.parquet": (parquet(id=[1], text=NO_UTF8), "no value that can be read: text "),
    "dates.parquet": (parquet(d=pa.array([2**31 - 1], pa.int32()).cast(pa.date32())), None),  # text, which is a misfit for the column
    "moments.parquet": (parquet(t=_FAR), None),
    "no zone.parquet": (parquet(t=pa.array([1], pa.timestamp("us", "Mars/Olympus"))), "Mars/Olympus"),
    "durations.parquet": (parquet(t=pa.array([1], pa.duration("s"))), None),
    "map.parquet": (parquet(m=pa.array([[("a", Decimal("1.5"))]], pa.map_(pa.string(), pa.decimal128(5, 2)))), None),
    "struct.parquet": (parquet(m=[{"a": {"b": [{"c": datetime(2020, 1, 1), "d": b"\xff"}]}}]), None),  # noqa: DTZ001
    "wide.parquet": (parquet(m=pa.array([Decimal(10) ** 50], pa.decimal256(60, 2))), "38 digits"),
    "unsigned.parquet": (parquet(m=pa.array([2**64 - 1], pa.uint64())), None),
    "nothing.parquet": (parquet(), None),
    "names.parquet": (parquet(**{"a\0b": [1], "": [2], "..": [3]}), None),
}  # fmt: skip


def make_special(folder: Path) -> dict[str, Callable[[], None]]:
    """Things that are no files but have a file's name: a way to make each."""
    return {
        "folder.jsonl": (folder / "folder.jsonl").mkdir,
        "pipe.jsonl": lambda: os.mkfifo(folder / "pipe.jsonl"),
        "nowhere.jsonl": lambda: (folder / "nowhere.jsonl").symlink_to(folder / "nothing"),
        "circle.jsonl": lambda: (folder / "circle.jsonl").symlink_to("circle.jsonl"),
        "folder.csv": lambda: (folder / "folder.csv").symlink_to(folder.parent),
    }
