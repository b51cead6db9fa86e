"""A final table during a step: its columns and key, the events of the window, what is stored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import Capture
from lake_assets.errors import KeyMissingError, LostEventsError, PipelineError, UnsupportedEventError
from lake_assets.final.added_columns import DELETED, FROM, OWN_COLUMNS, TO
from lake_assets.final.adjacent_versions import joined
from lake_assets.final.column_selection import COPY, FIRST_COPY, ROW, Item, hash_of_row, select
from lake_assets.final.declaration import DECLARATION_PROPERTY, GENERATION, declaration
from lake_assets.final.declared_order import kind_of, sequence_of
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.key_changes import BASE_POSITION, IS_MOVED, Ordering, states
from lake_assets.final.other_keys import identified, says_other_key
from lake_assets.final.reduction import HAPPENED, ORDER, happened
from lake_assets.final.window_stats import Batch, Stats
from lake_assets.formats import event_format
from lake_assets.formats.event_model import (
    ARRIVED_AT,
    DELETE,
    EVENT_TIME,
    INDEX,
    INSERT,
    OP,
    POSITION,
    READ,
    SEQUENCE,
    TRUNCATE,
    UNAVAILABLE,
)
from lake_assets.ingest.staging_tables import projection
from lake_assets.lake import LakeBase, quote
from lake_assets.lake.metadata.watermark import Watermark, read_marks
from lake_assets.lake.names import literal
from lake_assets.tables.audit_gate import Gate
from lake_assets.tables.commits import committing, writing
from lake_assets.tables.merge_pruning import Pruning, prune
from lake_assets.tables.row_differences import incomparable, write_differences
from lake_assets.tables.schema_changes import Change, evolve
from lake_assets.tables.spark_frames import new_name, over, temp_view
from lake_assets.tables.spark_tuning import tuned_for
from lake_assets.tables.table_ddl import (
    KEY_PROPERTY,
    alter,
    check_owner_in,
    columns_of,
    create,
    finish_renames,
    key_in,
    set_properties,
)

_TECHNICAL = (OP, SEQUENCE, POSITION, INDEX, UNAVAILABLE, EVENT_TIME, ARRIVED_AT)
# Whether an event leaves out some of the columns that one column is computed of: neither the old value of that one is
# right then, nor can the new one be computed.
_PARTIAL = "_partial"


def _of_source(name: str) -> str:
    """What a column of the source is called beside those of the table."""
    return f"_of_{name}"


def _names(of: tuple[str, ...]) -> Column:
    return F.array(*map(F.lit, of)).cast("array<string>")


def _or_null(names: Column) -> Column:
    return F.when(F.size(names) > 0, names)


class Target:
    """One final table and what is known of it during a step."""

    def __init__(self, lake: LakeBase, spec: FinalSpec, *, is_new: bool) -> None:
        self.lake, self.spec, self.is_new = lake, spec, is_new
        # How many deletes of the window were about rows that are not there.
        self.without_row = 0
        self._source = projection(lake, spec.staging, spec.rename)
        self.items = select(str(spec.table), spec.columns, list(self._source))
        if spec.by_row:
            self.items[ROW] = hash_of_row(list(self._source))
            self.items[COPY] = FIRST_COPY
        self.types_of_items = self._types()
        if spec.partitions:
            spec.partitions.check(spec.table, self.types_of_items)
        self._check_names("partition_by", [p.column for p in spec.partition_by])
        self._check_names("sort_by", spec.sort_by)
        self._check_order()
        self._declared = declaration(spec, lake.table(spec.staging))
        self._source_key = tuple(self._declared["key"])
        self.key = self._key()
        self.mode = spec.mode if self.key else "append"
        if not self.key and spec.mode == "scd2":
            raise KeyMissingError(
                f"{spec.table}: versions are kept of rows with a key, and {spec.staging} has none: declare `key`, or "
                "`mode: append`"
            )
        reader = event_format(spec.format)
        self.ordering, self.same_again = Ordering.of(reader), reader.same_again
        self.own = OWN_COLUMNS["scd2"] if self.mode == "scd2" else {}
        if self.mode == "scd1" and spec.deletes == "soft":
            self.own = OWN_COLUMNS["soft"]
        if clash := [c for c in self.items if c.lower() in self.own]:
            adds = "`deletes: soft`" if DELETED in self.own else "`mode: scd2`"
            raise PipelineError(
                f"{spec.table}: the source has a column {clash[0]}, which {adds} adds itself: declare another name for "
                "it (`columns`)"
            )
        if spec.write == "overwrite-partitions":
            self._check_write()
        # Versions of a row share its key.
        distinct = (*self.key, FROM) if self.mode == "scd2" else self.key if self.mode == "scd1" else ()
        self.gate = Gate(lake, spec.table, spec.audits, distinct)

    def _check_write(self) -> None:
        spec, why = self.spec, ""
        if spec.mode != "scd1":
            why = f"`mode: {spec.mode}` has other rows than those of the changed keys to write: that is for scd1 tables"
        elif not spec.partition_by:
            why = "there are no partitions: declare `partition_by`"
        elif twice := [c for c, n in Counter(p.column for p in spec.partition_by).items() if n > 1]:
            why = f"two partition fields are made of {', '.join(twice)}, which a filter cannot tell apart"
        # Their zeros have signs, which a filter does not tell apart and partitions do.
        elif floats := [p.column for p in spec.partition_by if self.types_of_items[p.column] in ("float", "double")]:
            why = f"{', '.join(floats)} is a floating-point number, and partitions of such cannot be told by a filter"
        elif (by := spec.partitions) and not by.is_aligned(self.types_of_items[by.by]):
            why = (
                f"Iceberg's {by.field.transform} of {by.by} begin in UTC, and those of `partitions` in {by.timezone}: "
                "rewriting one would touch two of the others"
            )
        if why:
            raise PipelineError(f"{spec.table}: `write: overwrite-partitions`: {why}")
        if not self.key:
            raise KeyMissingError(
                f"{spec.table}: `write: overwrite-partitions` is for rows with a key, and {spec.staging} has none: "
                "declare `key`, or leave `write` out"
            )

    def _check_names(self, option: str, names: Sequence[str]) -> None:
        if missing := [n for n in names if n not in self.items]:
            raise PipelineError(
                f"{self.spec.table}: `{option}` names {', '.join(missing)}, and the table has {', '.join(self.items)}"
            )

    def _check_order(self) -> None:
        spec, types = self.spec, {name: kind for name, (kind, _) in self._source.items()}
        if missing := [c for c in spec.order_by if c not in types]:
            raise PipelineError(
                f"{spec.table}: `order_by` names {', '.join(missing)}, and {spec.staging} has {', '.join(types)}"
            )
        if unsorted := [f"{c} ({types[c]})" for c in spec.order_by if kind_of(types[c]) is None]:
            raise PipelineError(
                f"{spec.table}: `order_by` names {', '.join(unsorted)}: numbers without a fraction that is cut off "
                "(integers, decimals), dates, times and texts are an order. Declare its type (`types`)"
            )

    def _technical(self) -> dict[str, Column]:
        """The columns of events beside those of the table, of rows of staging."""
        return {c: F.col(c) for c in _TECHNICAL} | {SEQUENCE: F.expr(self._sequence)}

    @property
    def _sequence(self) -> str:
        """SQL of the place in the order of changes."""
        if self.spec.order_by:
            return sequence_of([(self._source[c][1], self._source[c][0]) for c in self.spec.order_by])
        return event_format(self.spec.format).stored

    def _types(self) -> dict[str, str]:
        if self._is_as_source:
            return {name: kind for name, (kind, _) in self._source.items()}
        rows = self.lake.spark().table(self.lake.sql_name(self.spec.staging))
        try:
            schema = self._selected(rows, {}).schema
        except AnalysisException as e:
            raise PipelineError(f"{self.spec.table}: `columns`: {str(e).splitlines()[0]}") from e
        return {f.name: f.dataType.simpleString() for f in schema.fields}

    def _key(self) -> tuple[str, ...]:
        """The key by the names that it has in the table."""
        spec = self.spec
        if spec.by_row:
            return (ROW, COPY)
        if spec.keys and not self._source_key:
            raise KeyMissingError(
                f"{spec.table}: {spec.staging} has all columns of none of the declared keys "
                f"({'; '.join(', '.join(k) for k in spec.keys)}), it has {', '.join(self._source)}: correct `key`"
            )
        if missing := [k for k in self._source_key if k not in self._source]:
            raise KeyMissingError(
                f"{spec.table}: no column {', '.join(missing)} in {spec.staging}, which has {', '.join(self._source)}: "
                "correct `key` in the pipeline"
            )
        called = {i.sources[0]: i.name for i in reversed(self.items.values()) if i.is_plain}
        if missing := [k for k in self._source_key if k not in called]:
            raise KeyMissingError(
                f"{spec.table}: `columns` leaves out {', '.join(missing)} of the key {', '.join(self._source_key)}, or "
                "changes it: a key column has to be there as it is, under whatever name"
            )
        return tuple(called[k] for k in self._source_key)

    def events(self, captured: Capture) -> DataFrame:
        """The window's events.

        Raises:
            LostEventsError: staging was rolled back, and lacks events that are in the final table.
        """
        window_ = captured.window
        end = window_.end.snapshot_id if window_.end else None
        rows, self.without_row = self._identified(captured.upserts(self.lake.spark()), end)
        events = self.project(rows)
        if window_.is_forward or window_.start is None or window_.end is None:
            return events
        # Staging was rolled back and has caught up: what it took in again are new rows of the same events.
        place = [POSITION, INDEX]
        known, held = (self.staging(p.snapshot_id).select(*place) for p in (window_.start, window_.end))
        if lost := known.join(held, place, "left_anti").count():
            raise LostEventsError(
                f"{self.spec.table}: {self.spec.staging} was rolled back and has not taken in again {lost} events that "
                f"{self.spec.table} has absorbed"
            )
        return events.join(known, place, "left_anti")

    @property
    def other_keys(self) -> list[tuple[str, ...]]:
        """The declared keys beside the one that the table has, by which deletes may say a row."""
        there = self._source.keys()
        return [k for k in self.spec.keys if set(k) != set(self._source_key) and set(k) <= there]

    def has_other_keys(self, snapshot: int | None) -> bool:
        """Whether some delete in staging says another declared key: which row it means depends on other rows."""
        if not self.other_keys:
            return False
        return not self.staging(snapshot).where(says_other_key(self._source_key, self.other_keys)).isEmpty()

    def _identified(self, rows: DataFrame, snapshot: int | None) -> tuple[DataFrame, int]:
        if not self.other_keys:
            return rows, 0
        return identified(rows, self.staging(snapshot), self._source_key, self.other_keys)

    def staging(self, snapshot: int | None) -> DataFrame:
        """The staging table as of a snapshot; columns that came later are null."""
        reader = self.lake.spark().read.option("versionAsOf", str(snapshot))
        rows = reader.table(self.lake.sql_name(self.spec.staging))
        later = {n: t for n, t in columns_of(self.lake, self.spec.staging).items() if n not in rows.columns}
        return rows.withColumns({n: F.lit(None).cast(t) for n, t in later.items()}) if later else rows

    @property
    def columns(self) -> list[str]:
        """Names of the columns that the table has of its source."""
        return list(self.items)

    @property
    def _is_as_source(self) -> bool:
        return not self.spec.columns and not self.spec.by_row

    @property
    def is_computed_late(self) -> bool:
        """Whether some column is computed of several: of events that leave some of these out it cannot be."""
        return any(len(i.sources) > 1 for i in self.items.values() if i.name != ROW)

    def project(self, rows: DataFrame) -> DataFrame:
        """Rows of staging as events of the table: its columns, and the technical ones."""
        if self._is_as_source:
            every = [f"{sql} AS {quote(name)}" for name, (_, sql) in self._source.items()]
            if not self.spec.rename:
                technical = (f"{self._sequence} AS {c}" if c == SEQUENCE else c for c in _TECHNICAL)
                return rows.selectExpr(*every, *technical, f"false AS {_PARTIAL}")
            technical = self._technical() | {UNAVAILABLE: self._left_out()}
            more = (c.alias(n) for n, c in technical.items())
            return rows.select(*map(F.expr, every), *more, F.lit(False).alias(_PARTIAL))
        gone = self._left_out()
        left_out = F.array(*(F.when(F.arrays_overlap(gone, _names(i.sources)), F.lit(i.name)) for i in self._made()))
        partial = F.lit(False)
        for item in self._made():
            if len(item.sources) > 1:
                these = _names(item.sources)
                partial = partial | (F.arrays_overlap(gone, these) & (F.size(F.array_except(these, gone)) > 0))
        technical = self._technical() | {
            UNAVAILABLE: F.when(gone.isNotNull(), _or_null(F.array_compact(left_out))),
            _PARTIAL: F.coalesce(partial, F.lit(False)),
        }
        return self._selected(rows, technical)

    def _left_out(self) -> Column:
        """What an event leaves out, by the names that columns have now: it was staged with those of its time.

        Staging may have a column for either name, of the time when the rename was not declared: events leave out the
        other one then. They say the value if they say one of the two; that it is null cannot be told from leaving it
        out.
        """
        names = F.col(UNAVAILABLE)
        there = columns_of(self.lake, self.spec.staging) if self.spec.rename else {}
        for old, new in self.spec.rename.items():
            without = F.array_remove(F.array_remove(names, old), new)
            renamed = F.array_union(without, F.array(F.lit(new)))
            gone = F.array_contains(names, old)
            if old in there and new in there:
                both = gone & F.array_contains(names, new)
                said = F.col(quote(old)).isNotNull() | F.col(quote(new)).isNotNull()
                gone = gone | F.array_contains(names, new)
                names = F.when(gone & (both | ~said), renamed).when(gone, _or_null(without)).otherwise(names)
            else:
                names = F.when(gone, renamed).otherwise(names)
        return names

    def _made(self) -> list[Item]:
        return [i for i in self.items.values() if i.sources]

    def _selected(self, rows: DataFrame, more: Mapping[str, Column]) -> DataFrame:
        own = (F.expr(sql).alias(_of_source(name)) for name, (_, sql) in self._source.items())
        values = (F.expr(item.sql(_of_source)).alias(name) for name, item in self.items.items())
        return rows.select(*own, *(c.alias(name) for name, c in more.items())).select(*values, *more)

    def _project_source(self, rows: DataFrame) -> DataFrame:
        """Rows of staging as events of the source: the key as the table calls it, and what columns are made of."""
        names = dict.fromkeys(s for i in self.items.values() for s in i.sources)
        keys = zip(self.key, self._source_key, strict=True)
        gone = F.array_intersect(self._left_out(), _names(tuple(names)))
        technical = self._technical()
        technical[UNAVAILABLE] = F.transform(_or_null(gone), lambda c: F.concat(F.lit(_of_source("")), c))
        return rows.select(
            *(F.expr(self._source[source][1]).alias(name) for name, source in keys),
            *(F.expr(self._source[name][1]).alias(_of_source(name)) for name in names),
            *(column.alias(name) for name, column in technical.items()),
            F.lit(False).alias(_PARTIAL),
        )

    def states(self, events: DataFrame, *, moved: bool, of_source: bool = False) -> DataFrame:
        """See `key_changes.states`.

        Args:
            events: of the table, or of its source.
            moved: whether some inserts leave values out.
            of_source: whether they are of the source (see `history`).
        """
        if not of_source:
            return states(events, self.key, self.columns, self.ordering, moved=moved)
        of = [c for c in events.columns if c.startswith(_of_source(""))]
        found = states(events, self.key, [*self.key, *of], self.ordering, moved=moved)
        values = (
            F.col(quote(name)) if name in self.key else F.expr(item.sql(_of_source)).alias(name)
            for name, item in self.items.items()
        )
        return found.select(*values, *(F.col(c) for c in found.columns if c not in (*self.key, *of)))

    def stats(self, events: DataFrame, before: Watermark | None) -> Stats:
        """One look at the window."""
        transaction = f"({self.ordering.transaction})"
        last, of_high = (f"max_by({transaction}, {by})" for by in (f"struct({POSITION}, {INDEX})", ORDER))
        aggregates = (
            "count(*) AS events",
            f"if({last} <=> {of_high}, NULL, {last}) AS transaction",
            f"max({ORDER}) AS high",
            f"max(unix_micros({HAPPENED})) AS latest",
            f"count_if({UNAVAILABLE} IS NOT NULL) AS unavailable",
            f"count_if({IS_MOVED}) AS moved",
            f"count_if({OP} = '{INSERT}') AS inserts",
            f"count_if({OP} = '{DELETE}') AS deletes",
            f"count_if({OP} NOT IN ('{INSERT}', '{READ}')) AS others",
            f"max(if({OP} = '{TRUNCATE}', {ORDER}, NULL)) AS truncated",
            f"count_if({SEQUENCE} IS NULL) AS unordered",
        )
        keyless = F.count_if(self._is_keyless()).alias("keyless")
        late, old = F.count_if(self.is_late(before)).alias("late"), F.count_if(self._is_old(before)).alias("old")
        row = events.agg(*map(F.expr, aggregates), late, old, keyless).collect()[0]
        high = (row["high"]["sequence"], row["high"]["position"]) if row["high"] else None
        return Stats(
            row["events"], high, row["latest"], row["transaction"], row["late"], row["old"], row["unavailable"],
            row["moved"], row["inserts"], row["deletes"], row["others"], row["truncated"], row["keyless"],
            row["unordered"],
        )  # fmt: skip

    def _is_keyless(self) -> Column:
        """Whether an event that matters does not say the whole key: which row it is about cannot be told."""
        if self.mode == "append" or not self.key:
            return F.lit(False)
        keyless = " OR ".join(f"{quote(k)} IS NULL" for k in self.key)
        ignored = f"'{TRUNCATE}'" + (f", '{DELETE}'" if self.spec.deletes == "ignore" else "")
        return F.expr(f"({keyless}) AND {OP} NOT IN ({ignored})")

    def check(self, stats: Stats) -> None:
        """Refuse a window with events that do not say their key, or their place in the declared order.

        Raises:
            KeyMissingError, UnsupportedEventError: it has some.
        """
        if stats.unordered and not self.spec.order_by:
            raise UnsupportedEventError(
                f"{self.spec.table}: {stats.unordered} of {stats.events} events of {self.spec.staging} were accepted "
                "because `order_by` was declared, and do not say otherwise where they belong in the order of changes: "
                "declare `order_by` again"
            )
        if stats.unordered:
            raise UnsupportedEventError(
                f"{self.spec.table}: {stats.unordered} of {stats.events} events of {self.spec.staging} have no value "
                f"in a column of the declared order {', '.join(self.spec.order_by)}: before and after which others "
                "they happened cannot be told. Declare columns that every event says, deletes too, or leave `order_by` "
                "out"
            )
        if stats.keyless:
            spec = self.spec
            raise KeyMissingError(
                f"{spec.table}: {stats.keyless} of {stats.events} events of {spec.staging} have no value in a column "
                f"of the key {', '.join(self.key)}: which rows they mean cannot be told. Declare a key whose columns "
                "every event says (deletes too: let the source log whole rows, as REPLICA IDENTITY FULL)"
            )

    def is_late(self, before: Watermark | None) -> Column:
        """Whether an event is not entirely after what was absorbed before."""
        late = F.col(_PARTIAL)
        if before and before.high:
            late = late | self.ordering.is_late(*before.high)
            if COPY in self.key:
                # Of rows that share a sequence, those that follow may be the same ones again.
                late = late | F.expr(f"({self.same_again}) AND {SEQUENCE} = {literal(before.high[0])}")
        if before and before.transaction:
            late = late | F.expr(f"coalesce(({self.ordering.transaction}) = {literal(before.transaction)}, false)")
        if before and before.time is not None and self.mode == "scd2":
            # Versions are told apart by time.
            late = late | (F.unix_micros(happened()) < before.time)
        return late

    def _is_old(self, before: Watermark | None) -> Column:
        if before is None or before.time is None or self.spec.horizon is None:
            return F.lit(False)
        return F.unix_micros(F.col(EVENT_TIME)) < before.time - int(self.spec.horizon * 1_000_000)

    def keys_of(self, events: DataFrame) -> DataFrame:
        """The keys that events are about; a truncate is about none."""
        return events.where(F.col(OP) != TRUNCATE).select(*(F.col(quote(k)) for k in self.key)).distinct()

    def history(self, snapshot: int | None) -> DataFrame:
        """All that staging holds: events of the source where `is_computed_late`, else of the table."""
        rows, _ = self._identified(self.staging(snapshot), snapshot)
        return self._project_source(rows) if self.is_computed_late else self.project(rows)

    def stored(self, keys: DataFrame | None, branch: str | None = None) -> DataFrame:
        """The table's rows with these keys (None: all); only the files that can hold them are read.

        Args:
            keys: key columns.
            branch: SQL name of a branch to read instead of main.
        """
        lake, name = self.lake, branch or self.lake.sql_name(self.spec.table)
        if self.is_new:
            return lake.spark().createDataFrame([], ", ".join(f"{quote(c)} {t}" for c, t in self.wanted.items()))
        if keys is None:
            return lake.spark().table(name)
        pruning = self.prune(keys)
        sql = f"SELECT * FROM {name} t" + (f" WHERE {pruning.condition}" if pruning.condition else "")
        rows = lake.spark().sql(sql, args=pruning.values) if pruning.values else lake.spark().sql(sql)
        return rows.join(keys, list(self.key), "left_semi")

    def prune(self, keys: DataFrame, at_most: int | None = None) -> Pruning:
        """What tells the table's rows with these keys from most others; `at_most`: how many keys there can be."""
        types = self.types
        cast = keys.selectExpr(*(f"CAST({quote(k)} AS {types[k]}) AS {quote(k)}" for k in self.key))
        return prune(cast, self.key, self.lake.table(self.spec.table), at_most=at_most, types=types)

    def as_events(self, rows: DataFrame, op: str, index: int | Column = 0, at: Column | None = None) -> DataFrame:
        """Rows of the table as events before all others."""
        technical = {
            OP: F.lit(op),
            SEQUENCE: F.lit(""),
            POSITION: F.lit(BASE_POSITION).cast("bigint"),
            INDEX: (F.lit(index) if isinstance(index, int) else index).cast("int"),
            UNAVAILABLE: F.lit(None).cast("array<string>"),
            EVENT_TIME: (F.lit(None) if at is None else at).cast("timestamp"),
            ARRIVED_AT: F.lit(None).cast("timestamp"),
        }
        columns = (F.expr(f"CAST({quote(c)} AS {kind}) AS {quote(c)}") for c, kind in self.types_of_items.items())
        return rows.select(*columns, *(technical[c].alias(c) for c in _TECHNICAL), F.lit(False).alias(_PARTIAL))

    @property
    def wanted(self) -> dict[str, str]:
        """The columns that the table is to have, with their types."""
        return self.types_of_items | self.own

    @property
    def types(self) -> dict[str, str]:
        """The types of the table's columns."""
        return self.wanted if self.is_new else columns_of(self.lake, self.spec.table)

    def replace(self, rows: DataFrame, batch: Batch) -> str:
        """Make the table of these rows and no others, in one commit: readers see the old one or the new one.

        Where it was made by the same declaration, only rows that differ are written.

        Returns:
            What was written.
        """
        lake, spec, types, marks = self.lake, self.spec, self.wanted, batch.marks
        rows = rows.selectExpr(*(f"CAST({quote(c)} AS {kind}) AS {quote(c)}" for c, kind in types.items()))
        key = (*self.key, FROM) if self.mode == "scd2" else self.key if self.mode == "scd1" else ()
        if self._is_made_alike(batch) and write_differences(
            lake, spec.table, rows, types, key, marks, batch.base, self.gate
        ):
            # Killed before this, the next step does it all again, and finds no row that differs.
            set_properties(lake, spec.table, {DECLARATION_PROPERTY: json.dumps(self._declared), **spec.properties})
            return "rows that differ are written"
        if self.gate.is_blocking:
            rows = self.gate.audit_rows(rows)
        properties = {
            DECLARATION_PROPERTY: json.dumps(self._declared),
            KEY_PROPERTY: json.dumps(list(self.key)),
            **spec.properties,
        }
        said = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
        with temp_view(rows) as view, committing(lake.spark(), spec.table, marks):
            lake.spark().sql(
                f"CREATE OR REPLACE TABLE {lake.sql_name(spec.table)} USING iceberg {self._partitioned()} "
                f"TBLPROPERTIES ({said}) AS SELECT * FROM {view}"
            )
        self._sort()
        return "all rows are written"

    def _is_made_alike(self, batch: Batch) -> bool:
        """Whether the table was made by the declaration of now, and rows can be compared with those that it has."""
        table = self.lake.find(self.spec.table)
        if table is None or table.metadata.current_snapshot_id is None or not batch.base:
            return False
        made = json.loads(table.properties.get(DECLARATION_PROPERTY, "{}"))
        if made | {GENERATION: 0} != self._declared | {GENERATION: 0} or key_in(table) != self.key:
            return False
        return list(columns_of(self.lake, self.spec.table).items()) == list(self.wanted.items()) and not incomparable(
            self.wanted
        )

    def _partitioned(self) -> str:
        by = ", ".join(p.sql for p in self.spec.partition_by)
        return f"PARTITIONED BY ({by})" if by else ""

    def _sort(self) -> None:
        """Let writers sort the rows of a file. Killed before this, the next step does not make up for it: nothing but
        the order of rows in files depends on it."""
        if self.spec.sort_by:
            by = ", ".join(quote(c) for c in self.spec.sort_by)
            self.lake.spark().sql(f"ALTER TABLE {self.lake.sql_name(self.spec.table)} WRITE LOCALLY ORDERED BY {by}")

    @property
    def tracked(self) -> list[str]:
        """The columns whose change opens a new version.

        Raises:
            PipelineError: a declared one is not there.
        """
        rest, declared = [c for c in self.columns if c not in self.key], self.spec.track
        if declared is None:
            return rest
        if missing := [c for c in declared if c not in self.columns]:
            raise PipelineError(
                f"{self.spec.table}: `track` names {', '.join(missing)}, and {self.spec.staging} has "
                f"{', '.join(self.columns)}"
            )
        return [c for c in rest if c in declared]

    def merge(self, rows: DataFrame, on: str, clauses: list[str], pruning: Pruning | None, batch: Batch) -> None:
        """MERGE `rows` as `s` into the table `t`, reading no more of it than `pruning` says."""
        condition, values = (pruning.condition, pruning.values) if pruning else ("", {})
        condition = f"{on} AND {condition}" if condition else on
        spark, lake, table = self.lake.spark(), self.lake, self.spec.table
        fit, source = tuned_for(lake, (self.spec.staging, table)), new_name()
        with fit, writing(lake, table, batch.marks, batch.base, self.gate) as name:
            sql = f"MERGE INTO {name} t USING {source} s ON {condition} {' '.join(clauses)}"
            over(spark, sql, {source: rows}, values)

    def prepare(self) -> list[Change]:
        """Make the table, or let its columns follow those of the staging table."""
        lake, spec, wanted = self.lake, self.spec, self.wanted
        if self.is_new:
            return []
        said = {DECLARATION_PROPERTY: json.dumps(self._declared), **spec.properties}
        found = lake.find(spec.table)
        if found is not None:
            check_owner_in(found, spec.table, spec.pipeline)
        else:
            create(lake, spec.table, wanted, pipeline=spec.pipeline, key=self.key, properties=said,
                   partitioned_by=", ".join(p.sql for p in spec.partition_by))  # fmt: skip
            self._sort()
        finish_renames(lake, spec.table)
        changes = evolve(str(spec.table), columns_of(lake, spec.table), wanted, spec.rename)
        for change in (c for c in changes if c.kind not in ("replace", "fold")):
            alter(lake, spec.table, change)
        if rewrites := [c for c in changes if c.kind in ("replace", "fold")]:
            self._rewrite(rewrites)
        return changes

    def _rewrite(self, changes: list[Change]) -> None:
        """Convert stored values: the table is replaced in one commit, watermarks carried along.

        Needed where Iceberg cannot promote a type (a decimal's scale); readers see the old table or the new one.
        """
        lake, table = self.lake, self.spec.table
        by_column = {c.column: c for c in changes}
        folded = {c.was for c in changes if c.kind == "fold"}
        # Rows and watermarks of one snapshot: whoever commits meanwhile is replaced together with what it recorded.
        # Such a snapshot is read with the columns that it had then.
        current = lake.table(table)
        snapshot, marks, name = current.current_snapshot(), read_marks(current), lake.sql_name(table)
        at = f"VERSION AS OF {snapshot.snapshot_id}" if snapshot else ""
        then = (
            current.schemas()[snapshot.schema_id] if snapshot and snapshot.schema_id is not None else current.schema()
        )
        names = {f.field_id: f.name for f in then.fields}
        types = columns_of(lake, table)

        def stored(column: str) -> str:
            was = names.get(current.schema().find_field(column).field_id)
            return quote(was) if was else "NULL"

        selected: list[str] = []
        for column, kind in types.items():
            change = by_column.get(column)
            if column in folded:
                continue
            folds = change is not None and change.kind == "fold"
            source = f"coalesce({stored(column)}, {stored(change.was or '')})" if change and folds else stored(column)
            selected.append(f"CAST({source} AS {change.type if change else kind}) AS {quote(column)}")
        rows = f"SELECT {', '.join(selected)} FROM {name} {at}"
        if folded and self.mode == "scd2":
            left = [c for c in types if c not in folded]
            rows = joined(rows, self.key, left, self.tracked, FROM, TO)
        with committing(lake.spark(), table, marks):
            lake.spark().sql(f"CREATE OR REPLACE TABLE {name} USING iceberg {self._partitioned()} AS {rows}")
        self._sort()
