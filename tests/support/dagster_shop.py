"""The shop as assets of Dagster, and the files that its stream delivers."""

from __future__ import annotations

from pathlib import Path

from lake_assets.examples import shop
from lake_assets.lake import TableId
from tests.support.dagster_harness import Harness

SHOP = {
    "raw/shop_events": set[str](),
    "staging/accounts": {"raw/shop_events"},
    "staging/clicks": {"raw/shop_events"},
    "staging/order_item": {"raw/shop_events"},
    "staging/user_city": {"raw/shop_events"},
    "staging/users": {"raw/shop_events"},
    "final/accounts": {"staging/accounts"},
    "final/clicks": {"staging/clicks"},
    "final/order_item": {"staging/order_item"},
    "final/user_city": {"staging/user_city"},
    "final/users": {"staging/users"},
    "agg/city_population": {"final/users", "final/user_city"},
    "shop/new_tables": {"raw/shop_events"},
}
ALL = {name.replace("/", ".") for name in SHOP}
RAW = TableId(("raw",), "shop_events")


def landing(harness: Harness) -> Path:
    return harness.lake.config.home / "landing" / "shop_events"


def feed(harness: Harness, checkpoint: int = 0) -> None:
    shop.feed(landing(harness), shop.checkpoints()[checkpoint])
