"""The lines of manifest lists: the manifests of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lake_assets.capture.files.avro_files import unreadable
from lake_assets.errors import LOST_FILE_ADVICE, CorruptMetadataError

# Observed with DuckDB 1.5: an INSERT into a table of format v1 reports 0 entries for existing manifests.
WRONG_COUNT = (
    "the writer of the snapshot reported a wrong count (as DuckDB does in tables of format v1), so engines disagree "
    "about the rows of the table: Spark skips a manifest without entries, PyIceberg reads it"
)


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
                f"according to its end: {WRONG_COUNT}. Nothing was captured. {LOST_FILE_ADVICE}"
            )


def manifest_of(r: dict[str, Any], path: str) -> Manifest:
    """Return a line of the manifest list at `path`.

    Raises:
        CorruptMetadataError: it has no such fields.
    """
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
