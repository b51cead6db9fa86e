"""What a step did, for people and for metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from lake_assets.capture import Capture, FieldRange
from lake_assets.tables.audit_gate import Finding

# Name of the detail that says why a table is not exact.
INEXACT = "not_exact"


@dataclass(frozen=True)
class Absorbed:
    """One source window that a step took in."""

    source: str
    start: int | None
    end: int | None
    files: int
    bytes: int
    ranges: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str, capture: Capture) -> Absorbed:
        """The window, files and ranges of a capture."""
        after = [f for f in capture.files if f.side == "after"]
        return cls(
            source,
            capture.window.start_snapshot_id,
            capture.window.end_snapshot_id,
            len(after),
            sum(f.bytes for f in after),
            {name: range_text(r) for name, r in capture.ranges.items()},
        )


def range_text(found: FieldRange) -> str:
    """A field range for people: `1..498`; an open end for what is not known, `~` where bounds are cut off."""
    if not found.has_values:
        return "null"
    if not found.is_bounded and found.low is None and found.high is None:
        return "unbounded"
    low, high = ("" if v is None else str(v) for v in (found.low, found.high))
    return f"{'' if found.exact else '~'}{low}..{high}{', null' if found.nulls else ''}"


@dataclass(frozen=True)
class Outcome:
    """What one table did in a run.

    Attributes:
        table: `namespace.name`.
        status: `absorbed` (a commit was made), `nothing` (the sources are where they were, or brought nothing for it),
            `waiting` (a source does not exist yet), `failed`.
        inserted, updated, deleted: rows of the target that changed.
        strategy: how the change was applied, with the reason in `why`.
        seconds: time taken.
        details: anything else worth showing.
        audits: what came of the audits, where they were evaluated: rows were written, or were to be.
        error: the message, where it failed.
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

    @property
    def changed(self) -> int:
        """Rows inserted, updated and deleted."""
        return self.inserted + self.updated + self.deleted

    @property
    def rejected(self) -> int:
        """Records that could not be read or routed: they are in no staging or final table."""
        return int(self.details.get("rejected", 0))
