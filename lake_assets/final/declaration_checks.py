"""Checks of a final table's declaration against the columns of staging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from lake_assets.errors import KeyMissingError, PipelineError
from lake_assets.final.added_columns import DELETED
from lake_assets.final.declared_order import columns_of_order, kind_of
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.row_hash import COPY, ROW
from lake_assets.final.staging_projection import Projection
from lake_assets.lake.column_spelling import caseless


def check_names(spec: FinalSpec, items: Collection[str], option: str, names: Sequence[str]) -> None:
    """Raise PipelineError if an option names columns that the table does not have."""
    if missing := [n for n in names if n not in items]:
        raise PipelineError(
            f"{spec.table}: `{option}` names {', '.join(missing)}, and the table has {', '.join(items)}"
        )


def check_order(spec: FinalSpec, source: Mapping[str, tuple[str, str]]) -> None:
    """Raise PipelineError if columns of `order_by` are missing or have a type without an order."""
    types = {name: kind for name, (kind, _) in source.items()}
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


def table_key(spec: FinalSpec, projection: Projection, source_key: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the key columns in the table.

    Args:
        spec: the table.
        projection: its columns.
        source_key: the names of the key columns in the source.

    Raises:
        KeyMissingError: the table lacks some of these columns.
    """
    if spec.by_row:
        return (ROW, COPY)
    if spec.keys and not source_key:
        raise KeyMissingError(
            f"{spec.key_at}{spec.table}: {spec.staging} has the columns of no declared key "
            f"({'; '.join(', '.join(k) for k in spec.keys)}); it has {', '.join(projection.source)}: correct `key`"
        )
    if missing := [k for k in source_key if k not in projection.source]:
        raise KeyMissingError(
            f"{spec.key_at}{spec.table}: no column {', '.join(missing)} in {spec.staging}, which has "
            f"{', '.join(projection.source)}: correct `key` in the pipeline"
        )
    renamed = {i.sources[0]: i.name for i in reversed(projection.items.values()) if i.is_plain}
    if missing := [k for k in source_key if k not in renamed]:
        raise KeyMissingError(
            f"{spec.table}: `columns` leaves out {', '.join(missing)} of the key {', '.join(source_key)}, or "
            "changes it: key columns may be renamed, but not left out or changed"
        )
    return tuple(renamed[k] for k in source_key)


def check_added(spec: FinalSpec, items: Collection[str], added: Mapping[str, str]) -> None:
    """Raise PipelineError if the source has a column that the table adds itself."""
    if clash := [c for c in items if caseless(c) in added]:
        adds = "`deletes: soft`" if DELETED in added else "`mode: scd2`"
        raise PipelineError(
            f"{spec.table}: the source has a column {clash[0]}, which {adds} adds itself: declare another name for "
            "it (`columns`)"
        )


def check_overwrite(spec: FinalSpec, types: Mapping[str, str], key: Sequence[str]) -> None:
    """Refuse `write: overwrite-partitions` for tables whose partitions a filter cannot select.

    Raises:
        PipelineError: the mode or the partitions do not support it.
        KeyMissingError: the rows have no key.
    """
    why = ""
    if spec.mode != "scd1":
        why = f"`mode: {spec.mode}` writes more than the current rows of the changed keys: only scd1 tables support it"
    elif not spec.partition_by:
        why = "there are no partitions: declare `partition_by`"
    elif duplicates := [c for c, n in Counter(p.column for p in spec.partition_by).items() if n > 1]:
        why = f"two partition fields use {', '.join(duplicates)}, which a filter cannot tell apart"
    # Floating-point zeros have signs, which partitions distinguish and a filter does not.
    elif floats := [p.column for p in spec.partition_by if types[p.column] in ("float", "double")]:
        why = f"{', '.join(floats)} is a floating-point number, and a filter cannot select its partitions exactly"
    elif (by := spec.partitions) and not by.is_aligned(types[by.by]):
        why = (
            f"Iceberg's {by.field.transform} of {by.by} begin in UTC, and the declared partitions in {by.timezone}: "
            "rewriting one partition would touch two of the other kind"
        )
    if why:
        raise PipelineError(f"{spec.table}: `write: overwrite-partitions`: {why}")
    if not key:
        raise KeyMissingError(
            f"{spec.table}: `write: overwrite-partitions` is for rows with a key, and {spec.staging} has none: "
            "declare `key`, or leave `write` out"
        )
