"""Find the missing or truncated file of a table, for errors that do not name it.

PyIceberg and PyArrow raise errors of their parsers (`EOFError`, `ArrowInvalid`, `UnicodeDecodeError`), often without
the file's name. So after a failure, the files of the table's current snapshot are checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table import Table

from lake_assets.errors import LOST_FILE_ADVICE, CorruptMetadataError, LakeError, MissingDataFileError


def lost_file(table: Table, advice: str = LOST_FILE_ADVICE) -> LakeError | None:
    """Return the error about the first unreadable file of a table's current snapshot; None if all can be read.

    Args:
        advice: how to recover.
    """
    for path, size in _files(table):
        problem = _problem(table.io, path, size)
        if problem:
            kind = MissingDataFileError if problem == "is gone" else CorruptMetadataError
            return kind(f"{'.'.join(table.name())}: {path} {problem}. Nothing was published. {advice}")
    return None


def _files(table: Table) -> Iterator[tuple[str, int | None]]:
    """Yield the files of the current snapshot with their sizes, each after the file that lists it."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    yield snapshot.manifest_list, None
    manifests: list[ManifestFile] = snapshot.manifests(table.io)
    for manifest in manifests:
        yield manifest.manifest_path, manifest.manifest_length
        for entry in manifest.fetch_manifest_entry(table.io):
            yield entry.data_file.file_path, entry.data_file.file_size_in_bytes


def _problem(io: FileIO, path: str, size: int | None) -> str:
    try:
        actual = len(io.new_input(path))
    except FileNotFoundError:
        return "is gone"
    except OSError as e:
        return f"cannot be read ({e})"
    if size is not None and actual != size:
        return f"has {actual} bytes, but its table says {size}: it was truncated or replaced"
    if size is None:
        try:
            list(read_manifest_list(io.new_input(path)))
        except Exception:  # a parser raises errors of any kind for broken files
            return "is broken or truncated"
    return ""
