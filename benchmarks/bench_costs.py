"""Whether a SQL model's step takes the faster way: by what changed, or in full.

    make bench-costs
    make bench-costs ARGS="--rows 2000 200000 --models retract keys"

A matrix of size of the source, write mode, share of changed rows and kind of query. Each query is three models: one
that chooses, one that always absorbs the change, and one that is always computed in full (`full_above`). Each step runs
alone, warm; the better of two counts. Copy-on-write tables have format version 2, whose rows have no ids, so that
changed rows are found by comparing the rewritten files.

A choice misses if it takes more than 1.1 times the faster way and more than half a second. Every table is compared with
its query by `verify` after the last change of each size and write mode.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from figures import Required, show

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.lake import SparkConfig
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.verification import verify

MODELS = {
    "retract": "SELECT k, count(*) AS n, sum(v) AS v FROM src.events GROUP BY k",
    "keys": "SELECT k, max(v) AS most, count(DISTINCT v) AS kinds FROM src.events GROUP BY k",
    "window": "SELECT id, k, v, row_number() OVER (PARTITION BY k ORDER BY v, id) AS place FROM src.events",
    "rows": "SELECT id, k, v * 2 AS doubled FROM src.events WHERE v % 7 <> 0",
    "join": "SELECT d.region, count(*) AS n, sum(e.v) AS v "
    "FROM src.events e JOIN src.dims d ON e.k = d.k GROUP BY d.region",
}
WAYS = {"chosen": None, "incremental": 1, "full": 0}
MODES = {"copy-on-write": 2, "merge-on-read": 3}
# One row, then shares of the table.
SHARES = (0.0, 0.01, 0.3)
FACTOR, SECONDS = 1.1, 0.5
REQUIRED: dict[str, Required] = {"choices that miss": ("at most", 0)}


@dataclass(frozen=True)
class Cell:
    """Seconds of one model for one change, by way; and the strategy that was chosen."""

    rows: int
    mode: str
    changed: int
    model: str
    seconds: dict[str, float]
    strategy: str

    @property
    def factor(self) -> float:
        """Seconds of the choice relative to the faster way."""
        return self.seconds["chosen"] / min(self.seconds["incremental"], self.seconds["full"])

    @property
    def is_missed(self) -> bool:
        """Whether the choice costs noticeably more than the faster way."""
        return self.factor > FACTOR and self.seconds["chosen"] > SECONDS


def fill(lake: Lake, rows: int, mode: str) -> None:
    """Create the source, in eight files, and a small table that is joined with it."""
    spark = lake.spark()
    lake.ensure_namespace(("src",))
    lake.ensure_namespace(("agg",))
    properties = {"format-version": str(MODES[mode])}
    properties |= {f"write.{what}.mode": mode for what in ("delete", "update", "merge")}
    listed = ", ".join(f"'{k}' = '{v}'" for k, v in properties.items())
    groups = max(10, rows // 50)
    for table, columns, count in (
        ("events", f"id, xxhash64(id) % {groups} AS k, CAST(id % 1000 AS INT) AS v, repeat('x', 20) AS note", rows),
        ("dims", f"id - {groups} AS k, concat('region ', id % 20) AS region", 2 * groups),
    ):
        spark.sql(f"DROP TABLE IF EXISTS src.{table}")
        spark.sql(
            f"CREATE TABLE src.{table} USING iceberg TBLPROPERTIES ({listed}) AS "
            f"SELECT {columns} FROM range(0, {count}, 1, {8 if table == 'events' else 1})"
        )


def change(lake: Lake, rows: int, share: float, turn: int) -> int:
    """Update rows all over the table; return their number."""
    step = max(1, round(1 / share)) if share else rows
    lake.spark().sql(f"UPDATE src.events SET v = v + {turn} WHERE id % {step} = {turn * 7919 % step}")
    return rows // step


def measure(lake: Lake, rows: int, mode: str, models: list[str]) -> list[Cell]:
    """Return the cells of one size and write mode."""
    fill(lake, rows, mode)
    names = {(m, way): f"agg.{m}_{way}" for m in models for way in WAYS}
    declared = [
        {"name": name, "sql": MODELS[m]} | ({} if WAYS[way] is None else {"full_above": WAYS[way]})
        for (m, way), name in names.items()
    ]
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "costs", "models": declared}))
    for name in names.values():
        lake.spark().sql(f"DROP TABLE IF EXISTS {name}")
        step(lake, pipeline, name)
    cells = []
    turn = changed = 0
    for n, share in enumerate((0.0, *SHARES)):
        best: dict[tuple[str, str], tuple[float, str]] = {}
        for _ in range(1 if n == 0 else 2):
            turn += 1
            changed = change(lake, rows, share, turn)
            for key, name in names.items():
                best[key] = min(best.get(key, (float("inf"), "")), step(lake, pipeline, name))
        if n == 0:  # warms up
            continue
        for m in models:
            cell = Cell(rows, mode, changed, m, {w: best[m, w][0] for w in WAYS}, best[m, "chosen"][1])
            cells.append(cell)
            print(line(cell), file=sys.stderr, flush=True)
    for spec in pipeline.specs(lake):
        assert isinstance(spec, ModelSpec)
        if not (found := verify(lake, spec)).equal:
            raise SystemExit(f"{spec.table} differs: {found.differences[:3]}")
    return cells


def step(lake: Lake, pipeline: Pipeline, name: str) -> tuple[float, str]:
    """Run one step; return its seconds and its strategy."""
    began = time.perf_counter()
    (outcome,) = pipeline.run(lake, [name])
    seconds = time.perf_counter() - began
    if outcome.exception:
        raise outcome.exception
    return seconds, outcome.strategy


def line(cell: Cell) -> str:
    """Return a cell as a line of the table."""
    seconds = " | ".join(f"{cell.seconds[w]:.2f}" for w in ("incremental", "full", "chosen"))
    factor = f"**{cell.factor:.2f}**" if cell.is_missed else f"{cell.factor:.2f}"
    return f"| {cell.rows:,} | {cell.mode} | {cell.changed:,} | {cell.model} | {seconds} | {cell.strategy} | {factor} |"


def main() -> int:
    """Print the matrix; return 1 if a choice misses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=(2_000, 200_000, 3_000_000))
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    args = parser.parse_args()
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory() as home:
        lake = Lake(LakeConfig(home=Path(home), spark=SparkConfig(master="local[2]", driver_memory="6g")))
        for rows in args.rows:
            for mode in args.modes:
                cells += measure(lake, rows, mode, args.models)
    print("| rows | write mode | changed | query | incremental, s | full, s | chosen, s | strategy | to the faster |")
    print("|---|---|---|---|---|---|---|---|---|")
    print("\n".join(map(line, cells)) + "\n")
    total = {way: sum(c.seconds[way] for c in cells) for way in WAYS}
    figures: dict[str, float | str] = {
        "cells": str(len(cells)),
        "choices that miss": float(sum(c.is_missed for c in cells)),
        "all cells: seconds, chosen": total["chosen"],
        "all cells: seconds, always incremental": total["incremental"],
        "all cells: seconds, always in full": total["full"],
        "all cells: seconds, the faster way of each": sum(
            min(c.seconds["incremental"], c.seconds["full"]) for c in cells
        ),
    }
    return int(show(figures, REQUIRED))


if __name__ == "__main__":
    sys.exit(main())
