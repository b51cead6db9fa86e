"""A final table during a step: its declaration, checked against the columns of staging.

`staging_events` reads its events, `window_stats` counts them; `final_ddl` creates and alters the table, `batch` reads
and writes its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lake_assets.errors import KeyMissingError, PipelineError
from lake_assets.final.added_columns import DELETED, FROM, OWN_COLUMNS
from lake_assets.final.declaration import declaration, spelled_as
from lake_assets.final.declared_order import columns_of_order, kind_of
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.ordering import Ordering
from lake_assets.final.row_hash import COPY, ROW
from lake_assets.final.staging_projection import Projection
from lake_assets.formats import event_format
from lake_assets.lake import LakeBase
from lake_assets.lake.column_spelling import caseless
from lake_assets.lake.names import nearest
from lake_assets.tables.audits.audit_gate import Gate


class Target:
    """One final table during a step.

    Raises PipelineError or KeyMissingError if the declaration does not match the columns of staging.

    Attributes:
        is_new: whether the step computes all rows and replaces the stored ones.
        projection: its columns as expressions over staging.
        items: the columns of the projection by name, without the added ones (`own`).
        types_of_items: the Spark SQL types of `items`.
        declared: the settings that its rows depend on (see `declaration`).
        source_key: names of the key columns in the source.
        key: names of the key columns in the table; empty: rows have no key.
        mode: `scd1`, `scd2` or `append`; `append` for rows without a key.
        own: columns that the table adds itself, with their types.
        reader: the format of the stream.
        ordering: the order of the stream's events.
        same_again: SQL of whether equal events of one sequence may be delivered again.
        gate: its audits.
    """

    def __init__(self, lake: LakeBase, spec: FinalSpec, *, is_new: bool) -> None:
        staging = lake.table(spec.staging)
        spec = spelled_as(spec, staging)
        self.lake, self.spec, self.is_new = lake, spec, is_new
        self.projection = Projection(lake, spec)
        self.items = self.projection.items
        self.types_of_items = self.projection.types()
        if spec.partitions:
            spec.partitions.check(spec.table, self.types_of_items)
        self._check_names("partition_by", [p.column for p in spec.partition_by])
        self._check_names("sort_by", spec.sort_by)
        self._check_order()
        self.declared = declaration(spec, staging)
        self.source_key = tuple(self.declared["key"])
        self.key = self._key()
        self.mode = spec.mode if self.key else "append"
        if not self.key and spec.mode == "scd2":
            raise KeyMissingError(
                f"{spec.table}: only rows with a key have versions, and {spec.staging} has none: declare `key`, or "
                "`mode: append`"
            )
        reader = event_format(spec.format)
        self.reader = reader
        self.ordering, self.same_again = Ordering.of(reader), reader.same_again
        if spec.order_by:
            self.ordering, self.same_again = Ordering.declared(), "false"
        self.own = OWN_COLUMNS["scd2"] if self.mode == "scd2" else {}
        if self.mode == "scd1" and spec.deletes == "soft":
            self.own = OWN_COLUMNS["soft"]
        self._check_own()
        if spec.write == "overwrite-partitions":
            self._check_overwrite()
        self.gate = Gate(lake, spec.table, spec.audits, self.row_key)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that come from the source."""
        return list(self.items)

    @property
    def all_types(self) -> dict[str, str]:
        """The types of all declared columns, including the added ones."""
        return self.types_of_items | self.own

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns that identify a stored row: versions of a row share its key. Empty: none do."""
        return {"scd1": self.key, "scd2": (*self.key, FROM), "append": ()}[self.mode]

    @property
    def tracked(self) -> list[str]:
        """The columns whose change opens a new version.

        Raises:
            PipelineError: a column in `track` is missing.
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

    def _key(self) -> tuple[str, ...]:
        """Return the names of the key columns in the table."""
        spec, source, source_key = self.spec, self.projection.source, self.source_key
        if spec.by_row:
            return (ROW, COPY)
        if spec.keys and not source_key:
            raise KeyMissingError(
                f"{spec.key_at}{spec.table}: {spec.staging} has the columns of no declared key "
                f"({'; '.join(', '.join(k) for k in spec.keys)}); it has {', '.join(source)}: correct `key`"
            )
        if missing := [k for k in source_key if k not in source]:
            raise KeyMissingError(
                f"{spec.key_at}{spec.table}: no column {', '.join(missing)}{nearest(missing[0], source)} in "
                f"{spec.staging}, which has {', '.join(source)}: correct `key` in the pipeline"
            )
        renamed = {i.sources[0]: i.name for i in reversed(self.items.values()) if i.is_plain}
        if missing := [k for k in source_key if k not in renamed]:
            raise KeyMissingError(
                f"{spec.table}: `columns` leaves out {', '.join(missing)} of the key {', '.join(source_key)}, or "
                "changes it: key columns may be renamed, but not left out or changed"
            )
        return tuple(renamed[k] for k in source_key)

    def _check_names(self, option: str, names: Sequence[str]) -> None:
        """Refuse an option that names columns which the table does not have."""
        if missing := [n for n in names if n not in self.items]:
            raise PipelineError(
                f"{self.spec.table}: `{option}` names {', '.join(missing)}{nearest(missing[0], self.items)}, and the "
                f"table has {', '.join(self.items)}"
            )

    def _check_order(self) -> None:
        """Refuse an `order_by` whose columns are missing or have a type without an order."""
        spec, types = self.spec, {name: kind for name, (kind, _) in self.projection.source.items()}
        columns = columns_of_order(spec.order_by)
        if missing := [c for c in columns if c not in types]:
            raise PipelineError(
                f"{spec.table}: `order_by` names {', '.join(missing)}, and {spec.staging} has {', '.join(types)}"
            )
        if unsorted := [f"{c} ({types[c]})" for c in columns if kind_of(types[c]) is None]:
            raise PipelineError(
                f"{spec.table}: `order_by` names {', '.join(unsorted)}: only exact numbers "
                "(integers, decimals), dates, times and texts have a reliable order. Declare its type (`types`)"
            )

    def _check_own(self) -> None:
        """Refuse a source with a column that the table adds itself."""
        if clash := [c for c in self.items if caseless(c) in self.own]:
            adds = "`deletes: soft`" if DELETED in self.own else "`mode: scd2`"
            raise PipelineError(
                f"{self.spec.table}: the source has a column {clash[0]}, which {adds} adds itself: declare another "
                "name for it (`columns`)"
            )

    def _check_overwrite(self) -> None:
        """Refuse `write: overwrite-partitions` for tables whose partitions a filter cannot select."""
        spec, types = self.spec, self.types_of_items
        why = ""
        if spec.mode != "scd1":
            why = (
                f"`mode: {spec.mode}` writes more than the current rows of the changed keys: only scd1 tables support "
                "it"
            )
        elif not spec.partition_by:
            why = "there are no partitions: declare `partition_by`"
        elif duplicates := [c for c, n in Counter(p.column for p in spec.partition_by).items() if n > 1]:
            why = f"two partition fields use {', '.join(duplicates)}, which a filter cannot tell apart"
        # Floating-point zeros have signs, which partitions distinguish and a filter does not.
        elif floats := [p.column for p in spec.partition_by if types[p.column] in ("float", "double")]:
            why = f"{', '.join(floats)} is a floating-point number, and a filter cannot select its partitions exactly"
        elif (by := spec.partitions) and not by.is_aligned(types[by.by]):
            why = (
                f"Iceberg's {by.field.transform} of {by.by} begin in UTC, and the declared partitions in "
                f"{by.timezone}: rewriting one partition would touch two of the other kind"
            )
        if why:
            raise PipelineError(f"{spec.table}: `write: overwrite-partitions`: {why}")
        if not self.key:
            raise KeyMissingError(
                f"{spec.table}: `write: overwrite-partitions` is for rows with a key, and {spec.staging} has none: "
                "declare `key`, or leave `write` out"
            )
