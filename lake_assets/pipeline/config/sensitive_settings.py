"""What is declared about sensitive columns, handed on to the tables of a pipeline: those of records, and all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lake_assets.ingest.raw_tables import OF_RECORDS
from lake_assets.pipeline.config.asset_settings import TableSettings
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.specs import Sensitive, Shown


def of_records(shown: Shown, declared: Iterable[TableSettings]) -> Shown:
    """Return the settings of a raw table: its records hold whatever columns of its tables are sensitive."""
    columns = OF_RECORDS if any(d.sensitive for d in declared) else ()
    return replace(shown, sensitive=Sensitive(columns))


def with_sensitive_tables(specs: Sequence[Spec]) -> list[Spec]:
    """Let each table know the others of its pipeline, if one of them declares sensitive columns."""
    if not any(s.shown.sensitive.columns for s in specs):
        return list(specs)
    among = {s.table: s for s in specs}
    return [replace(s, shown=replace(s.shown, sensitive=replace(s.shown.sensitive, among=among))) for s in specs]
