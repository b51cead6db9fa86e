"""The page's example of settings that are kept in a table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pydantic import ValidationError

from lake_assets import Lake

PAGE = Path(__file__).parents[2] / "docs" / "streams.md"
COLUMNS = ("source_table", "key_columns", "mode", "is_active")


def declared(lake: Lake, monkeypatch: pytest.MonkeyPatch, *rows: tuple[Any, ...]) -> dict[str, Any]:
    """Return what the example makes of the rows of the table."""
    found = pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows])
    lake.ensure_namespace("config")
    if not lake.exists("config.tables"):
        lake.catalog.create_table(("config", "tables"), found.schema)
    lake.catalog.load_table(("config", "tables")).overwrite(found)
    monkeypatch.setenv("LAKE_HOME", str(lake.config.home))
    monkeypatch.chdir(lake.config.home)
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (example,) = [s for s in snippets if "config.tables" in s]
    made: dict[str, Any] = {}
    exec(example, made)
    return made


def test_the_rows_of_a_table_declare_a_pipeline(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    made = declared(
        lake, monkeypatch, ("shop.orders", "id,line", "scd1", True), ("shop.users", "id", "scd2", True),
        ("shop.old", "id", "scd1", False),
    )  # fmt: skip
    for table, row in (("orders", "I,1,2,0.5\n"), ("users", "I,7,a\n")):
        folder = lake.config.home / "dms" / "shop" / table
        folder.mkdir(parents=True)
        head = "FLAG,id,line,amount\n" if table == "orders" else "FLAG,id,name\n"
        (folder / "a.csv").write_text(head + row)
    assert [o for o in made["pipeline"].run(lake) if o.status == "failed"] == []
    assert lake.spark().sql("SELECT id, line FROM final.orders").collect() == [(1, 2)]
    assert lake.spark().sql("SELECT id, name FROM final.users WHERE is_current").collect() == [(7, "a")]
    keys = {k.to_user_string() for k in made["defs"].resolve_asset_graph().get_all_asset_keys()}
    assert {"final/orders", "final/users"} <= keys
    assert "final/old" not in keys
    assert isinstance(made["defs"], dg.Definitions)


def test_a_wrong_value_is_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match=r"(?s)streams\.0\.tables\.0.*mode.*scd9"):
        declared(lake, monkeypatch, ("shop.orders", "id", "scd9", True))
