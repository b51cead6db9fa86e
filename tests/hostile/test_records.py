"""Hostile records among good ones, in every format: rejects with a reason, and the other tables stay right."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import LakeError
from lake_assets.examples.event_generator import COLUMNS, KEY, Source, Workload
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.pipeline import PipelineConfig
from tests.support.expected import FORMATS, shown
from tests.support.hostile_values import LINES, spoiled
from tests.support.plain_rows import rows
from tests.support.seeds import seeds

NAMED = [n for n in FORMATS if n not in ("change-set", "change-feed")]
OFTEN = ("wal2json-v2",)
SPOILED = 60


def cases(names: list[str]) -> list[Any]:
    return [
        pytest.param(name, seed, marks=() if name in OFTEN and seed == 1 else pytest.mark.long)
        for name in names
        for seed in (1, *seeds(2, 1))
    ]


@pytest.mark.long
@pytest.mark.parametrize(("name", "seed"), cases(NAMED))
def test_tables_beside_a_spoiled_one_are_right(lake: Lake, name: str, seed: int) -> None:
    """Of one table each second record is spoiled; another one's records come between them."""
    choose = random.Random(seed)
    workload = Workload(seed=seed, events=SPOILED, keys=12, nulls=0.2)
    source, carried = Source(workload), FORMATS[name]
    good = [line for t in source for line in ENCODERS[name](t, workload)]
    # Where transactions begin and end says nothing once records of others stand between them.
    good = [line for line in good if '"action":"B"' not in line and '"action":"C"' not in line]
    # "items" is also the type of an array's elements in Connect's schemas.
    others = [line.replace("items", "others").replace('"others":{"type"', '"items":{"type"') for line in good]
    assert others != good
    bad = [spoiled(json.loads(choose.choice(good)), choose).encode("utf-8", "surrogatepass") for _ in range(SPOILED)]
    lines = [*(line.encode() for line in good[: len(good) // 2]), *bad, *LINES]
    choose.shuffle(lines)
    step = max(1, len(lines) // max(1, len(others)))
    mixed: list[bytes] = []
    for i, line in enumerate(others):
        mixed += [line.encode(), *lines[i * step : (i + 1) * step]]
    key = {"key": list(carried.hints.key)} if carried.hints.key else {}
    declared = [{"table": f"public.{t}", **key} for t in ("items", "others")]
    streams = [{"name": "events", "format": carried.reads, "tables": declared}]
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "streams": streams}))
    folder = lake.config.home / "landing" / "events"
    folder.mkdir(parents=True)
    home = set(lake.config.home.parent.iterdir())
    for i, part in enumerate((mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :])):
        (folder / f"{i}.jsonl").write_bytes(b"".join(line + b"\n" for line in part))
        for outcome in pipeline.run(lake):
            # Records that contradict each other stop their own table, with an error that says so.
            is_named = outcome.exception is None or isinstance(outcome.exception, LakeError)
            assert is_named, (outcome.table, outcome.error)
            assert outcome.status != "failed" or "others" not in outcome.table, outcome.error
            assert outcome.status != "failed" or not outcome.table.startswith("raw."), outcome.error
    found = rows(lake, "final.others")
    for row in found:
        row.pop("CDC_TIMESTAMP", None)
    expected = [shown(carried, COLUMNS, row) for row in source.rows.values()]
    assert sorted(found, key=lambda r: r[KEY]) == sorted(expected, key=lambda r: r[KEY])
    rejected = lake.table("raw.events_rejected").scan().to_arrow().to_pylist()
    assert rejected, "some of it cannot be read"
    assert all(r["reason"] for r in rejected)
    assert not Path("/tmp/owned").exists()
    assert set(lake.config.home.parent.iterdir()) == home, "nothing is written outside"
