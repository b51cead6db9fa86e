"""Metadata of a step, which Dagster shows, plots and searches."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
from pyiceberg.table import Table

from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.metadata.row_counts import row_count
from lake_assets.lake.sensitive_values import SensitiveColumns
from lake_assets.orchestration.asset_names import asset_key
from lake_assets.orchestration.shown_values import shown
from lake_assets.pipeline.column_sources import column_sources
from lake_assets.pipeline.table_graph import Spec
from lake_assets.pipeline.table_steps import step_of
from lake_assets.tables.outcome import INEXACT, Absorbed, Outcome

_WINDOW_COLUMNS = [
    dg.TableColumn("source"),
    dg.TableColumn("files", "int"),
    dg.TableColumn("bytes", "int"),
    # As text: a snapshot id has more digits than a JavaScript number. Last, because the page may cut them off.
    dg.TableColumn("start", description="snapshot absorbed before; empty if none"),
    dg.TableColumn("end", description="snapshot absorbed by this step"),
]
_RANGE_COLUMNS = [
    dg.TableColumn("source"),
    dg.TableColumn("column"),
    dg.TableColumn("range", description="no value lies outside this range; ~ marks truncated bounds"),
]


def of_outcome(outcome: Outcome, spec: Spec) -> dict[str, Any]:
    """Return the metadata of a step: windows, files, bytes, ranges, rows, rejected records, strategy and seconds."""
    metadata: dict[str, Any] = {"status": outcome.status, **_counted(outcome)}
    if spec.shown.target_lag is not None:
        # Beside the lag, as a line in Dagster's plots.
        metadata["target_lag_seconds"] = spec.shown.target_lag
    if step_of(spec).has_rejects:
        metadata["records_rejected"] = outcome.rejected
    if ranges := [r for w in outcome.windows for r in _ranges(w)]:
        metadata["ranges"] = dg.MetadataValue.table(ranges, schema=dg.TableSchema(_RANGE_COLUMNS))
    details = {name: value for name, value in outcome.details.items() if name != "rejected"}
    if inexact := details.pop(INEXACT, ()):
        metadata[INEXACT] = "not exact: " + "; ".join(inexact)
    metadata |= {f"detail/{name}": _value(value) for name, value in details.items()}
    return metadata


def _counted(outcome: Outcome) -> dict[str, Any]:
    """Return what is counted of a step; first what people look for."""
    metadata: dict[str, Any] = {
        "rows_inserted": outcome.inserted,
        "rows_updated": outcome.updated,
        "rows_deleted": outcome.deleted,
    }
    if outcome.strategy:
        metadata["strategy"] = f"{outcome.strategy}: {outcome.why}" if outcome.why else outcome.strategy
    metadata |= {
        "files_captured": sum(w.files for w in outcome.windows),
        "bytes_captured": sum(w.bytes for w in outcome.windows),
        "seconds": round(outcome.seconds, 3),
        "core_seconds": round(outcome.cpu_seconds, 3),
        "files_read": outcome.files_read,
        "files_written": outcome.files_written,
        "bytes_read": outcome.bytes_read,
        "bytes_written": outcome.bytes_written,
    }
    if outcome.in_full_cpu_seconds is not None:
        metadata["core_seconds_in_full"] = round(outcome.in_full_cpu_seconds, 3)
        metadata["in_full_basis"] = outcome.in_full_basis
    if outcome.lag_seconds is not None:
        metadata["lag_seconds"] = round(outcome.lag_seconds, 1)
    if outcome.windows:
        records = [dg.TableRecord(_window(w)) for w in outcome.windows]
        metadata["windows"] = dg.MetadataValue.table(records, schema=dg.TableSchema(_WINDOW_COLUMNS))
    return metadata


def of_record(record: StepRecord, spec: Spec) -> dict[str, Any]:
    """Return the metadata of a step that no run of Dagster has executed, from its record.

    It is that of the step's outcome without ranges and details, which the journal does not keep.
    """
    windows = tuple(
        Absorbed(w["source"], w["start_snapshot"], w["end_snapshot"], w["files"], w["bytes"]) for w in record.sources
    )
    outcome = Outcome(
        record.table, "absorbed", windows, record.rows_inserted, record.rows_updated, record.rows_deleted,
        strategy=record.strategy, why=record.reason, seconds=record.seconds, cpu_seconds=record.cpu_seconds,
        bytes_read=record.bytes_read, bytes_written=record.bytes_written,
        files_read=record.files_read, files_written=record.files_written, lag_seconds=record.lag_seconds,
        in_full_cpu_seconds=record.in_full_cpu_seconds, in_full_basis=record.in_full_basis,
        details={"rejected": record.records_rejected, INEXACT: record.not_exact},
    )  # fmt: skip
    return {"executed_by": record.run or f"a command on {record.host}", **of_outcome(outcome, spec)}


# Metadata that is as true of one partition as of the whole step.
_OF_EACH = {
    "status", "strategy", INEXACT, "snapshot",
    "dagster/table_name", "dagster/uri", "dagster/column_schema", "dagster/column_lineage", "column_sources",
}  # fmt: skip


def by_partition(metadata: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the metadata of a step over chosen partitions, which Dagster copies to each of them.

    Returns:
        What holds for each partition, and all other figures: they are those of the whole step, or the whole table.
    """
    each = {name: value for name, value in metadata.items() if name in _OF_EACH}
    return each, {name: value for name, value in metadata.items() if name not in _OF_EACH}


