"""One run of a model over fixed snapshots: what each strategy computes and writes."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from sqlglot import exp

from lake_assets.errors import KeyMissingError, ModelError
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.cached_values import cached_value
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, Watermarks
from lake_assets.lake.names import literal
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.model_spec import ModelSpec, declared
from lake_assets.models.operators.maintenance import is_linear, passed_on
from lake_assets.models.operators.operator_deltas import Deltas, is_simple, keys_of
from lake_assets.models.operators.operator_rows import KeyFilter, Rows
from lake_assets.models.operators.operator_types import in_one_type, known, mixed
from lake_assets.models.operators.query_tree import (
    Aggregate,
    Distinct,
    Filter,
    Node,
    Project,
    SetOp,
    Tree,
    column,
    scans,
)
from lake_assets.models.operators.row_identity import Identity, identity
from lake_assets.models.operators.stability import Doubt
from lake_assets.models.sql.model_plan import ModelPlan, parse
from lake_assets.models.sql.query_text import as_named, replace_tables, text_over
from lake_assets.models.sql.sql_rewrite import is_text, qualify_as_where
from lake_assets.models.steps.cost_estimate import Estimate, cost_property
from lake_assets.models.steps.kept_frames import Frame, Frames
from lake_assets.models.steps.model_sources import Sources
from lake_assets.models.steps.model_writer import Writer
from lake_assets.models.steps.recomputed_ranges import touched_ranges
from lake_assets.models.steps.renewal import Renewal
from lake_assets.models.steps.retract import FOUND, RECOMPUTE, Retraction, retraction
from lake_assets.models.steps.snapshot_pins import MODEL_PROPERTY
from lake_assets.tables.audit_gate import Gate
from lake_assets.tables.commits import committing
from lake_assets.tables.row_differences import incomparable, write_differences
from lake_assets.tables.spark_frames import new_name, over
from lake_assets.tables.spark_tuning import SMALL_ROWS, planned_once, size_of
from lake_assets.tables.table_ddl import DEFAULT_PROPERTIES, KEY_PROPERTY, columns_of, set_properties

log = logging.getLogger(__name__)
FINGERPRINT_PROPERTY = MODEL_PROPERTY


class NotAcceptedError(ModelError):
    """Spark does not take some SQL."""


def said(error: Exception) -> str:
    """The first line of what Spark says."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


