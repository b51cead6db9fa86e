"""Close rejects: a person decides that a record does not count, since its row was delivered again, or is not missed.

A closed record counts in no table, whatever is declared later, until it is opened again: a table that reads all of its
records again, or a replay, leaves it out. So a row that was delivered again is never there twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.errors import ConcurrentWriteError
from lake_assets.formats.event_model import INDEX, POSITION
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.parsing import Parsed
from lake_assets.ingest.staging import exactness
from lake_assets.ingest.staging.exactness import Reason
from lake_assets.ingest.staging.staging_columns import SOURCE_TABLE_PROPERTY
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.watermark import PROPERTY as WATERMARK
from lake_assets.lake.metadata.watermark import find_property, read_marks
from lake_assets.lake.names import literal
from lake_assets.tables import table_lock

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Selection:
    """Which rejects of a raw table are meant; those that meet all of it.

    Attributes:
        positions: records by their positions; empty: any.
        source_table: the source table that they are about; None: any, or none.
        file: the file of the records, by its path or its name; None: any.
    """

    positions: Sequence[int] = ()
    source_table: str | None = None
    file: str | None = None

    @property
    def where(self) -> str:
        """The condition in SQL."""
        parts = ["true"]
        if self.positions:
            parts.append(f"position IN ({', '.join(str(int(p)) for p in self.positions)})")
        if self.source_table is not None:
            parts.append(f"source_table = {literal(self.source_table)}")
        if self.file is not None:
            parts.append(f"(source_file = {literal(self.file)} OR endswith(source_file, {literal('/' + self.file)}))")
        return " AND ".join(parts)


def close(lake: LakeBase, raw: TableId, of: Selection, by: str, because: str) -> int:
    """Close rejects of a raw table; its tables are exact again as far as these records are concerned.

    Args:
        by: who decides that.
        because: why.

    Returns:
        The number of records.

    Raises:
        ConcurrentWriteError: another writer was quicker, or a step takes longer than this waits; run again.
    """
    return _decided(lake, raw, lambda: rejects.close(lake, raw, of.where, by, because))


def reopen(lake: LakeBase, raw: TableId, of: Selection) -> int:
    """Undo `close`."""
    return _decided(lake, raw, lambda: rejects.reopen(lake, raw, of.where))


def _decided(lake: LakeBase, raw: TableId, decide: Callable[[], int]) -> int:
    rejects.catch_up(lake, raw)
    # A step that reads records again has looked at what is closed before it writes.
    with table_lock.waited_for(lake, rejects.rejected_of(raw)):
        count = decide()
        # Also if nothing was left to decide: a call before may have been killed here.
        _tell_tables(lake, raw)
    return count


def _tell_tables(lake: LakeBase, raw: TableId) -> None:
    """Store with the staging and final tables of a raw table how many of their records are rejected now."""
    names = lake.all_tables()
    stagings = {
        name: about
        for name, loaded, read in _readable(lake, names, "staging")
        if (about := loaded.properties.get(SOURCE_TABLE_PROPERTY)) is not None and str(raw) in read
    }
    if not stagings:
        return
    counts = {about: rejects.rejected_records(lake, raw, about) for about in stagings.values()}
    for name, about in stagings.items():
        _tell(lake, name, counts[about])
    for name, loaded, read in _readable(lake, names, "final"):
        staging = next((t for t in stagings if str(t) in read), None)
        if staging is not None and exactness.PROPERTY in loaded.properties:
            _tell(lake, name, counts[stagings[staging]])


@retry(
    retry=retry_if_exception_type(ConcurrentWriteError),
    stop=stop_after_attempt(5),
    wait=wait_random_exponential(multiplier=0.1, max=1),
    reraise=True,
)
def _tell(lake: LakeBase, table: TableId, count: int) -> None:
    """Store with a table how many records are rejected; a step of it may commit at the same time."""
    stored = exactness.stored_in(lake.table(table))
    reasons: list[Reason] = [r for r in stored if r.kind != "rejected"]
    reasons += [exactness.rejected(count)] if count else []
    if tuple(reasons) != stored:
        exactness.store(lake, table, reasons)


def _readable(lake: LakeBase, names: Sequence[TableId], layer: str) -> Iterator[tuple[TableId, Table, Collection[str]]]:
    """Yield the tables of a layer that can be read, with their sources; of others it is logged that they are not told.

    Tables filled from files have no watermark.
    """
    for name in names:
        if name.namespace[0] != layer:
            continue
        try:
            loaded = lake.table(name)
            sources = read_marks(loaded).keys() if find_property(loaded, WATERMARK) else ()
        except Exception as e:  # of any kind: broken metadata make PyIceberg raise many
            log.warning(
                "%s cannot be read. If its records are among those that are decided on, repeat this command once it "
                "can be read: until then it says of them what it said before. %s", name, lake.config.hidden(str(e)),
            )  # fmt: skip
        else:
            yield name, loaded, sources


def without_closed(lake: LakeBase, spec: StagingSpec, records: DataFrame, parsed: Parsed) -> Parsed:
    """Return the events of records without those of closed rejects.

    After a rollback of the raw table, another record may have the position of a closed one: that one counts.
    """
    listed = rejects.listed_of(lake, spec.raw, str(spec.source_table), "closed")
    if listed is None:
        return parsed
    same = records.select("position", F.col("record").alias("text"))
    closed = listed.join(same, "position").where("record = text")
    events = F.broadcast(closed.select(F.col("position").alias(POSITION), F.col("event_index").alias(INDEX)))

    def without(rows: DataFrame) -> DataFrame:
        return rows.join(events, [POSITION, INDEX], "left_anti").select(*rows.columns)

    complete, refused = parsed.read_completely, parsed.refused
    return replace(
        parsed,
        rows=without(parsed.rows) if parsed.rows is not None else None,
        refused=refused.join(F.broadcast(closed.select("position")), "position", "left_anti") if refused else None,
        read_completely=(lambda: without(complete())) if complete else None,
    )
