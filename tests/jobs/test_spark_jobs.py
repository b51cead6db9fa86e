"""Jobs that write with Spark: the watermark in their own commit, keys of changed rows, and format v3."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import ConcurrentWriteError, JobError, PipelineError
from lake_assets.jobs.captured_step import CapturedStep
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.pipeline.pipeline_checks import check
from tests.support.daily_job import DAILY, PLAYS, SCHEMA

NAMES = ", ".join(SCHEMA.names)


@pytest.fixture(params=[pytest.param(2, marks=pytest.mark.long), 3])
def media(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    """Plays in a table of each format version, with rows that are updated in place."""
    sql = lake.spark().sql
    for namespace in ("raw", "agg"):
        sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{namespace}")
    sql(
        f"CREATE TABLE lake.{PLAYS} (account BIGINT, day DATE, seconds BIGINT) USING iceberg TBLPROPERTIES ("
        f"'format-version'='{request.param}', 'write.update.mode'='merge-on-read', 'write.delete.mode'='merge-on-read')"
    )
    sql(
        f"CREATE TABLE lake.{DAILY} (account BIGINT, day DATE, seconds BIGINT) USING iceberg "
        f"PARTITIONED BY (day) TBLPROPERTIES ('format-version'='{request.param}')"
    )
    sql(f"INSERT INTO lake.{PLAYS} SELECT id % 3, DATE '2024-01-01' + CAST(id AS INT), id FROM range(9)")
    return lake


def totals(lake: Lake) -> Counter[tuple[Any, ...]]:
    rows = lake.spark().sql(f"SELECT account, day, sum(seconds) FROM lake.{PLAYS} GROUP BY account, day").collect()
    return Counter(map(tuple, rows))


def stored(lake: Lake) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, lake.spark().sql(f"SELECT {NAMES} FROM lake.{DAILY}").collect()))


def overwrite(lake: Lake, step: CapturedStep) -> None:
    """What a job does: compute the changed range of days again, and overwrite it."""
    days = step.ranges["day"]
    where = f"day BETWEEN DATE '{days.low}' AND DATE '{days.high}'"
    grouped = f"SELECT account, day, sum(seconds) AS seconds FROM lake.{PLAYS} WHERE {where} GROUP BY account, day"
    lake.spark().sql(grouped).writeTo(f"lake.{DAILY}").overwrite(_condition(where))


def _condition(where: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr(where)


@pytest.mark.parametrize("carries", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_range_is_overwritten_and_the_watermark_moves_once(media: Lake, carries: bool) -> None:
    changes = (
        "",
        f"UPDATE lake.{PLAYS} SET seconds = 100 WHERE account = 1 AND seconds < 5",
        f"DELETE FROM lake.{PLAYS} WHERE seconds = 8",
        f"INSERT INTO lake.{PLAYS} VALUES (7, DATE '2024-02-01', 7)",
    )
    for change in changes:
        if change:
            media.spark().sql(change)
        with media.step(DAILY, [PLAYS], ranges=["day"]) as step:
            if carries:
                with step.committing(media.spark()):
                    overwrite(media, step)
            else:
                overwrite(media, step)
        assert step.moved_by == ("job" if carries else "step")
        assert stored(media) == totals(media)
        head = media.table(PLAYS).metadata.current_snapshot_id
        assert read_marks(media.table(DAILY))[PLAYS].snapshot == head
    assert not [k for k in _conf(media) if "lake-assets" in k]


def _conf(lake: Lake) -> list[str]:
    return [row["key"] for row in lake.spark().sql("SET").collect()]


def test_keys_are_the_values_of_changed_rows_before_and_after(media: Lake) -> None:
    keys = {"account": "account", "month": "date_trunc('month', day)"}
    with media.step("agg.t", [PLAYS], keys=keys, writes="elsewhere") as step:
        assert {k["account"] for k in step.keys} == {0, 1, 2}
    media.spark().sql(f"UPDATE lake.{PLAYS} SET account = 9, day = DATE '2024-03-01' WHERE account = 1 AND seconds = 1")
    with media.step("agg.t", [PLAYS], keys={"account": "account", "day": "day"}, writes="elsewhere") as step:
        assert step.keys == [
            {"account": 1, "day": date(2024, 1, 2)},
            {"account": 9, "day": date(2024, 3, 1)},
        ]
        assert step.parameters.of_json(step.json()).keys == step.keys
    with media.step("agg.t", [PLAYS], keys=["account"], writes="elsewhere") as step:
        assert step.keys == []


def test_wrong_keys_are_errors(media: Lake) -> None:
    with (
        pytest.raises(JobError, match=r"Spark does not accept acount AS `a` over raw.playback"),
        media.step(DAILY, [PLAYS], keys={"a": "acount"}) as step,
    ):
        _ = step.keys
    media.spark().sql("CREATE TABLE lake.raw.other USING iceberg AS SELECT 1 AS account")
    keys = {"account": "account", "day": {PLAYS: "day"}}
    with (
        pytest.raises(PipelineError, match="day has no expression over raw.other"),
        media.step(DAILY, [PLAYS, "raw.other"], keys=keys) as step,
    ):
        _ = step.keys


FUNCTION = f"""
def daily(step):
    spark = step.lake.spark()
    rows = spark.sql("SELECT account, day, sum(seconds) AS seconds FROM lake.{PLAYS} GROUP BY account, day")
    with step.committing(spark):
        rows.writeTo("lake.{DAILY}").overwritePartitions()
"""


def test_an_overwrite_that_cuts_through_files_is_the_jobs_error_and_not_repeated(media: Lake) -> None:
    """Given a file with rows inside and outside of the overwritten range; Iceberg refuses, whoever else writes."""
    spark, half = media.spark(), _condition("account < 2")
    spark.sql(f"INSERT INTO lake.{DAILY} SELECT id, DATE '2024-01-01', 1 FROM range(3)").collect()
    with (
        pytest.raises(Exception, match="some, but not all, rows match") as error,
        media.step(DAILY, [PLAYS]) as step,
        step.committing(spark),
    ):
        spark.table(f"lake.{DAILY}").writeTo(f"lake.{DAILY}").overwrite(half)
    assert not isinstance(error.value, ConcurrentWriteError)


def test_a_job_of_a_pipeline_is_checked_rebuilt_and_run(media: Lake, tmp_path: Path) -> None:
    """Given rows that somebody damaged; when the table is rebuilt; then its job computes everything again."""
    (tmp_path / "spark_job.py").write_text(FUNCTION)
    file = tmp_path / "defs.yaml"
    file.write_text(
        "type: lake_assets.CapturedJob\n"
        f"attributes: {{table: {DAILY}, inputs: [{PLAYS}], python: 'spark_job:daily', audits: [{{not_null: day}}]}}\n"
    )
    pipeline = Pipeline.load(file)
    assert check(pipeline, media).mistakes == ()
    (outcome,) = pipeline.run(media)
    assert outcome.error is None
    assert [f.passed for f in outcome.audits] == [True]
    assert stored(media) == totals(media)
    media.spark().sql(f"UPDATE lake.{DAILY} SET seconds = -1 WHERE account = 1")
    assert pipeline.run(media)[0].status == "nothing"
    rebuilt = pipeline.rebuild(media, DAILY)
    assert rebuilt.details["rows_after"] == 9
    assert stored(media) == totals(media)
    assert check(pipeline, media).mistakes == ()
