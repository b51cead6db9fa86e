"""Manifest lists and manifests: what a snapshot says that its files are.

What the format leaves to be inherited (snapshot id, sequence numbers, first row ids) is filled in while reading.

Source: https://iceberg.apache.org/spec/#manifests, "Manifest Entry Fields" and "Sequence Number Inheritance".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pyiceberg.io import FileIO

from lake_assets.capture.avro import AvroKind, decode, unreadable
from lake_assets.errors import CorruptMetadataError, MissingDataFileError, UnsupportedCaptureError

THREADS = 16
# Above this many bytes a manifest is first read without its column statistics, which are most of it, and again for
# the entries that turn out to be captured: a merged manifest of 100,000 files would otherwise take gigabytes.
LARGE = 512 * 1024

DELETED = 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2

_STATISTICS = {
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "distinct_counts",
    "lower_bounds",
    "upper_bounds",
    "split_offsets",
    "sort_order_id",
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """One line of a manifest list."""

    path: str
    length: int
    spec_id: int
    holds_deletes: bool
    sequence_number: int
    min_sequence_number: int
    snapshot_id: int | None
    first_row_id: int | None
    entries: int | None
    """How many entries the list says that it has; None where a v1 list does not say."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A live file of a snapshot, with everything inherited filled in."""

    manifest: Manifest
    kind: AvroKind
    raw: dict[str, Any]
    complete: bool
    """Whether the column statistics were read too."""

    @property
    def file(self) -> dict[str, Any]:
        """The entry's `data_file`."""
        return self.raw["data_file"]

    @property
    def path(self) -> str:
        """Where the file is."""
        return self.file["file_path"]

    @property
    def content(self) -> int:
        """DATA, POSITION_DELETES (deletion vectors too) or EQUALITY_DELETES."""
        return self.file.get("content") or DATA

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that added the file."""
        return self.raw["snapshot_id"]

    @property
    def sequence_number(self) -> int:
        """The data sequence number: deletes apply by it."""
        return self.raw.get("sequence_number") or 0

    @property
    def records(self) -> int:
        """Rows in the file, before deletes."""
        return self.file["record_count"]

    @property
    def bytes(self) -> int:
        """Its size; that of the one vector where a Puffin file holds several."""
        return self.file.get("content_size_in_bytes") or self.file["file_size_in_bytes"]

    @property
    def spec_id(self) -> int:
        """The partition spec that it was written under."""
        return self.manifest.spec_id

    @property
    def partition(self) -> tuple[Any, ...]:
        """Its partition values in the spec's order, as Avro stores them."""
        return tuple((self.file.get("partition") or {}).values())

    @property
    def first_row_id(self) -> int | None:
        """The id of its first row; None: the file has no row lineage."""
        return self.file.get("first_row_id")

    @property
    def offset(self) -> int:
        """Where a deletion vector starts in its Puffin file, which may hold several."""
        return self.file.get("content_offset") or 0


