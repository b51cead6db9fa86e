"""Jobs in a pipeline's YAML: users' own programs over captured changes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from sqlglot import exp

from lake_assets.errors import ModelError, PipelineError
from lake_assets.jobs.job_commands import CommandJob, DbtJob, NotebookJob
from lake_assets.jobs.job_functions import FunctionJob
from lake_assets.jobs.job_spec import Job, JobSpec
from lake_assets.jobs.step_parameters import SPARK_CONF, names_in
from lake_assets.jobs.step_settings import StepSettings, check_columns, columns_by_name, names_of
from lake_assets.lake import TableId
from lake_assets.lake.names import nearest
from lake_assets.lake.paths import LocalPath
from lake_assets.models.sql.model_plan import parse, sources_of
from lake_assets.pipeline.config.asset_settings import AssetSettings, Several, TableSettings, combined_settings
from lake_assets.pipeline.config.audit_settings import Audits, read_audits
from lake_assets.pipeline.config.setting_types import (
    Duration,
    OrText,
    Strict,
    as_value_errors,
    checked,
    combination,
    listed,
    seconds_of,
    table_to_write,
    text_as,
)
from lake_assets.pipeline.config.stream_tables import Batches, batch_size

ByName = Annotated[list[str] | dict[str, str | dict[str, str]], BeforeValidator(listed)]
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OF_SOURCES = ("start", "end", "after", "before", "after_metadata", "before_metadata")


class NotebookSettings(Strict):
    """A notebook that papermill runs."""

    path: LocalPath = Field(description="the notebook, relative to the YAML's folder")
    output: str | None = Field(
        default=None, description="the executed notebook, with placeholders such as {id}; default: <path>.out.ipynb"
    )


class DbtSettings(Strict):
    """A selection of a dbt project."""

    project: LocalPath = Field(description="folder of the dbt project, relative to the YAML's folder")
    select: str = Field(description="what is built, in dbt's syntax", min_length=1)
    arguments: list[str] = Field(default_factory=list, description="more arguments of dbt build: [--target, prod]")


class JobSettings(Batches, TableSettings):
    """A job over what changed in its inputs: a command, a Python function, a notebook or a dbt selection."""

    table: Annotated[str, table_to_write("made by lake_assets itself: name the job's table in")] = Field(
        description="layer.table that the job writes; its snapshots hold the watermark"
    )
    inputs: Annotated[Several, checked(names_of)] = Field(
        description="tables whose changes trigger the job and are handed to it", min_length=1
    )
    lookups: Annotated[Several, checked(names_of)] = Field(
        default_factory=list, description="tables that the job reads at their current snapshot"
    )
    ranges: ByName = Field(
        default_factory=list,
        description="columns whose changed range the job is given: [day]. {day: started_on} names the column, "
        "{day: {raw.playback: started_on}} by table",
    )
    keys: ByName = Field(
        default_factory=list,
        description="columns or SQL expressions whose changed values the job is given, in the same notation as ranges",
    )
    lifetime: Duration | None = Field(
        default=None, description="how long the captured tables (ICDC) last (2h, 1d); default: until the job is done"
    )
    writes: Literal["table", "elsewhere"] = Field(
        default="table",
        description="elsewhere: the job writes to another system, or also to other tables; its own table only "
        "holds the watermark",
    )
    on_unknown: Literal["stop", "rerun"] = Field(
        default="stop",
        description="if the job was interrupted and may have written its rows without the watermark: stop until "
        "you run `lake-assets step`, or run the job over the same changes again",
    )
    on_gap: Literal["stop", "rebuild"] = Field(
        default="stop", description="if the absorbed snapshot of an input has expired: stop, or give the job everything"
    )
    on_replaced: Literal["stop", "rebuild"] = Field(
        default="stop",
        description="if an input was dropped and created again, or a column of it that `ranges` or `keys` name: stop, "
        "or give the job everything",
    )
    audits: Audits = Field(
        default_factory=list,
        description="conditions that are checked after each step, when its rows are already published",
    )
    full: str | None = Field(
        default=None,
        description="a SELECT of all rows that the table should hold, over tables named with their layer; `lake-assets "
        "verify` compares the table with it",
    )
    command: list[str] = Field(
        default_factory=list,
        description="a program and its arguments, with placeholders such as {low.day}; LAKE_STEP_* variables are in "
        "its environment, and {spark_conf} becomes spark-submit's --conf arguments with the watermark",
    )
    python: str | None = Field(
        default=None, description="module:function, called with the step (and Dagster's context, if it takes two)"
    )
    notebook: Annotated[NotebookSettings | None, text_as("path"), OrText()] = Field(
        default=None, description="a notebook, run by papermill with the step's values as parameters"
    )
    dbt: DbtSettings | None = Field(default=None, description="a dbt selection, with the step's values as --vars")
    env: dict[str, str] = Field(default_factory=dict, description="more environment variables of the program")

    @field_validator("python")
    @classmethod
    def _python(cls, value: str | None) -> str | None:
        if value is not None and not _FUNCTION.fullmatch(value):
            raise ValueError(f"{value!r} is no function: write module:function, for example my_jobs:daily")
        return value

    @field_validator("full")
    @classmethod
    def _full(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and "table" in info.data:
            with as_value_errors():
                read_full(TableId.parse(info.data["table"]), value)
        return value

    @combination
    def _one_job(self) -> Iterator[str]:
        kinds = ("command", "python", "notebook", "dbt")
        if len(given := [k for k in kinds if getattr(self, k)]) != 1:
            there = f"found {' and '.join(given)}" if given else "found none"
            yield f"{self.table}: a job is one of {', '.join(kinds)}: {there}"
        if self.audits and self.writes == "elsewhere":
            yield (f"{self.table}: `audits` check rows of the table, and with `writes: elsewhere` it has none")
        if self.full is not None and self.writes == "elsewhere":
            yield (f"{self.table}: `full` has the rows of the table, and with `writes: elsewhere` it has none")
        if self.env and self.python:
            yield f"{self.table}: `env` is for programs; a function runs in the environment of the run"

    @combination
    def _columns(self) -> Iterator[str]:
        with as_value_errors():
            settings = self.step("")
            check_columns(settings.table, settings.ranges, settings.keys, settings.sources)
        if both := set(settings.sources) & {*settings.lookups, settings.table}:
            yield f"{self.table}: {', '.join(map(str, sorted(both)))} cannot be an input and something else"
        known = ["table", "id", "is_empty", "is_initial", "properties", "spark_conf"]
        known += [f"{end}.{name}" for name in settings.ranges for end in ("low", "high", "nulls")]
        known += [f"{what}.{s}" for s in settings.sources for what in _OF_SOURCES]
        known += [f"snapshot.{t}" for t in settings.lookups]
        output = self.notebook.output if self.notebook else None
        texts = [*(a for a in self.command if a != SPARK_CONF), *self.env.values(), *([output] if output else [])]
        for name in sorted(names_in(texts)):
            if name == SPARK_CONF.strip("{}"):
                yield (
                    f"{self.table}: {SPARK_CONF} becomes several arguments, so it stands alone in `command`: "
                    f'[spark-submit, "{SPARK_CONF}", daily.py]'
                )
            elif name not in known:
                yield (
                    f"{self.table}: no parameter is called {name!r}{nearest(name, known)}: known: {', '.join(known)}. "
                    "A brace that is meant as such is written twice"
                )

    def step(self, owner: str) -> StepSettings:
        """Return what the job's steps are declared to do."""
        table = TableId.parse(self.table)
        return StepSettings(
            table,
            names_of(self.inputs),
            columns_by_name(table, "ranges", self.ranges),
            columns_by_name(table, "keys", self.keys),
            names_of(self.lookups),
            timedelta(seconds=seconds_of(self.lifetime)) if self.lifetime is not None else None,
            self.writes,
            self.on_unknown,
            self.on_gap,
            self.on_replaced,
            owner,
        )

    def job(self, folder: Path) -> tuple[Job, str]:
        """Return what it runs, and its kind."""
        if self.python is not None:
            return FunctionJob(self.python, folder), "python"
        if self.notebook is not None:
            return NotebookJob(Path(self.notebook.path), self.notebook.output, folder, self.env), "jupyter"
        if self.dbt is not None:
            dbt = self.dbt
            return DbtJob(Path(dbt.project), dbt.select, tuple(dbt.arguments), folder, self.env), "dbt"
        return CommandJob(tuple(self.command), folder, self.env), "shell"


