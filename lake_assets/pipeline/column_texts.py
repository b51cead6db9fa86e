"""Descriptions of columns: declared ones, and those of the columns that a column copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lake_assets.final.final_spec import FinalSpec
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.column_spelling import spelled
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline.column_sources import copied_columns
from lake_assets.pipeline.config.external_tables import ExternalTable
from lake_assets.pipeline.table_graph import Spec


def column_texts(
    lake: LakeBase, table: TableId, declared: Mapping[TableId, Spec], external: Sequence[ExternalTable] = ()
) -> dict[str, str]:
    """Return the descriptions of a table's columns, as far as there are any.

    A column has the declared description, else the one in Iceberg's schema, else that of the column whose values it has
    as they are: a column of a SQL model that only selects another, or of a final table.

    Empty if the pipeline describes no column.

    Args:
        lake: the lake.
        table: the table.
        declared: the tables of the pipeline by name.
        external: its external tables.
    """
    texts = {TableId.parse(e.table): e.column_descriptions for e in external}
    if not any(s.shown.column_descriptions for s in declared.values()) and not any(texts.values()):
        return {}  # without analyzing any SQL
    return _texts(lake, table, declared, texts, {})


def _texts(
    lake: LakeBase,
    table: TableId,
    declared: Mapping[TableId, Spec],
    external: Mapping[TableId, Mapping[str, str]],
    known: dict[TableId, dict[str, str]],
) -> dict[str, str]:
    if table in known:
        return known[table]
    known[table] = {}  # a pipeline has no circles, and a wrong one must not run forever
    loaded, spec = lake.find(table), declared.get(table)
    texts: dict[str, str] = {}
    if isinstance(spec, ModelSpec) and not spec.refused:
        for column, (source, copied) in copied_columns(lake, spec).items():
            if text := _texts(lake, source, declared, external, known).get(copied):
                texts[column] = text
    elif isinstance(spec, FinalSpec):
        texts |= _texts(lake, spec.staging, declared, external, known)
    if loaded is not None:
        texts |= {f.name: f.doc for f in loaded.schema().fields if f.doc}
    names = [f.name for f in loaded.schema().fields] if loaded is not None else []
    own = spec.shown.column_descriptions if spec else external.get(table, {})
    texts |= {spelled(name, names): text for name, text in own.items()}
    known[table] = texts
    return texts
