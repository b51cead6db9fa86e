"""Index of the data files in a manifest, so that finding a few files does not read all entries.

Manifests are immutable. An index is built when a manifest is first searched, and kept in memory with a few bytes per
file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lake_assets.capture.files.avro_files import AvroKind
from lake_assets.lake import thresholds
from lake_assets.lake.limited_cache import LimitedCache


@dataclass(frozen=True)
class Block:
    """A block of a manifest's Avro file: bytes `start` to `end`; `first_row_id` is the first id it assigns to rows."""

    start: int
    end: int
    first_row_id: int | None


class ManifestIndex:
    """Finds the blocks of one manifest that list given files."""

    def __init__(self, header: tuple[AvroKind, bytes], blocks: Iterable[tuple[Block, Iterable[str]]]) -> None:
        """
        Args:
            blocks: each block with the paths of its live files.
        """
        self.header = header
        self._blocks: list[Block] = []
        pairs: list[tuple[int, int]] = []
        for number, (block, paths) in enumerate(blocks):
            self._blocks.append(block)
            pairs += [(hash(path), number) for path in paths]
        pairs.sort()
        self._hashes, self._numbers = array("q", (h for h, _ in pairs)), array("I", (n for _, n in pairs))

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, paths: Collection[str]) -> list[Block]:
        """Return the blocks that list any of `paths`, and possibly others, since only hashes are compared."""
        numbers: set[int] = set()
        for path in paths:
            target = hash(path)
            at = bisect_left(self._hashes, target)
            while at < len(self._hashes) and self._hashes[at] == target:
                numbers.add(self._numbers[at])
                at += 1
        return [self._blocks[n] for n in sorted(numbers)]


INDEXES = LimitedCache[tuple[str, int], ManifestIndex](thresholds.INDEXED_FILES, len)
"""The most recently used indexes, by path and length of the manifest."""
