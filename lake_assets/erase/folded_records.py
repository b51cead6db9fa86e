"""The records whose events are not in staging any more, since later events have superseded them (`keep_events`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from pyspark.sql import functions as F

from lake_assets.erase.key_columns import KeySource
from lake_assets.erase.key_values import Key, frame
from lake_assets.final.folded_staging import folded_until
from lake_assets.formats.event_model import POSITION
from lake_assets.ingest.records.parsing import parse
from lake_assets.ingest.staging.due_records import about, spelled
from lake_assets.ingest.staging.staging_step import known_of
from lake_assets.lake import LakeBase, quote


def folded_records(lake: LakeBase, source: KeySource, keys: Sequence[Key]) -> tuple[set[int], set[int]]:
    """Return the positions of records of keys, and of other rows, whose events were folded; by reading them again.

    Raises:
        LakeError: they cannot be read.
    """
    staging = lake.table(source.staging.table)
    if (until := folded_until(staging)) is None:
        return set(), set()
    spark, spec = lake.spark(), spelled(source.staging, staging)
    stored = spark.table(lake.sql_name(spec.table)).select(F.col(POSITION).alias("position")).distinct()
    old = about(spark.table(lake.sql_name(spec.raw)), spec).where(
        f"arrived_at < TIMESTAMP '{until.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f+00:00}'"
    )
    rows = parse(old.join(stored, "position", "left_anti"), spec, *known_of(lake, spec, staging)).complete.rows
    if rows is None:
        return set(), set()
    own = {k: f"CAST({quote(spec.rename.get(k, k))} AS {source.types[k]})" for k in source.key}
    events = rows.selectExpr(POSITION, *(f"{sql} AS {quote(k)}" for k, sql in own.items()))
    own_events = events.join(frame(spark, keys, source.types), [*source.key], "left_semi")
    of_keys = {r[0] for r in own_events.select(POSITION).distinct().collect()}
    others = {r[0] for r in events.select(POSITION).distinct().collect()} - of_keys
    return of_keys, others
