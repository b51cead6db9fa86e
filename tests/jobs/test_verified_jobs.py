"""`verify` for jobs: the table is compared with the SELECT of all its rows that the job's user gives."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import NotRunError, PipelineError, SnapshotExpiredError
from lake_assets.pipeline.pipeline_checks import check
from lake_assets.pipeline.verification import Difference, Verification, verify
from tests.support.cli import invoke
from tests.support.daily_job import DAILY, PLAYS, play
from tests.support.upkeep import forget_history

FULL = f"SELECT account, day, sum(seconds) AS seconds FROM {PLAYS} GROUP BY account, day"

# Each computes days again and overwrites them: those that changed, or those that are always the last ones.
JOBS = """
from pyspark.sql import functions as F

def by_window(step):
    overwrite(step, f"day BETWEEN DATE '{step.ranges['day'].low}' AND DATE '{step.ranges['day'].high}'")

def last_days(step):
    overwrite(step, "day >= DATE '2024-01-05'")

def overwrite(step, where):
    spark = step.lake.spark()
    rows = spark.sql(f"SELECT account, day, sum(seconds) AS seconds FROM lake.raw.playback WHERE {where} GROUP BY ALL")
    with step.committing(spark):
        rows.writeTo("lake.agg.playback_daily").overwrite(F.expr(where))

def interrupted(step):
    if step.is_initial:
        return by_window(step)
    step.lake.spark().sql("INSERT INTO lake.agg.playback_daily VALUES (9, DATE '2024-01-09', 9)")
    raise ValueError("out of luck")
