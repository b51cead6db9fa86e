"""A pipeline whose first model can be wrong, over one table of users."""

from __future__ import annotations

from pathlib import Path

from lake_assets import Lake

HEAD = "type: lake_assets.LakePipeline\nattributes:\n  name: p\n  models:\n"


def yaml(folder: Path, bad: str) -> Path:
    """Write a pipeline in which agg.above reads agg.bad, and agg.other does not."""
    file = folder / "defs.yaml"
    file.write_text(
        f'{HEAD}    - name: agg.bad\n      sql: "{bad}"\n'
        "    - {name: agg.above, sql: SELECT count(*) AS n FROM agg.bad}\n"
        "    - {name: agg.other, sql: SELECT count(*) AS n FROM final.users}\n"
    )
    return file


def rows(lake: Lake, table: str) -> list[tuple[object, ...]]:
    return sorted(tuple(r) for r in lake.spark().table(f"lake.{table}").collect())


def create_users(lake: Lake) -> None:
    """Create final.users with one user."""
    lake.ensure_namespace(("final",))
    lake.spark().sql("CREATE TABLE lake.final.users (id INT, name STRING) USING iceberg")
    lake.spark().sql("INSERT INTO lake.final.users VALUES (1, 'a')")
