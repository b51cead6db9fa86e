"""Outcome of a step, for people and for metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from lake_assets.capture import Capture, FieldRange
from lake_assets.tables.audits.audit_evaluation import Finding

# Name of the detail with the reason why a table is not exact.
INEXACT = "not_exact"


@dataclass(frozen=True)
class Absorbed:
    """One source window that a step absorbed.

    Attributes:
        ranges: by column, the most telling first, its range as text.
        records: rows in the captured files, among them those that did not change; None: unknown.
    """

    source: str
    start: int | None
    end: int | None
    files: int
    bytes: int
    ranges: dict[str, str] = field(default_factory=dict)
    records: int | None = None

    @classmethod
    def of(cls, source: str, capture: Capture) -> Absorbed:
        """Summarize a capture."""
        after = [f for f in capture.files if f.side == "after"]
        return cls(
            source,
            capture.window.start_snapshot_id,
            capture.window.end_snapshot_id,
            len(after),
            sum(f.bytes for f in after),
            {name: range_text(capture.ranges[name]) for name in capture.telling_columns},
            sum(f.records for f in after),
        )


def range_text(field_range: FieldRange) -> str:
    """Format a field range: `1..498`, or `>= a, <= b` if the ends are bounds that need not be values."""
    if not field_range.has_values:
        return "null"
    low, high = field_range.ends
    if field_range.exact:
        known = f"{low}..{high}"
    else:
        known = ", ".join(end for end in (low, high) if end != "unbounded") or "unbounded"
    return f"{known}{', null' if field_range.nulls and known != 'unbounded' else ''}"


@dataclass(frozen=True)
class Outcome:
    """Outcome of one table in a run.

    Attributes:
        table: `namespace.name`.
        status: `absorbed` (committed), `nothing` (the sources have not changed, or not for this table),
            `waiting` (a source does not exist yet, or has to land records again), `failed`.
        inserted, updated, deleted: rows of the target that changed.
        strategy: how the change was applied, with the reason in `why`.
        seconds: time taken.
        cpu_seconds: seconds of one core that the step has used; see `journal.resource_use`.
        bytes_read, files_read: of the captured files, and of the table's files that the step replaced.
        bytes_written, files_written: of the files that the step added to the table.
        lag_seconds: when the step ended, how long ago the oldest change that it absorbed had arrived in the lake; None:
            unknown.
        in_full_cpu_seconds: an estimate of what computing everything would have used; None: unknown. `in_full_basis`
            is what it is taken from: this step (`measured`), steps of the `table`, or of the `pipeline`.
        details: anything else worth showing.
        audits: results of the audits, if they were evaluated for written rows.
        error: the message, if it failed.
    """

    table: str
    status: Literal["absorbed", "nothing", "waiting", "failed"]
    windows: tuple[Absorbed, ...] = ()
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    strategy: str = ""
    why: str = ""
    seconds: float = 0.0
    snapshot: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    exception: Exception | None = field(default=None, repr=False, compare=False)
    audits: tuple[Finding, ...] = ()
    cpu_seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    files_read: int = 0
    files_written: int = 0
    lag_seconds: float | None = None
    in_full_cpu_seconds: float | None = None
    in_full_basis: str = ""

    @property
    def changed(self) -> int:
        """Rows inserted, updated and deleted."""
        return self.inserted + self.updated + self.deleted

    @property
    def rejected(self) -> int:
        """Number of records that could not be read or routed: they are in no staging or final table."""
        return int(self.details.get("rejected", 0))
