"""The upkeep of tables in a pipeline's YAML: what is inherited, what is refused, and in which line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.errors import PipelineError
from lake_assets.pipeline.config.pipeline_config import PipelineConfig
from lake_assets.pipeline.config.upkeep_places import policy_at
from lake_assets.pipeline.config.upkeep_settings import combined_policy
from lake_assets.tables.upkeep_policy import DAY, Budget, Hours
from tests.support.pipeline_files import load

TEXT = """\
type: lake_assets.LakePipeline
attributes:
  name: p
  upkeep: {keep: 2d, budget: 20%, quiet: ['22:00-06:00'], timezone: Europe/Berlin}
  streams:
    - name: s
      upkeep: {commits: 20, keep: 3d}
      tables:
        - {table: public.a, upkeep: {deleted_rows: 10%, keep: 12h}}
        - {table: public.b, upkeep: false}
        - public.c
  models:
    - {name: agg.m, sql: 'SELECT id FROM final.a', upkeep: {target_file_size: 32MiB}}
"""


def test_settings_of_a_table_go_before_those_that_enclose_it(plain_lake: Lake, tmp_path: Path) -> None:
    pipeline = load(tmp_path, TEXT)
    places = pipeline.declared.read(plain_lake, alone=False).places
    policies = {str(t): policy_at(pipeline.config, place) for t, place in places.items()}
    assert {t: p.keep / DAY for t, p in policies.items()} == {
        "raw.s": 3, "staging.a": 0.5, "final.a": 0.5, "staging.b": 3, "final.b": 3, "staging.c": 3, "final.c": 3,
        "agg.m": 2,
    }  # fmt: skip
    assert {t for t, p in policies.items() if not p.is_on} == {"staging.b", "final.b"}
    assert {t: p.commits for t, p in policies.items()}["agg.m"] == 50
    assert policies["final.a"].commits == 20
    assert policies["final.a"].deleted_rows == 0.1
    assert policies["agg.m"].target_file_size == 32 << 20
    assert {p.budget for p in policies.values()} == {Budget(share=0.2)}
    night = policies["raw.s"]
    assert night.is_quiet(datetime(2026, 7, 1, 20, 30, tzinfo=UTC))  # 22:30 in Berlin
    assert night.is_quiet(datetime(2026, 7, 1, 3, 59, tzinfo=UTC))
    assert not night.is_quiet(datetime(2026, 7, 1, 4, 0, tzinfo=UTC))


def test_a_table_may_have_upkeep_where_its_pipeline_has_none() -> None:
    config = PipelineConfig.model_validate(
        {"name": "p", "upkeep": False, "streams": [{"name": "s", "tables": [{"table": "a.b", "upkeep": True}]}]}
    )
    assert not combined_policy([config.streams[0].upkeep, config.upkeep]).is_on
    assert combined_policy([config.streams[0].tables[0].upkeep, config.streams[0].upkeep, config.upkeep]).is_on


@pytest.mark.parametrize(
    ("upkeep", "line", "message"),
    [
        ("{snapshots: 3}", 4, "the newest 20 always stay, because the watermark is in one of them: write 20 or more"),
        ("{orphans: 1h}", 4, "has written files that no snapshot names yet: write 24h or more"),
        ("{keep: soon}", 4, "'soon' is not a duration: write 30s, 5m, 1h or 7d"),
        ("{budget: much}", 4, "'much' is no budget: write a share of the time (10%), or bytes an hour (20GiB)"),
        ("{quiet: nights}", 4, "'nights' is no time of day: write it as 22:00-06:00"),
        ("{quiet: ['25:00-03:00']}", 4, "'25:00-03:00' is no time of day"),
        ("{timezone: Mars}", 4, "'Mars' is an unknown time zone"),
        ("{small_file: 5%}", 4, "did you mean `small_files`?"),
        ("{small_files: 120%}", 4, "'120%' is not a share"),
        ("{commits: 1}", 4, "greater than or equal to 2"),
        ("{budget: 0%}", 4, "'0%' leaves upkeep no time at all: write 1% or more, or `upkeep: false` for none"),
        ("{quiet: ['00:00-12:00', '12:00-24:00']}", 4, "is the whole day, so nothing would ever be done"),
        ("{quiet: ['22:00-21:59', '21:30-22:30']}", 4, "is the whole day, so nothing would ever be done"),
        ("{dead_after: 12h}", 4, "`dead_after` is 12 hours: a consumer may be paused for a night: write 1d or more"),
        ("{dead_after: 2d, keep: 3d}", 4, "write `dead_after: 3d` or more, or a shorter `keep`"),
        ("{dead_after: soon}", 4, "'soon' is not a duration"),
        ("{target_file_size: 10}", 4, "greater than or equal to 1048576"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, upkeep: str, line: int, message: str) -> None:
    text = TEXT.replace("{keep: 2d, budget: 20%, quiet: ['22:00-06:00'], timezone: Europe/Berlin}", upkeep)
    with pytest.raises(PipelineError) as raised:
        load(tmp_path, text)
    assert message in str(raised.value)
    assert f"line {line}" in str(raised.value)
    assert len(str(raised.value).splitlines()) <= 3, raised.value


@pytest.mark.parametrize(
    ("line_of", "upkeep", "line"),
    [
        ("{commits: 20, keep: 3d}", "{keep: 100d}", 7),
        ("{deleted_rows: 10%, keep: 12h}", "{dead_after: 2d}", 9),
        ("{keep: 2d,", "{keep: 91d,", 4),
    ],
)
def test_settings_that_contradict_those_that_enclose_them_are_named(
    plain_lake: Lake, tmp_path: Path, line_of: str, upkeep: str, line: int
) -> None:
    pipeline = load(tmp_path, TEXT.replace(line_of, upkeep))
    with pytest.raises(PipelineError) as raised:
        pipeline.specs(plain_lake, alone=False)
    assert f"line {line}: `dead_after` is" in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_null_lets_no_consumer_lose_its_claim(plain_lake: Lake, tmp_path: Path) -> None:
    text = TEXT.replace("{commits: 20, keep: 3d}", "{dead_after: null}").replace("{keep: 2d,", "{dead_after: 60d,")
    pipeline = load(tmp_path, text)
    places = pipeline.declared.read(plain_lake, alone=False).places
    found = {str(t): policy_at(pipeline.config, place).dead_after for t, place in places.items()}
    assert found == {
        "raw.s": None, "staging.a": None, "final.a": None, "staging.b": None, "final.b": None, "staging.c": None,
        "final.c": None, "agg.m": 60 * DAY,
    }  # fmt: skip
    assert combined_policy([pipeline.config.upkeep]).dead_after == 60 * DAY


def test_budget_and_quiet_hours_are_of_a_whole_pipeline(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="unknown setting"):
        load(tmp_path, TEXT.replace("{commits: 20, keep: 3d}", "{budget: 10%}"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10%", Budget(share=0.1)),
        ("1.5GiB", Budget(bytes_an_hour=3 << 29)),
        ("20 MB", Budget(bytes_an_hour=20_000_000)),
    ],
)
def test_a_budget_is_a_share_of_time_or_bytes(text: str, expected: Budget) -> None:
    assert Budget.parse(text) == expected


def test_hours_may_go_over_midnight() -> None:
    hours = Hours.parse("23:30-24:00")
    assert hours.has(hours.start)
    assert not hours.has(hours.end)
