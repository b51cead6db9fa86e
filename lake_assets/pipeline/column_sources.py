"""Column lineage: the source columns of each column of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage
from sqlglot.optimizer.qualify import qualify

from lake_assets.errors import LakeError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.sql.model_plan import parse
from lake_assets.pipeline.table_graph import Spec


def column_sources(lake: LakeBase, spec: Spec) -> Mapping[str, list[tuple[TableId, str]]] | None:
    """Return, by column of a final table or model, the (table, column) pairs it depends on.

    Returns:
        None if unknown: the lineage is only informative, so that is not an error.
    """
    try:
        match spec:
            case FinalSpec():
                staged = [f.name for f in lake.table(spec.staging).schema().fields]
                columns = [f.name for f in lake.table(spec.table).schema().fields if f.name in staged]
                return {c: [(spec.staging, c)] for c in columns}
            case ModelSpec():
                schema = _schema(lake, spec)
                query = qualify(parse(str(spec.table), spec.sql), schema=schema, dialect=DIALECT)
                return {n: _leaves(lineage(n, query, schema, dialect=DIALECT)) for n in query.named_selects}
            case _:
                return None
    except (SqlglotError, LakeError, ValueError):
        return None


def copied_columns(lake: LakeBase, spec: ModelSpec) -> dict[str, tuple[TableId, str]]:
    """Return, by column of a SQL model whose values are those of one source column as they are, that column.

    Columns of unions, of aggregates and of other expressions are left out, as is a query that cannot be analyzed.
    """
    try:
        schema = _schema(lake, spec)
        query = qualify(parse(str(spec.table), spec.sql), schema=schema, dialect=DIALECT)
        copies = {n: _copied(lineage(n, query, schema, dialect=DIALECT)) for n in query.named_selects}
    except (SqlglotError, LakeError, ValueError):
        return {}
    return {name: source for name, source in copies.items() if source is not None}


def _copied(node: Node) -> tuple[TableId, str] | None:
    """Return the source column that a column copies; None if it computes something, or has several."""
    while node.downstream:
        if len(node.downstream) > 1 or not isinstance(node.expression.unalias(), exp.Column):
            return None
        node = node.downstream[0]
    sources = _leaves(node)
    return sources[0] if len(sources) == 1 else None


def _schema(lake: LakeBase, spec: ModelSpec) -> dict[str, Any]:
    nested: dict[str, dict[str, dict[str, str]]] = {}
    for source in spec.sources:
        columns = {f.name: "string" for f in lake.table(source).schema().fields}
        nested.setdefault(source.namespace[0], {})[source.name] = columns
    return nested


def _leaves(node: Node) -> list[tuple[TableId, str]]:
    leaves: dict[tuple[TableId, str], None] = {}
    for leaf in node.walk():
        if not leaf.downstream and isinstance(leaf.source, exp.Table) and leaf.source.db:
            table = TableId((leaf.source.db,), leaf.source.name)
            leaves[table, leaf.name.split(".")[-1].strip('`"')] = None
    return list(leaves)
