"""The job of a pipeline that runs a backfill, with all of its options, from the launchpad or any Dagster client."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.backfill_record import KEEP_DAYS, Publish, Records
from lake_assets.backfill.backfills import Backfill
from lake_assets.backfill.row_selection import Selection
from lake_assets.errors import LakeError
from lake_assets.facade import Lake
from lake_assets.lake import LakeConfig, TableId, thresholds
from lake_assets.orchestration._compat import DagsterExecutionInterruptedError
from lake_assets.orchestration.asset_names import PIPELINE_TAG, valid_name
from lake_assets.orchestration.backfill_events import BACKFILL_TAG, comparisons, plan_event, progress
from lake_assets.orchestration.runs.resources import PYSPARK
from lake_assets.orchestration.runs.step_failures import fail, open_lake
from lake_assets.pipeline import Pipeline


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
    partitions = {str(s.table): s.partitions for s in pipeline.specs(lake, alone=False)}
    yield from comparisons(lake, backfill.record, partitions)


def _of_run(context: Any, lake: Lake, pipeline: Pipeline) -> Backfill | None:
    """Return the open backfill that this run, or the run that it repeats, has begun."""
    mine = [r for r in Records(lake).all() if r.is_open and r.run == _root(context)]
    return Backfill.load(lake, pipeline, mine[-1].id) if mine else None


def _root(context: Any) -> str:
    return context.run.root_run_id or context.run_id
