"""Manifest lists and manifests: what a snapshot says that its files are.

What the format leaves to be inherited (snapshot id, sequence numbers, first row ids) is filled in while reading.

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

_T = TypeVar("_T")
_R = TypeVar("_R")

THREADS = 16
# Above this many bytes a manifest is first read without its column statistics, which are most of it, and again for
# the entries that turn out to be captured: a merged manifest of 100,000 files would otherwise take gigabytes.
LARGE = 512 * 1024

DELETED = 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2

# Seen of DuckDB 1.5: an INSERT into a table of format v1 counts 0 entries in the manifests that it carries over.
_MISCOUNTED = (
    "the writer of the snapshot counted wrongly (DuckDB does in tables of format v1), so that engines disagree about "
    "which rows are there: Spark skips a manifest without entries, PyIceberg reads it"
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
# An index of a manifest needs the paths, and record counts to give row ids.
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
    """The values of one partition field in a manifest; bounds as they are stored, None where all values are null."""

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
    """How many entries the list says that it has; None where a v1 list does not say."""
    partitions: tuple[Summary, ...] | None = None
    """What values the partition fields have in it, in the spec's order; None where the list does not say."""


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
        parts = _each(lambda m: self._entries(m, light=m.length > LARGE, keep=keep), list(manifests))
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

        parts = _each(read, list(wanted))
        full = {(e.manifest.path, e.path, e.offset, e.sequence_number): e for part in parts for e in part}
        return [e if e.complete else full[e.manifest.path, e.path, e.offset, e.sequence_number] for e in entries]

    def entries_of(
        self, manifests: Iterable[Manifest], paths: Collection[str], keep: Callable[[Entry], object]
    ) -> list[Entry]:
        """The live entries of data files in `manifests`, complete.

        Args:
            manifests: where to look; one that is known not to list any of the files is not opened.
            paths: of the data files.
            keep: which entries to keep.
        """
        todo = list(manifests)
        known = {m.path: INDEXES.get(m.path, m.length) for m in todo}
        unknown = [m for m in todo if known[m.path] is None]
        known |= zip((m.path for m in unknown), _each(self._index, unknown), strict=True)
        found = [(m, index, blocks) for m in todo if (index := known[m.path]) and (blocks := index.find(paths))]
        parts = _each(lambda at: self._entries_in(at[0], at[1], at[2], keep), found)
        return [e for part in parts for e in part]

    def _index(self, manifest: Manifest) -> ManifestIndex:
        content = self._content(manifest)
        live = _Live(manifest, manifest.first_row_id)

        def blocks() -> Iterator[tuple[Block, list[str]]]:
            for start, end, records in decode_blocks(content, manifest.path, leaving_out=_UNINDEXED):
                block = Block(start, end, live.next_row_id)
                yield block, [raw["data_file"]["file_path"] for raw in records if live.fill_in(raw)]

        index = ManifestIndex(header_of(content, manifest.path), blocks())
        live.check_count()
        return INDEXES.put(manifest.path, manifest.length, index)

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
                out += [_plain(e) for e in entries if keep(e)]
        return out

    def _entries(self, manifest: Manifest, *, light: bool, keep: Callable[[Entry], object] | None) -> list[Entry]:
        # Deletes are matched to files by their bounds, so that they are needed whole.
        light = light and not manifest.holds_deletes
        content = self._content(manifest)
        records, kind = decode(content, manifest.path, leaving_out=_STATISTICS if light else ())
        out: list[Entry] = []
        live = _Live(manifest, manifest.first_row_id)
        for raw in records:
            if not live.fill_in(raw):
                continue
            entry = Entry(manifest, kind, raw, complete=not light)
            if keep is None or keep(entry):
                out.append(_plain(entry))
        live.check_count()
        return out

    def _content(self, manifest: Manifest) -> bytes:
        self.opened += 1
        content = self._read(manifest.path)
        if len(content) != manifest.length:
            raise CorruptMetadataError(
                f"manifest {manifest.path} has {len(content)} bytes where its snapshot says {manifest.length}: it was "
                f"cut or replaced. Nothing was captured. {LOST_FILE_ADVICE}"
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
                f"metadata file {path} is gone. {LOST_FILE_ADVICE}. Where it belongs to the past alone, a full capture "
                "(start=None) does not need it"
            ) from e


def _each(read: Callable[[_T], _R], todo: Sequence[_T]) -> list[_R]:
    """What `read` gives for each, by several threads where there is more than one."""
    if len(todo) <= 1:
        return [read(one) for one in todo]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(read, todo))


class _Live:
    """Goes through the raw entries of a manifest and fills in what they inherit."""

    def __init__(self, manifest: Manifest, next_row_id: int | None) -> None:
        self._manifest = manifest
        self.next_row_id = next_row_id
        self._seen = 0

    def fill_in(self, raw: dict[str, Any]) -> bool:
        """Whether an entry is live; fills in what it lacks."""
        manifest, file = self._manifest, raw["data_file"]
        self._seen += 1
        if raw["status"] == DELETED:
            return False
        if raw.get("snapshot_id") is None:
            raw["snapshot_id"] = manifest.snapshot_id
        # Only an added entry may lack them, and all of a v1 manifest, whose own number is 0.
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
        """Raise where the manifest has not as many entries as its snapshot says."""
        if self._manifest.entries is not None and self._seen != self._manifest.entries:
            raise CorruptMetadataError(
                f"manifest {self._manifest.path} has {self._seen} entries where its snapshot says "
                f"{self._manifest.entries}: it was cut or replaced, or {_MISCOUNTED}. Nothing was captured. "
                f"{LOST_FILE_ADVICE}"
            )


def check_counts(starts: Iterable[Manifest], ends: Iterable[Manifest]) -> None:
    """Check that two manifest lists agree about the manifests that both have, which need not be opened then.

    Raises:
        CorruptMetadataError: they count the entries of one differently.
    """
    counted = {m.path: m.entries for m in starts if m.entries is not None}
    for m in ends:
        if m.entries is not None and (before := counted.get(m.path, m.entries)) != m.entries:
            raise CorruptMetadataError(
                f"manifest {m.path} has {before} entries as the window's start says and {m.entries} as its end says: "
                f"{_MISCOUNTED}. Nothing was captured. {LOST_FILE_ADVICE}"
            )


def _plain(entry: Entry) -> Entry:
    if entry.file.get("key_metadata"):
        raise UnsupportedCaptureError(f"{entry.path} is encrypted: it cannot be captured without its key")
    return entry


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
            partitions=_summaries(r.get("partitions")),
        )


def _summaries(partitions: Sequence[dict[str, Any]] | None) -> tuple[Summary, ...] | None:
    if partitions is None:
        return None
    return tuple(
        # Without a word about NaN there may be some.
        Summary(p["contains_null"], p.get("contains_nan") is not False, p.get("lower_bound"), p.get("upper_bound"))
        for p in partitions
    )
