"""An IO manager that gives lake tables to assets of users, as what their annotation names; it writes nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import dagster as dg
import pyarrow as pa
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    IsNull,
    LessThan,
    NotIn,
    Or,
)
from pyiceberg.table import Table
from pyiceberg.types import DateType, IcebergType, TimestamptzNanoType, TimestamptzType

from lake_assets.errors import ConfigError
from lake_assets.facade import Lake
from lake_assets.lake import LakeConfig, TableId
from lake_assets.tables.partitioning.partition_keys import NULL, OTHER, text_of_key

# Dagster's name for the column of an asset's partitions, in the metadata of the asset.
PARTITION_EXPR = "partition_expr"
_INSTALL = "install it, or annotate the parameter with pyarrow.Table"


class LakeIOManager(dg.ConfigurableIOManager):
    """Loads the table of an asset, or the chosen partitions of it, for the step of a downstream asset.

    The annotation of the parameter says as what: `pyarrow.Table`, `pandas.DataFrame`, `polars.DataFrame`,
    `polars.LazyFrame` or `duckdb.DuckDBPyRelation`; without one, as `pyarrow.Table`. The rows are read by this process.
    Nothing is written: a lake table has the rows that its pipeline computes.
    """

    def load_input(self, context: dg.InputContext) -> Any:
        """Return the rows of the upstream table.

        Raises:
            ConfigError: the annotation names something else, or its package is missing.
            TableNotFoundError: the table is not in the lake.
        """
        kind = _name_of(context.dagster_type.typing_type)
        if kind not in _FORMS:
            forms = ", ".join(sorted(name for name in _FORMS if name))
            raise ConfigError(
                f"parameter {context.name}: lake tables are given as {forms}, not as {kind}; for Spark, use the "
                "resource `pyspark` (docs/dagster.md)"
            )
        lake = Lake(LakeConfig.load())
        try:
            table = lake.table(TableId(tuple(context.asset_key.path[:-1]), context.asset_key.path[-1]))
            return _FORMS[kind](table.scan(row_filter=_chosen(context, table)).to_arrow())
        finally:
            if "catalog" in vars(lake):
                lake.catalog.close()

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Refuse to write.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{context.asset_key.to_user_string()}: the IO manager of the lake reads tables and writes none: declare a "
            "model or a job of a pipeline, or give this asset another IO manager"
        )


def _name_of(annotation: Any) -> str:
    """Return `package.Class` of an annotation; empty without one, or if anything may come."""
    is_class = isinstance(annotation, type) and annotation is not Any
    return f"{annotation.__module__.partition('.')[0].lstrip('_')}.{annotation.__name__}" if is_class else ""


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"the package {name} is missing: {_INSTALL}") from error


_FORMS: dict[str, Callable[[pa.Table], Any]] = {
    "": lambda rows: rows,
    "pyarrow.Table": lambda rows: rows,
    "pandas.DataFrame": lambda rows: rows.to_pandas(),
    "polars.DataFrame": lambda rows: _package("polars").from_arrow(rows),
    "polars.LazyFrame": lambda rows: _package("polars").from_arrow(rows).lazy(),
    "duckdb.DuckDBPyRelation": lambda rows: _package("duckdb").from_arrow(rows),
}


# --- partitions -----------------------------------------------------------------------------------------------------


def _chosen(context: dg.InputContext, table: Table) -> BooleanExpression:
    """Return the condition of the rows in the partitions that Dagster maps to the step's own."""
    if not context.has_asset_partitions:
        return AlwaysTrue()
    upstream = context.upstream_output
    column = (upstream.definition_metadata or {}).get(PARTITION_EXPR) if upstream else None
    if column is None:
        name = context.asset_key.to_user_string()
        raise ConfigError(f"{name} has partitions, and its metadata has no {PARTITION_EXPR}: name their column there")
    partitions, kind = context.asset_partitions_def, table.schema().find_type(str(column))
    keys = list(context.asset_partition_keys)
    if isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        windows = (partitions.time_window_for_partition_key(key) for key in keys)
        return _any(_within(str(column), kind, w.start, w.end) for w in windows)
    listed = partitions.get_partition_keys(dynamic_partitions_store=context.instance)
    return _any(_equal(str(column), key, listed) for key in keys)


def _any(parts: Iterable[BooleanExpression]) -> BooleanExpression:
    return reduce(Or, parts, AlwaysFalse())


def _within(column: str, kind: IcebergType, start: datetime, end: datetime) -> BooleanExpression:
    if isinstance(kind, DateType):
        low, high = start.date().isoformat(), end.date().isoformat()
    elif isinstance(kind, TimestamptzType | TimestamptzNanoType):
        low, high = (at.astimezone(UTC).isoformat() for at in (start, end))
    else:
        low, high = (at.replace(tzinfo=None).isoformat() for at in (start, end))
    from_low = GreaterThanOrEqual(column, low)  # pyright: ignore[reportCallIssue]
    return And(from_low, LessThan(column, high))  # pyright: ignore[reportCallIssue]


def _equal(column: str, key: str, listed: Iterable[str]) -> BooleanExpression:
    if key == NULL:
        return IsNull(column)  # pyright: ignore[reportCallIssue]
    if key == OTHER:
        values = [text_of_key(k) for k in listed if k != OTHER]
        return Or(IsNull(column), NotIn(column, values))  # pyright: ignore[reportCallIssue]
    return EqualTo(column, text_of_key(key))  # pyright: ignore[reportCallIssue]