class ManifestReader:
    """Reads manifest lists and manifests of one table through its FileIO."""

    def __init__(self, file_io: FileIO) -> None:
        self._io = file_io
        self.opened = 0
        """How many manifests were opened: what planning costs."""

    def manifest_list(self, path: str) -> tuple[list[Manifest], AvroKind]:
        """The manifests of a snapshot and the list's own Avro schema."""
        records, kind = decode(self._read(path), path)
        return [_manifest(r, path) for r in records], kind

    def entries(self, manifests: Iterable[Manifest], keep: Callable[[Entry], object] | None = None) -> list[Entry]:
        """The live entries of `manifests`, read by several threads; large manifests without column statistics.

        Args:
            manifests: what to open.
            keep: which entries to keep; they are asked for one by one, so that memory follows what is kept.
        """
        todo = list(manifests)
        if len(todo) <= 1:
            return [e for m in todo for e in self._entries(m, light=m.length > LARGE, keep=keep)]
        with ThreadPoolExecutor(THREADS) as pool:
            parts = list(pool.map(lambda m: self._entries(m, light=m.length > LARGE, keep=keep), todo))
        return [e for part in parts for e in part]

    def completed(self, entries: Sequence[Entry]) -> list[Entry]:
        """`entries` in their order, the statistics of those that were read without them added."""
        wanted: dict[Manifest, set[str]] = {}
        for e in entries:
            if not e.complete:
                wanted.setdefault(e.manifest, set()).add(e.path)
        if not wanted:
            return list(entries)

        def read(m: Manifest) -> list[Entry]:
            return self._entries(m, light=False, keep=lambda e: e.path in wanted[m])

        with ThreadPoolExecutor(THREADS) as pool:
            parts = list(pool.map(read, wanted))
        full = {(e.manifest.path, e.path, e.offset, e.sequence_number): e for part in parts for e in part}
        return [e if e.complete else full[e.manifest.path, e.path, e.offset, e.sequence_number] for e in entries]

    def _entries(self, manifest: Manifest, *, light: bool, keep: Callable[[Entry], object] | None) -> list[Entry]:
        self.opened += 1
        # Deletes are matched to files by their bounds, so that they are needed whole.
        light = light and not manifest.holds_deletes
        content = self._read(manifest.path)
        if len(content) != manifest.length:
            raise CorruptMetadataError(
                f"manifest {manifest.path} has {len(content)} bytes where its snapshot says {manifest.length}: it was "
                "cut or replaced. Restore it from a backup; nothing was captured"
            )
        records, kind = decode(content, manifest.path, leaving_out=_STATISTICS if light else ())
        out: list[Entry] = []
        seen = 0
        next_row_id = manifest.first_row_id
        for raw in records:
            seen += 1
            if raw["status"] == DELETED:
                continue
            file = raw["data_file"]
            if raw.get("snapshot_id") is None:
                raw["snapshot_id"] = manifest.snapshot_id
            # Only an added entry may lack them, and all of a v1 manifest, whose own number is 0.
            for name in ("sequence_number", "file_sequence_number"):
                if raw.get(name) is None:
                    raw[name] = manifest.sequence_number
            if manifest.first_row_id is None:
                file["first_row_id"] = None
            elif file.get("first_row_id") is None and next_row_id is not None:
                file["first_row_id"] = next_row_id
                next_row_id += file["record_count"]
            entry = Entry(manifest, kind, raw, complete=not light)
            if keep is None or keep(entry):
                if file.get("key_metadata"):
                    raise UnsupportedCaptureError(f"{entry.path} is encrypted: it cannot be captured without its key")
                out.append(entry)
        if manifest.entries is not None and seen != manifest.entries:
            raise CorruptMetadataError(
                f"manifest {manifest.path} has {seen} entries where its snapshot says {manifest.entries}: it was cut "
                "or replaced. Restore it from a backup; nothing was captured"
            )
        return out

    def _read(self, path: str) -> bytes:
        try:
            with self._io.new_input(path).open() as f:
                return f.read()
        except FileNotFoundError as e:
            raise MissingDataFileError(
                f"metadata file {path} is gone: restore it from a backup, or start from a full capture (start=None)"
            ) from e


def _manifest(r: dict[str, Any], path: str) -> Manifest:
    with unreadable(path):
        counts: list[int | None] = [
            r.get(f"{what}_files_count", r.get(f"{what}_data_files_count")) for what in ("added", "existing", "deleted")
        ]
        known = [n for n in counts if n is not None]
        return Manifest(
            path=r["manifest_path"],
            length=r["manifest_length"],
            spec_id=r["partition_spec_id"],
            holds_deletes=r.get("content") == 1,
            sequence_number=r.get("sequence_number") or 0,
            min_sequence_number=r.get("min_sequence_number") or 0,
            snapshot_id=r.get("added_snapshot_id"),
            first_row_id=r.get("first_row_id"),
            entries=sum(known) if len(known) == len(counts) else None,
        )
