"""Read the files of a snapshot from its manifest list and manifests.

Inherited values (snapshot id, sequence numbers, first row ids) are filled in while reading.

Source: https://iceberg.apache.org/spec/#manifests, "Manifest Entry Fields" and "Sequence Number Inheritance".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from pyiceberg.io import FileIO, InputStream

from lake_assets.capture.files.avro_files import AvroKind, decode, decode_block, decode_blocks, header_of, unreadable
from lake_assets.capture.files.manifest_index import INDEXES, Block, ManifestIndex
from lake_assets.errors import LOST_FILE_ADVICE, CorruptMetadataError, MissingDataFileError, UnsupportedCaptureError
from lake_assets.lake import thresholds

_T = TypeVar("_T")
_R = TypeVar("_R")

THREADS = 16

DELETED = 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2

# Observed with DuckDB 1.5: an INSERT into a table of format v1 reports 0 entries for existing manifests.
_WRONG_COUNT = (
    "the writer of the snapshot reported a wrong count (as DuckDB does in tables of format v1), so engines disagree "
    "about the rows of the table: Spark skips a manifest without entries, PyIceberg reads it"
)

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
# Fields that an index does not need: it needs paths, and record counts to assign row ids.
_UNINDEXED = _STATISTICS | {
    "partition",
    "file_format",
    "file_size_in_bytes",
    "equality_ids",
    "key_metadata",
    "referenced_data_file",
    "content_offset",
    "content_size_in_bytes",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of one partition field in a manifest; bounds are serialized, None if all values are null."""

    has_null: bool
    has_nan: bool
    low: bytes | None
    high: bytes | None


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
    """Number of entries according to the list; None if a v1 list does not tell."""
    partitions: tuple[Summary, ...] | None = None
    """Summaries of the partition fields, in the spec's order; None if the list has none."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A live file of a snapshot, with inherited values filled in."""

    manifest: Manifest
    kind: AvroKind
    raw: dict[str, Any]
    complete: bool
    """Whether column statistics were read."""

    @property
    def file(self) -> dict[str, Any]:
        """The entry's `data_file`."""
        return self.raw["data_file"]

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.file["file_path"]

    @property
    def content(self) -> int:
        """DATA, POSITION_DELETES (including deletion vectors) or EQUALITY_DELETES."""
        return self.file.get("content") or DATA

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that added the file."""
        return self.raw["snapshot_id"]

    @property
    def sequence_number(self) -> int:
        """The data sequence number, which determines the deletes that apply."""
        return self.raw.get("sequence_number") or 0

    @property
    def records(self) -> int:
        """Number of rows in the file, before deletes."""
        return self.file["record_count"]

    @property
    def bytes(self) -> int:
        """The size of the file; for a deletion vector, its size within the Puffin file."""
        return self.file.get("content_size_in_bytes") or self.file["file_size_in_bytes"]

    @property
    def spec_id(self) -> int:
        """The id of the file's partition spec."""
        return self.manifest.spec_id

    @property
    def partition(self) -> tuple[Any, ...]:
        """The partition values in the spec's order, as stored in Avro."""
        return tuple((self.file.get("partition") or {}).values())

    @property
    def first_row_id(self) -> int | None:
        """The id of the first row; None if the file has no row lineage."""
        return self.file.get("first_row_id")

    def statistic(self, name: str) -> dict[int, Any]:
        """Return a column statistic (`value_counts`, `lower_bounds`, ...) by field id; empty if the entry has none."""
        return {pair["key"]: pair["value"] for pair in self.file.get(name) or ()}

    @property
    def offset(self) -> int:
        """The offset of a deletion vector in its Puffin file, which may contain several."""
        return self.file.get("content_offset") or 0


