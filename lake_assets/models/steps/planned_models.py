"""The plans of models over the current schemas of their sources, and the columns that they read."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from pyiceberg.table import Table

from lake_assets.capture.rows.spark_types import spark_type
from lake_assets.errors import LakeError
from lake_assets.lake import LakeBase, TableId
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.operators.query_tree import Tree, scans
from lake_assets.models.sql.model_plan import ModelPlan, plan
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY, KEY_PROPERTY


def planned(spec: ModelSpec, tables: Mapping[TableId, Table]) -> ModelPlan:
    """Return the plan of a model for its current sources.

    Raises:
        ModelError: see `plan`.
    """
    spec.check()
    schemas = {t: {f.name: spark_type(f.field_type) for f in table.schema().fields} for t, table in tables.items()}
    column = spec.span.column if spec.span else ""
    return plan(str(spec.table), spec.sql, schemas, spec.key, lambda t: keys_of(tables[t]), column)


def keys_of(table: Table) -> Sequence[Sequence[str]]:
    """Return the columns that identify the rows of a table, if its pipeline guarantees it."""
    properties = table.properties
    key = json.loads(properties.get(KEY_PROPERTY, "[]"))
    final = json.loads(properties.get("lake-assets.final", "{}"))
    # SCD2 and append tables hold several rows per key.
    is_unique = FINGERPRINT_PROPERTY in properties or final.get("mode") == "scd1"
    names = {f.name for f in table.schema().fields}
    return [key] if key and is_unique and set(key) <= names else []


def needed_columns(tree: Tree) -> dict[TableId, set[str]]:
    """Return the columns of each table that a compiled query reads."""
    columns: dict[TableId, set[str]] = {}
    for scan in scans(tree.root):
        columns.setdefault(scan.table, set()).update(scan.fields.values())
    return columns


def columns_read(lake: LakeBase, models: Collection[ModelSpec], table: TableId) -> dict[TableId, frozenset[str]]:
    """Return the columns that each model reads from a table, for the models that are maintained from its changes.

    A model that cannot be planned now is left out: its own step says why.
    """
    columns: dict[TableId, frozenset[str]] = {}
    for model in models:
        if table not in model.sources:
            continue
        loaded = {s: source for s in model.sources if (source := lake.find(s)) is not None}
        if len(loaded) < len(set(model.sources)):
            continue
        try:
            tree = planned(model, loaded).tree
        except LakeError:
            continue
        if tree is not None:
            columns[model.table] = frozenset(needed_columns(tree)[table])
    return columns