def read_full(table: TableId, sql: str) -> tuple[exp.Query, tuple[TableId, ...]]:
    """Parse the SELECT that gives all rows of a job's table, and return it with the tables that it reads.

    Raises:
        PipelineError: it is not a single SELECT, names a table without its layer, or reads the job's own table.
    """
    try:
        query = parse(str(table), sql, is_maintained=False)
        reads = sources_of(str(table), query)
    except ModelError as e:
        problems = e.problems or ((None, str(e).removeprefix(f"model {table}: ")),)
        raise PipelineError("\n".join(f"{full_at(table, line)}: {text}" for line, text in problems)) from e
    if table in reads:
        raise PipelineError(f"{full_at(table)}: it reads {table} itself: compute the rows from the job's inputs")
    return query, reads


def full_at(table: TableId, line: int | None = None) -> str:
    """Return the name of a job's `full` in messages, with a line of its SQL."""
    return f"{table}: `full`{f', line {line} of its SQL' if line else ''}"


def job_spec(
    pipeline: str, declared: JobSettings, folder: Path, made: Collection[TableId], outer: Batches, assets: AssetSettings
) -> JobSpec:
    """Return the table of a job.

    Args:
        outer, assets: settings of the pipeline, which apply where a job has none.

    Raises:
        PipelineError: its audits contradict each other.
    """
    settings = declared.step(pipeline)
    job, kind = declared.job(folder)
    # Changes wait only where they enter the pipeline.
    default = outer.max_wait if set(made).isdisjoint(settings.sources) else None
    wait = default if declared.max_wait is None else declared.max_wait
    own = combined_settings([declared, AssetSettings(kinds=[kind]), assets])
    audits = read_audits(settings.table, declared.audits)
    return JobSpec(settings, job, pipeline, batch_size(wait, declared, outer), own, audits, declared.full or "")


class CapturedJobConfig(JobSettings):
    """One job as a pipeline of its own."""

    name: str | None = Field(
        default=None,
        description="name of the pipeline that owns the table; default: made of the table",
        pattern=r"^\w+$",
    )
    interval: str | float = Field(
        default="15s", description="shortest time between two checks of the capture sensor for pending changes"
    )

    @property
    def pipeline_name(self) -> str:
        """The name of its pipeline."""
        return self.name or re.sub(r"\W", "_", self.table)
