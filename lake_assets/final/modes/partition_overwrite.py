"""Rewriting the partitions that a change touches (`write: overwrite-partitions`), instead of MERGE.

Touched are the partitions of the rows that come and of the rows that stand under the same keys now: a row whose
partition value moves leaves its old partition. They are rewritten in one commit, an overwrite by a filter: a dynamic
overwrite replaces the partitions that it writes rows to, and would leave the last row of one that is emptied. Why on a
branch: docs/decisions/0012-overwriting-partitions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from lake_assets.final.added_columns import DELETED
from lake_assets.final.events.reduction import KEEP, KNOWN
from lake_assets.final.events.window_stats import Batch
from lake_assets.final.modes.row_copies import REMOVE
from lake_assets.final.stored_rows import stored_rows
from lake_assets.final.target import Target
from lake_assets.formats.event_model import DELETE, OP
from lake_assets.lake import quote
from lake_assets.tables.commits import committing, on_branch, say_counts
from lake_assets.tables.literal_codec import Carried, carried
from lake_assets.tables.partitioning.partition_fields import PartitionField
from lake_assets.tables.spark_frames import held

# Beyond so many, a filter that lists them takes Spark longer to plan than a MERGE takes.
MAX_PARTITIONS = 1_000
_OLD, _NEW = "_old", "_new"


class _TooManyError(Exception):
    """More partitions are touched than a filter can list."""


def overwrite(target: Target, rows: DataFrame, batch: Batch, *, emptied: bool) -> tuple[bool, str]:
    """Put the changed rows into their partitions.

    Args:
        target: the table.
        rows: one a key, as `reduction.latest` gives them.
        batch: the window.
        emptied: whether all rows of the table that are not in `rows` go.

    Returns:
        Whether it was done; what was done, or why it was not.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    lake, spec = target.lake, target.spec
    if not _is_partitioned_as(lake.table(spec.table), spec.partition_by):
        return False, "there are files with other partitions than the declared ones"
    try:
        with on_branch(lake, spec.table, batch.marks, batch.base, target.gate.blocking) as branch:
            count = _overwrite(target, rows, branch, emptied=emptied)
    except _TooManyError:
        return False, f"more than {MAX_PARTITIONS} partitions are touched"
    return True, f"{count} partitions rewritten" if count else "no row differs"


def _overwrite(target: Target, rows: DataFrame, branch: str, *, emptied: bool) -> int:
    """Returns how many partitions were rewritten."""
    spark, table = target.lake.spark(), target.spec.table
    differing = held(_differing(target, rows, branch, emptied=emptied))
    fields = [(f, _value_of(target, f)) for f in target.spec.partition_by]
    touched, types = _touched(differing, [value for _, value in fields])
    if not touched:
        spark.table(branch).limit(0).writeTo(branch).append()
        return 0
    # What is emptied may be rewritten as a whole.
    if len(touched) > MAX_PARTITIONS and not emptied:
        raise _TooManyError
    where = _condition(fields, touched, types) if len(touched) <= MAX_PARTITIONS else "true"
    names = list(target.types)
    carried = spark.table(branch).where(where).join(differing, list(target.key), "left_anti")
    come = differing.where(F.col(_NEW).isNotNull()).select(*(F.col(f"{_NEW}.{quote(c)}").alias(c) for c in names))
    content = carried.select(*(F.col(quote(c)) for c in names)).unionByName(come)
    was, will = F.col(_OLD).isNotNull(), F.col(_NEW).isNotNull()
    kinds = differing.agg(F.count_if(~was), F.count_if(was & will), F.count_if(~will)).collect()[0]
    # The summary counts all rows of the partitions, whether they differ or not.
    with committing(spark, table, None, say_counts(*kinds)):
        content.writeTo(branch).overwrite(F.expr(where))
    return len(touched)


