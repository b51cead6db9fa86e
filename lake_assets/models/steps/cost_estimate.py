"""Estimate whether absorbing a change is cheaper than computing everything, from file statistics and past runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType, IcebergType

from lake_assets.capture import Capture
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.row_counts import number, rows_added_and_deleted, summary_of, visible_rows
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.tables.pending_windows import Window

COST = "lake-assets.cost"
# Seconds to compare the rows of a recompute with the stored ones, if not measured: in any case, and per stored row.
COMPARING, COMPARING_ROW = 0.3, 10e-6
# Assumed seconds of a step, and of each of its operators, before a step has absorbed a change.
OPERATOR = 0.4
# Costs per row, relative to reading one: to compare a row of two versions by value, and to write one.
COMPARE, WRITE = 2.5, 2.0


@dataclass(frozen=True)
class Cost:
    """Size of a past step, and its time until the commit.

    Attributes:
        changed, rows: numbers of changed rows and of all rows of its sources.
        compared: whether a recompute compared its rows with the stored ones.
    """

    strategy: str
    changed: int
    rows: int
    seconds: float
    compared: bool = False


@dataclass(frozen=True)
class Estimate:
    """Size of a pending change, and the expected costs.

    Attributes:
        changed: maximum number of changed rows.
        rows: rows of the sources.
        exact: whether `changed` cannot be far too large (rewritten files hold rows that did not change).
        limit: the share of changed rows above which everything is recomputed.
        incremental, full: expected seconds of either way, from past runs; None if unknown.
        declared: whether the limit is declared.
        compared: rows of rewritten files that have to be compared to find the changed ones; fewer if other models of
            the run share the comparison.
        stored: rows of the model's table.
        overwrites: whether a recompute overwrites the stored rows without comparing them.
        operators: number of operators of the query that join, sort or group rows, without a GROUP BY to whose groups
            changes are added.
        slow: whether computing everything has taken long, although there are few rows.
        last_full: seconds of the last recompute, with a comparison of its rows with the stored ones unless it
            `overwrites`, in proportion to the rows; None if unknown.
        absorbed: the least seconds in which a past step would have absorbed so large a change; None if unknown.
    """

    changed: int
    rows: int
    exact: bool
    limit: float
    incremental: float | None = None
    full: float | None = None
    declared: bool = False
    compared: int = 0
    stored: int = 0
    overwrites: bool = False
    operators: int = 0
    slow: bool = False
    last_full: float | None = None
    absorbed: float | None = None

    @property
    def reason_not_to_compare(self) -> str:
        """Why the changed rows are not looked for in rewritten files; empty if they are."""
        full = self.rows * (1 + COMPARE * self.operators) + WRITE * self.stored
        if self.rows <= thresholds.ESTIMATE_ROWS or self.declared or self.compared * COMPARE <= full:
            return ""
        return (
            f"files of {self.compared:,} rows were rewritten: comparing them is estimated to cost more than computing "
            f"everything from {plural(self.rows, 'row')}"
        )

    @property
    def share(self) -> float:
        """Share of changed rows."""
        return min(1.0, self.changed / self.rows) if self.rows else 0.0

    @property
    def cost_in_full(self) -> float:
        """Cost of computing everything, and overwriting the stored rows or comparing with them; relative to reading a
        row."""
        return self.rows * (1 + COMPARE * self.operators) + (WRITE if self.overwrites else 2 * COMPARE) * self.stored

    @property
    def has_few_rows(self) -> bool:
        """Whether computing everything and replacing the stored rows is cheap."""
        return self.cost_in_full <= thresholds.FULL_UP_TO_COST

    @property
    def is_quick_in_full(self) -> bool:
        """Whether another recompute is expected to take less than absorbing the change."""
        if self.last_full is None or self.cost_in_full > thresholds.MEASURED_COST_FACTOR * thresholds.FULL_UP_TO_COST:
            return False
        return self.last_full < (self.absorbed if self.absorbed is not None else OPERATOR * (1 + self.operators))

    @property
    def is_small(self) -> bool:
        """Whether everything is computed, however few rows changed."""
        return not self.declared and ((self.has_few_rows and not self.slow) or self.is_quick_in_full)

    @property
    def prefers_full(self) -> bool:
        """Whether computing everything is expected to be cheaper."""
        if self.is_small:
            return True
        if self.rows <= thresholds.ESTIMATE_ROWS and not self.declared:
            return False
        is_large = self.share > self.limit * thresholds.PAST_RUNS_PART
        if is_large and self.incremental is not None and self.full is not None:
            return self.incremental > self.full
        return self.share > self.limit

    def __str__(self) -> str:
        if self.is_small and not self.has_few_rows:
            return f"computing everything is estimated to take less: {self.last_full:.1f} s, by the last recompute"
        if self.is_small:
            return f"few rows: {self.rows:,} in its sources, {self.stored:,} in the table"
        size = f"at most {self.changed:,} of {self.rows:,} rows changed ({self.share:.2%})"
        if self.incremental is not None and self.full is not None:
            return f"{size}; by past runs {self.incremental:.1f} s, in full {self.full:.1f} s"
        return f"{size}; in full above {self.limit:.0%}"


def estimate(
    strategy: str,
    windows: Mapping[TableId, Window],
    tables: Mapping[TableId, Table],
    captures: Mapping[TableId, Capture],
    past: list[Cost],
    full_above: float | None = None,
    *,
    readers: Callable[[TableId], int] = lambda _: 1,
    target: Table | None = None,
    operators: int = 0,
    is_read: bool = True,
) -> Estimate:
    """Estimate a change; reads only loaded metadata.

    Args:
        past: costs of past steps, newest first.
        full_above: the declared limit.
        readers: returns the number of models of the run that read a table.
    """
    rows = {t: _most_rows(tables[t], w) for t, w in windows.items()}
    counted = {t: changed_rows(tables[t], c) for t, c in captures.items() if not c.is_empty}
    # Replacing all rows counts each row as deleted and added: at most as many rows change as the source has.
    changed = sum(min(n, rows[t]) for t, (n, _) in counted.items())
    # Rows with ids (format v3) are found by their ids.
    compared = sum(
        sum(f.records for f in captures[t].files) // max(1, readers(t))
        for t, (_, exact) in counted.items()
        if not exact and tables[t].metadata.format_version < 3
    )
    total = sum(rows.values())
    incremental, full = _past_seconds(strategy, changed, total, past) if full_above is None else (None, None)
    stored = visible_rows(target.current_snapshot()) if target else 0
    fulls = [c.seconds for c in past if c.strategy == "full"]
    # The first run of a process is slow.
    slow = len(fulls) > 1 and min(fulls) > thresholds.SLOW_FULL_SECONDS
    # Overwriting a partitioned table would change all of its partitions.
    overwrites = not is_read and stored <= thresholds.OVERWRITE_ROWS and not (target and target.spec().fields)
    last_full, absorbed = last_seconds(strategy, changed, total, stored, past, compares=not overwrites)
    if target and not overwrites and not all(_is_plain(f.field_type) for f in target.schema().fields):
        last_full = None
    return Estimate(
        changed,
        total,
        exact=all(e for _, e in counted.values()),
        limit=full_above if full_above is not None else thresholds.FULL_ABOVE_SHARE.get(strategy, 1.0),
        incremental=incremental,
        full=full,
        declared=full_above is not None,
        compared=compared,
        stored=stored,
        overwrites=overwrites,
        operators=operators,
        slow=slow,
        last_full=last_full,
        absorbed=absorbed,
    )


def _is_plain(kind: IcebergType) -> bool:
    """Whether rows that did not change are equal after each recompute, and can be compared.

    Maps cannot be compared, and floating-point sums of many rows differ in their last digits each time.
    """
    return kind.is_primitive and not isinstance(kind, FloatType | DoubleType)


def last_seconds(
    strategy: str, changed: int, rows: int, stored: int, past: list[Cost], *, compares: bool = True
) -> tuple[float | None, float | None]:
    """Return `last_full` and `absorbed` of an estimate."""
    absorbed = [c.seconds * max(1.0, changed / c.changed) for c in past if c.strategy == strategy and c.changed]
    last = next((c for c in past if c.strategy == "full"), None)
    last_full = None
    if last:
        comparing = COMPARING + COMPARING_ROW * stored if compares and not last.compared else 0.0
        last_full = last.seconds * max(1.0, rows / max(1, last.rows)) + comparing
    return last_full, min(absorbed, default=None)


def _most_rows(table: Table, window: Window) -> int:
    """Return the larger row count of a source, at the start or the end of a window."""
    return max(
        visible_rows(table.snapshot_by_id(s)) if s is not None else 0 for s in (window.start, window.head.snapshot)
    )


def _past_seconds(strategy: str, changed: int, rows: int, past: list[Cost]) -> tuple[float | None, float | None]:
    """Return `incremental` and `full` of an estimate."""
    last_full = next((c for c in past if c.strategy == "full" and c.rows > thresholds.ESTIMATE_ROWS), None)
    # A step has fixed costs, so a larger change costs at least as much as a smaller one did.
    comparable = [c for c in past if c.strategy == strategy and c.changed and c.rows > thresholds.ESTIMATE_ROWS]
    if not rows or last_full is None or len(comparable) < thresholds.PAST_RUNS:
        return None, None
    incremental = min(c.seconds * max(1.0, changed / c.changed) for c in comparable)
    return incremental, last_full.seconds * rows / last_full.rows


def changed_rows(table: Table, capture: Capture) -> tuple[int, bool]:
    """Return the maximum number of rows that a window changed, and whether that is close to the real number.

    It uses the snapshots' counts of added and deleted rows, not the captured files: a file with one deleted row is
    captured as a whole. Rewritten files count unchanged rows as added.
    """
    window = capture.window
    if window.start is None or not window.is_complete or window.undone:
        return sum(f.records for f in capture.files), False
    by_id = {s.snapshot_id: s for s in table.metadata.snapshots}
    total, exact = 0, True
    for step in window.steps:
        if step.operation == "replace":
            continue
        snapshot = by_id.get(step.snapshot_id)
        total += sum(rows_added_and_deleted(snapshot))
        exact = exact and not number(summary_of(snapshot), "deleted-records")
    return total, exact


def past_costs(table: Table | None, most: int = 20) -> list[Cost]:
    """Return the costs of a model's latest steps, newest first, and that of the last recompute, if it is older."""
    costs: list[Cost] = []
    for snapshot in ancestors(table) if table else ():
        if text := summary_of(snapshot).get(COST):
            cost = json.loads(text)
            if len(costs) >= most and cost["strategy"] != "full":
                continue
            seconds = snapshot.timestamp_ms / 1000 - cost["began"]
            # Otherwise the clock was set back.
            if seconds > 0:
                compared = bool(cost.get("compared"))
                costs.append(Cost(cost["strategy"], cost["changed"], cost["rows"], seconds, compared))
            if len(costs) >= most and any(c.strategy == "full" for c in costs):
                break
    return costs


def cost_property(strategy: str, estimate: Estimate, began: float, *, compared: bool = False) -> dict[str, str]:
    """Return the cost property of a step's commit; with the commit's time, it tells how long the step took."""
    cost = {"strategy": strategy, "changed": estimate.changed, "rows": estimate.rows, "began": round(began, 3)}
    return {COST: json.dumps(cost | ({"compared": True} if compared else {}), separators=(",", ":"))}
