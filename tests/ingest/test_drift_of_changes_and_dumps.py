"""The page's example of a table that has change events and dumps: their difference is a model."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake_assets import Lake
from tests.support.debezium import BIGINT, TEXT, Event, Table
from tests.support.pipeline_files import load
from tests.support.pipeline_runs import run

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
# Looked up when this is collected, so that every run notices if it is gone.
SECTION = PAGE.read_text("utf-8").partition("### A table with change events and dumps\n")[2]
EXAMPLE = textwrap.dedent(re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)[0])
USERS = Table({"id": BIGINT, "city": TEXT}, name="public.users")


@pytest.mark.long
def test_rows_that_differ_from_the_dump_are_the_drift(lake: Lake) -> None:
    home = lake.config.home
    attributes = textwrap.indent(f"name: shop\n{EXAMPLE}".replace("landing/", f"{home}/landing/"), "  ")
    pipeline = load(home, f"type: lake_assets.LakePipeline\nattributes:\n{attributes}")
    changes, dumps = home / "landing" / "shop", home / "landing" / "nightly"
    changes.mkdir(parents=True)
    events = [Event(USERS, "c", (n, n), {"id": n, "city": c}) for n, c in ((1, "a"), (2, "b"), (3, None))]
    (changes / "1.jsonl").write_text("".join(f"{json.dumps(r)}\n" for e in events for r in e.records()))

    def dump(name: str, *rows: tuple[int, str | None]) -> None:
        (dumps / name).mkdir(parents=True)
        table = pa.table({"id": [r[0] for r in rows], "city": pa.array([r[1] for r in rows], pa.string())})
        pq.write_table(table, dumps / name / "a.parquet")
        (dumps / name / "_SUCCESS").touch()

    def drift() -> set[tuple[object, ...]]:
        run(lake, pipeline)
        return {tuple(r) for r in lake.spark().sql("SELECT * FROM agg.users_drift").collect()}

    dump("2026-11-01", (1, "a"), (2, "other"), (4, "d"))
    assert drift() == {(2, "b", "other"), (3, None, None), (4, None, "d")}
    dump("2026-11-02", (1, "a"), (2, "b"), (3, None))
    assert drift() == set()
