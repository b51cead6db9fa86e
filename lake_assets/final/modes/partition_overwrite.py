"""Rewriting the partitions that a change touches (`write: overwrite-partitions`), instead of MERGE.

A change touches the partitions of the new rows and of the stored rows with the same keys: a row whose partition value
changes leaves its old partition. All of them are rewritten in one commit, an overwrite by a filter. A dynamic overwrite
would replace only partitions that receive rows, and leave the last row of a partition that becomes empty. For the
branch, see docs/decisions/0012-overwriting-partitions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from lake_assets.errors import Refused
from lake_assets.final.added_columns import DELETED
from lake_assets.final.batch import Batch
from lake_assets.final.events.reduction import KEEP, KNOWN
from lake_assets.final.modes.row_copies import REMOVE
from lake_assets.formats.event_model import DELETE, OP
from lake_assets.lake import LakeBase, quote, thresholds
from lake_assets.lake.counts import plural
from lake_assets.tables.literal_codec import LiteralCodec, codec_of
from lake_assets.tables.partitioning.partition_fields import PartitionField
from lake_assets.tables.spark_frames import checkpoint, cols
from lake_assets.tables.writing.publication import Branch

_OLD, _NEW = "_old", "_new"


class _TooManyError(Exception):
    """More partitions are touched than a filter can list."""


def overwrite(batch: Batch, rows: DataFrame) -> str | Refused:
    """Put changed rows, one per key (see `reduction.latest`), into their partitions.

    After a truncate, all rows that are missing from them are deleted.

    Returns:
        A description of what was done; or a refusal, with nothing written, if a filter cannot select the partitions.

    Raises:
        ConcurrentWriteError: another writer committed first.
    """
    target = batch.target
    if not _is_partitioned_as(target.lake.table(target.spec.table), target.spec.partition_by):
        return Refused("some files have other partitions than the declared ones")
    try:
        with batch.writer.commit.branch() as branch:
            count = _overwrite(batch, rows, branch)
    except _TooManyError:
        return Refused(f"more than {thresholds.OVERWRITE_PARTITIONS} partitions are touched")
    return f"{plural(count, 'partition')} rewritten" if count else "no row differs"


def _overwrite(batch: Batch, rows: DataFrame, branch: Branch) -> int:
    """Rewrite the partitions on the branch; return their number."""
    target, writer, stored = batch.target, batch.writer, batch.target.lake.spark().table(branch.name)
    differing = checkpoint(_differing(batch, rows, branch.name))
    fields = [(f, _value_of(target.lake, f)) for f in target.spec.partition_by]
    partitions, types = _touched_partitions(differing, [value for _, value in fields])
    if not partitions:
        writer.append_to(branch, stored.limit(0))
        return 0
    # A truncated table may be rewritten as a whole.
    if len(partitions) > thresholds.OVERWRITE_PARTITIONS and not batch.is_emptied:
        raise _TooManyError
    where = _condition(fields, partitions, types) if len(partitions) <= thresholds.OVERWRITE_PARTITIONS else "true"
    names = list(batch.types)
    unchanged = stored.where(where).join(differing, list(target.key), "left_anti")
    new_rows = differing.where(F.col(_NEW).isNotNull()).select(*(F.col(f"{_NEW}.{quote(c)}").alias(c) for c in names))
    content = unchanged.select(*cols(names)).unionByName(new_rows)
    has_old, has_new = F.col(_OLD).isNotNull(), F.col(_NEW).isNotNull()
    new, both, gone = (F.count_if(~has_old), F.count_if(has_old & has_new), F.count_if(~has_new))
    inserted, updated, deleted = differing.agg(new, both, gone).collect()[0]
    # Iceberg's own summary counts all rows of the partitions, whether they differ or not.
    writer.overwrite_on(branch, content, where, (inserted, updated, deleted))
    return len(partitions)


def _differing(batch: Batch, rows: DataFrame, branch: str) -> DataFrame:
    """Return the key, the `_old` and the `_new` row of each key whose row changes; null: no such row."""
    target, types, emptied = batch.target, batch.types, batch.is_emptied
    key, names, soft = list(target.key), target.columns, DELETED in target.own
    keys = cols(key)
    new = rows.select(
        *(F.col(quote(k)).cast(types[k]).alias(k) for k in key),
        F.struct(
            *(F.col(quote(c)).cast(types[c]).alias(c) for c in names), F.col(OP), F.col(KEEP), F.col(KNOWN)
        ).alias("s"),
    )  # fmt: skip
    stored = batch.stored_rows(None if emptied else checkpoint(new.select(*keys)), branch=branch)
    old = stored.select(*keys, F.struct(*cols(types)).alias(_OLD))
    both = new.join(old, key, "full_outer" if emptied else "left")
    is_stored, deleted = F.col(_OLD).isNotNull(), F.col("s").isNull() | (F.col(f"s.{OP}") == DELETE)
    values = {
        c: F.when(
            F.col("s").isNull()
            | (is_stored & F.coalesce(F.array_contains(f"s.{KEEP}", F.lit(c)), F.lit(False)) & F.lit(c not in key)),
            F.col(f"{_OLD}.{quote(c)}"),
        ).otherwise(F.col(f"s.{quote(c)}"))
        for c in names
    }
    if soft:
        values[DELETED] = deleted
    # A row that was inserted and deleted within the window existed nevertheless.
    exists = (is_stored | F.col(f"s.{KNOWN}")) if soft else ~deleted
    exists = exists & ~F.col(f"s.{OP}").eqNullSafe(F.lit(REMOVE))
    after = F.when(exists, F.struct(*(value.cast(types[c]).alias(c) for c, value in values.items())))
    return both.select(*keys, _OLD, after.alias(_NEW)).where(~F.col(_OLD).eqNullSafe(F.col(_NEW)))


def _touched_partitions(differing: DataFrame, values: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Return the partitions of the old and the new rows, at most one more than a filter may list, and the types of
    their values."""
    sides = (
        differing.where(F.col(side).isNotNull()).select(
            *(F.expr(value.replace("{row}", side)).alias(f"p{i}") for i, value in enumerate(values))
        )
        for side in (_OLD, _NEW)
    )
    partitions = next(sides).union(next(sides)).distinct()
    types = [f.dataType.simpleString() for f in partitions.schema.fields]
    encoded = (F.expr(_codec(t).encode.format(c=f"p{i}")).alias(f"p{i}") for i, t in enumerate(types))
    return partitions.select(*encoded).limit(thresholds.OVERWRITE_PARTITIONS + 1).collect(), types


