"""Change a table that no step computes, such as that of rejected records, in place.

Several steps change it at once, each its own rows. So nothing is published through a branch: Iceberg lets commits pass
that touch other rows, and each change can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pyspark.sql import DataFrame

from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.tables.spark_frames import checkpoint, new_name, over
from lake_assets.tables.writing.publication import committing
from lake_assets.tables.writing.races import as_race


def merge_in_place(lake: LakeBase, table: TableId, rows: DataFrame, on: str, clauses: Sequence[str]) -> None:
    """MERGE rows, `s`, into a table, `t`.

    Raises:
        ConcurrentWriteError: another writer changed the same rows.
    """
    source = new_name()
    with as_race(table):
        sql = f"MERGE INTO {lake.sql_name(table)} t USING {source} s ON {on} {' '.join(clauses)}"
        over(lake.spark(), sql, {source: rows})


def delete_in_place(lake: LakeBase, table: TableId, where: str) -> None:
    """Delete the rows of a table that meet a condition.

    Raises:
        ConcurrentWriteError: another writer changed the same rows.
    """
    with as_race(table):
        lake.spark().sql(f"DELETE FROM {lake.sql_name(table)} WHERE {where}")


def update_in_place(lake: LakeBase, table: TableId, values: Mapping[str, str], where: str) -> None:
    """Give columns values, as SQL, in the rows of a table that meet a condition.

    Raises:
        ConcurrentWriteError: another writer changed the same rows.
    """
    assigned = ", ".join(f"{quote(column)} = {value}" for column, value in values.items())
    with as_race(table):
        lake.spark().sql(f"UPDATE {lake.sql_name(table)} SET {assigned} WHERE {where}")


def delete_matches(
    lake: LakeBase,
    table: TableId,
    rows: DataFrame,
    columns: Sequence[str],
    properties: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Delete the rows of a table that have the values of some distinct rows in some columns; null equals null.

    Args:
        properties: properties of the snapshot.

    Raises:
        ConcurrentWriteError: another writer changed the same rows.
    """
    on = " AND ".join(f"t.{quote(c)} <=> s.{quote(c)}" for c in columns)
    with committing(lake.spark(), table, properties):
        # Rows that are read from the table itself have to be computed first: Spark cannot plan a copy-on-write MERGE.
        merge_in_place(lake, table, checkpoint(rows), on, ["WHEN MATCHED THEN DELETE"])
