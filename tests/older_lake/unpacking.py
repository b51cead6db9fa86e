"""Put the lake into another folder: Iceberg's metadata hold absolute paths, and lengths of files that hold some."""

from __future__ import annotations

import sqlite3
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lake_assets.capture.files.avro_files import decode, encode
from tests.older_lake import ARCHIVE, HOME

# Fields with a file's length, by the field with its path.
LENGTHS = {"manifest_path": "manifest_length", "file_path": "file_size_in_bytes"}
# Bytes at the end of a Puffin file, after the JSON of its footer: the length of that JSON, flags, and a marker.
_TAIL = 12


def unpack(home: Path) -> None:
    """Put the lake into a folder."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(home, filter="data")
    for file in home.rglob("*.metadata.json"):
        file.write_text(file.read_text().replace(str(HOME), str(home)))
    lengths = {str(p): _rewrite_footer(p, home) for p in home.rglob("*.puffin")}
    avro = sorted(home.rglob("*.avro"), key=lambda p: p.name.startswith("snap-"))  # lists of manifests come last
    for file in avro:
        lengths[str(file)] = _rewrite(file, home, lengths)
    catalog = sqlite3.connect(home / "catalog.db")
    with catalog:
        for column in ("metadata_location", "previous_metadata_location"):
            catalog.execute(f"UPDATE iceberg_tables SET {column} = replace({column}, ?, ?)", (str(HOME), str(home)))
    catalog.close()


def _rewrite_footer(file: Path, home: Path) -> int:
    """Name the data files of another folder in the footer of a Puffin file; return the file's length."""
    content = file.read_bytes()
    end = len(content) - _TAIL
    start = end - int.from_bytes(content[end : end + 4], "little")
    footer = content[start:end].replace(str(HOME).encode(), str(home).encode())
    rewritten = content[:start] + footer + len(footer).to_bytes(4, "little") + content[end + 4 :]
    file.write_bytes(rewritten)
    return len(rewritten)


def _rewrite(file: Path, home: Path, lengths: Mapping[str, int]) -> int:
    """Write a manifest, or a list of them, with the paths of another folder; return its length."""
    records, kind = decode(file.read_bytes(), str(file))
    content = encode(kind, [_rewritten(r, home, lengths) for r in records])
    file.write_bytes(content)
    return len(content)


def _rewritten(value: Any, home: Path, lengths: Mapping[str, int]) -> Any:
    match value:
        case str():
            return value.replace(str(HOME), str(home))
        case list():
            return [_rewritten(v, home, lengths) for v in value]
        case dict():
            rewritten = {k: _rewritten(v, home, lengths) for k, v in value.items()}
            for path, length in LENGTHS.items():
                rewritten |= {length: new} if (new := lengths.get(_local(rewritten.get(path, "")))) else {}
            return rewritten
        case _:
            return value


def _local(path: str) -> str:
    return path.removeprefix("file:").replace("///", "/")