@dataclass
class Step:
    """One run of a model.

    Attributes:
        marks: the watermarks that the commit carries.
        base: those before.
        began: seconds since 1970.
        strategy: how it was absorbed in the end, where that turned out only on the way.
    """

    lake: LakeBase
    spec: ModelSpec
    model: ModelPlan
    sources: Sources
    frames: Frames
    marks: Watermarks
    base: Watermarks
    began: float
    expected: Estimate
    definition: str
    gate: Gate
    strategy: str | None = None
    _rows: Rows = field(init=False)

    def __post_init__(self) -> None:
        self._rows = Rows(self.sources.of)
        self.frames.sql = self._sql

    # --- in full ------------------------------------------------------------------------------------------------

    @cached_value
    def query(self) -> DataFrame:
        """The result over the sources as they are now."""
        sources = self.sources
        everything = Sources(self.lake, sources.tables, sources.windows, {}, self.frames)

        def view(table: TableId) -> str:
            return everything.view(table, "end")

        written = parse(str(self.spec.table), self.spec.sql)
        if self.model.as_written or is_text(written):
            try:
                rows = self._sql(text_over(written, self.spec.sql, view))
            except ModelError:
                # Some of what sqlglot takes Spark does not.
                if self.model.as_written:
                    raise
            else:
                outputs = [s.alias_or_name for s in self.model.query.selects]
                return rows if self.model.as_written else as_named(rows, outputs)
        return self._sql(qualify_as_where(replace_tables(self.model.query, view)).sql(DIALECT))

    def columns_differ(self) -> bool:
        """Whether the query's columns are not the table's any more (a source's type or name changed)."""
        wanted = {f.name: f.dataType.simpleString() for f in self.query.schema.fields}
        return wanted != self.types

    @cached_value
    def _table(self) -> Table:
        """The table before the step."""
        return self.lake.table(self.spec.table)

    @cached_value
    def types(self) -> dict[str, str]:
        """The table's columns."""
        return columns_of(self.lake, self.spec.table)

    def rebuild(self) -> None:
        """Compute everything and make the table of it, in one commit.

        Where the table was made by the same definition and has the same columns, only rows that differ are written.
        """
        partitioned = ""
        if by := self.spec.partitions:
            by.check(self.spec.table, {f.name: f.dataType.simpleString() for f in self.query.schema.fields})
            partitioned = f"PARTITIONED BY ({by.field.sql}) "
        self._check_types()
        if self.spec.key:
            self._check_key(self.query)
        properties = {
            **DEFAULT_PROPERTIES,
            PIPELINE_PROPERTY: self.spec.pipeline,
            KEY_PROPERTY: json.dumps(list(self.model.key)),
            FINGERPRINT_PROPERTY: self.definition,
            **declared(self.spec),
            **self.spec.properties,
        }
        said = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
        if self._is_made_alike() and self._write_differences():
            set_properties(self.lake, self.spec.table, {**declared(self.spec), **self.spec.properties})
            return
        name = self.lake.sql_name(self.spec.table)
        self.lake.ensure_namespace(self.spec.table.namespace)
        rows = self.gate.audit_rows(self.query) if self.gate.is_blocking else self.query
        view = self.frames.view(rows)
        with committing(self.frames.spark, self.spec.table, self.marks, self._said("full")):
            self.frames.spark.sql(
                f"CREATE OR REPLACE TABLE {name} USING iceberg {partitioned}TBLPROPERTIES ({said}) "
                f"AS SELECT * FROM {view}"
            )

    def _write_differences(self) -> bool:
        table, types, key = self.spec.table, self.types, self.model.key
        self.gate.check(types)
        return write_differences(
            self.lake, table, self.query, types, key, self.marks, self.base, self.gate, self._said("full")
        )

    def _is_made_alike(self) -> bool:
        """Whether the table was made by the definition of now, and rows can be compared with those that it has."""
        table = self.lake.find(self.spec.table)
        if table is None or table.metadata.current_snapshot_id is None or not self.base:
            return False
        made = {p: table.properties.get(p) for p in (FINGERPRINT_PROPERTY, KEY_PROPERTY)}
        if made != {FINGERPRINT_PROPERTY: self.definition, KEY_PROPERTY: json.dumps(list(self.model.key))}:
            return False
        return not self.columns_differ() and not incomparable(self.types)

    def full(self) -> None:
        """Compute everything and replace all rows."""
        if self.spec.key:
            self._check_key(self.query)
        self.writer("full").overwrite(self.query)

    def _check_types(self) -> None:
        """Raises: ModelError: a table with these columns could not be read again: pyiceberg does not know the type."""
        columns = [f.name for f in self.query.schema.fields if "variant" in f.dataType.simpleString()]
        if columns:
            raise ModelError(
                f"model {self.spec.table}: {', '.join(columns)}: of type VARIANT, which a table of the lake cannot "
                "keep: write to_json(...) of it, or a CAST to what it holds"
            )

    def _check_key(self, rows: DataFrame) -> None:
        key = list(self.spec.key)
        twice = rows.groupBy(*map(quote, key)).count().where("count > 1").first()
        if twice:
            raise KeyMissingError(
                f"{self.spec.table}: {', '.join(key)} is declared as its key, and the query gives {twice['count']} "
                f"rows for {tuple(twice)[:-1]}: declare a key that tells rows apart, or none"
            )

    def nothing(self) -> None:
        """Move the watermarks alone."""
        self.writer("none").nothing()

    # --- from what changed --------------------------------------------------------------------------------------

    def settle_types(self) -> str:
        """Let Spark say the types that the query alone does not tell; returns why nothing is told by keys, or nothing.

        Asked for joins and set operations over what is computed; columns of tables have known ones.
        """
        tree = self.model.tree
        assert tree is not None
        if why := mixed(tree.root, lambda e, node: known(node, e) or self._type_of(e, node)):
            return why
        self.model = replace(self.model, tree=in_one_type(tree, self._schema_of))
        return ""

    def _schema_of(self, node: Node) -> dict[str, str]:
        schema = self._sql(self._rows.sql(node, "end")).schema
        return {f.name: f.dataType.simpleString() for f in schema.fields}

    def incremental(self, why: str) -> str:
        """Absorb what changed; returns the reason, with what was touched."""
        tree = self.model.tree
        assert tree is not None
        found, reason = None, ""
        if self.model.retraction is not None:
            found, reason = retraction(tree, lambda e: self._type_of(e, found_below(tree)))
        if found and (done := self._at_once(found)):
            return done if self.strategy == "none" else f"{done}: {why}"
        deltas = Deltas(self.frames, self._rows, self.sources.feed)
        if not self.sources.changed():
            self.nothing()
            self.strategy = "none"
            return "nothing changed in the columns that the query reads"
        if (again := self._too_much()) is not None:
            self.strategy = "full"
            self.full()
            return again
        if self.model.retraction is not None:
            if found:
                return f"{self._retract(found, deltas.sql(found.aggregate.input)) or 'no group touched'}: {why}"
            why = reason
            self.strategy = "keys"
        by = identity(tree, self.model.key)
        if isinstance(by, Doubt):
            self.strategy = "full"
            self.full()
            return by.no_identity
        keyed = top_key(tree)
        if keyed and (by is None or (by.node is keyed[0].inputs[0] and _is_by(by, keyed[1]))):
            return f"{self._groups(tree, *keyed, deltas)}: {why}"
        return f"{self._renewed(tree, by, deltas) if by else self._changes(tree, deltas)}: {why}"

    def _too_much(self) -> str | None:
        """Why everything is recomputed after all, now that the changed rows are counted."""
        if self.expected.exact or not self.expected.prefers_full:
            return None
        changed = sum(f.rows for t in self.sources.captures if (f := self.sources.feed(t)))
        counted = replace(self.expected, changed=changed, exact=True)
        return f"computing everything is estimated to be cheaper: {counted}" if counted.prefers_full else None

    def _changes(self, tree: Tree, deltas: Deltas) -> str:
        """Rows that come and go, by their key or counted."""
        sql = deltas.sql(tree.root)
        strategy = self.strategy or self.model.strategy
        if sql is None:
            self.nothing()
            return "no row changed"
        listed = ", ".join(f"{quote(c)} AS {quote(o)}" for o, c in tree.outputs.items())
        delta = f"SELECT {listed}, __sign FROM ({sql})"
        return self._write(delta, strategy) or ("changed rows" if self.model.key else "changed rows, counted")

    def _renewed(self, tree: Tree, by: Identity, deltas: Deltas) -> str:
        """Rows that come, for those that the table holds of the same identity."""
        name = self.lake.sql_name(self.spec.table)
        renewal = Renewal(tree, by, deltas, self.frames, self._rows, name, self.types, self._typed)
        found = renewal.change()
        if found.lost:
            return self._recomputed(found.lost)
        if found.sql is None:
            self.nothing()
            return found.what
        return self._write(found.sql, self.strategy or self.model.strategy) or found.what

    def _recomputed(self, why: str) -> str:
        """Compute everything, because the rows that a change replaces are not found in the table."""
        log.warning("%s: computed in full: %s", self.spec.table, why)
        self.strategy = "full"
        self.full()
        return why

    def _groups(self, tree: Tree, node: Node, keys: Mapping[str, str], deltas: Deltas) -> str:
        """Recompute the rows of the touched keys and replace them."""
        below, _ = keys_of(node)
        touched = deltas.touched_of(node, below)
        if touched is None:
            self.nothing()
            return "no key touched"
        names = {o: f"__k{i}" for i, o in enumerate(keys)}
        self._replace(tree, touched, names, None)
        return f"{touched.rows} keys recomputed"

    def _at_once(self, how: Retraction) -> str | None:
        """Absorb few changed rows of one table, read one by one, in the very query that adjusts the groups; None: what
        changed has to be counted or looked at first."""
        is_to_be_counted = self.expected.prefers_full and not self.expected.exact
        if is_to_be_counted or not is_simple(how.aggregate.input) or not self._are_few(how):
            return None
        (scan,) = scans(how.aggregate.input)
        name, rows = new_name(), self.sources.changes(scan.table)
        if rows is None:
            return None
        deltas = Deltas(self.frames, self._rows, lambda _: Frame(name, 0, {}, rows))
        done = self._retract(how, deltas.sql(how.aggregate.input), {name: rows})
        if done is None:
            self.strategy = "none"
        return done or "nothing changed in the rows and columns that the query reads"

    def _are_few(self, how: Retraction) -> bool:
        """Whether few groups are adjusted by few changed rows."""
        return (
            size_of(self._table)[1] <= SMALL_ROWS and self.sources.are_few() and is_linear(how.aggregate.input)
        )  # fmt: skip

    def _retract(self, how: Retraction, below: str | None, frames: Mapping[str, DataFrame] | None = None) -> str | None:
        """Add what came to the groups and take away what went; recompute those that are in doubt.

        Args:
            how: the groups are adjusted.
            below: SQL of the changed rows that are grouped; None: there are none.
            frames: that it names.

        Returns:
            What was done; None: no group was touched, and the watermarks have moved alone.
        """
        strategy = self.strategy or self.model.strategy
        if below is None:
            self.nothing()
            return "no row changed"
        keys = list(how.keys.values())
        few, name = self._are_few(how), self.lake.sql_name(self.spec.table)
        with planned_once(self.lake, when=few):
            # What the touched groups were is looked up in the table, or joined with all of it where that is little.
            if not keys or size_of(self._table)[1] <= SMALL_ROWS:
                change, target, hint = f"({how.change(below)})", f"(SELECT * FROM {name})", "/*+ BROADCAST(t) */"
            else:
                measured = self.frames.measured(how.change(below))
                change, target = measured.view, f"({self._looked_up(name, measured, keys)})"
                hint = "/*+ BROADCAST(t) */" if measured.hint else ""
            result = how.result(change, target, self.types, hint)
            if few:
                result = f"SELECT /*+ COALESCE(1) */ * FROM ({result})"
            looks = ("count(*)", f"count_if({RECOMPUTE})")
            rows, (touched, doubtful) = self.frames.looked_at(result, *looks, frames=frames)
        rows_done = rows.where(f"NOT {RECOMPUTE}").drop(RECOMPUTE)
        if not touched:
            self.nothing()
            return None
        if not doubtful:
            self.writer(strategy, few=few).replace(rows_done, keys, exclusive=True, at_most=touched)
            return f"{touched} groups adjusted"
        tree = self.model.tree
        assert tree is not None
        listed = ", ".join(f"{quote(k)} AS __k{i}" for i, k in enumerate(keys)) or "1 AS __k"
        again = self.frames.measured(f"SELECT {listed} FROM {self.frames.view(rows)} WHERE {RECOMPUTE}")
        self._replace(tree, again, {k: f"__k{i}" for i, k in enumerate(keys)}, rows_done, strategy)
        return f"{touched} groups adjusted, {doubtful} of them recomputed"

    def _looked_up(self, view: str, change: Frame, keys: Sequence[str]) -> str:
        """SQL of the table's rows of the changed groups."""
        columns = tuple(self._typed(k) for k in keys)
        looked_up, names = change.by_place(keys), [f"__k{i}" for i in range(len(keys))]
        condition, join = looked_up.condition(columns, names), looked_up.join(columns, names)
        inside = f"SELECT * FROM {view}" + (f" WHERE {condition}" if condition else "")
        return f"SELECT {change.hint} * FROM ({inside}) {join}" if join else inside

    def _replace(
        self, tree: Tree, touched: Frame, names: Mapping[str, str], more: DataFrame | None, strategy: str = "keys"
    ) -> None:
        """Write the rows of the touched keys as they are now, and `more`.

        Args:
            names: by key column of the result, the one of `touched`.
        """
        keys = list(names)
        cut = None
        if keys:
            cut = KeyFilter(tuple(self._inner(tree, k) for k in keys), tuple(names.values()), touched)
        listed = ", ".join(f"{quote(c)} AS {quote(o)}" for o, c in tree.outputs.items())
        now = f"SELECT {listed}, true AS {FOUND} FROM ({self._rows.sql(tree.root, 'end', cut)})"
        if keys:
            found = f"({now})"
            same = " AND ".join(f"q.{quote(k)} <=> CAST(a.{quote(n)} AS {self.types[k]})" for k, n in names.items())
            picked = ", ".join(
                f"CAST(a.{quote(names[c])} AS {k}) AS {quote(c)}" if c in names else f"q.{quote(c)}"
                for c, k in self.types.items()
            )
            hint = "/*+ BROADCAST(q) */" if touched.hint else ""
            now = f"SELECT {hint} {picked}, q.{FOUND} FROM {touched.view} a LEFT JOIN {found} q ON {same}"
        rows = self.frames.sql(now).select(*map(quote, self.types), FOUND)
        if more is not None:
            rows = rows.unionByName(more.select(*map(quote, self.types), FOUND))
        rows = self.frames.kept(rows)
        self.writer(strategy).replace(rows, keys, exclusive=more is not None)

    # --- in ranges ----------------------------------------------------------------------------------------------

    def ranges(self, why: str) -> str:
        """Recompute the ranges of the declared column that changed rows reach, and put in what differs."""
        tree, span = self.model.tree, self.spec.span
        assert tree is not None
        assert span is not None
        found = touched_ranges(tree, span, self.types[span.column], self.sources, self.frames)
        if isinstance(found, str):
            self.strategy = "full"
            self.full()
            return found
        if found.is_empty:
            self.nothing()
            return "no range touched"
        rows = Rows(lambda scan, at: found.cut(scan, self.sources.of(scan, at)))
        listed = ", ".join(f"{quote(c)} AS {quote(o)}" for o, c in tree.outputs.items())
        names = ", ".join(map(quote, self.types))
        here = found.condition(quote(span.column))
        now = f"SELECT {listed} FROM ({rows.sql(tree.root, 'end')})"
        before = f"SELECT {names}, -1 AS __sign FROM {self.lake.sql_name(self.spec.table)} WHERE {here}"
        delta = f"SELECT {names}, 1 AS __sign FROM ({now}) WHERE {here} UNION ALL {before}"
        return self._write(delta, "ranges") or f"{found}: {why}"

    def _write(self, delta: str, strategy: str) -> str:
        """Write a change; returns why everything was computed instead, or nothing."""
        writer, key = self.writer(strategy), self.model.key
        if not key and (column := incomparable(self.types)):
            self.strategy = "full"
            self.full()
            return f"rows without a key cannot be counted by column {column}"
        lost = writer.change(delta, key) if key else writer.count_copies(delta)
        return self._recomputed(lost) if lost else ""

    # --- -------------------------------------------------------------------------------------------------------

    def writer(self, strategy: str, *, few: bool = False) -> Writer:
        """Writes the table: small and with few rows, where that is known."""
        said = self._said(strategy)
        return Writer(
            self.lake, self.spec.table, self.types, self.marks, self.base, said, self.frames, self.gate, few=few
        )  # fmt: skip

    def _said(self, strategy: str) -> dict[str, str]:
        return cost_property(strategy, self.expected, self.began)

    def _inner(self, tree: Tree, output: str) -> exp.Column:
        found = column(tree.outputs[output])
        found.type = self._typed(output).type
        return found

    def _typed(self, output: str) -> exp.Column:
        found = column(output)
        found.type = exp.DataType.build(self.types[output], dialect=DIALECT)
        return found

    def _type_of(self, e: exp.Expr, node: Node) -> str:
        if isinstance(e, exp.Column) and (found := passed_on(node, e.name)):
            return self.sources.type_of(*found)  # without having Spark look into the catalog
        sql = f"SELECT {e.sql(DIALECT)} AS v FROM ({self._rows.sql(node, 'end')})"
        return self._sql(sql).schema.fields[0].dataType.simpleString()

    def _sql(self, sql: str, frames: Mapping[str, DataFrame] | None = None) -> DataFrame:
        try:
            # Analysed at once, also over Spark Connect, so that what Spark does not accept is named.
            return over(self.frames.spark, sql, frames or {})
        except PySparkException as e:
            raise NotAcceptedError(f"model {self.spec.table}: Spark does not accept its SQL: {said(e)}") from e


