"""Sensitive columns of each table: the declared ones, and those that are computed from sensitive columns.

Column lineage tells what a column of a final table or a SQL model is computed from. Where it does not (code, tables
that are not there yet, generators), each column counts as computed from the sensitive ones, except those that the
declaration clears. A table of another pipeline has its sensitive columns among its properties.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage
from sqlglot.optimizer.qualify import qualify

from lake_assets.errors import InvalidNameError, LakeError
from lake_assets.final.column_selection import select
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.row_hash import ROW
from lake_assets.formats.event_model import MISFITS, SEQUENCE, TECHNICAL
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.raw_tables import OF_RECORDS
from lake_assets.ingest.records.rejects import OF_REJECTS, raw_of, rejected_of
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.column_spelling import caseless
from lake_assets.lake.metadata import table_properties
from lake_assets.lake.sensitive_values import NOTHING, PROPERTY, SensitiveColumns
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.sql.model_plan import parse
from lake_assets.pipeline.table_graph import Spec, also_read_by

log = logging.getLogger(__name__)


class SensitiveTables:
    """The sensitive columns of the tables of a lake.

    Args:
        specs: declared tables by name; of others, their properties count.
    """

    def __init__(self, lake: LakeBase, specs: Mapping[TableId, Spec] | None = None) -> None:
        self._lake, self._specs = lake, dict(specs or {})
        self._known: dict[TableId, SensitiveColumns] = {}

    @classmethod
    def of_specs(cls, lake: LakeBase, specs: Iterable[Spec]) -> SensitiveTables:
        """Return those of some declared tables, and of the pipelines that they belong to."""
        found: dict[TableId, Spec] = {}
        for spec in specs:
            found |= {**spec.shown.sensitive.among, spec.table: spec}
        return cls(lake, found)

    def of(self, table: TableId | str) -> SensitiveColumns:
        """Return the sensitive columns of a table, declared or computed; those of a name that is no table's: none."""
        try:
            name = TableId.parse(table)
        except InvalidNameError:  # a landing folder
            return NOTHING
        if name not in self._known:
            self._known[name] = NOTHING  # of tables that read each other
            self._known[name] = self._found(name)
        return self._known[name]

    def read_by(self, spec: Spec) -> list[TableId]:
        """Return the tables with sensitive columns of which a step of a table may quote values: its own, and others."""
        tables = dict.fromkeys((spec.table, *spec.sources, *also_read_by(spec)))
        return [t for t in tables if self.of(t) and not (isinstance(spec, ModelSpec) and self._has_none(t, spec))]

    def _has_none(self, table: TableId, spec: ModelSpec) -> bool:
        """Whether a source of a model has none of its sensitive columns: a stream's are declared for all its tables."""
        if table == spec.table or (loaded := self._lake.find(table)) is None:
            return False
        columns = self.of(table)
        return not any(columns.covers(f.name) for f in loaded.schema().fields)

    def store(self, table: TableId) -> None:
        """Set the property that names the sensitive columns of a table, and of its rejected records, if it does not."""
        self._store(table)
        match self._specs.get(table):
            case RawSpec():
                self._store(rejected_of(table))
            case StagingSpec(raw=raw):
                self._store(rejected_of(raw))
            case _:
                pass

    def _store(self, table: TableId) -> None:
        try:
            loaded, wanted = self._lake.find(table), self.of(table).to_property()
            if loaded is not None and loaded.properties.get(PROPERTY, "") != wanted:
                table_properties.put(loaded, {PROPERTY: wanted})
        except Exception as e:  # of any kind: the next step tries again, and this one has its own outcome
            log.warning("%s: its sensitive columns are not among its properties yet: %s", table, type(e).__name__)

    def _found(self, name: TableId) -> SensitiveColumns:
        spec = self._specs.get(name)
        if spec is None:
            raw = raw_of(name)
            own = SensitiveColumns.of(OF_REJECTS) if raw in self._specs and self.of(raw) else NOTHING
            return own | SensitiveColumns.stored(self._lake.find(name))
        declared = spec.shown.sensitive
        own = SensitiveColumns.of(declared.columns)
        computed = self._computed(spec)
        if isinstance(spec, StagingSpec):
            own |= SensitiveColumns.of(spec.rename[c] for c in declared.columns if c in spec.rename)
            ordered = any(own.covers(c) for c in spec.order_by)
            own |= SensitiveColumns.of([MISFITS, *([SEQUENCE] if ordered else [])] if own else [])
        return (own | computed).without(declared.cleared)

    def _computed(self, spec: Spec) -> SensitiveColumns:
        """Return the columns that are computed from sensitive ones of a table's sources."""
        sources = {s: columns for s in (*spec.sources, *_lookups(spec)) if (columns := self.of(s))}
        if not sources:
            return NOTHING
        match spec:
            case StagingSpec():
                return NOTHING  # its own columns are declared
            case RawSpec():
                return SensitiveColumns.of(OF_RECORDS)
            case FinalSpec():
                return self._of_final(spec, sources[spec.staging])
            case ModelSpec():
                return self.of_query(str(spec.table), spec.sql, sources) if not spec.refused else SensitiveColumns.all()
            case PythonModelSpec() | JobSpec():
                return SensitiveColumns.all()

    def _of_final(self, spec: FinalSpec, staged: SensitiveColumns) -> SensitiveColumns:
        staging = self._lake.find(spec.staging)
        names = [f.name for f in staging.schema().fields] if staging is not None else []
        columns = list(dict.fromkeys(spec.rename.get(n, n) for n in names if n not in TECHNICAL))
        try:
            items = select(str(spec.table), spec.columns, columns)
        except LakeError:  # a column that staging does not have
            return SensitiveColumns.all()
        found = [name for name, item in items.items() if any(map(staged.covers, item.sources))]
        # Whatever has the name that it has in staging, such as a column that the source has dropped.
        whole = staged if not spec.columns else NOTHING
        return whole | SensitiveColumns.of([*found, *([ROW] if spec.by_row else [])])

    def of_query(self, name: str, sql: str, sources: Mapping[TableId, SensitiveColumns]) -> SensitiveColumns:
        """Return the columns of a query that are computed from sensitive ones.

        Args:
            name: what the query is called in errors.
            sources: the sensitive columns of the tables that have some.
        """
        try:
            tree = parse(name, sql)
            tables = {TableId((t.db,), t.name) for t in tree.find_all(exp.Table) if t.db}
            schema: dict[str, Any] = {}
            for table in tables:
                fields = self._lake.table(table).schema().fields
                schema.setdefault(table.namespace[0], {})[table.name] = {f.name: "string" for f in fields}
            query = qualify(tree, schema=schema, dialect=DIALECT)
            if _has_stars(query):  # of which column lineage knows nothing: struct(u.*)
                return SensitiveColumns.all()
            outputs = {n: lineage(n, query, schema, dialect=DIALECT) for n in query.named_selects}
        except (SqlglotError, LakeError, ValueError, KeyError):
            return SensitiveColumns.all()
        # What sqlglot has qualified is in small letters.
        by_name = {caseless(str(table)): columns for table, columns in sources.items()}
        found = {n for n, node in outputs.items() if _is_sensitive(node, by_name)}
        # Spark names a column without a name otherwise than sqlglot does.
        if found and not all(tree.named_selects):
            return SensitiveColumns.all(outputs.keys() - found)
        return SensitiveColumns.of(found)