def _differing(target: Target, rows: DataFrame, branch: str, *, emptied: bool) -> DataFrame:
    """The key, `_old` and `_new` row of each key whose row changes; null: there is none."""
    types, key, names, soft = target.types, list(target.key), target.columns, DELETED in target.own
    keys = [F.col(quote(k)) for k in key]
    new = rows.select(
        *(F.col(quote(k)).cast(types[k]).alias(k) for k in key),
        F.struct(
            *(F.col(quote(c)).cast(types[c]).alias(c) for c in names), F.col(OP), F.col(KEEP), F.col(KNOWN)
        ).alias("s"),
    )  # fmt: skip
    stored = stored_rows(target, None if emptied else held(new.select(*keys)), branch)
    old = stored.select(*keys, F.struct(*(F.col(quote(c)) for c in types)).alias(_OLD))
    both = new.join(old, key, "full_outer" if emptied else "left")
    there, deleted = F.col(_OLD).isNotNull(), F.col("s").isNull() | (F.col(f"s.{OP}") == DELETE)
    values = {
        c: F.when(
            F.col("s").isNull()
            | (there & F.coalesce(F.array_contains(f"s.{KEEP}", F.lit(c)), F.lit(False)) & F.lit(c not in key)),
            F.col(f"{_OLD}.{quote(c)}"),
        ).otherwise(F.col(f"s.{quote(c)}"))
        for c in names
    }
    if soft:
        values[DELETED] = deleted
    # A row that was made and deleted within the window was there all the same.
    exists = (there | F.col(f"s.{KNOWN}")) if soft else ~deleted
    exists = exists & ~F.col(f"s.{OP}").eqNullSafe(F.lit(REMOVE))
    after = F.when(exists, F.struct(*(value.cast(types[c]).alias(c) for c, value in values.items())))
    return both.select(*keys, _OLD, after.alias(_NEW)).where(~F.col(_OLD).eqNullSafe(F.col(_NEW)))


def _touched(differing: DataFrame, values: Sequence[str]) -> tuple[list[Row], list[str]]:
    """The partitions of the rows that go and of those that come, and the types of their values; one more than a filter
    may list is enough."""
    sides = (
        differing.where(F.col(side).isNotNull()).select(
            *(F.expr(value.replace("{row}", side)).alias(f"p{i}") for i, value in enumerate(values))
        )
        for side in (_OLD, _NEW)
    )
    found = next(sides).union(next(sides)).distinct()
    types = [f.dataType.simpleString() for f in found.schema.fields]
    left = (F.expr(_how(t).leaves.format(c=f"p{i}")).alias(f"p{i}") for i, t in enumerate(types))
    return found.select(*left).limit(MAX_PARTITIONS + 1).collect(), types


def _condition(fields: Sequence[tuple[PartitionField, str]], touched: Sequence[Row], types: Sequence[str]) -> str:
    """SQL of a boolean over the table's columns: a row is in one of the partitions."""
    ordered = sorted(touched, key=lambda r: [(v is None, "" if v is None else v) for v in r])
    listed: list[str] = []
    for first, group in groupby(ordered, key=lambda r: tuple(r)[:-1]):
        equal = [_in(fields[i], [v], types[i]) for i, v in enumerate(first)]
        listed.append(" AND ".join([*equal, _in(fields[-1], [r[-1] for r in group], types[-1])]))
    return " OR ".join(f"({one})" for one in listed)


def _in(field: tuple[PartitionField, str], values: Sequence[object], kind: str) -> str:
    declared, function = field
    said = [_how(kind).sql(v, kind) for v in values if v is not None]
    # A partition's value is null where its column is: transforms themselves cannot be asked for that.
    tests = [f"{quote(declared.column)} IS NULL"] if None in values else []
    if said:
        tests.append(f"{function.replace('{row}.', '')} IN ({', '.join(said)})")
    return f"({' OR '.join(tests)})" if len(tests) > 1 else tests[0]


def _how(kind: str) -> Carried:
    found = carried(kind)
    assert found is not None, f"no partition has values of type {kind}"
    return found


def _value_of(target: Target, field: PartitionField) -> str:
    """SQL of the value that a partition field has for a row; `{row}.` stands before its column."""
    column = "{row}." + quote(field.column)
    if not field.transform:
        return column
    width = f"{field.width}, " if field.width is not None else ""
    return f"{quote(target.lake.config.name, 'system', field.transform)}({width}{column})"


def _is_partitioned_as(table: Table, declared: Sequence[PartitionField]) -> bool:
    """Whether all files of a table are in partitions of the declared fields. Reads the list of manifests."""
    spec, schema = table.spec(), table.schema()
    said = [(schema.find_column_name(f.source_id), str(f.transform)) for f in spec.fields]
    if said != [(f.column, f.iceberg) for f in declared]:
        return False
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return all(m.partition_spec_id == spec.spec_id for m in manifests if m.content == ManifestContent.DATA)