def found_below(tree: Tree) -> Node:
    """What the topmost GROUP BY reads."""
    node = tree.root
    while isinstance(node, Project):
        node = node.input
    assert isinstance(node, Aggregate)
    return node.input


def _is_by(by: Identity, keys: Collection[str]) -> bool:
    """Whether all columns of a key are exact and rows are replaced by them: a rounded one does not find its rows."""
    return by.kind == "group" and set(keys) <= set(by.columns)


def top_key(tree: Tree) -> tuple[Node, dict[str, str]] | None:
    """The topmost operator that works by key, if the result shows its key: with the key's columns by the result's.

    The key's columns are in the operator's order.
    """
    shown = {c: o for o, c in reversed(list(tree.outputs.items()))}
    node = tree.root
    while isinstance(node, Project | Filter):
        if isinstance(node, Project):
            shown = {e.name: shown[n] for n, e in reversed(node.items) if isinstance(e, exp.Column) and n in shown}
        node = node.input
    if not isinstance(node, Aggregate | Distinct | SetOp) or (isinstance(node, SetOp) and node.all):
        return None
    keys = [n for n, _ in node.keys] if isinstance(node, Aggregate) else list(node.columns)
    if not keys or not all(k in shown for k in keys):
        return None
    return node, {shown[k]: k for k in keys}
