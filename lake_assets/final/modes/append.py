"""Append tables: one row per insert."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import UnsupportedEventError
from lake_assets.final.batch import Batch
from lake_assets.final.events.staging_events import history_of
from lake_assets.final.key_proposal import proposed_key
from lake_assets.formats.event_model import INSERT, OP, READ
from lake_assets.lake import quote

_IDENTITY = "_identity"


def apply(batch: Batch) -> tuple[str, str]:
    """Append the window's inserts; return strategy and reason; see `rows_of` for errors."""
    rows = rows_of(batch)
    if batch.target.is_new:
        return "rebuild", batch.replace(rows)
    batch.writer.append(rows)
    return "append", "every insert is a row" if batch.target.key else "no key: every insert is a row"


def rows_of(batch: Batch) -> DataFrame:
    """Return the rows that the window adds: all rows of the table for a window over all of staging.

    Raises:
        UnsupportedEventError: the window has updates or deletes, and the table is not declared to ignore them.
    """
    target, spec, others = batch.target, batch.target.spec, batch.stats.others
    if others and spec.on_change == "stop":
        if target.key:
            raise UnsupportedEventError(
                f"{spec.table}: {others} new events of {spec.staging} are not inserts, and the table is declared to "
                "contain inserts only (`mode: append`). Declare `on_change: ignore` to leave such events out, or "
                "another mode"
            )
        raise UnsupportedEventError(
            f"{spec.table}: {spec.staging} has no key, and {others} of its new events are not inserts: it is unknown "
            f"which rows they change. {proposed_key(target)}. To leave such events out, declare "
            "`on_change: ignore`"
        )
    events = batch.events.where(F.col(OP).isin(INSERT, READ))
    if others:
        batch.details["ignored"] = others
    if target.key:
        # A repeated insert is recognized by its position in the source and its key.
        numbered, identifying = F.expr(target.ordering.numbered), [_IDENTITY, *target.key]
        identity = F.expr(target.ordering.identity).alias(_IDENTITY)
        events = events.select("*", identity)
        if batch.stats.late and batch.before:
            before = history_of(target, batch.before.snapshot).where(F.col(OP).isin(INSERT, READ) & numbered)
            existing = before.select(identity, *(F.col(quote(c)) for c in target.key))
            events = events.join(existing, identifying, "left_anti")
        once = events.where(numbered).dropDuplicates(identifying)
        events = once.unionByName(events.where(~numbered))
    types = batch.types
    return events.select(*(F.col(quote(c)).cast(types[c]).alias(c) for c in target.columns))
