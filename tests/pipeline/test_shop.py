"""The shipped pipeline over the recording of a real Postgres: every table equals Postgres at every checkpoint."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from typing import Any

import pytest
import yaml

from lake_assets import Lake, Pipeline
from lake_assets.examples import shop
from lake_assets.pipeline import PipelineConfig
from tests.support.oracle import rows_of
from tests.support.pipeline_runs import run

QUERY = (
    "SELECT c.city, count(*) AS population, sum(u.balance) AS balance "
    "FROM final.users u JOIN final.user_city c ON u.id = c.user_id GROUP BY c.city"
)


def absorb(lake: Lake, pipeline: Pipeline, upto: shop.Checkpoint) -> None:
    shop.feed(lake.config.home / "landing" / "shop_events", upto)
    run(lake, pipeline)


@pytest.mark.parametrize(
    "checkpoints", [shop.checkpoints()[1:4:2], pytest.param(shop.checkpoints(), marks=pytest.mark.long)]
)
def test_every_table_equals_postgres_at_every_checkpoint(lake: Lake, checkpoints: tuple[shop.Checkpoint, ...]) -> None:
    pipeline = Pipeline.load(shop.PIPELINE)
    for checkpoint in checkpoints:
        absorb(lake, pipeline, checkpoint)
        differences = {c.table: c.differences[:3] for c in shop.compare(lake, checkpoint) if not c.equal}
        assert differences == {}, checkpoint.name
        assert rows_of(lake.spark().table("agg.city_population")) == rows_of(lake.spark().sql(QUERY)), checkpoint.name


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("name", "file"), [("debezium", "debezium"), ("wal2json-v1", "wal2json_v1"), ("wal2json-v2", "wal2json_v2")]
)
def test_every_recording_in_any_batches_equals_postgres_at_every_checkpoint(
    lake: Lake, name: str, file: str, seed: int
) -> None:
    choose = random.Random(seed)
    declared: dict[str, Any] = yaml.safe_load(shop.PIPELINE.read_text(encoding="utf-8"))["attributes"]
    stream = {**declared["streams"][0], "format": name}
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "shop", "streams": [stream]}))
    landing = lake.config.home / "landing" / "shop_events"
    landing.mkdir(parents=True)
    with gzip.open(shop.DATA / f"{file}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as there:
        lines = list(there)
    start = 0
    for checkpoint in shop.checkpoints():
        end = checkpoint.lines if name == "debezium" else _end_of(checkpoint, lines, start)
        cuts = sorted(choose.sample(range(start + 1, end), choose.randint(0, 2)))
        for a, b in itertools.pairwise([start, *cuts, end]):
            (landing / f"{a:06}.jsonl").write_text("".join(lines[a:b]), encoding="utf-8")
            run(lake, pipeline)
        differences = {c.table: c.differences[:3] for c in shop.compare(lake, checkpoint) if not c.equal}
        assert differences == {}, checkpoint.name
        start = end


def _end_of(checkpoint: shop.Checkpoint, lines: list[str], start: int) -> int:
    """A checkpoint is a row of a separate table: events after its transaction belong to the next one."""
    of = range(start, len(lines))
    marker = next(i for i in of if "checkpoint_marker" in lines[i] and checkpoint.name in lines[i])
    return marker + 2 if lines[marker + 1 : marker + 2] and '"action":"C"' in lines[marker + 1] else marker + 1


# Without the declared rename, `email_address` is a new column: rows without later changes have no value under the new
# name. The number of rows that had a value then.
UNTOUCHED = {"cp4_drop_rename": 175, "cp5_widen": 147, "cp6_end": 93}


@pytest.mark.long
def test_without_the_rename_only_the_renamed_column_differs(lake: Lake) -> None:
    declared: dict[str, Any] = yaml.safe_load(shop.PIPELINE.read_text(encoding="utf-8"))["attributes"]
    stream = {**declared["streams"][0], "tables": ["public.users"]}
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "shop", "streams": [stream]}))
    for checkpoint in shop.checkpoints()[2:]:
        absorb(lake, pipeline, checkpoint)
        differing = {column: n for column, n in _differences(lake, checkpoint).items() if n}
        expected = UNTOUCHED.get(checkpoint.name)
        assert differing == ({"email_address": expected} if expected else {}), checkpoint.name


def _differences(lake: Lake, checkpoint: shop.Checkpoint) -> dict[str, int]:
    """Return, by column of Postgres, the number of differing rows of users."""
    file = shop.DATA / "checkpoints" / checkpoint.name / "users.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        there = {int(r["id"]): r for r in map(json.loads, lines)}
    kinds = dict(checkpoint.tables["users"]["columns"])
    rows = lake.spark().table("final.users").select(*(shop._readable(c, kind) for c, kind in kinds.items())).collect()
    assert {r["id"] for r in rows} == set(there)
    return {c: sum(shop._value(there[r["id"]][c], kind) != r[c] for r in rows) for c, kind in kinds.items()}