"""


@pytest.fixture
def media(lake: Lake) -> Lake:
    """A lake with plays of three days and an empty table for their seconds."""
    lake.ensure_namespace(("agg",))
    lake.spark().sql(
        f"CREATE TABLE lake.{DAILY} (account BIGINT, day DATE, seconds BIGINT) USING iceberg PARTITIONED BY (day)"
    )
    play(lake, (1, 5, 10), (1, 6, 20), (2, 7, 30))
    return lake


@pytest.fixture
def declared(tmp_path: Path) -> Callable[..., Pipeline]:
    """Declares a function of `JOBS` as a job, with further settings."""

    def write(function: str, **settings: str) -> Pipeline:
        (tmp_path / "verified_jobs.py").write_text(JOBS)
        file = tmp_path / "defs.yaml"
        lines = [f"table: {DAILY}", f"inputs: [{PLAYS}]", "ranges: [day]", f"python: verified_jobs:{function}"]
        lines += [f"{name}: {value}" for name, value in settings.items()]
        file.write_text("\n".join(["type: lake_assets.CapturedJob", "attributes:", *(f"  {line}" for line in lines)]))
        return Pipeline.load(file)

    return write


def run(lake: Lake, pipeline: Pipeline) -> None:
    assert [o.error for o in pipeline.run(lake)] == [None]


def verified(lake: Lake, pipeline: Pipeline) -> Verification:
    (spec,) = pipeline.specs(lake)
    return verify(lake, spec)  # type: ignore[arg-type]


def test_a_job_that_computes_its_window_is_equal_at_the_snapshots_it_has_absorbed(
    media: Lake, declared: Callable[..., Pipeline]
) -> None:
    pipeline = declared("by_window", full=FULL)
    for rows in (3, 4, 5):
        run(media, pipeline)
        absorbed = media.table(PLAYS).metadata.current_snapshot_id
        play(media, (1, rows - 2, 5), (1, 6, 1))
        result = verified(media, pipeline)
        assert (result.equal, result.expected, result.found) == (True, rows, rows)
        assert result.sources == {PLAYS: absorbed}


def test_a_job_that_ignores_its_window_is_reported_with_the_rows(
    media: Lake, declared: Callable[..., Pipeline]
) -> None:
    """Given a job that always computes the last days; when an older day gets a late row; then `verify` reports it."""
    pipeline = declared("last_days", full=FULL)
    run(media, pipeline)
    assert verified(media, pipeline).equal
    play(media, (1, 2, 7), (1, 5, 1))
    run(media, pipeline)
    result = verified(media, pipeline)
    late = {"account": 1, "day": date(2024, 1, 2), "seconds": 7}
    assert (result.different, result.differences) == (1, (Difference(late, 1, 0),))
    assert result.doubt == ""


def test_other_tables_are_read_as_they_are_and_other_columns_are_not_compared(
    media: Lake, declared: Callable[..., Pipeline]
) -> None:
    play(media, (1, 5, 0), table="raw.accounts")
    full = f"SELECT day FROM {PLAYS} p JOIN raw.accounts USING (account, day)"
    pipeline = declared("by_window", full=full, lookups="[raw.accounts]")
    run(media, pipeline)
    assert verified(media, pipeline).found == 3
    assert verified(media, pipeline).expected == 1
    play(media, (1, 6, 0), (2, 7, 0), table="raw.accounts")
    result = verified(media, pipeline)
    assert result.equal
    assert result.sources["raw.accounts"] == media.table("raw.accounts").metadata.current_snapshot_id


def test_a_step_that_is_not_settled_is_named_beside_the_rows_that_differ(
    media: Lake, declared: Callable[..., Pipeline]
) -> None:
    """Given a job that fails after a commit of its own."""
    pipeline = declared("interrupted", full=FULL)
    run(media, pipeline)
    play(media, (1, 6, 1))
    assert "out of luck" in (pipeline.run(media)[0].error or "")
    result = verified(media, pipeline)
    assert result.different == 1
    assert "see `lake-assets step agg.playback_daily`" in result.doubt


@pytest.mark.parametrize(
    ("full", "says"),
    [
        (None, "give the job a SELECT of all of them with the setting `full`"),
        (f"SELECT account, day, CAST(1 AS INT) AS seconds FROM {PLAYS}", r"seconds int \(table: bigint\)"),
        (f"SELECT account, sum(seconds) FROM {PLAYS} GROUP BY account", r"sum\(seconds\) bigint \(table: missing\)"),
        (f"SELECT account, day, day FROM {PLAYS}", "several of its columns are called day"),
        (f"SELECT acount FROM {PLAYS}", "`full`: Spark does not accept it: .*acount"),
    ],
)
def test_what_cannot_be_compared_is_named(
    media: Lake, declared: Callable[..., Pipeline], full: str | None, says: str
) -> None:
    pipeline = declared("by_window", **({"full": full} if full else {}))
    with pytest.raises(NotRunError):
        verified(media, pipeline)
    run(media, pipeline)
    with pytest.raises(PipelineError, match=says):
        verified(media, pipeline)


@pytest.mark.long  # as that of a model
def test_an_expired_snapshot_is_named(media: Lake, declared: Callable[..., Pipeline]) -> None:
    pipeline = declared("by_window", full=FULL)
    run(media, pipeline)
    play(media, (1, 6, 1))
    forget_history(media, PLAYS)
    with pytest.raises(SnapshotExpiredError, match="has expired"):
        verified(media, pipeline)


def test_check_finds_wrong_columns_and_tables(media: Lake, declared: Callable[..., Pipeline]) -> None:
    def found(full: str) -> tuple[str, ...]:
        return check(declared("by_window", full=full), media).mistakes

    assert found(FULL) == ()
    (problem,) = found(f"SELECT acount FROM {PLAYS}")
    assert problem.startswith(f"{DAILY}: `full`, line 1 of its SQL: no column acount (did you mean account?)")
    (problem,) = found(f"SELECT p.account FROM {PLAYS} p JOIN raw.titles t ON t.account = p.account")
    assert problem == f"{DAILY}: `full` reads raw.titles, which neither exists in the lake nor is declared"


@pytest.mark.long  # as that of a model
def test_the_command_exits_with_one_if_the_table_differs(
    media: Lake, declared: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = declared("last_days", full=FULL)
    run(media, pipeline)
    monkeypatch.setattr(Lake, "load", lambda: media)

    def called() -> tuple[int, str]:
        result = invoke("verify", DAILY, "--pipeline", str(pipeline.path))
        return result.exit_code, result.stdout

    code, output = called()
    assert (code, "equal: 3 rows" in output) == (0, True)
    play(media, (1, 2, 7))
    run(media, pipeline)
    code, output = called()
    assert (code, "1 row differs" in output, "2024-01-02" in output) == (1, True, True)
    declared("last_days")
    with pytest.raises(PipelineError, match="with the setting `full`"):
        called()
