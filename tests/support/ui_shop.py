"""A small shop as a data engineer meets it in Dagster: a stream, models, partitions, an audit, a table of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig, TableId
from tests.support.debezium import BIGINT, TEXT, Event, Table, to_lines, write_lines

ZONED = {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}
USERS = Table({"id": BIGINT, "name": TEXT, "city": TEXT}, name="public.users")
ORDERS = Table({"id": BIGINT, "ordered_at": ZONED, "user_id": BIGINT, "amount": BIGINT}, name="public.orders")
FOREIGN = TableId.parse("crm.regions")
FIRST = datetime(2024, 3, 1, 9, tzinfo=UTC)
CITIES = ("Berlin", "Hamburg", "Köln")
# A name that would break a table of Markdown, or run, if it were shown as it is.
HOSTILE = "<img src=x onerror=alert(1)> | **Ann** `x`"

PIPELINE = """\
type: lake_assets.LakePipeline
attributes:
  name: shop
  interval: 2s
  external_tables:
    - table: crm.regions
      description: Cities and their regions, kept by the sales team.
      column_descriptions: {region: area of sales}
  streams:
    - name: shop_events
      tables:
        - table: public.users
          show_rows: 5
          column_descriptions: {city: where the user lives}
        - table: public.orders
          partitions: {by: ordered_at, every: day, start: 2024-03-01, end: 2024-04-01}
          column_descriptions: {ordered_at: when the customer has paid, amount: "gross, in cents"}
  models:
    - name: agg.orders_a_day
      sql: |
        SELECT CAST(ordered_at AS DATE) AS day, count(*) AS orders, sum(amount) AS amount
        FROM final.orders GROUP BY 1
      description: Orders and what they brought in, by the day of payment.
      partitions: {by: day, every: day, start: 2024-03-01, end: 2024-04-01}
      audits:
        - {name: no_negative_day, sql: 'SELECT * FROM {table} WHERE amount < 0'}
    - name: agg.users_per_region
      sql: |
        SELECT r.region, count(*) AS users
        FROM final.users u JOIN crm.regions r ON u.city = r.city GROUP BY r.region
    - name: agg.large_orders
      sql: SELECT id, ordered_at, amount FROM final.orders WHERE amount > 20
"""


def declare(folder: Path, text: str = PIPELINE) -> Path:
    """Write the pipeline's YAML and the code location that loads it; return the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "defs.yaml").write_text(text, encoding="utf-8")
    definitions = folder / "shop_location.py"
    definitions.write_text(
        "from lake_assets import Pipeline\n"
        "from lake_assets.orchestration import build_definitions\n\n"
        f"defs = build_definitions(Pipeline.load({str(folder / 'defs.yaml')!r}))\n",
        encoding="utf-8",
    )
    return definitions


def create_regions(lake: Lake) -> None:
    """Write the table that another team keeps in the lake's catalog."""
    lake.ensure_namespace(FOREIGN.namespace)
    rows = pa.table({"city": [*CITIES], "region": ["east", "north", "west"]})
    lake.catalog.create_table(FOREIGN.parts, rows.schema).append(rows)


def users(ids: Iterable[int], *, at: int = 1) -> list[Event]:
    return [
        Event(USERS, "c", (at, at + i), {"id": i, "name": HOSTILE if i == 1 else f"user {i}", "city": CITIES[i % 3]})
        for i in ids
    ]


def orders(ids: Iterable[int], *, at: int = 1000, days: int = 4, amount: int = 10) -> list[Event]:
    """Orders on consecutive days from the first on."""
    return [
        Event(ORDERS, "c", (at, at + i), {
            "id": i, "ordered_at": (FIRST + timedelta(days=i % days, minutes=i)).isoformat(), "user_id": 1 + i % 5,
            "amount": amount + i,
        })
        for i in ids
    ]  # fmt: skip


def land(home: Path, name: str, events: Sequence[Any]) -> None:
    """Let a file of change events arrive."""
    write_lines(home / "landing" / "shop_events" / f"{name}.jsonl", to_lines(events))


def lose_a_day(home: Path) -> None:
    """Delete a day of orders, as somebody with Spark might."""
    lake = Lake(LakeConfig(home=home, spark=SparkConfig(driver_memory="1g")))
    lake.spark().sql("DELETE FROM final.orders WHERE to_date(ordered_at) = DATE '2024-03-02'")
    lake.spark().stop()
    lake.catalog.close()
