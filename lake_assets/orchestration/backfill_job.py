"""The job of a pipeline that runs a backfill, with all of its options, from the launchpad or any Dagster client.

It reports the plan, its progress and what it changed as observations: rows of the past that were redone do not make a
table fresh.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from lake_assets.backfill.backfill_plan import BackfillPlan, plan
from lake_assets.backfill.backfill_record import KEEP_DAYS, BackfillRecord, Publish, Records, TableRecord
from lake_assets.backfill.backfills import Backfill
from lake_assets.backfill.comparison import TableComparison, compare
from lake_assets.backfill.row_selection import Selection
from lake_assets.errors import LakeError
from lake_assets.facade import Lake
from lake_assets.lake import LakeConfig, TableId, thresholds
from lake_assets.orchestration._compat import DagsterExecutionInterruptedError
from lake_assets.orchestration.asset_names import PIPELINE_TAG, asset_key, valid_name
from lake_assets.orchestration.runs.resources import PYSPARK
from lake_assets.orchestration.runs.step_failures import fail, open_lake
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.table_graph import Spec


class BackfillOptions(dg.Config):
    """What to redo, and how; see `lake-assets backfill --help`."""

    table: str = Field(description="the table to redo, such as final.users")
    partitions: list[str] = Field(default_factory=list, description="redo these partitions; default: everything")
    range_from: str | None = Field(default=None, description="redo a range, both ends included")
    range_to: str | None = Field(default=None, description="the end of the range")
    range_by: str | None = Field(
        default=None,
        description="column of the range; default: the column of the partitions by time, else the source time of a "
        "final table's events",
    )
    keys_file: str | None = Field(default=None, description="redo the keys in a .csv, .jsonl or .parquet file")
    downstream: bool = Field(default=True, description="also redo the tables that read it")
    publish: str = Field(
        default="auto",
        pattern="^(auto|manual)$",
        description="auto: publish when everything is built; manual: wait for `lake-assets publish` or `discard`",
    )
    plan_only: bool = Field(default=False, description="show the plan and stop")
    max_rows: int = Field(
        default=thresholds.ROWS_A_CHUNK, ge=1, description="rows that are computed at a time, roughly"
    )
    keep_days: int = Field(default=KEEP_DAYS, ge=1, description="days in which it can be undone")

    @property
    def selection(self) -> Selection:
        """What to redo."""
        keys = Path(self.keys_file) if self.keys_file else None
        return Selection(tuple(self.partitions), self.range_from, self.range_to, self.range_by, keys)


def backfill_job(pipeline: Pipeline, lake_config: LakeConfig, executor: dg.ExecutorDefinition) -> dg.JobDefinition:
    """Build the job `NAME_backfill` of a pipeline.

    The first event of its run is the plan, the last ones compare each table before and after. They are observations:
    rows of the past that were redone do not make a table fresh.
    """
    name = f"{valid_name(pipeline.name)}_backfill"

    # Any: Dagster would take a generator's annotation for the type of its output. The op has a name of its own, since
    # names of ops and jobs are unique in a code location.
    @dg.op(name=f"redo_{valid_name(pipeline.name)}", required_resource_keys={PYSPARK}, out=dg.Out(dg.Nothing))
    def redo(context, config: BackfillOptions) -> Any:  # type: ignore[no-untyped-def]
        with open_lake(context, lake_config) as lake:
            try:
                yield from _run(context, lake, pipeline, config)
            except LakeError as error:
                fail(context, error)
        yield dg.Output(None)

    @dg.job(
        name=name,
        description=f"Redo a table of {pipeline.name} and everything downstream in working copies, and publish all "
        "tables at once.",
        tags={PIPELINE_TAG: pipeline.name},
        executor_def=executor,
    )
    def job() -> None:
        redo()

    return job


def _run(context: Any, lake: Lake, pipeline: Pipeline, options: BackfillOptions) -> Iterator[dg.AssetObservation]:
    backfill = _of_run(context, lake, pipeline)
    if backfill is None:
        planned = plan(
            lake,
            pipeline,
            TableId.parse(options.table),
            options.selection,
            downstream=options.downstream,
            max_rows=options.max_rows,
            past=Records(lake).all(),
        )
        yield plan_event(context, TableId.parse(options.table), planned)
        if options.plan_only:
            context.log.info(f"{planned.request}: about {planned.seconds:.0f} s; nothing was started")
            return
        publish: Publish = "manual" if options.publish == "manual" else "auto"
        backfill = Backfill.begin(
            lake, pipeline, planned, publish=publish, keep_days=options.keep_days, run=_root(context)
        )
        context.instance.add_run_tags(context.run_id, {BACKFILL_TAG: backfill.record.id})
    try:
        backfill.build(lambda record, at: context.log.info(progress(record, at)))
        if backfill.record.publish == "auto":
            backfill.publish()
    except DagsterExecutionInterruptedError:
        context.log.warning(
            f"the backfill {backfill.record.id} was interrupted, and nothing of it is published: re-execute this run, "
            f"or `lake-assets resume {backfill.record.id}`, to continue it; `lake-assets discard {backfill.record.id}` "
            "drops it"
        )
        raise
    context.log.info(f"the backfill {backfill.record.id} is {backfill.record.state}")
    yield from comparisons(lake, backfill.record, pipeline.specs(lake, alone=False))


def _of_run(context: Any, lake: Lake, pipeline: Pipeline) -> Backfill | None:
    """Return the open backfill that this run, or the run that it repeats, has begun."""
    mine = [r for r in Records(lake).all() if r.is_open and r.run == _root(context)]
    return Backfill.load(lake, pipeline, mine[-1].id) if mine else None


def _root(context: Any) -> str:
    return context.run.root_run_id or context.run_id


# The tag of the run that does the work of a backfill, with its id.
BACKFILL_TAG = "lake_assets/backfill"


def comparisons(lake: Lake, record: BackfillRecord, specs: Iterable[Spec]) -> Iterator[dg.AssetObservation]:
    """Compare each table of a backfill before and after.

    Args:
        specs: the tables of the pipeline, as declared.
    """
    for comparison in compare(lake, record, specs):
        yield dg.AssetObservation(asset_key(TableId.parse(comparison.table)), metadata=_metadata(record, comparison))


def progress(record: BackfillRecord, at: TableRecord) -> str:
    """Describe how far a backfill is, after a piece of work on one of its tables."""
    done = sum(t.done for t in record.tables)
    return (
        f"{at.table}: {at.done} of {len(at.chunks)} chunks, {at.inserted} inserted, {at.updated} updated, {at.deleted} "
        f"deleted in {at.seconds:.1f} s ({done} of {sum(len(t.chunks) for t in record.tables)} in all)"
    )


def plan_event(context: Any, table: TableId, planned: BackfillPlan) -> dg.AssetObservation:
    """Show a plan in the log of a run, in words, and return it as an event of a table, with its figures."""
    lines = [f"plan: {planned.request}, about {planned.seconds:.0f} s"]
    lines += [f"{t.table}: {t.what}, {t.rows_read:,} rows read, about {t.seconds:.0f} s" for t in planned.tables]
    lines += [f"{name} is left out: {why}" for name, why in planned.left_out.items()]
    context.log.info("\n".join(lines))
    return dg.AssetObservation(asset_key(table), metadata=_plan_metadata(planned))


def _plan_metadata(planned: BackfillPlan) -> dict[str, Any]:
    head = ("table", "redone", "rows", "rows read", "bytes read", "seconds", "confidence")
    rows = [
        (t.table, t.what, f"{t.rows:,}", f"{t.rows_read:,}", f"{t.bytes_read:,}", f"{t.seconds:.0f}", t.confidence)
        for t in planned.tables
    ]
    left_out = [f"\n{table} is left out: {why}" for table, why in planned.left_out.items()]
    return {
        "request": planned.request,
        "plan": dg.MetadataValue.md("\n".join([*_markdown(head, rows), *left_out])),
        "estimated_seconds": planned.seconds,
    }


def _metadata(record: BackfillRecord, comparison: TableComparison) -> dict[str, Any]:
    sums = [(column, str(before), str(after)) for column, (before, after) in comparison.sums.items()]
    metadata: dict[str, Any] = {
        "backfill": record.id,
        "state": record.state,
        "inserted": comparison.inserted,
        "updated": comparison.updated,
        "deleted": comparison.deleted,
    }
    if comparison.partitions:
        metadata["partitions"] = ", ".join(comparison.partitions[:1_000])
    if comparison.columns:
        rows = [(c.column, c.change, "" if c.rows is None else f"{c.rows:,}") for c in comparison.columns]
        metadata["columns"] = dg.MetadataValue.md("\n".join(_markdown(("column", "change", "rows"), rows)))
    if sums:
        metadata["sums of changed rows"] = dg.MetadataValue.md(
            "\n".join(_markdown(("column", "before", "after"), sums))
        )
    if comparison.samples:
        columns = tuple(comparison.samples[0])
        rows = [tuple(str(row[c]) for c in columns) for row in comparison.samples]
        metadata["samples"] = dg.MetadataValue.md("\n".join(_markdown(columns, rows)))
    return metadata


def _markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', '&#124;').replace(chr(10), ' ') for cell in cells)} |"

    head = list(head)
    return [line(head), line("---" for _ in head), *map(line, rows)]
