"""The sample of a new project: change events of customers and orders in Debezium's format, in three batches.

Always the same: about 240 groups of day and country, of which the second and third batch touch a few.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

_FIRST_DAY = datetime(2026, 3, 1, tzinfo=UTC)
_DAYS, _CUSTOMERS, _ORDERS = 30, 60, 600
_COUNTRIES = ("AT", "BE", "CZ", "DE", "DK", "ES", "FR", "IE", "IT", "NL", "PL", "PT")
_NAMES = ("Ada", "Blaise", "Carl", "Dorothea", "Emmy", "Felix", "Grace", "Hedy", "Ida", "Jean", "Karen", "Leonhard")

Row = Mapping[str, Any]


class _Shop:
    """The shop's database; each change gives its records."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], Row] = {}
        self._choose = random.Random(1)
        self._at = 0

    def chosen_orders(self, count: int) -> list[Row]:
        """Return some orders."""
        return self._choose.sample([row for (table, _), row in self.rows.items() if table == "orders"], count)

    def order(self, number: int, day: int) -> Row:
        """Return a new order of a day."""
        at = _FIRST_DAY + timedelta(days=day, seconds=self._choose.randrange(86_400))
        customer, cents = self._choose.randrange(1, _CUSTOMERS + 1), self._choose.randrange(500, 20_000)
        return {"id": number, "customer_id": customer, "ordered_at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "cents": cents}

    def put(self, table: str, row: Row) -> Iterator[str]:
        """Insert a row, or update it."""
        before = self.rows.get((table, row["id"]))
        self.rows[table, row["id"]] = row
        yield self._record(table, row["id"], "u" if before else "c", before, row)

    def delete(self, table: str, key: int) -> Iterator[str]:
        """Delete a row: the event, and the tombstone that follows it."""
        yield self._record(table, key, "d", self.rows.pop((table, key)), None)
        yield _line({"destination": f"shop.public.{table}", "key": {"id": key}, "value": None})

    def _record(self, table: str, key: int, op: str, before: Row | None, after: Row | None) -> str:
        self._at += 1
        at = 1_774_000_000_000 + self._at
        source = {
            "connector": "postgresql", "snapshot": "false", "db": "shop", "schema": "public", "table": table,
            "sequence": json.dumps([str(self._at), str(self._at)]), "lsn": self._at, "txId": self._at, "ts_ms": at,
        }  # fmt: skip
        value = {"before": before, "after": after, "source": source, "op": op, "ts_ms": at}
        return _line({"destination": f"shop.public.{table}", "key": {"id": key}, "value": value})


def batches() -> dict[str, list[str]]:
    """Return the lines of each file, by its name."""
    shop = _Shop()
    return {
        "1_start.jsonl": list(_start(shop)),
        "2_changes.jsonl": list(_changes(shop, _ORDERS, mover=7)),
        "3_corrections.jsonl": list(_changes(shop, _ORDERS + 10, mover=23)),
    }


def _start(shop: _Shop) -> Iterator[str]:
    for n in range(1, _CUSTOMERS + 1):
        name, country = _NAMES[n % len(_NAMES)], _COUNTRIES[n * 7 % len(_COUNTRIES)]
        yield from shop.put("customers", {"id": n, "name": name, "country": country})
    for n in range(1, _ORDERS + 1):
        yield from shop.put("orders", shop.order(n, (n - 1) * _DAYS // _ORDERS))


def _changes(shop: _Shop, known: int, mover: int) -> Iterator[str]:
    """Yield ten new orders of the last day, five corrected ones, three deleted ones, and a customer who moves."""
    for n in range(known + 1, known + 11):
        yield from shop.put("orders", shop.order(n, _DAYS - 1))
    *corrected, first, second, third = shop.chosen_orders(8)
    for row in corrected:
        yield from shop.put("orders", {**row, "cents": row["cents"] + 100})
    for row in (first, second, third):
        yield from shop.delete("orders", row["id"])
    yield from shop.put("customers", {**shop.rows["customers", mover], "country": "SE"})


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"