def _condition(fields: Sequence[tuple[PartitionField, str]], partitions: Sequence[Row], types: Sequence[str]) -> str:
    """Return SQL of a condition over the table's columns: the row is in one of the partitions."""
    ordered = sorted(partitions, key=lambda r: [(v is None, "" if v is None else v) for v in r])
    listed: list[str] = []
    for first, group in groupby(ordered, key=lambda r: tuple(r)[:-1]):
        equal = [_in(fields[i], [v], types[i]) for i, v in enumerate(first)]
        listed.append(" AND ".join([*equal, _in(fields[-1], [r[-1] for r in group], types[-1])]))
    return " OR ".join(f"({one})" for one in listed)


def _in(field: tuple[PartitionField, str], values: Sequence[object], kind: str) -> str:
    declared, function = field
    literals = [_codec(kind).sql(v, kind) for v in values if v is not None]
    # A partition value is null if its column is null; the transforms themselves cannot test for it.
    tests = [f"{quote(declared.column)} IS NULL"] if None in values else []
    if literals:
        tests.append(f"{function.replace('{row}.', '')} IN ({', '.join(literals)})")
    return f"({' OR '.join(tests)})" if len(tests) > 1 else tests[0]


def _codec(kind: str) -> LiteralCodec:
    codec = codec_of(kind)
    assert codec is not None, f"no partition has values of type {kind}"
    return codec


def _value_of(lake: LakeBase, field: PartitionField) -> str:
    """Return SQL of the value of a partition field for a row; its column is prefixed with `{row}.`."""
    column = "{row}." + quote(field.column)
    if not field.transform:
        return column
    width = f"{field.width}, " if field.width is not None else ""
    return f"{quote(lake.config.name, 'system', field.transform)}({width}{column})"


def _is_partitioned_as(table: Table, declared: Sequence[PartitionField]) -> bool:
    """Whether all files of a table are partitioned by the declared fields. Reads the manifest list."""
    spec, schema = table.spec(), table.schema()
    actual = [(schema.find_column_name(f.source_id), str(f.transform)) for f in spec.fields]
    if actual != [(f.column, f.iceberg) for f in declared]:
        return False
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return all(m.partition_spec_id == spec.spec_id for m in manifests if m.content == ManifestContent.DATA)
