"""Rows of staging as events of a final table: columns selected, renamed, cast and computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import PipelineError
from lake_assets.final.column_selection import Item, select
from lake_assets.final.declared_order import columns_of_order, sequence_of
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.row_hash import COPY, FIRST_COPY, ROW, hash_of_row
from lake_assets.formats import event_format
from lake_assets.formats.event_model import ARRIVED_AT, EVENT_TIME, INDEX, OP, POSITION, SEQUENCE, UNAVAILABLE
from lake_assets.ingest.staging.staging_columns import projection
from lake_assets.lake import LakeBase, quote
from lake_assets.lake.foreign_errors import first_line
from lake_assets.tables.writing.table_ddl import columns_of

TECHNICAL = (OP, SEQUENCE, POSITION, INDEX, UNAVAILABLE, EVENT_TIME, ARRIVED_AT)
# Whether an event omits some source columns of a computed column: then its old value is outdated, and its new value
# cannot be computed from the event.
PARTIAL = "_partial"


def source_name(name: str) -> str:
    """Return the name of a source column among the table's columns."""
    return f"_of_{name}"


def _names(of: tuple[str, ...]) -> Column:
    return F.array(*map(F.lit, of)).cast("array<string>")


def _or_null(names: Column) -> Column:
    return F.when(F.size(names) > 0, names)


class Projection:
    """The columns of a final table as expressions over staging.

    Attributes:
        source: type and SQL over rows of staging, by source column.
        items: the table's columns, without the columns that soft deletes and SCD2 add.
    """

    def __init__(self, lake: LakeBase, spec: FinalSpec) -> None:
        self._lake, self._spec = lake, spec
        self.source = projection(lake, spec.staging, spec.rename)
        self.items = select(str(spec.table), spec.columns, list(self.source))
        if spec.by_row:
            self.items[ROW] = hash_of_row(list(self.source))
            self.items[COPY] = FIRST_COPY

    def _technical(self) -> dict[str, Column]:
        """Return the technical columns of events, over rows of staging."""
        return {c: F.col(c) for c in TECHNICAL} | {SEQUENCE: F.expr(self._sequence)}

    @property
    def _sequence(self) -> str:
        """SQL of the position in the order of changes."""
        if self._spec.order_by:
            return sequence_of([(self.source[c][1], self.source[c][0]) for c in columns_of_order(self._spec.order_by)])
        return event_format(self._spec.format).stored

    def types(self) -> dict[str, str]:
        """Return the Spark SQL types of the table's columns, without the columns that it adds itself.

        Raises:
            PipelineError: Spark does not accept a declared column.
        """
        if self.is_as_source:
            return {name: kind for name, (kind, _) in self.source.items()}
        rows = self._lake.spark().table(self._lake.sql_name(self._spec.staging))
        try:
            schema = self._selected(rows, {}).schema
        except AnalysisException as e:
            raise PipelineError(f"{self._spec.table}: `columns`: {first_line(e)}") from e
        return {f.name: f.dataType.simpleString() for f in schema.fields}

    @property
    def is_as_source(self) -> bool:
        """Whether the table has exactly the columns of staging."""
        return not self._spec.columns and not self._spec.by_row

    @property
    def is_computed_late(self) -> bool:
        """Whether some column is computed from several: an event may omit some of them."""
        return any(len(i.sources) > 1 for i in self.items.values() if i.name != ROW)

    def events(self, rows: DataFrame) -> DataFrame:
        """Return rows of staging as events of the table: its columns, and the technical columns."""
        if self.is_as_source:
            every = [f"{sql} AS {quote(name)}" for name, (_, sql) in self.source.items()]
            if not self._spec.rename:
                technical = (f"{self._sequence} AS {c}" if c == SEQUENCE else c for c in TECHNICAL)
                return rows.selectExpr(*every, *technical, f"false AS {PARTIAL}")
            technical = self._technical() | {UNAVAILABLE: self._omitted()}
            more = (c.alias(n) for n, c in technical.items())
            return rows.select(*map(F.expr, every), *more, F.lit(False).alias(PARTIAL))
        omitted = self._omitted()
        omitted_items = F.array(
            *(F.when(F.arrays_overlap(omitted, _names(i.sources)), F.lit(i.name)) for i in self._from_source())
        )
        partial = F.lit(False)
        for item in self._from_source():
            if len(item.sources) > 1:
                these = _names(item.sources)
                partial = partial | (F.arrays_overlap(omitted, these) & (F.size(F.array_except(these, omitted)) > 0))
        technical = self._technical() | {
            UNAVAILABLE: F.when(omitted.isNotNull(), _or_null(F.array_compact(omitted_items))),
            PARTIAL: F.coalesce(partial, F.lit(False)),
        }
        return self._selected(rows, technical)

    def _omitted(self) -> Column:
        """Return the columns that an event omits, by their current names (staging has the names of its time).

        Staging may have columns for both names, if it existed before the rename was declared: each event then omits
        one of them. An event has the value if it has one of the two; a null cannot be distinguished from an omitted
        value.
        """
        names, rename = F.col(UNAVAILABLE), self._spec.rename
        if not rename:
            return names
        existing = columns_of(self._lake, self._spec.staging)
        # One condition per name: nested list expressions would triple in size with each rename.
        missing = {name: F.array_contains(names, name) for pair in rename.items() for name in pair}
        for old, new in rename.items():
            old_missing, new_missing = missing[old], missing[new]
            either = old_missing | new_missing
            if old in existing and new in existing:
                both_null = F.col(quote(old)).isNull() & F.col(quote(new)).isNull()
                missing[new] = either & ((old_missing & new_missing) | both_null)
            else:
                missing[new] = either
            missing[old] = F.lit(False)
        others = F.array_except(names, F.array(*map(F.lit, missing)))
        return _or_null(
            F.array_union(others, F.array_compact(F.array(*(F.when(m, F.lit(n)) for n, m in missing.items()))))
        )

    def _from_source(self) -> list[Item]:
        return [i for i in self.items.values() if i.sources]

    def _selected(self, rows: DataFrame, more: Mapping[str, Column]) -> DataFrame:
        own = (F.expr(sql).alias(source_name(name)) for name, (_, sql) in self.source.items())
        values = (F.expr(item.sql(source_name)).alias(name) for name, item in self.items.items())
        return rows.select(*own, *(c.alias(name) for name, c in more.items())).select(*values, *more)

    def source_events(self, rows: DataFrame, key: Sequence[str], source_key: Sequence[str]) -> DataFrame:
        """Return rows of staging as events of the source: the key by its names in the table, and all used columns."""
        names = dict.fromkeys(s for i in self.items.values() for s in i.sources)
        keys = zip(key, source_key, strict=True)
        omitted = F.array_intersect(self._omitted(), _names(tuple(names)))
        technical = self._technical()
        technical[UNAVAILABLE] = F.transform(_or_null(omitted), lambda c: F.concat(F.lit(source_name("")), c))
        return rows.select(
            *(F.expr(self.source[source][1]).alias(name) for name, source in keys),
            *(F.expr(self.source[name][1]).alias(source_name(name)) for name in names),
            *(column.alias(name) for name, column in technical.items()),
            F.lit(False).alias(PARTIAL),
        )