class ManifestReader:
    """Reads manifest lists and manifests of one table through its FileIO."""

    def __init__(self, file_io: FileIO) -> None:
        self._io = file_io
        self.opened = 0
        """Number of opened manifests, the main cost of planning."""

    def manifest_list(self, path: str) -> tuple[list[Manifest], AvroKind]:
        """Return the manifests of a snapshot, and the kind of the manifest list."""
        records, kind = decode(self._read(path), path)
        return [_manifest(r, path) for r in records], kind

    def entries(self, manifests: Iterable[Manifest], keep: Callable[[Entry], object] | None = None) -> list[Entry]:
        """Return the live entries of `manifests`, read by several threads; large manifests without column statistics.

        Args:
            keep: whether to keep an entry; applied while reading, so memory is needed only for kept entries.
        """
        most = thresholds.SMALL_MANIFEST_BYTES
        parts = _map_threaded(lambda m: self._entries(m, light=m.length > most, keep=keep), list(manifests))
        return [e for part in parts for e in part]

    def completed(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return `entries` in their order, with missing column statistics added."""
        incomplete: dict[Manifest, set[str]] = {}
        for e in entries:
            if not e.complete:
                incomplete.setdefault(e.manifest, set()).add(e.path)
        if not incomplete:
            return list(entries)

        def read(m: Manifest) -> list[Entry]:
            return self._entries(m, light=False, keep=lambda e: e.path in incomplete[m])

        parts = _map_threaded(read, list(incomplete))
        full = {(e.manifest.path, e.path, e.offset, e.sequence_number): e for part in parts for e in part}
        return [e if e.complete else full[e.manifest.path, e.path, e.offset, e.sequence_number] for e in entries]

    def entries_of(
        self, manifests: Iterable[Manifest], paths: Collection[str], keep: Callable[[Entry], object]
    ) -> list[Entry]:
        """Return the live entries of some data files, with column statistics.

        Args:
            manifests: the manifests to search; not opened if their index shows that they list none of the files.
        """
        candidates = list(manifests)
        indexes = {m.path: INDEXES.get((m.path, m.length)) for m in candidates}
        unindexed = [m for m in candidates if indexes[m.path] is None]
        indexes |= zip((m.path for m in unindexed), _map_threaded(self._index, unindexed), strict=True)
        matches = [
            (m, index, blocks) for m in candidates if (index := indexes[m.path]) and (blocks := index.find(paths))
        ]
        parts = _map_threaded(lambda match: self._entries_in(match[0], match[1], match[2], keep), matches)
        return [e for part in parts for e in part]

    def _index(self, manifest: Manifest) -> ManifestIndex:
        content = self._content(manifest)
        live = _Live(manifest, manifest.first_row_id)

        def blocks() -> Iterator[tuple[Block, list[str]]]:
            for start, end, records in decode_blocks(content, manifest.path, omitted=_UNINDEXED):
                block = Block(start, end, live.next_row_id)
                yield block, [raw["data_file"]["file_path"] for raw in records if live.fill_in(raw)]

        index = ManifestIndex(header_of(content, manifest.path), blocks())
        live.check_count()
        return INDEXES.put((manifest.path, manifest.length), index)

    def _entries_in(
        self, manifest: Manifest, index: ManifestIndex, blocks: Sequence[Block], keep: Callable[[Entry], object]
    ) -> list[Entry]:
        self.opened += 1
        kind, header = index.header
        out: list[Entry] = []
        with self._open(manifest.path) as f:
            for block in blocks:
                f.seek(block.start)
                records = decode_block(header, f.read(block.end - block.start), manifest.path)
                live = _Live(manifest, block.first_row_id)
                entries = (Entry(manifest, kind, raw, complete=True) for raw in records if live.fill_in(raw))
                out += [_unencrypted(e) for e in entries if keep(e)]
        return out

    def _entries(self, manifest: Manifest, *, light: bool, keep: Callable[[Entry], object] | None) -> list[Entry]:
        # Deletes are matched to files by their bounds, so their statistics are needed.
        light = light and not manifest.holds_deletes
        content = self._content(manifest)
        records, kind = decode(content, manifest.path, omitted=_STATISTICS if light else ())
        out: list[Entry] = []
        live = _Live(manifest, manifest.first_row_id)
        for raw in records:
            if not live.fill_in(raw):
                continue
            entry = Entry(manifest, kind, raw, complete=not light)
            if keep is None or keep(entry):
                out.append(_unencrypted(entry))
        live.check_count()
        return out

    def _content(self, manifest: Manifest) -> bytes:
        self.opened += 1
        content = self._read(manifest.path)
        if len(content) != manifest.length:
            raise CorruptMetadataError(
                f"manifest {manifest.path} has {len(content)} bytes, but its snapshot says {manifest.length}: it was "
                f"truncated or replaced. Nothing was captured. {LOST_FILE_ADVICE}"
            )
        return content

    def _read(self, path: str) -> bytes:
        with self._open(path) as f:
            return f.read()

    def _open(self, path: str) -> InputStream:
        try:
            return self._io.new_input(path).open()
        except FileNotFoundError as e:
            raise MissingDataFileError(
                f"metadata file {path} is gone. {LOST_FILE_ADVICE}. If only old snapshots name it, a full capture "
                "(start=None) does not need it"
            ) from e


def _map_threaded(read: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Return the result of `read` for each item, in several threads if there is more than one."""
    if len(items) <= 1:
        return [read(item) for item in items]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(read, items))


