"""What is wrong with a pipeline over a lake, all of it at once, before anything runs."""

from __future__ import annotations

from pyiceberg.table import Table

from lake_assets.capture.types import spark_type
from lake_assets.errors import ModelError, PipelineError
from lake_assets.lake import LakeBase, TableId
from lake_assets.models.errors_at import located
from lake_assets.models.plan import plan
from lake_assets.models.spec import ModelSpec
from lake_assets.pipeline.pipeline import Pipeline


def mistakes(pipeline: Pipeline, lake: LakeBase) -> list[str]:
    """Every mistake of a pipeline's models that can be told from metadata: tables and columns that are not there,
    ambiguous ones, keys that are none. Each with file and line, where the pipeline was read from a file.

    Columns of tables that are not made yet are not checked, but for those of models, which their queries tell.
    """
    try:
        specs = pipeline.specs(lake)
    except PipelineError as e:
        return str(e).splitlines()
    made: dict[TableId, dict[str, str]] = {}
    found: list[str] = []
    for spec in specs:
        if not isinstance(spec, ModelSpec):
            continue
        schemas: dict[TableId, dict[str, str]] = {}
        for source in spec.sources:
            table = lake.find(source)
            known = made.get(source) or (_columns(table) if table else None)
            if known:
                schemas[source] = known
        if len(schemas) < len(spec.sources):
            continue
        try:
            query = plan(str(spec.table), spec.sql, schemas, spec.key).query
        except ModelError as e:
            found += str(located(e, spec.origin)).splitlines()
        else:
            made[spec.table] = dict.fromkeys((s.alias_or_name for s in query.selects), "string")
    return found


def _columns(table: Table) -> dict[str, str]:
    return {f.name: spark_type(f.field_type) for f in table.schema().fields}
