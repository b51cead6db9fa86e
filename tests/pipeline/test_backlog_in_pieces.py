"""A backlog that is absorbed in pieces, cut anywhere, gives the same tables as absorbed at once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lake_assets import Lake, Pipeline
from lake_assets.examples.event_generator import Source, Workload, delivered
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.step_retries import absorb
from tests.support.pipeline_runs import run, succeeded
from tests.support.seeds import histories

TABLES = [
    {"table": "public.a", "name": "a"},
    {"table": "public.b", "mode": "scd2"},
    {"table": "public.c", "mode": "append", "on_change": "ignore"},
]
COUNTED = "SELECT active, count(*) AS n, sum(quantity) AS q FROM final.a GROUP BY active"
MODELS = {
    "agg.first": COUNTED,
    "agg.second": COUNTED.replace("final.a", "final.a WHERE id IS NOT NULL"),
    # Two paths to the same table: their counts differ only if they have read different snapshots of it.
    "agg.differ": "SELECT f.active, f.n AS n, s.n AS m FROM agg.first f JOIN agg.second s ON f.active = s.active "
    "WHERE f.n <> s.n",
    "agg.beside": "SELECT a.id AS id, b.name AS name, a.quantity AS quantity FROM final.a a JOIN final.b b "
    "ON a.id = b.id AND b.is_current",
    "agg.ranked": "SELECT id, row_number() OVER (ORDER BY id) AS place FROM final.a",
}
RESULTS = ["final.a", "final.b", "final.c", *MODELS]


def pipeline(limit: Callable[[], dict[str, int]], **stream: int) -> Pipeline:
    tables = [{**t, **limit()} for t in TABLES]
    models = [{"name": name, "sql": sql, **limit()} for name, sql in MODELS.items()]
    streams = [{"name": "events", "tables": tables, **stream}]
    return Pipeline(PipelineConfig.model_validate({"name": "p", "streams": streams, "models": models}))


def land(lake: Lake, lines: list[str], files: int) -> None:
    folder = lake.config.home / "landing" / "events"
    folder.mkdir(parents=True)
    each = -(-len(lines) // files)
    for n in range(files):
        (folder / f"{n}.jsonl").write_text("".join(f"{line}\n" for line in lines[n * each : (n + 1) * each]))


def lines_of(seed: int, events: int) -> list[str]:
    """Return mixed changes of three tables: some are late or repeated, and keys and columns change."""
    each: list[list[str]] = []
    for n, name in enumerate("abc"):
        workload = Workload(
            seed=seed + n, events=events, keys=8, key_changes=0.2, late=0.1, lateness=6, duplicates=0.1,
            schema_changes=1, table=("public", name),
        )  # fmt: skip
        stream = delivered(workload, Source(workload))
        each.append([line for t in stream for line in ENCODERS["debezium"](t, workload)])
    choose, mixed = random.Random(seed), list[str]()
    while remaining := [lines for lines in each if lines]:
        mixed.append(choose.choice(remaining).pop(0))
    return mixed


def tables_of(lake: Lake) -> dict[str, Counter[str]]:
    """Return the rows of every table, as text, since some values are lists or bytes."""
    frames = {name: lake.spark().table(lake.sql_name(name)) for name in RESULTS}
    return {name: Counter(str(r) for r in f.select(*sorted(f.columns)).collect()) for name, f in frames.items()}


def check(new_lake: Callable[[str], Lake], seed: int, files: int, events: int) -> None:
    choose, lines = random.Random(seed), lines_of(seed, events)
    whole, pieces = new_lake(f"whole{seed}"), new_lake(f"pieces{seed}")
    for lake in (whole, pieces):
        land(lake, lines, files)
    run(whole, pipeline(dict[str, int]))

    def limit() -> dict[str, int]:
        return choose.choice([{"max_files": choose.randint(1, 3)}, {"max_rows": choose.choice([1, 20])}])

    cut = pipeline(limit, max_files=1)
    rounds = 0
    while not rounds or cut.pending(pieces):
        rounds += 1
        assert rounds < 20 * files, cut.pending(pieces)
        # Some runs skip some tables, so the watermarks of the tables differ.
        pins = SnapshotPins()
        for spec in cut.specs(pieces):
            if choose.random() < 0.85:
                absorb(pieces, spec, pins)
        if pieces.exists("agg.differ"):
            assert not pieces.spark().table("lake.agg.differ").collect()
    assert rounds > 2
    assert tables_of(pieces) == tables_of(whole)


@pytest.mark.long
def test_any_cutting_gives_the_same_tables(new_lake: Callable[[str], Lake]) -> None:
    check(new_lake, seed=3, files=3, events=12)


@pytest.mark.long
def test_any_cutting_of_any_backlog_gives_the_same_tables(new_lake: Callable[[str], Lake]) -> None:
    @settings(
        max_examples=histories(4), deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(seed=st.integers(0, 2**31), files=st.integers(2, 8))
    def run(seed: int, files: int) -> None:
        check(new_lake, seed, files, events=40)

    run()


@pytest.mark.long
def test_a_run_by_hand_goes_on_until_nothing_is_left(lake: Lake) -> None:
    land(lake, lines_of(1, 8), files=3)
    cut = pipeline(dict[str, int], max_files=1)
    outcomes = cut.run(lake)
    succeeded(outcomes)
    staged = [o for o in outcomes if o.table == "staging.a"]
    assert len(staged) > 1
    assert [o.details.get("snapshots_left", 0) for o in staged] == sorted(
        (o.details.get("snapshots_left", 0) for o in staged), reverse=True
    )
    assert cut.pending(lake) == []
    assert {o.status for o in cut.run(lake)} == {"nothing"}
