"""Find the delete files that apply to data files.

Follows the specification ("Scan Planning"), including the pruning by bounds that readers do: a delete whose bounds
exclude a file does not change its visible rows. If the bounds are inconclusive, the delete applies.
"""

from __future__ import annotations

from collections.abc import Iterable

from lake_assets.capture.files.file_partitions import PartitionKey, Value, may_hold, partition_key, partition_values
from lake_assets.capture.files.manifest_lists import Manifest
from lake_assets.capture.files.manifests import EQUALITY_DELETES, Entry
from lake_assets.lake import thresholds

# Reserved field id of the column `file_path` in position delete files.
FILE_PATH_ID = 2147483546


class DeleteIndex:
    """Index of the delete files of a snapshot by the data files to which they may apply."""

    def __init__(self, entries: Iterable[Entry], unpartitioned: frozenset[int]) -> None:
        """
        Args:
            unpartitioned: ids of the specs without partition fields; their equality deletes apply to all files.
        """
        self._by_path: dict[str, list[Entry]] = {}
        self._by_partition: dict[PartitionKey, list[Entry]] = {}
        self._partitions: dict[int, set[tuple[Value, ...]]] = {}
        self._global: list[Entry] = []
        self._unpartitioned = unpartitioned
        self.max_sequence_number = -1
        for e in entries:
            self.max_sequence_number = max(self.max_sequence_number, e.sequence_number)
            # A delete has the partition of its data files, whether it names them or not.
            self._partitions.setdefault(e.spec_id, set()).add(partition_values(e))
            if path := only_file(e):
                self._by_path.setdefault(path, []).append(e)
            elif e.content == EQUALITY_DELETES and e.spec_id in unpartitioned:
                self._global.append(e)
            else:
                self._by_partition.setdefault(partition_key(e), []).append(e)

    @property
    def paths(self) -> set[str] | None:
        """The data files to which the deletes apply; None if not all deletes name their files."""
        return None if self._global or self._by_partition else set(self._by_path)

    def may_reach(self, manifest: Manifest) -> bool:
        """Whether a manifest may list a data file to which the deletes apply, judging by the manifest list."""
        if manifest.min_sequence_number > self.max_sequence_number:
            return False
        if self._global:
            return True
        partitions = self._partitions.get(manifest.spec_id, set())
        if manifest.partitions is None or len(partitions) > thresholds.DELETE_PARTITIONS:
            return bool(partitions)
        return any(may_hold(manifest.partitions, values) for values in partitions)

    def applying_to(self, data: Entry) -> list[Entry]:
        """Return the deletes that may delete rows of `data`."""
        applying = [e for e in self._by_path.get(data.path, ()) if e.sequence_number >= data.sequence_number]
        for e in (*self._global, *self._by_partition.get(partition_key(data), ())):
            if e.content == EQUALITY_DELETES:
                if e.sequence_number > data.sequence_number:
                    applying.append(e)
            elif e.sequence_number >= data.sequence_number and _may_name(e, data.path):
                applying.append(e)
        return applying


def only_file(delete: Entry) -> str | None:
    """Return the data file of a deletion vector or position delete file; None if it may have several."""
    if delete.content == EQUALITY_DELETES:
        return None
    if path := delete.file.get("referenced_data_file"):
        return path
    low, high = _path_bounds(delete)
    return low.decode() if low is not None and low == high else None


def _may_name(delete: Entry, path: str) -> bool:
    low, high = _path_bounds(delete)
    name = path.encode()
    # Truncated bounds are still bounds: upper ones are rounded up, lower ones are prefixes.
    return (low is None or low <= name) and (high is None or name <= high)


def _path_bounds(delete: Entry) -> tuple[bytes | None, bytes | None]:
    return delete.statistic("lower_bounds").get(FILE_PATH_ID), delete.statistic("upper_bounds").get(FILE_PATH_ID)