class _Live:
    """Fills in the inherited values of a manifest's entries, one after the other."""

    def __init__(self, manifest: Manifest, next_row_id: int | None) -> None:
        self._manifest = manifest
        self.next_row_id = next_row_id
        self._seen = 0

    def fill_in(self, raw: dict[str, Any]) -> bool:
        """Return whether an entry is live; if so, fill in its inherited values."""
        manifest, file = self._manifest, raw["data_file"]
        self._seen += 1
        if raw["status"] == DELETED:
            return False
        if raw.get("snapshot_id") is None:
            raw["snapshot_id"] = manifest.snapshot_id
        # Only added entries may lack them, and all entries of a v1 manifest, whose own number is 0.
        for name in ("sequence_number", "file_sequence_number"):
            if raw.get(name) is None:
                raw[name] = manifest.sequence_number
        if manifest.first_row_id is None:
            file["first_row_id"] = None
        elif file.get("first_row_id") is None and self.next_row_id is not None:
            file["first_row_id"] = self.next_row_id
            self.next_row_id += file["record_count"]
        return True

    def check_count(self) -> None:
        """Raise CorruptMetadataError if the manifest has another number of entries than its snapshot says."""
        if self._manifest.entries is not None and self._seen != self._manifest.entries:
            raise CorruptMetadataError(
                f"manifest {self._manifest.path} has {self._seen} entries, but its snapshot says "
                f"{self._manifest.entries}: it was truncated or replaced, or {_WRONG_COUNT}. Nothing was captured. "
                f"{LOST_FILE_ADVICE}"
            )


def check_counts(starts: Iterable[Manifest], ends: Iterable[Manifest]) -> None:
    """Check that two manifest lists agree about their common manifests, so that these need not be opened.

    Raises:
        CorruptMetadataError: the lists report different numbers of entries for a manifest.
    """
    counts = {m.path: m.entries for m in starts if m.entries is not None}
    for m in ends:
        if m.entries is not None and (start_count := counts.get(m.path, m.entries)) != m.entries:
            raise CorruptMetadataError(
                f"manifest {m.path} has {start_count} entries according to the window's start, but {m.entries} "
                f"according to its end: {_WRONG_COUNT}. Nothing was captured. {LOST_FILE_ADVICE}"
            )


def _unencrypted(entry: Entry) -> Entry:
    if entry.file.get("key_metadata"):
        raise UnsupportedCaptureError(f"{entry.path} is encrypted: it cannot be captured without its key")
    return entry


def _manifest(r: dict[str, Any], path: str) -> Manifest:
    with unreadable(path):
        counts: list[int | None] = [
            r.get(f"{what}_files_count", r.get(f"{what}_data_files_count")) for what in ("added", "existing", "deleted")
        ]
        reported = [n for n in counts if n is not None]
        return Manifest(
            path=r["manifest_path"],
            length=r["manifest_length"],
            spec_id=r["partition_spec_id"],
            holds_deletes=r.get("content") == 1,
            sequence_number=r.get("sequence_number") or 0,
            min_sequence_number=r.get("min_sequence_number") or 0,
            snapshot_id=r.get("added_snapshot_id"),
            first_row_id=r.get("first_row_id"),
            entries=sum(reported) if len(reported) == len(counts) else None,
            partitions=_summaries(r.get("partitions")),
        )


def _summaries(partitions: Sequence[dict[str, Any]] | None) -> tuple[Summary, ...] | None:
    if partitions is None:
        return None
    return tuple(
        # If NaN is not mentioned, it may occur.
        Summary(p["contains_null"], p.get("contains_nan") is not False, p.get("lower_bound"), p.get("upper_bound"))
        for p in partitions
    )