def _window(window: Absorbed) -> dict[str, str | int]:
    start, end = ("" if s is None else str(s) for s in (window.start, window.end))
    return {"source": window.source, "files": window.files, "bytes": window.bytes, "start": start, "end": end}


def _ranges(window: Absorbed) -> list[dg.TableRecord]:
    # The columns of the package's own tell people little, and are wide.
    own = {name: text for name, text in window.ranges.items() if not name.startswith("_")}
    named = list((own or window.ranges).items())[: thresholds.SHOWN_RANGES]
    source = TableId.parse(window.source) if named else None
    return [
        dg.TableRecord({"source": window.source, "column": name, "range": shown(source, name, text)})
        for name, text in named
        if source
    ]


def _value(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)


def of_table(lake: LakeBase, table: TableId, texts: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return columns, row count, location and snapshot of a table; only its name if it does not exist.

    Args:
        lake: the lake.
        table: the table.
        texts: descriptions of its columns; default: those in Iceberg's schema.
    """
    metadata: dict[str, Any] = {"dagster/table_name": table_name(lake, table)}
    loaded = lake.find(table)
    if loaded is None:
        return metadata
    metadata["dagster/uri"] = loaded.location()
    metadata["dagster/column_schema"] = column_schema(loaded, texts or {})
    if (rows := row_count(loaded)) is not None:
        metadata["dagster/row_count"] = rows
    if loaded.metadata.current_snapshot_id is not None:
        metadata["snapshot"] = str(loaded.metadata.current_snapshot_id)
    return metadata


def table_name(lake: LakeBase, table: TableId) -> str:
    """Return the table's full name in SQL: catalog, layer, name."""
    return f"{lake.config.name}.{table}"


def column_schema(table: Table, texts: Mapping[str, str]) -> dg.TableSchema:
    """Return the columns of the table as Dagster's schema; sensitive ones have a tag.

    Args:
        texts: descriptions by column; the others have those of Iceberg.
    """
    sensitive = SensitiveColumns.stored(table)
    return dg.TableSchema(
        [
            dg.TableColumn(
                field.name,
                str(field.field_type),
                description=texts.get(field.name) or field.doc,
                constraints=dg.TableColumnConstraints(nullable=not field.required),
                tags={"lake_assets/sensitive": ""} if sensitive.covers(field.name) else None,
            )
            for field in table.schema().fields
        ]
    )


def column_lineage(lake: LakeBase, spec: Spec) -> dg.TableColumnLineage | None:
    """Return the source columns of each column of a final table or model; None if unknown."""
    sources = column_sources(lake, spec)
    if sources is None:
        return None
    return dg.TableColumnLineage(
        {c: [dg.TableColumnDep(asset_key(table), column) for table, column in deps] for c, deps in sources.items()}
    )


def column_sources_table(lineage: dg.TableColumnLineage) -> dg.TableMetadataValue:
    """Return the source columns of each column as a table: Dagster's own UI shows no column lineage."""
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {"column": c, "from": ", ".join(f"{'.'.join(d.asset_key.path)}.{d.column_name}" for d in deps)}
            )
            for c, deps in lineage.deps_by_column.items()
        ],
        schema=dg.TableSchema([dg.TableColumn("column"), dg.TableColumn("from")]),
    )


def of_code(place: tuple[str, int] | None) -> dict[str, Any]:
    """Return the metadata by which Dagster opens the file of a function at its line."""
    if place is None:
        return {}
    file, line = place
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        reference = dg.LocalFileCodeReference(file_path=file, line_number=line, label=Path(file).name)
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}


def describe(spec: Spec) -> str:
    """Return the description of an asset: the declared text, then a generated summary."""
    return f"{spec.shown.description.strip()}\n\n{spec.summary}" if spec.shown.description else spec.summary
