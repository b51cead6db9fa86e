"""The job of a pipeline that runs a backfill, with all of its options, from the launchpad or any Dagster client.

It reports the plan, its progress and what it changed as observations: rows of the past that were redone do not make a
table fresh.
"""

from collections.abc import Iterable, Iterator, Sequence
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
from lake_assets.lake.counts import plural
from lake_assets.orchestration._compat import DagsterExecutionInterruptedError
from lake_assets.orchestration.asset_names import PIPELINE_TAG, asset_key, valid_name
from lake_assets.orchestration.runs.resources import PYSPARK
from lake_assets.orchestration.runs.step_failures import fail, open_lake
from lake_assets.orchestration.shown_values import in_markdown, markdown_table
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.table_graph import Spec
from lake_assets.report.amounts import counted
from lake_assets.report.backfill_contents import backfill_report, partition_column
from lake_assets.report.html_page import write_page
from lake_assets.report.table_differences import SampleRow, TableDifferences, table_differences


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
    html: str | None = Field(
        default=None, description="write a page with rows before and after to this file; it holds values of rows"
    )

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
    yield from comparisons(lake, backfill.record, pipeline.specs(lake, alone=False), options.html)


def _of_run(context: Any, lake: Lake, pipeline: Pipeline) -> Backfill | None:
    """Return the open backfill that this run, or the run that it repeats, has begun."""
    mine = [r for r in Records(lake).all() if r.is_open and r.run == _root(context)]
    return Backfill.load(lake, pipeline, mine[-1].id) if mine else None


def _root(context: Any) -> str:
    return context.run.root_run_id or context.run_id


# The tag of the run that does the work of a backfill, with its id.
BACKFILL_TAG = "lake_assets/backfill"


def comparisons(
    lake: Lake, record: BackfillRecord, specs: Sequence[Spec], html: str | None = None
) -> Iterator[dg.AssetObservation]:
    """Compare each table of a backfill before and after.

    Args:
        specs: the tables of its pipelines.
        html: the file of a page that shows the same; a relative one is in the lake's home; None: no page.
    """
    by_table = {str(s.table): s for s in specs}
    compared: list[TableComparison] = []
    for comparison in compare(lake, record, specs):
        compared.append(comparison)
        table = table_differences(comparison, partition_column(by_table.get(comparison.table)))
        yield dg.AssetObservation(asset_key(TableId.parse(table.table)), metadata=_metadata(record, table))
    if html:
        file = lake.config.home / html
        file.parent.mkdir(parents=True, exist_ok=True)
        write_page(file, backfill_report(lake, record, compared, specs))
        first = asset_key(TableId.parse(record.tables[0].table))
        yield dg.AssetObservation(first, metadata={"backfill": record.id, "page": dg.MetadataValue.path(str(file))})


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
    lines += [
        f"{t.table}: {t.what}, {plural(t.rows_read, 'row')} read, about {t.seconds:.0f} s" for t in planned.tables
    ]
    lines += [f"{name} is left out: {why}" for name, why in planned.left_out.items()]
    context.log.info("\n".join(lines))
    return dg.AssetObservation(asset_key(table), metadata=_plan_metadata(planned))


def _plan_metadata(planned: BackfillPlan) -> dict[str, Any]:
    head = ("table", "redone", "rows", "rows read", "bytes read", "seconds", "confidence")
    rows = [
        (t.table, t.what, f"{t.rows:,}", f"{t.rows_read:,}", f"{t.bytes_read:,}", f"{t.seconds:.0f}", t.confidence)
        for t in planned.tables
    ]
    left_out = [f"\n{in_markdown(f'{table} is left out: {why}')}" for table, why in planned.left_out.items()]
    return {
        "request": planned.request,
        "plan": dg.MetadataValue.md("\n".join([markdown_table(head, rows), *left_out])),
        "estimated_seconds": round(planned.seconds, 1),
    }


def _metadata(record: BackfillRecord, table: TableDifferences) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "backfill": record.id,
        "state": record.state,
        "inserted": table.added,
        "updated": table.changed,
        "deleted": table.removed,
    }
    if table.written:
        metadata["partitions"] = ", ".join(table.written[:1_000])
    if table.partitions:
        metadata["rows by partition"] = _table(
            ("partition", "before", "after", "added", "changed", "removed"),
            ((key, *map(counted, (*p.rows, p.added, p.changed, p.removed))) for key, p in table.partitions[:1_000]),
        )
    if table.columns:
        rows = ((c.column, c.change, "" if c.rows is None else f"{c.rows:,}") for c in table.columns)
        metadata["columns"] = _table(("column", "change", "rows"), rows)
    if table.sums:
        metadata["sums of changed rows"] = _table(("column", "before", "after"), table.sums)
    if table.samples:
        metadata["samples"] = _table(("row", *table.sample_columns), map(_sample, table.samples))
    return metadata


def _sample(row: SampleRow) -> Iterable[str]:
    return (row.kind, *(f"{c.before} → {c.value}" if c.differs else c.value for c in row.cells))


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(markdown_table(head, rows))
