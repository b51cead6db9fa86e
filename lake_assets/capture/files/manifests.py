"""Read the files of a snapshot from its manifest list and manifests.

Inherited values (snapshot id, sequence numbers, first row ids) are filled in while reading.

Source: https://iceberg.apache.org/spec/#manifests, "Manifest Entry Fields" and "Sequence Number Inheritance".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from pyiceberg.io import FileIO, InputStream

from lake_assets.capture.files.avro_files import (
    AvroKind,
    Container,
    container_of,
    decode,
    decode_record,
    kind_of,
    scan_blocks,
)
from lake_assets.capture.files.manifest_index import INDEXES, Blocks, ManifestIndex, digest, state
from lake_assets.capture.files.manifest_lists import WRONG_COUNT, Manifest, manifest_of
from lake_assets.errors import (
    LOST_FILE_ADVICE,
    LOST_FILE_ADVICE_OF_CAPTURE,
    CorruptMetadataError,
    MissingDataFileError,
    UnsupportedCaptureError,
)
from lake_assets.lake import thresholds

_T = TypeVar("_T")
_R = TypeVar("_R")

THREADS = 16

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
# The fields of an entry that an index needs; the last two to assign row ids.
_STATE_FIELDS = ("status", "sequence_number", "data_file.file_path")
_ROW_ID_FIELDS = ("data_file.record_count", "data_file.first_row_id")


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
        return [manifest_of(r, path) for r in records], kind

    def entries(
        self,
        manifests: Iterable[Manifest],
        keep: Callable[[Entry], object] | None = None,
        *,
        complete: bool = False,
    ) -> list[Entry]:
        """Return the live entries of `manifests`, read by several threads; large manifests without column statistics.

        Args:
            keep: whether to keep an entry; applied while reading, so memory is needed only for kept entries.
            complete: whether to read column statistics of large manifests too, as `keep` may need them.
        """
        most = thresholds.SMALL_MANIFEST_BYTES

        def read(m: Manifest) -> list[Entry]:
            return self._entries(m, light=m.length > most and not complete, keep=keep)

        parts = _map_threaded(read, list(manifests))
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
        names = {path.encode() for path in paths}
        digests = list(map(digest, names))
        matches = [(m, index, index.with_paths(digests)) for m, index in self._indexed(manifests)]
        return [e for e in self._entries_in(matches, lambda path, _: path in names) if keep(e)]

    def different(
        self, some: Iterable[Manifest], others: Iterable[Manifest], paths: Collection[str]
    ) -> tuple[list[Entry], list[Entry]]:
        """Compare two lists of manifests; return the live entries that are not in both, with column statistics.

        A file that is listed several times in a state is returned from both, each time, if the numbers differ.

        Args:
            paths: files of which all entries are returned.
        """
        sides = self._indexed(some), self._indexed(others)
        counts, other_counts = (Counter(s for _, index in side for s in index.states()) for side in sides)
        states = {s for s, count in counts.items() if other_counts[s] != count}
        states |= {s for s in other_counts if s not in counts}
        names = {path.encode() for path in paths}
        digests = list(map(digest, names))

        def is_wanted(path: bytes, sequence_number: int) -> bool:
            return path in names or state(path, sequence_number) in states

        def entries(side: list[tuple[Manifest, ManifestIndex]]) -> list[Entry]:
            matches = [(m, index, index.with_states(states) | index.with_paths(digests)) for m, index in side]
            return self._entries_in(matches, is_wanted)

        return entries(sides[0]), entries(sides[1])

    def _indexed(self, manifests: Iterable[Manifest]) -> list[tuple[Manifest, ManifestIndex]]:
        """Return manifests with their indexes, which are built if they are not cached."""
        listed = list(manifests)
        indexes = {m: INDEXES.get((m.path, m.length, m.first_row_id)) for m in listed}
        missing = [m for m, index in indexes.items() if index is None]
        # Files are read ahead, but indexed by this thread alone: several would wait for each other most of the time.
        for manifest, content in zip(missing, _read_ahead(self._content, missing), strict=True):
            indexes[manifest] = self._index(manifest, content)
        return [(m, index) for m in listed if (index := indexes[m]) is not None]

    def _index(self, manifest: Manifest, content: bytes) -> ManifestIndex:
        container, at = container_of(content, manifest.path)
        seen = 0

        def blocks() -> Iterator[tuple[int, int | None, list[tuple[bytes, int]]]]:
            nonlocal seen
            row_id = manifest.first_row_id
            for start, _, entries in scan_blocks(container, content, manifest.path, _scanned(manifest), at):
                seen += len(entries)
                live = [e for e in entries if e[1] != DELETED]
                yield start, row_id, [(e[3], manifest.sequence_number if e[2] is None else e[2]) for e in live]
                if row_id is not None:
                    row_id += sum(e[4] for e in live if e[5] is None)

        index = ManifestIndex(container, blocks(), len(content))
        _check_count(manifest, seen)
        return INDEXES.put((manifest.path, manifest.length, manifest.first_row_id), index)

    def _entries_in(
        self, matches: Iterable[tuple[Manifest, ManifestIndex, set[int]]], is_wanted: Callable[[bytes, int], bool]
    ) -> list[Entry]:
        """Return the live entries in some blocks of manifests, with column statistics.

        Args:
            is_wanted: whether to return the entry of a file, by its path and sequence number.
        """

        def read(match: tuple[Manifest, ManifestIndex, set[int]]) -> list[Entry]:
            manifest, index, numbers = match
            self.opened += 1
            out: list[Entry] = []
            with self._open(manifest.path) as f:
                for blocks in index.blocks(numbers):
                    f.seek(blocks.start)
                    content = f.read(blocks.end - blocks.start)
                    out += _wanted_entries(manifest, index.container, blocks, content, is_wanted)
            return out

        parts = _map_threaded(read, [match for match in matches if match[2]])
        return [e for part in parts for e in part]

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
            raise MissingDataFileError(f"{kind_of(path)} {path} is gone. {LOST_FILE_ADVICE_OF_CAPTURE}") from e


def _scanned(manifest: Manifest) -> tuple[str, ...]:
    return _STATE_FIELDS if manifest.first_row_id is None else _STATE_FIELDS + _ROW_ID_FIELDS


def _wanted_entries(
    manifest: Manifest, container: Container, blocks: Blocks, content: bytes, is_wanted: Callable[[bytes, int], bool]
) -> Iterator[Entry]:
    """Yield the wanted live entries of some blocks; the others are not decoded."""
    row_id = blocks.first_row_id
    for _, records, scanned in scan_blocks(container, content, manifest.path, _scanned(manifest)):
        for start, status, number, path, *ids in scanned:
            if status == DELETED:
                continue
            if is_wanted(path, manifest.sequence_number if number is None else number):
                raw = decode_record(container, records, start, manifest.path)
                _Live(manifest, row_id).fill_in(raw)
                yield _unencrypted(Entry(manifest, container.kind, raw, complete=True))
            if row_id is not None and ids[1] is None:
                row_id += ids[0]


def _map_threaded(read: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Return the result of `read` for each item, in several threads if there is more than one."""
    if len(items) <= 1:
        return [read(item) for item in items]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(read, items))


def _read_ahead(read: Callable[[_T], _R], items: Sequence[_T]) -> Iterator[_R]:
    """Yield the result of `read` for each item; other threads read the next few if there is more than one."""
    if len(items) <= 1:
        yield from map(read, items)
        return
    pending = deque[Future[_R]]()
    with ThreadPoolExecutor(THREADS) as pool:
        for item in items:
            pending.append(pool.submit(read, item))
            if len(pending) > THREADS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


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
        _check_count(self._manifest, self._seen)


def _check_count(manifest: Manifest, seen: int) -> None:
    if manifest.entries is not None and seen != manifest.entries:
        raise CorruptMetadataError(
            f"manifest {manifest.path} has {seen} entries, but its snapshot says {manifest.entries}: it was truncated "
            f"or replaced, or {WRONG_COUNT}. Nothing was captured. {LOST_FILE_ADVICE}"
        )


def _unencrypted(entry: Entry) -> Entry:
    if entry.file.get("key_metadata"):
        raise UnsupportedCaptureError(f"{entry.path} is encrypted: it cannot be captured without its key")
    return entry
