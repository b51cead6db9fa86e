"""Hostile names of tables and columns in every format: each can be read through Spark, or is a named error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import LakeError
from lake_assets.ingest.staging.staging_columns import source_of
from lake_assets.lake import TableId
from lake_assets.pipeline import PipelineConfig
from tests.support.expected import FORMATS
from tests.support.hostile_names import COLUMN_NAMES, NAMES, SPELLINGS, TAKEN, Row, lines

BESIDE = "beside"
# Formats whose records do not name their table.
ROWS_ALONE = ("change-set", "change-feed")
REFUSED: Row = {"id": 1, **dict.fromkeys(TAKEN, "x")}
# In every run of the tests: each format once, with names of tables or of columns.
TABLES_OFTEN, COLUMNS_OFTEN = ("wal2json-v2",), ("change-set",)
FEW = ("tab\tname", "..", "n" * 300, "[/red]", "ORDERS", "orders")


def run(lake: Lake, form: str, inserts: list[tuple[str, Row]], table: str) -> dict[str, str]:
    """The errors of a run with these rows, by table; each of them has a name."""
    carried = FORMATS[form]
    declared = {"table": table, "key": ["id"]}
    streams = [{"name": "events", "format": carried.reads, "tables": [declared]}]
    (folder := lake.config.home / "landing" / "events").mkdir(parents=True)
    (folder / "a.jsonl").write_text("\n".join(lines(form, inserts)) + "\n")
    outside = set(lake.config.home.parent.iterdir())
    failed: dict[str, str] = {}
    for outcome in Pipeline(PipelineConfig.model_validate({"name": "p", "streams": streams})).run(lake):
        assert outcome.exception is None or isinstance(outcome.exception, LakeError), (outcome.table, outcome.error)
        if outcome.status == "failed":
            failed[outcome.table] = outcome.error or ""
    assert set(lake.config.home.parent.iterdir()) == outside, "nothing is written outside"
    return failed


def held(lake: Lake) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Source table and rows of each final table, through Spark."""
    for table in lake.tables("final"):
        source = source_of(lake.table(TableId(("staging",), table.name)))
        yield (
            str(source),
            [{**r.asDict(), "id": int(r["id"])} for r in lake.spark().table(lake.sql_name(table)).collect()],
        )


def cases() -> list[Any]:
    """All names with one format; with each other one some names, where the table's name is in the record."""
    named = [f for f in FORMATS if f not in ROWS_ALONE]
    return [
        pytest.param("debezium-plain", (*NAMES, *SPELLINGS), marks=pytest.mark.long, id="debezium-plain, all"),
        *(pytest.param(f, FEW, marks=() if f in TABLES_OFTEN else pytest.mark.long, id=f) for f in named),
    ]


@pytest.mark.long
@pytest.mark.parametrize(("form", "names"), cases())
def test_tables_of_any_name_are_readable(lake: Lake, form: str, names: tuple[str, ...]) -> None:
    rows = [(t, {"id": i, "v": t}) for i, t in enumerate((BESIDE, *names, BESIDE))]
    failed = run(lake, form, rows, "*.*")
    assert not [t for t in failed if BESIDE in t or t.startswith("raw.")], failed
    found = [row["v"] for _, rows in held(lake) for row in rows]
    assert Counter(found)[BESIDE] == 2
    assert all(n == 1 for name, n in Counter(found).items() if name != BESIDE)
    assert set(found) == {BESIDE, *names}, failed
    assert not failed


@pytest.mark.parametrize(
    "form", [f if f in COLUMNS_OFTEN else pytest.param(f, marks=pytest.mark.long) for f in FORMATS]
)
def test_columns_of_any_name_are_readable_or_named(lake: Lake, form: str) -> None:
    """One table has them all; where records name their table, others have those that are refused, with advice."""
    wide = {"id": 1, **{n: f"<{n}>" for n in (*NAMES, *COLUMN_NAMES)}}
    if form.startswith("debezium-flat"):
        del wide["__deleted"]  # Debezium's own mark in flattened events: they have no other column of that name
    inserts: list[tuple[str, Row]] = [("items", wide)]
    if form not in ROWS_ALONE:
        inserts += [("taken", REFUSED), (BESIDE, {"id": 2, "v": BESIDE})]
    failed = run(lake, form, inserts, "public.items" if form in ROWS_ALONE else "*.*")
    if form not in ROWS_ALONE:
        assert re.search("columns called .*_op.* themselves: .*`rename`", failed.pop("staging.taken"))
    assert not failed
    found = dict(held(lake))
    for row in found["public.items"]:
        row.pop("CDC_TIMESTAMP", None)
    assert found.pop("public.items") == [wide]
    assert found == ({} if form in ROWS_ALONE else {"public.beside": [{"id": 2, "v": BESIDE}]})


def test_refused_columns_can_be_renamed_after_the_error(lake: Lake) -> None:
    staged = run(lake, "debezium-plain", [("taken", REFUSED)], "*.*")["staging.taken"]
    assert set(TAKEN) <= set(re.findall(r"\w+", staged))
    declared = {"table": "public.taken", "key": ["id"], "rename": {n: f"x{n}" for n in TAKEN}}
    streams = [{"name": "events", "format": "debezium", "tables": [declared]}]
    outcomes = Pipeline(PipelineConfig.model_validate({"name": "p", "streams": streams})).run(lake)
    assert not [o.error for o in outcomes if o.error]
    assert dict(held(lake)) == {"public.taken": [{"id": 1, **{f"x{n}": "x" for n in TAKEN}}]}
