"""A final table during a step: its declaration, checked against the columns of staging.

`staging_events` reads its events, `window_stats` counts them; `final_ddl` creates and alters the table, `stored_rows`
reads and writes its rows.
"""

from __future__ import annotations

from lake_assets.errors import KeyMissingError, PipelineError
from lake_assets.final.added_columns import FROM, OWN_COLUMNS
from lake_assets.final.declaration import declaration, spelled_as
from lake_assets.final.declaration_checks import check_added, check_names, check_order, check_overwrite, table_key
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.ordering import Ordering
from lake_assets.final.staging_projection import Projection
from lake_assets.formats import event_format
from lake_assets.lake import LakeBase
from lake_assets.tables.audits.audit_gate import Gate
from lake_assets.tables.writing.table_ddl import columns_of


class Target:
    """One final table during a step.

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
        check_names(spec, self.items, "partition_by", [p.column for p in spec.partition_by])
        check_names(spec, self.items, "sort_by", spec.sort_by)
        check_order(spec, self.projection.source)
        self.declared = declaration(spec, staging)
        self.source_key = tuple(self.declared["key"])
        self.key = table_key(spec, self.projection, self.source_key)
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
        check_added(spec, self.items, self.own)
        if spec.write == "overwrite-partitions":
            check_overwrite(spec, self.types_of_items, self.key)
        # Versions of a row share its key.
        distinct = (*self.key, FROM) if self.mode == "scd2" else self.key if self.mode == "scd1" else ()
        self.gate = Gate(lake, spec.table, spec.audits, distinct)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that come from the source."""
        return list(self.items)

    @property
    def all_types(self) -> dict[str, str]:
        """The types of all declared columns, including the added ones."""
        return self.types_of_items | self.own

    @property
    def types(self) -> dict[str, str]:
        """The types of the table's columns as stored."""
        return self.all_types if self.is_new else columns_of(self.lake, self.spec.table)

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
