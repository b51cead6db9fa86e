"""How long records and events stay, in a pipeline's YAML: for which tables, and what contradicts it, in which line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.errors import PipelineError
from lake_assets.pipeline.config.retention_settings import retention_of
from lake_assets.pipeline.config.upkeep_places import policy_at
from lake_assets.tables.upkeep_policy import DAY
from tests.support.pipeline_files import load

TEXT = """\
type: lake_assets.LakePipeline
attributes:
  name: p
  upkeep: PIPELINE
  streams:
    - name: s
      upkeep: STREAM
      tables:
        - {table: public.a, upkeep: TABLE, ONE}
        - {table: public.log, mode: append}
  models:
    - name: agg.m
      sql: SELECT id FROM READ
      upkeep: MODEL
"""


def text(pipeline: str = "{}", stream: str = "{}", table: str = "{}", one: str = "", **more: str) -> str:
    words = {"PIPELINE": pipeline, "STREAM": stream, "TABLE": table, ", ONE": f", {one}" if one else ""}
    words |= {"READ": more.get("read", "final.a"), "MODEL": more.get("model", "{}")}
    found = TEXT
    for word, value in words.items():
        found = found.replace(word, value)
    return found


def test_records_and_events_stay_as_declared_where_nothing_needs_them(plain_lake: Lake, tmp_path: Path) -> None:
    pipeline = load(tmp_path, text("{keep_records: 30d, keep_events: 60d}", table="{keep_events: 90d}"))
    found = pipeline.declared.read(plain_lake)
    kept = {
        str(s.table): retention_of(s, found.specs, policy_at(pipeline.config, found.places[s.table]))
        for s in found.specs
    }
    assert found.mistakes == []
    told = {name: (r.kind, r.seconds / DAY, r.refused) for name, r in kept.items() if r}
    assert told == {
        "raw.s": ("records", 30, ""),
        "staging.a": ("events", 90, ""),
        "staging.log": ("events", 60, "final.log: `mode: append` is computed from every event"),
    }
    assert [str(r.table) for r in kept["raw.s"].readers] == ["staging.a", "staging.log"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("declared", "line", "message"),
    [
        (text("{keep_events: 3d}"), 4, "shorter than the `horizon` of final.a, 7d, within which events may be late"),
        (
            text(stream="{keep_events: 8d}", one="horizon: 30d"),
            7,
            "write 30d or longer, or declare a shorter `horizon`",
        ),
        (text("{keep_records: 0d}"), 4, "nothing would be kept: write 7d or longer"),
        (text("{keep_records: long}"), 4, "'long' is not a duration"),
        (text(table="{keep_records: 9d}"), 9, "records are those of a stream: declare it there, or for the pipeline"),
        (text(model="{keep_events: 9d}"), 14, "events are those of a stream's tables"),
        (text(table="{keep_events: 9d}", one="mode: scd2"), 9, "final.a: `mode: scd2` is computed from every event"),
        (text(table="{keep_events: 9d}", one="order_by: [at]"), 9, "a later value in `order_by` may be about any time"),
        (text(table="{keep_events: 9d}", one='key: "*"'), 9, "rows without a key are counted by every event"),
        (text(table="{keep_events: 9d}", one="horizon: null"), 9, "`horizon: null` expects events of any age"),
        (text(table="{keep_events: 9d}", read="staging.a"), 9, "agg.m reads them, and deleted ones would look like"),
        (text(stream="{keep_records: 9d}", read="raw.s"), 7, "agg.m reads them, and deleted ones would look like"),
    ],
)
def test_what_contradicts_them_is_named_with_its_line(
    plain_lake: Lake, tmp_path: Path, declared: str, line: int, message: str
) -> None:
    with pytest.raises(PipelineError) as e:
        load(tmp_path, declared).specs(plain_lake)
    assert message in " ".join(str(e.value).split())
    assert f", line {line}: " in str(e.value)
    assert len([m for m in str(e.value).splitlines() if "keep_" in m]) == 1
