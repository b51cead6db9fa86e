"""Reports of comparisons, without a comparison: every name, text and value in them is a given one."""

from __future__ import annotations

from typing import Any

from lake_assets import Lake
from lake_assets.backfill.backfill_record import BackfillRecord, TableEstimate, TableRecord
from lake_assets.backfill.changed_columns import ColumnChange
from lake_assets.backfill.changed_partitions import PartitionDifference
from lake_assets.backfill.comparison import TableComparison
from lake_assets.lake import TableId
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline.paired_rows import CHANGED
from lake_assets.pipeline.verification import Difference, Verification
from lake_assets.report.backfill_contents import BackfillReport, backfill_report
from lake_assets.report.verification_contents import VerificationReport, verification_report

BEGAN = 1_700_000_000.0


def record(text: str = "x", **changes: Any) -> BackfillRecord:
    """A backfill of two tables that waits for a decision."""
    tables = tuple(
        TableRecord(
            str(TableId(("final",), f"{n}{text}")), "everything", begun=1, done=1, strategy=text, why=text, inserted=1, updated=1, deleted=1,
            seconds=2.0, cpu_seconds=3.0, rows_read=50, estimate=TableEstimate(10, 4.0, 1),
        )
        for n in (1, 2)
    )  # fmt: skip
    values = {"state": "ready", "publish": "manual", "by": text, "created": BEGAN, "left_out": {text: text}} | changes
    return BackfillRecord("b123456", text, text, **{"tables": tables} | values)


def comparison(table: str, value: Any = "x", column: str = "x", **changes: Any) -> TableComparison:
    """What differs in a table: a row of each kind, with a value and a column that may be anything."""
    other = f"{value}, before"
    samples = (
        {"id": 1, column: other, "_change_type": "update_before"},
        {"id": 1, column: value, "_change_type": "update_after", CHANGED: [column]},
        {"id": 2, column: value, "_change_type": "insert"},
        {"id": 3, column: None, "_change_type": "delete"},
    )
    columns = (
        ColumnChange(column, "values", 1),
        ColumnChange(f"{column}2", "added", 2, after="STRING", values=(value,)),
        ColumnChange(f"{column}3", "retyped", None, before="INT", after="ARRAY<INT>"),
    )
    partitions = (PartitionDifference(str(value), 1, 1, 1, (4, 4)), PartitionDifference(None, None, None, None))
    values = {
        "partitions": (str(value),), "columns": columns, "rows": (4, None), "by_partition": partitions,
    } | changes  # fmt: skip
    return TableComparison(table, 1, 1, 1, ("id",), sums={column: (value, 7)}, samples=samples, **values)


def reported(lake: Lake, text: str = "x", value: str | None = None, **changes: Any) -> BackfillReport:
    """The page of a backfill on which a text is wherever a name or a reason can be, and a value (default: this text)."""
    of, value = record(text, **changes), text if value is None else value
    return backfill_report(lake, of, [comparison(t.table, value, text) for t in of.tables], [])


def verified(lake: Lake, text: str = "x", value: str | None = None, **changes: Any) -> VerificationReport:
    """The page of a verification, in the same way."""
    value, table = text if value is None else value, TableId(("agg",), text)
    differences = (
        Difference({"id": 1, text: f"{value}, computed"}, 1, 0),
        Difference({"id": 1, text: value}, 0, 1),
        Difference({"id": 2, text: None}, 2, 1),
    )
    values = {
        "not_compared": {text: text}, "doubt": text, "key": ("id",), "missing": 1, "changed": 1, "columns": {text: 1},
        "seconds": 2.0, "cpu_seconds": 3.0, "sample": 0.5, "different": 7, "differences": differences,
    } | changes  # fmt: skip
    result = Verification(str(table), 12, {str(TableId(("final",), text)): 3}, 5, 4, **values)
    return verification_report(lake, ModelSpec(table, "SELECT 1", (), text), result)
