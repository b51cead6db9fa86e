"""The rows of the last absorbed dump, kept in a table beside the raw table: the next dump is compared with them.

The new dump's rows are appended as another part; the commit of the raw table says which part is the last absorbed dump.
So a step that is killed at any point leaves at most a part that nothing names, and the next step starts from the same
dump. Parts are dropped once another one has taken their place, or the process that wrote them has ended.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import NestedField, StringType
from pyspark.sql import DataFrame

from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.metadata.metadata_versions import PROPERTIES as VERSIONS
from lake_assets.lake.metadata.watermark import Watermark, to_properties
from lake_assets.lake.names import literal
from lake_assets.runtime.processes import OWNER, is_gone, owner
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.writing.arrow_writes import write_arrow
from lake_assets.tables.writing.races import lost

log = logging.getLogger(__name__)
_SCHEMA = Schema(
    NestedField(1, "part", StringType(), required=True, doc="the reading of a dump that the row is part of"),
    NestedField(2, "key", StringType(), doc="the row's key, as a JSON array; null: it has none"),
    NestedField(3, "row", StringType(), required=True, doc="the row, as a JSON object without nulls"),
)
_ARROW: pa.Schema = pa.schema(
    [pa.field("part", pa.string(), nullable=False), ("key", pa.string()), pa.field("row", pa.string(), nullable=False)]
)
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    **VERSIONS,
    # Only a part's name is looked for, and its bounds must not be truncated.
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.part": "full",
    "write.parquet.row-group-limit": str(thresholds.ROWS_A_GROUP),
    "read.split.target-size": str(thresholds.DUMP_BYTES_A_SPLIT),
}
_PART = re.compile(rf"(\d+)-({OWNER})-[0-9a-f]{{8}}")


def kept_of(raw: TableId) -> TableId:
    """Return the name of the table with the last dump of a raw table."""
    return TableId(raw.namespace, f"{raw.name}_dump")


def new_part() -> str:
    """Return a name for a part that this process writes."""
    return f"{int(time.time() * 1000)}-{owner()}-{uuid.uuid4().hex[:8]}"


def add(lake: LakeBase, raw: Table, part: str, rows: Iterator[pa.RecordBatch]) -> int:
    """Append rows (`key` and `row`) as a part, and return their number.

    Raises:
        ConcurrentWriteError: another writer has changed the table; nothing of the part is in it.
    """
    name = kept_of(TableId.parse(".".join(raw.name())))
    table = _ensured(lake, name)
    count = 0

    def parts() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in rows:
            count += batch.num_rows
            names = pa.array([part] * batch.num_rows, pa.string())
            yield pa.RecordBatch.from_arrays([names, batch.column("key"), batch.column("row")], schema=_ARROW)

    mark = Watermark(str(raw.metadata.table_uuid), raw.metadata.current_snapshot_id)
    write_arrow(
        name, table, pa.RecordBatchReader.from_batches(_ARROW, parts()), to_properties({".".join(raw.name()): mark})
    )
    return count


def _ensured(lake: LakeBase, name: TableId) -> Table:
    table = lake.find(name)
    if table is not None:
        return table
    try:
        return lake.catalog.create_table(name.parts, _SCHEMA, lake.location_of(name), properties=_PROPERTIES)
    except TableAlreadyExistsError as e:
        raise lost(name, e) from e


def size_of(kept: Table, part: str) -> tuple[int, int]:
    """Return the rows of a part, and their bytes as stored; reads metadata only."""
    files = [task.file for task in kept.scan(row_filter=_of([part])).plan_files()]
    return sum(f.record_count for f in files), sum(f.file_size_in_bytes for f in files)


def batches_of(kept: Table, part: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, in this process."""
    scan = kept.scan(row_filter=_of([part]), selected_fields=("key", "row"))
    yield from scan.to_arrow_batch_reader()


def frame_of(lake: LakeBase, kept: Table, parts: Collection[str]) -> DataFrame:
    """Return the rows of some parts in Spark, as of the loaded snapshot."""
    rows = lake.rows_at(TableId.parse(kept.name()), kept.metadata.current_snapshot_id)
    return rows.where(rows["part"].isin(*parts))


def forget(lake: LakeBase, raw: TableId, absorbed: str, parts: Collection[str] = ()) -> None:
    """Drop some parts, and those of processes that have ended, with their files; never the absorbed one.

    Another writer may be faster: then the parts stay for the next step.
    """
    kept = lake.find(kept_of(raw))
    if kept is None or kept.current_snapshot() is None:
        return
    stored = kept.scan(selected_fields=("part",))
    gone = sorted(p for p in _parts_in(stored.plan_files()) if p != absorbed and (p in parts or _is_abandoned(p)))
    if not gone:
        return
    old = {t.file.file_path for t in kept.scan(row_filter=_of(gone)).plan_files()}
    kept.metadata.properties["commit.retry.num-retries"] = "0"  # of this loaded copy
    try:
        kept.delete(_of(gone), snapshot_properties=to_properties(known_marks(kept)))
        kept = lake.table(kept_of(raw))
        still = {t.file.file_path for t in kept.scan().plan_files()}
        current = kept.metadata.current_snapshot_id
        if before := [s.snapshot_id for s in kept.metadata.snapshots if s.snapshot_id != current]:
            kept.maintenance.expire_snapshots().by_ids(before).commit()
    except CommitFailedException as e:
        log.info("%s: former dumps stay for now: %s", kept_of(raw), e)
        return
    if len(lake.table(kept_of(raw)).metadata.snapshots) > 1:
        return  # somebody's tag or branch holds former dumps
    for path in old - still:
        try:
            kept.io.delete(path)
        except FileNotFoundError:
            continue
        except OSError as e:
            log.warning("%s belongs to no snapshot, and could not be deleted: %s", path, e)


def _of(parts: Collection[str]) -> str:
    """Return the condition that selects the rows of some parts, at least one."""
    return f"part IN ({', '.join(literal(p) for p in parts)})"


def _parts_in(tasks: Iterable[FileScanTask]) -> set[str]:
    """Return the names of parts, from the bounds of files: a file holds one part, or a few after a compaction."""
    found: set[str] = set()
    for task in tasks:
        low, high = (bounds.get(1) for bounds in (task.file.lower_bounds or {}, task.file.upper_bounds or {}))
        found |= {b.decode() for b in (low, high) if b is not None}
    return found


def _is_abandoned(part: str) -> bool:
    """Whether the process that wrote a part has ended; on another machine, whether it has had a day."""
    match = _PART.fullmatch(part)
    if match is None:
        return False
    is_dead = is_gone(match[2])
    return is_dead if is_dead is not None else time.time() - int(match[1]) / 1000 > thresholds.YOUNGEST_ORPHAN_SECONDS
