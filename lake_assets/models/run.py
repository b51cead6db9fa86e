"""Running a SQL model: absorb what changed in its sources, in one commit that moves all of its watermarks."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import exp

from lake_assets.capture import Capture, capture
from lake_assets.errors import ModelError
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.names import literal
from lake_assets.lake.sql import DIALECT
from lake_assets.lake.watermark import Marks, read_marks
from lake_assets.merge.commit import commit_marks, committing, counts, snapshot_of
from lake_assets.merge.outcome import Absorbed, Outcome
from lake_assets.merge.pruning import prune
from lake_assets.merge.small import fitting
from lake_assets.merge.steps import Window, window
from lake_assets.merge.tables import DEFAULT_PROPERTIES, KEY_PROPERTY, check_owner, columns_of
from lake_assets.merge.views import temp_view
from lake_assets.models.plan import ModelPlan, fingerprint, key_query, parse, places, plan, replace_tables
from lake_assets.models.spec import ModelSpec

FINGERPRINT_PROPERTY = "lake-assets.model"
_FOUND = "_found"


def absorb_sources(lake: LakeBase, spec: ModelSpec) -> Outcome:
    """Bring a model's table to what its sources hold now.

    The sources' snapshots are fixed at the start, so that a join sees them as of one moment.

    Raises:
        ModelError: the query is wrong for the sources as they are now. Nothing is written.
    """
    began = time.monotonic()
    name = str(spec.table)
    if missing := [str(s) for s in spec.sources if not lake.exists(s)]:
        return Outcome(name, "waiting", why=f"{', '.join(missing)} does not exist yet")
    exists = lake.exists(spec.table)
    if exists:
        check_owner(lake, spec.table, spec.pipeline)
    windows = {source: window(lake, spec.table, source) for source in spec.sources}
    if empty := [str(s) for s, w in windows.items() if w.head.snapshot is None]:
        return Outcome(name, "waiting", why=f"{', '.join(empty)} holds nothing yet")
    properties = lake.table(spec.table).properties if exists else {}
    known = properties.get(FINGERPRINT_PROPERTY) == fingerprint(parse(name, spec.sql))
    begun = known and all(w.mark and w.mark.snapshot for w in windows.values())
    if begun and all(w.is_absorbed for w in windows.values()):
        return Outcome(name, "nothing")

    spark = lake.spark()
    schemas = {s: columns_of(lake, s) for s in spec.sources}
    model = plan(name, spec.sql, schemas, spec.key)
    marks = {**(read_marks(lake.table(spec.table)) if exists else {}), **{str(s): w.head for s, w in windows.items()}}
    with contextlib.ExitStack() as scope:
        scope.enter_context(fitting(lake, (spec.table, *spec.sources)))
        step = _Step(lake, spark, spec, model, windows, marks, scope)
        if not begun or step.columns_differ():
            reason = "first run" if not exists else "the query, its sources or the types of its columns changed"
            whole = {s: scope.enter_context(capture(lake, s, None, w.head.snapshot)) for s, w in windows.items()}
            absorbed = tuple(Absorbed.of(str(s), c) for s, c in whole.items())
            step.rebuild()
            strategy, why = "full", reason
        else:
            captures = {
                s: scope.enter_context(capture(lake, s, w.start, w.head.snapshot))
                for s, w in windows.items()
                if not w.is_absorbed
            }
            absorbed = tuple(Absorbed.of(str(s), c) for s, c in captures.items())
            strategy, why = step.absorb(captures)
    snapshot = snapshot_of(lake, spec.table, marks)
    inserted, updated, deleted = counts(snapshot)
    return Outcome(
        name, "absorbed", absorbed, inserted, updated, deleted, strategy, why, time.monotonic() - began,
        snapshot.snapshot_id if snapshot else None,
    )  # fmt: skip


@dataclass(frozen=True)
class _Step:
    """One run of a model over fixed snapshots.

    The temporary views of its queries live until `scope` is closed: over Spark Connect a DataFrame is analysed again
    when it is run.
    """

    lake: LakeBase
    spark: SparkSession
    spec: ModelSpec
    model: ModelPlan
    windows: Mapping[TableId, Window]
    marks: Marks
    scope: contextlib.ExitStack

    def absorb(self, captures: Mapping[TableId, Capture]) -> tuple[str, str]:
        """Absorb the captured windows; returns strategy and reason."""
        if all(c.is_empty for c in captures.values()):
            commit_marks(self.lake, self.spec.table, self.marks)
            return "none", "nothing changed in the sources' rows"
        if self.model.strategy == "full":
            with committing(self.spark, self.spec.table, self.marks):
                self._query(self.model.query, at="end").writeTo(self.lake.sql_name(self.spec.table)).overwrite(
                    F.lit(True)
                )
            return "full", self.model.why
        touched = self._touched_keys(captures).persist()
        try:
            groups = touched.count()
            if groups:
                self._replace(touched)
            else:
                commit_marks(self.lake, self.spec.table, self.marks)
        finally:
            touched.unpersist()
        return "keys", f"{groups} groups recomputed: {self.model.why}"

    def rebuild(self) -> None:
        """Compute everything and make (or replace) the table, in one commit."""
        properties = {
            **DEFAULT_PROPERTIES,
            "lake-assets.pipeline": self.spec.pipeline,
            KEY_PROPERTY: json.dumps(list(self.model.key)),
            FINGERPRINT_PROPERTY: fingerprint(parse(str(self.spec.table), self.spec.sql)),
            **self.spec.properties,
        }
        said = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
        name = self.lake.sql_name(self.spec.table)
        self.lake.ensure_namespace(self.spec.table.namespace)
        view = self._view(self._query(self.model.query, at="end"))
        with committing(self.spark, self.spec.table, self.marks):
            self.spark.sql(
                f"CREATE OR REPLACE TABLE {name} USING iceberg TBLPROPERTIES ({said}) AS SELECT * FROM {view}"
            )

    def columns_differ(self) -> bool:
        """Whether the query's columns are not the table's any more (a source's type or name changed)."""
        wanted = {f.name: f.dataType.simpleString() for f in self._query(self.model.query, at="end").schema.fields}
        return wanted != columns_of(self.lake, self.spec.table)

    # --- strategy `keys` ----------------------------------------------------------------------------------------

    def _touched_keys(self, captures: Mapping[TableId, Capture]) -> DataFrame:
        """Groups whose result may differ.

        A row of the old result that is gone came from at least one before-image, joined with the other sources as
        they were; a new row comes from at least one after-image, joined with them as they are. So each place of a
        changed source is replaced by its images, in turn.
        """
        query = key_query(self.model.query, self.model.key)
        at = places(self.model.query)
        parts: list[DataFrame] = []
        feeds: dict[TableId, DataFrame] = {}
        for place, source in enumerate(at):
            if source not in captures or captures[source].is_empty:
                continue
            if source not in feeds:
                feeds[source] = captures[source].feed(self.spark).persist()
                self.scope.callback(feeds[source].unpersist)
            feed = feeds[source]
            for images, others in (
                (feed.where("_change_type IN ('delete', 'update_before')"), "start"),
                (feed.where("_change_type IN ('insert', 'update_after')"), "end"),
            ):
                parts.append(self._query(query, at=others, instead=(place, images)))
        return reduce(DataFrame.unionByName, parts).distinct()

    def _replace(self, touched: DataFrame) -> None:
        """Recompute the touched groups and replace them: updated, inserted, or gone."""
        key = self.model.key
        name = self.lake.sql_name(self.spec.table)
        columns = list(columns_of(self.lake, self.spec.table))
        rest = [c for c in columns if c not in key]
        all_groups, keys = self._view(self._query(self.model.query, at="end")), self._view(touched)
        same = " AND ".join(f"q.{quote(k)} <=> a.{quote(k)}" for k in key)
        found = self.spark.sql(
            f"SELECT q.*, true AS {_FOUND} FROM {all_groups} q LEFT SEMI JOIN {keys} a ON {same}"
        ).persist()
        try:
            picked = ", ".join([*(f"a.{quote(k)}" for k in key), *(f"q.{quote(c)}" for c in rest)])
            rows = self.spark.sql(
                f"SELECT {picked}, q.{_FOUND} FROM {keys} a LEFT JOIN {self._view(found)} q ON {same}"
            )
            self._merge(name, rows, columns, rest)
        finally:
            found.unpersist()

    def _merge(self, name: str, rows: DataFrame, columns: list[str], rest: list[str]) -> None:
        key = self.model.key
        pruning = prune(rows, key)
        on = " AND ".join(
            [*(f"t.{quote(k)} <=> s.{quote(k)}" for k in key), *([pruning.condition] if pruning.condition else [])]
        )
        differs = " OR ".join(f"NOT (t.{quote(c)} <=> s.{quote(c)})" for c in rest)
        sets = ", ".join(f"t.{quote(c)} = s.{quote(c)}" for c in rest)
        listed = ", ".join(quote(c) for c in columns)
        with temp_view(rows) as view, committing(self.spark, self.spec.table, self.marks):
            sql = " ".join(
                [
                    f"MERGE INTO {name} t USING {view} s ON {on}",
                    f"WHEN MATCHED AND s.{_FOUND} IS NULL THEN DELETE",
                    *([f"WHEN MATCHED AND ({differs}) THEN UPDATE SET {sets}"] if rest else []),
                    f"WHEN NOT MATCHED AND s.{_FOUND} THEN INSERT ({listed})",
                    f"VALUES ({', '.join('s.' + quote(c) for c in columns)})",
                ]
            )
            self.spark.sql(sql, args=pruning.values) if pruning.values else self.spark.sql(sql)

    # --- reading ------------------------------------------------------------------------------------------------

    def _query(self, query: exp.Query, *, at: str, instead: tuple[int, DataFrame] | None = None) -> DataFrame:
        """The query's result with each source as of the window's start or end, one place replaced by other rows."""
        views: dict[TableId, str] = {}

        def view_of(place: int, table: TableId) -> str:
            if instead and place == instead[0]:
                return self._view(instead[1])
            if table not in views:
                views[table] = self._view(self._as_of(table, at))
            return views[table]

        sql = replace_tables(query, view_of).sql(DIALECT)
        try:
            result = self.spark.sql(sql)
            result.schema  # noqa: B018 (analysed here, so that what Spark does not accept is named)
        except PySparkException as e:
            raise ModelError(f"model {self.spec.table}: Spark does not accept its SQL: {str(e).splitlines()[0]}") from e
        return result

    def _view(self, rows: DataFrame) -> str:
        return self.scope.enter_context(temp_view(rows))

    def _as_of(self, table: TableId, at: str) -> DataFrame:
        window_ = self.windows[table]
        snapshot = window_.start if at == "start" else window_.head.snapshot
        return self.spark.read.option("versionAsOf", str(snapshot)).table(self.lake.sql_name(table))
