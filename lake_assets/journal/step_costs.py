"""What steps used, and an estimate of what computing everything instead would have used.

An estimate comes from steps of the same table that computed everything, in proportion to the size of its sources; of a
table without such steps, from those of its pipeline. It is in core-seconds, and is never more than an estimate: fixed
costs, caches and other data make the next computation different.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from lake_assets.journal.step_records import BACKFILL, COMPLETE, LANDING, NO_CHANGE, StepRecord
from lake_assets.lake import thresholds
from lake_assets.lake.config import CostsConfig

Grouping = Literal["table", "pipeline", "day", "strategy", "reason"]
Basis = Literal["measured", "table", "pipeline", ""]
_Name = tuple[str, str]  # of a pipeline and of its table
# Why a step without a strategy of its own computed everything.
FIRST_STEP = "first step of the table"
_NUMBERS = re.compile(r"\d[\d,._]*")
_SUMS = (
    "seconds", "cpu_seconds", "bytes_read", "bytes_written", "files_read", "files_written", "rows_changed",
)  # fmt: skip


@dataclass(frozen=True)
class StepCost:
    """What one step used.

    Attributes:
        in_full: core-seconds that computing everything would have used; None: unknown, or there is no such way.
        basis: what that is taken from: the step itself (`measured`), steps of its table, of its pipeline, or nothing.
    """

    record: StepRecord
    in_full: float | None = None
    basis: Basis = ""

    @property
    def saved(self) -> float:
        """Core-seconds saved; negative if computing everything is estimated to be cheaper."""
        return 0.0 if self.in_full is None else self.in_full - self.record.cpu_seconds


@dataclass(frozen=True)
class CostLine:
    """What the steps of a table, a pipeline, a day, a strategy or a reason used together.

    Attributes:
        name: of what.
        pipelines: the pipelines of the steps.
        steps: all of them, `failed` ones included.
        complete: steps that computed everything.
        reasons: why, with their numbers of steps, the most frequent first; numbers in them are `…`.
        estimated: steps for which it is known what computing everything would have used.
        used_by_estimated: core-seconds of these steps.
        in_full: core-seconds that computing everything in these steps would have used: an estimate.
        bases: what the estimates are taken from, with their numbers of steps.
        share: share of the core-seconds of all lines.
        money: price of what was used; None: no prices are declared.
        money_in_full: price of computing everything in the `estimated` steps, and `money_of_estimated` of what they
            used.
    """

    name: str
    pipelines: tuple[str, ...]
    steps: int
    failed: int
    seconds: float
    cpu_seconds: float
    bytes_read: int
    bytes_written: int
    files_read: int
    files_written: int
    rows_changed: int
    complete: int
    reasons: Mapping[str, int]
    strategies: Mapping[str, int]
    estimated: int
    used_by_estimated: float
    in_full: float
    bases: Mapping[str, int]
    share: float = 0.0
    money: float | None = None
    money_in_full: float | None = None
    money_of_estimated: float | None = None

    @property
    def saved(self) -> float | None:
        """Estimated core-seconds saved; negative if computing everything would be cheaper; None: unknown."""
        return self.in_full - self.used_by_estimated if self.estimated else None

    @property
    def money_saved(self) -> float | None:
        """The price of what was saved; None: unknown."""
        if not self.estimated or self.money_in_full is None or self.money_of_estimated is None:
            return None
        return self.money_in_full - self.money_of_estimated


def step_costs(records: Sequence[StepRecord], complete: Iterable[StepRecord] = ()) -> list[StepCost]:
    """Return the cost of each step.

    Args:
        complete: earlier steps that computed everything, from which estimates are taken too.
    """
    known = KnownSteps({r.id: r for r in (*complete, *records)}.values())
    return [known.cost(r) for r in records]


class KnownSteps:
    """What steps used that computed everything, by table and by pipeline: what estimates are taken from."""

    def __init__(self, records: Iterable[StepRecord] = ()) -> None:
        # Of each table, the cheapest step for each power of two that the size of its sources is near.
        self._of_table: dict[_Name, dict[int, _Complete]] = defaultdict(dict)
        # The newest estimate of a table, whose steps that computed everything may be long past.
        self._carried: dict[_Name, _Complete] = {}
        # Core-seconds, bytes, and the largest size that was measured.
        self._of_pipeline: dict[str, tuple[float, int, int]] = defaultdict(lambda: (0.0, 0, 0))
        # What the cheapest step of a table used, each of its steps uses, however little it reads.
        self._fixed: dict[_Name, float] = {}
        for record in records:
            self.add(record)

    def add(self, record: StepRecord) -> None:
        """Take a step into account."""
        if record.status != "absorbed" or record.strategy in (NO_CHANGE, BACKFILL):
            return
        name, size = (record.pipeline, record.table), _size(record)
        self._fixed[name] = min(record.cpu_seconds, self._fixed.get(name, math.inf))
        if not record.source_bytes:
            return
        if record.computed_all:
            sizes, power = self._of_table[name], _power(size)
            if power not in sizes or record.cpu_seconds < sizes[power].cpu_seconds:
                sizes[power] = _Complete(record.cpu_seconds, size)
            used, read, largest = self._of_pipeline[record.pipeline]
            self._of_pipeline[record.pipeline] = used + record.cpu_seconds, read + size, max(largest, size)
        elif record.in_full_cpu_seconds is not None and record.in_full_basis == "table":
            self._carried[name] = _Complete(record.in_full_cpu_seconds, size)

    def cost(self, record: StepRecord) -> StepCost:
        """Return the cost of a step, with the estimate."""
        if record.status != "absorbed" or record.strategy in (*LANDING, BACKFILL):
            return StepCost(record)
        if record.computed_all or record.strategy == NO_CHANGE:
            # That no row changed, another way to compute the table might notice too: nothing counts as saved.
            return StepCost(record, record.cpu_seconds, "measured")
        if not record.source_bytes:
            return StepCost(record)
        name, size = (record.pipeline, record.table), _size(record)
        own = self._of_table.get(name)
        nearest = own[min(own, key=lambda power: abs(power - _power(size)))] if own else self._carried.get(name)
        if nearest:
            fixed = min(record.cpu_seconds, self._fixed.get(name, math.inf))
            return StepCost(record, nearest.scaled(size, fixed), "table")
        if record.pipeline in self._of_pipeline:
            used, read, largest = self._of_pipeline[record.pipeline]
            return StepCost(record, used / read * min(size, thresholds.COSTS_SCALED * largest), "pipeline")
        return StepCost(record)

    def with_estimate(self, record: StepRecord) -> StepRecord:
        """Return the record of a step with the estimate, as far as it is known when the step ends."""
        cost = self.cost(record)
        return replace(record, in_full_cpu_seconds=cost.in_full, in_full_basis=cost.basis)


class _Complete(NamedTuple):
    """What computing everything used, and the size of its sources."""

    cpu_seconds: float
    size: int

    def scaled(self, size: int, fixed: float) -> float:
        """Return core-seconds in proportion to the size of the sources, except for what each step costs anyway."""
        factor = min(size / self.size, thresholds.COSTS_SCALED)
        return fixed + max(0.0, self.cpu_seconds - fixed) * factor


def seconds_in_full(complete: StepRecord, source_bytes: int) -> float:
    """Estimate the seconds of computing everything from sources of some size, from a step that has computed everything.

    A first step may have read a part of its sources only, which `max_rows` cut: it counts with what it has read.
    """
    read = sum(s["bytes"] for s in complete.sources) if complete.strategy not in COMPLETE else complete.source_bytes
    factor = _at_least(source_bytes) / _at_least(read or complete.source_bytes)
    return complete.seconds * min(factor, thresholds.COSTS_SCALED)


def _size(record: StepRecord) -> int:
    return _at_least(record.source_bytes)


def _at_least(source_bytes: int) -> int:
    """Return the size of sources, or the size up to which a computation costs the same: see SMALL_INPUT_BYTES."""
    return max(source_bytes, thresholds.SMALL_INPUT_BYTES)


def _power(size: int) -> int:
    return round(math.log2(size))


def cost_lines(costs: Iterable[StepCost], by: Grouping, prices: CostsConfig) -> list[CostLine]:
    """Return what steps used by one of the groupings; days in their order, others the dearest first."""
    groups: dict[str, list[StepCost]] = defaultdict(list)
    for c in costs:
        groups[_name(c.record, by)].append(c)
    total = sum(c.record.cpu_seconds for found in groups.values() for c in found)
    lines = [_line(name, found, total, prices) for name, found in groups.items()]
    return sorted(lines, key=lambda line: (line.name,) if by == "day" else (-line.cpu_seconds, line.name))


def total_line(costs: Sequence[StepCost], prices: CostsConfig) -> CostLine:
    """Return what all steps used together."""
    return _line("total", costs, sum(c.record.cpu_seconds for c in costs), prices)


def _name(record: StepRecord, by: Grouping) -> str:
    match by:
        case "table":
            return record.table
        case "pipeline":
            return record.pipeline or "(none)"
        case "day":
            return datetime.fromtimestamp(record.started_at, UTC).date().isoformat()
        case "strategy":
            return record.strategy or record.status
        case "reason":
            strategy = record.strategy or record.status
            return f"{strategy}: {grouped_reason(record)}" if record.computed_all else strategy


def _line(name: str, costs: Sequence[StepCost], total: float, prices: CostsConfig) -> CostLine:
    records, known = [c.record for c in costs], [c for c in costs if c.in_full is not None]
    complete, of_known = [r for r in records if r.computed_all], [c.record for c in known]
    sums: dict[str, Any] = {n: sum(getattr(r, n) for r in records) for n in _SUMS}
    in_full = sum(c.in_full or 0.0 for c in known)
    money: dict[str, Any] = {}
    if prices.are_known:
        money["money"] = _money(prices, records)
        money["money_of_estimated"] = _money(prices, of_known)
        money["money_in_full"] = prices.money(in_full, sum(map(_bytes_in_full, known)))
    return CostLine(
        name,
        tuple(dict.fromkeys(r.pipeline for r in records)),
        steps=len(records),
        failed=sum(r.status == "failed" for r in records),
        complete=len(complete),
        reasons=_counted(map(grouped_reason, complete)),
        strategies=_counted(r.strategy or r.status for r in records),
        estimated=len(known),
        used_by_estimated=sum(r.cpu_seconds for r in of_known),
        in_full=in_full,
        bases=_counted(c.basis for c in known),
        share=sums["cpu_seconds"] / total if total else 0.0,
        **sums,
        **money,
    )


def _money(prices: CostsConfig, records: Sequence[StepRecord]) -> float:
    return prices.money(sum(r.cpu_seconds for r in records), sum(r.bytes_read + r.bytes_written for r in records))


def _bytes_in_full(cost: StepCost) -> int:
    """Return the bytes that computing everything would at least read and write."""
    record = cost.record
    read = record.bytes_read if cost.basis == "measured" else max(record.bytes_read, record.source_bytes)
    return read + record.bytes_written


def _counted(texts: Iterable[str]) -> dict[str, int]:
    return dict(Counter(texts).most_common())


def grouped_reason(record: StepRecord) -> str:
    """Return why a step computed everything, without numbers, so that similar reasons are counted together."""
    if record.strategy not in COMPLETE:
        return FIRST_STEP
    return _NUMBERS.sub("…", record.reason) or "no reason recorded"