def _lookups(spec: Spec) -> tuple[TableId, ...]:
    return spec.lookups if isinstance(spec, PythonModelSpec | JobSpec) else ()


def _is_sensitive(node: Node, sources: Mapping[str, SensitiveColumns]) -> bool:
    """Whether a column is computed from sensitive ones, or what it is computed from is not known."""
    for leaf in node.walk():
        if leaf.downstream:
            continue
        if isinstance(leaf.source, exp.Table) and leaf.source.db:
            of = sources.get(caseless(str(TableId((leaf.source.db,), leaf.source.name))))
            if of and of.covers(leaf.name.split(".")[-1].strip('`"')):
                return True
        elif _reads_columns(leaf):
            return True
    return False


def _has_stars(query: exp.Query) -> bool:
    """Whether a query has a star that is not replaced by its columns, other than that of `count(*)`."""
    stars = (s.parent if isinstance(s.parent, exp.Column) else s for s in query.find_all(exp.Star))
    return any(not isinstance(s.parent, exp.Count) for s in stars)


def _reads_columns(leaf: Node) -> bool:
    """Whether the last thing that is known of a column reads others: a generator, say."""
    expression = leaf.expression
    if isinstance(expression, exp.Select | exp.SetOperation):
        return True
    return expression.find(exp.Column, exp.Table, exp.UDTF) is not None


def columns_in(lake: LakeBase, spec: Spec) -> set[str]:
    """Return the columns that a declared table has, in their caseless form; none: it does not exist yet."""
    table = lake.find(spec.table)
    return {caseless(f.name) for f in table.schema().fields} if table is not None else set()
