"""Where in a manifest a data file is listed, so that a delete of one file does not read the entries of all others.

Manifests never change: what one lists is remembered for the life of the process, some bytes per file. An index is
made when a manifest is first searched.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lake_assets.capture.files.avro_files import AvroKind

# So many files are remembered in all manifests together, 12 bytes each.
MOST_FILES = 4_000_000


@dataclass(frozen=True)
class Block:
    """One block of a manifest's Avro file: from byte `start` to `end`; ids of its new rows begin at `first_row_id`."""

    start: int
    end: int
    first_row_id: int | None


class ManifestIndex:
    """The blocks of one manifest, found by the paths of the files that they list."""

    def __init__(self, header: tuple[AvroKind, bytes], blocks: Iterable[tuple[Block, Iterable[str]]]) -> None:
        """
        Args:
            header: of the Avro file.
            blocks: each with the paths of the live files in it.
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
        """The blocks that list any of `paths`, and perhaps others: hashes are compared."""
        found: set[int] = set()
        for path in paths:
            wanted = hash(path)
            at = bisect_left(self._hashes, wanted)
            while at < len(self._hashes) and self._hashes[at] == wanted:
                found.add(self._numbers[at])
                at += 1
        return [self._blocks[n] for n in sorted(found)]


class Indexes:
    """The indexes of the manifests that were searched last; for all threads of a process."""

    def __init__(self, most: int = MOST_FILES) -> None:
        """`most`: how many files are kept together."""
        self._most, self._held = most, 0
        self._of: OrderedDict[tuple[str, int], ManifestIndex] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str, length: int) -> ManifestIndex | None:
        """The index of a manifest; None: it is not known."""
        with self._lock:
            if (path, length) in self._of:
                self._of.move_to_end((path, length))
            return self._of.get((path, length))

    def put(self, path: str, length: int, index: ManifestIndex) -> ManifestIndex:
        """Keep an index; returns it."""
        with self._lock:
            if (path, length) not in self._of:
                self._of[path, length] = index
                self._held += len(index)
            while self._held > self._most and len(self._of) > 1:
                self._held -= len(self._of.popitem(last=False)[1])
        return index


INDEXES = Indexes()
