"""Index of the files in a manifest, so that comparing manifests and finding a few files does not read all entries.

Manifests are immutable. An index is built when a manifest is first searched or compared, and kept in memory with some
dozens of bytes per file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from operator import attrgetter
from struct import Struct

from lake_assets.capture.files.avro_files import Container
from lake_assets.lake import thresholds
from lake_assets.lake.limited_cache import LimitedCache

# A row of an index: digest of the path, sequence number, number of the block.
_DIGEST = 16
_NUMBERS, _SEQUENCE = Struct(">qI"), Struct(">q")
_STATE, _ROW = _DIGEST + _SEQUENCE.size, _DIGEST + _NUMBERS.size


@dataclass(frozen=True)
class Blocks:
    """Consecutive blocks of a manifest's Avro file: bytes `start` to `end`.

    `first_row_id` is the first id that their entries assign to rows.
    """

    start: int
    end: int
    first_row_id: int | None


def digest(path: bytes) -> bytes:
    """Return what identifies a path in an index: equal for different paths less often than memory fails."""
    return blake2b(path, digest_size=_DIGEST).digest()


def state(path: bytes, sequence_number: int) -> bytes:
    """Return what identifies a file in a certain state in an index."""
    return digest(path) + _SEQUENCE.pack(sequence_number)


class ManifestIndex:
    """Finds the blocks of one manifest that list given files."""

    def __init__(
        self,
        container: Container,
        blocks: Iterable[tuple[int, int | None, Iterable[tuple[bytes, int]]]],
        end: int,
    ) -> None:
        """
        Args:
            blocks: start of each block, the first row id that it assigns, and path and sequence number of its live
                files.
            end: the end of the last block.
        """
        self.container = container
        self._starts, self._row_ids = array("Q"), list[int | None]()
        rows: list[bytes] = []
        for number, (start, first_row_id, files) in enumerate(blocks):
            self._starts.append(start)
            self._row_ids.append(first_row_id)
            rows += [blake2b(path, digest_size=_DIGEST).digest() + _NUMBERS.pack(of, number) for path, of in files]
        self._starts.append(end)
        rows.sort()
        self._rows = b"".join(rows)

    def __len__(self) -> int:
        return len(self._rows) // _ROW

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory it takes."""
        return thresholds.BYTES_OF_AN_INDEX + len(self._rows)

    def states(self) -> Iterator[bytes]:
        """Yield the `state` of each live file; a file may be listed twice."""
        rows = self._rows
        return (rows[at : at + _STATE] for at in range(0, len(rows), _ROW))

    def with_paths(self, digests: Iterable[bytes]) -> set[int]:
        """Return the numbers of the blocks that list files with one of these digests of their paths."""
        numbers: set[int] = set()
        for wanted in digests:
            at = bisect_left(range(len(self)), wanted, key=self._digest)
            while at < len(self) and self._digest(at) == wanted:
                numbers.add(self._block(at))
                at += 1
        return numbers

    def with_states(self, states: Collection[bytes]) -> set[int]:
        """Return the numbers of the blocks that list files in one of these states."""
        return {self._block(at) for at, each in enumerate(self.states()) if each in states}

    def blocks(self, numbers: Iterable[int]) -> list[Blocks]:
        """Return the blocks of these numbers; consecutive ones are combined."""
        ranges: list[tuple[int, int]] = []
        for number in sorted(numbers):
            if ranges and ranges[-1][1] == number:
                ranges[-1] = ranges[-1][0], number + 1
            else:
                ranges.append((number, number + 1))
        return [Blocks(self._starts[first], self._starts[after], self._row_ids[first]) for first, after in ranges]

    def _digest(self, at: int) -> bytes:
        return self._rows[at * _ROW : at * _ROW + _DIGEST]

    def _block(self, at: int) -> int:
        return _NUMBERS.unpack_from(self._rows, at * _ROW + _DIGEST)[1]


INDEXES = LimitedCache[tuple[str, int, int | None], ManifestIndex](thresholds.INDEX_BYTES, attrgetter("nbytes"))
"""The most recently used indexes, by path, length and first row id of the manifest: an upgrade to v3 assigns ids."""
