"""Context of a model's step: its plan, the sources at both ends of the window, and the table before the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from sqlglot import exp

from lake_assets.errors import ModelError
from lake_assets.lake import TableId
from lake_assets.lake.cached_values import cached_value
from lake_assets.lake.foreign_errors import first_line, first_line_and_place
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.operators.kept_frames import Frames, types_of
from lake_assets.models.operators.operator_rows import Rows
from lake_assets.models.operators.operator_types import certain_type
from lake_assets.models.operators.query_tree import Node, Tree, column
from lake_assets.models.sql.model_plan import ModelPlan
from lake_assets.models.sql.query_text import as_named, replace_tables, text_over
from lake_assets.models.sql.sql_rewrite import is_text, qualify_as_where
from lake_assets.models.steps.cost_estimate import Estimate, cost_property
from lake_assets.models.steps.model_sources import Sources
from lake_assets.models.steps.model_step import StepResult
from lake_assets.tables.spark_frames import over
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_ddl import columns_of
from lake_assets.tables.writing.table_writer import TableWriter


class NotAcceptedError(ModelError):
    """Spark does not accept some SQL."""


@dataclass(frozen=True)
class ModelContext:
    """One run of a model over fixed snapshots.

    Attributes:
        began: start of the step, in seconds since 1970.
    """

    commit: Commit
    spec: ModelSpec
    plan: ModelPlan
    sources: Sources
    frames: Frames
    began: float
    expected: Estimate

    def __post_init__(self) -> None:
        self.frames.sql = self.sql

    @cached_value
    def rows(self) -> Rows:
        """The rows of operators as SQL."""
        return Rows(self.sources.of)

    @cached_value
    def query(self) -> DataFrame:
        """The result over the current sources."""
        everything = replace(self.sources, captures={}, needed={}, model=None)

        def view(table: TableId) -> str:
            return everything.view(table, "end")

        parsed = self.plan.parsed
        in_own_words: NotAcceptedError | None = None
        if self.plan.as_written or is_text(parsed):
            try:
                rows = self.sql(text_over(parsed, self.spec.sql, view), is_text=True)
            except NotAcceptedError as e:
                # sqlglot accepts more than Spark.
                if self.plan.as_written:
                    raise
                in_own_words = e
            else:
                outputs = [s.alias_or_name for s in self.plan.query.selects]
                return rows if self.plan.as_written else as_named(rows, outputs)
        try:
            return self.sql(qualify_as_where(replace_tables(self.plan.query, view)).sql(DIALECT))
        except NotAcceptedError as e:
            raise in_own_words or e from e

    def nothing(self, why: str) -> StepResult:
        """Move only the watermarks."""
        self.writer("none").nothing()
        return StepResult("none", why)

    def columns_differ(self) -> bool:
        """Whether the query's columns no longer match the table's (a source's type or name changed)."""
        return types_of(self.query) != self.types

    @cached_value
    def types(self) -> dict[str, str]:
        """The table's columns."""
        return columns_of(self.commit.lake, self.spec.table)

    def writer(self, strategy: str, *, few: bool = False, compared: bool = False) -> TableWriter:
        """Return the writer of the table.

        Args:
            few: whether the table is small, and few rows are written.
            compared: whether all rows are compared with the stored ones.
        """
        properties = cost_property(strategy, self.expected, self.began, compared=compared)
        types = {} if self.commit.base is None else self.types
        return TableWriter(replace(self.commit, properties={**self.commit.properties, **properties}), types, few=few)

    def inner(self, tree: Tree, output: str) -> exp.Column:
        """Return the operators' column behind an output column, with its type in the table."""
        inner = column(tree.outputs[output])
        inner.type = self.typed(output).type
        return inner

    def typed(self, output: str) -> exp.Column:
        """Return an output column with its type in the table."""
        typed = column(output)
        typed.type = exp.DataType.build(self.types[output], dialect=DIALECT)
        return typed

    def type_of(self, e: exp.Expr, node: Node) -> str:
        """Return Spark's type of an expression over the rows of an operator."""
        if known := certain_type(node, e):
            return known
        sql = f"SELECT {e.sql(DIALECT)} AS v FROM ({self.rows.sql(node, 'end')})"
        return self.sql(sql).schema.fields[0].dataType.simpleString()

    def sql(self, sql: str, frames: Mapping[str, DataFrame] | None = None, *, is_text: bool = False) -> DataFrame:
        """Return the rows of a SQL text; raises NotAcceptedError if Spark does not accept it.

        Args:
            is_text: whether it has the lines of the model's own text.
        """
        try:
            # Analyzed eagerly, over Spark Connect too, so that SQL that Spark does not accept fails here.
            return over(self.frames.spark, sql, frames or {})
        except PySparkException as e:
            name, (text, line) = str(self.spec.table), first_line_and_place(e) if is_text else (first_line(e), None)
            text = f"Spark does not accept its SQL: {text}"
            raise NotAcceptedError(f"model {name}: {text}", model=name, problems=((line, text),)) from e
