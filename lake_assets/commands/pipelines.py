"""`lake-assets run`, `lake-assets status`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pyiceberg.table import Table as IcebergTable
from rich.table import Table

from lake_assets.commands.output import console, outcome_json, outcome_table, print_json
from lake_assets.errors import PipelineError
from lake_assets.examples import shipped_pipelines
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.watermark import PIPELINE_PROPERTY, ancestors, find_property, read_marks
from lake_assets.lake.watermark import PROPERTY as WATERMARK
from lake_assets.models.spec import ModelSpec
from lake_assets.pipeline import Pipeline, own_pipelines

AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def find_pipeline(name: str) -> Pipeline:
    """The pipeline of a YAML file, of a folder with a defs.yaml, or a shipped one by its name.

    Raises:
        PipelineError: there is none.
    """
    path = Path(name)
    if path.is_dir() and (path / "defs.yaml").is_file():
        return Pipeline.load(path / "defs.yaml")
    if path.is_file():
        return Pipeline.load(path)
    shipped = {p.parent.name: p for p in shipped_pipelines()}
    if name in shipped:
        return Pipeline.load(shipped[name])
    raise PipelineError(
        f"no pipeline {name}: name a YAML file, a folder with a defs.yaml, or one of {', '.join(shipped)}"
    )


def find_model(lake: Lake, table: str, pipeline: str | None = None) -> ModelSpec:
    """The model that makes a table, as it is declared now.

    Args:
        lake: where the table is.
        table: layer.name.
        pipeline: as for `find_pipeline`; default: whichever of the shipped pipelines and those below LAKE_PIPELINES
            declares the table.

    Raises:
        PipelineError: none of them does, or makes it otherwise than by a SELECT.
    """
    asked = TableId.parse(table)
    searched = [find_pipeline(pipeline)] if pipeline else [*map(Pipeline.load, shipped_pipelines()), *own_pipelines()]
    for candidate in searched:
        for spec in candidate.specs(lake, alone=False):
            if spec.table == asked and isinstance(spec, ModelSpec):
                return spec
            if spec.table == asked:
                raise PipelineError(f"{asked} is made of change events by pipeline {candidate.name!r}, not by a SELECT")
    names = ", ".join(c.name for c in searched)
    raise PipelineError(f"no model makes {asked} in pipeline {names}: name the one that does with --pipeline")


def run(
    pipeline: Annotated[str, typer.Argument(help="YAML file, folder with a defs.yaml, or a shipped pipeline's name")],
    table: Annotated[list[str] | None, typer.Option("--table", "-t", help="only this table; may be repeated")] = None,
    as_json: AsJson = False,
) -> None:
    """Absorb everything that is pending, then exit (1 if a table failed): what cron would call."""
    loaded, lake = find_pipeline(pipeline), Lake.load()
    if table:
        known = {str(s.table) for s in loaded.specs(lake)}
        if unknown := sorted(set(table) - known):
            raise PipelineError(f"{pipeline} has no table {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    if as_json:
        outcomes = loaded.run(lake, table)
        print_json([outcome_json(o) for o in outcomes])
    else:
        with console.status("looking at what is pending") as status:
            outcomes = loaded.run(lake, table, on_start=lambda name: status.update(f"absorbing: {name}"))
        console.print(outcome_table(outcomes))
    if any(o.status == "failed" for o in outcomes):
        raise typer.Exit(1)


@dataclass(frozen=True)
class TableStatus:
    """One table of the lake as `status` shows it.

    Attributes:
        rows: from the current snapshot's summary; None for a table without snapshots.
        behind: by source, how many snapshots have come since the one that was absorbed; None: it is not among them.
        behind_seconds: age of the oldest of them.
        last_run: when the table last absorbed something.
    """

    table: str
    pipeline: str
    rows: int | None
    watermark: dict[str, int | None]
    behind: dict[str, int | None]
    behind_seconds: float
    last_run: datetime | None


def status(as_json: AsJson = False) -> None:
    """A line a table: rows, watermark, how far behind its sources, last run. Reads metadata only."""
    lake = Lake.load()
    found = [table_status(lake, t) for t in _own_tables(lake)]
    if as_json:
        print_json(found)
        return
    if not found:
        console.print(f"no pipeline has filled a table in the lake at {lake.config.home} yet: try `lake-assets demo`")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header, justify in (
        ("table", "left"),
        ("rows", "right"),
        ("watermark", "left"),
        ("behind", "left"),
        ("last run (UTC)", "left"),
    ):
        table.add_column(header, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for s in found:
        marks = ", ".join(f"{source} @ {snapshot}" for source, snapshot in s.watermark.items())
        table.add_row(
            s.table,
            "" if s.rows is None else f"{s.rows:,}",
            marks,
            _behind(s),
            f"{s.last_run:%Y-%m-%d %H:%M:%S}" if s.last_run else "never",
        )
    console.print(table)


def table_status(lake: Lake, table_id: TableId) -> TableStatus:
    """How one table stands."""
    table = lake.table(table_id)
    found = find_property(table, WATERMARK)
    marks = read_marks(table) if found else {}
    behind: dict[str, int | None] = {}
    oldest: list[int] = []
    for source, mark in marks.items():
        if not lake.exists(source):
            behind[source] = None
            continue
        newer = []
        for snapshot in ancestors(lake.table(source)):
            if snapshot.snapshot_id == mark.snapshot:
                behind[source] = len(newer)
                break
            newer.append(snapshot.timestamp_ms)
        else:
            behind[source] = len(newer) if mark.snapshot is None else None
        oldest += newer[-1:]
    current = table.current_snapshot()
    last = found[1] if found else current
    now = datetime.now(UTC)
    return TableStatus(
        str(table_id),
        table.properties.get(PIPELINE_PROPERTY, ""),
        row_count(table),
        {source: mark.snapshot for source, mark in marks.items()},
        behind,
        max((now.timestamp() - ms / 1000 for ms in oldest), default=0.0),
        datetime.fromtimestamp(last.timestamp_ms / 1000, UTC) if last else None,
    )


def row_count(table: IcebergTable) -> int | None:
    """Rows of the current snapshot, as its summary counts them; None where it does not say."""
    current = table.current_snapshot()
    said = current.summary.additional_properties if current and current.summary else {}
    if "total-records" not in said or int(said.get("total-equality-deletes", 0)):
        return None
    return int(said["total-records"]) - int(said.get("total-position-deletes", 0))


def _own_tables(lake: Lake) -> list[TableId]:
    order = {"raw": 0, "staging": 1, "final": 2, "agg": 3}
    spaces = sorted(
        (n for n in lake.catalog.list_namespaces() if n[0] != "icdc"), key=lambda n: (order.get(n[0], 9), n)
    )
    tables = [t for n in spaces for t in lake.tables(n)]
    return [t for t in tables if PIPELINE_PROPERTY in lake.table(t).properties]


def _behind(status: TableStatus) -> str:
    if any(n is None for n in status.behind.values()):
        return "[bold red]history lost[/]"
    snapshots = sum(n or 0 for n in status.behind.values())
    if not snapshots:
        return "" if not status.behind else "[green]up to date[/]"
    return f"[yellow]{snapshots} snapshot{'s' if snapshots > 1 else ''}, {status.behind_seconds:,.0f} s[/]"
