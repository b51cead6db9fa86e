"""What the tables of the pipeline hold after some arrivals, in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Any

from tests.older_lake.history import Arrival
from tests.support.debezium import Event
from tests.support.oracle import Rows, final_rows, versions

COLUMNS: Mapping[str, Sequence[str]] = {
    "staging.payments": ["id", "order", "paid", "paid__string"],
    "final.customers": ["id", "email", "city", "age", "balance", "vip"],
    "final.addresses": ["id", "street", "remark", "effective_from", "effective_to", "is_current"],
    "final.clicks": ["id", "page"],
    "final.notes": ["text", "n"],
    "final.orders": ["id", "customer", "created", "status", "amount", "__deleted"],
    "final.readings": ["id", "version", "value", "tenths"],
    "final.visits": ["id", "page", "score"],
    "agg.cities": ["city", "n", "balance"],
    "agg.oldest": ["city", "oldest", "orders"],
    "agg.days": ["day", "n", "amount"],
    "agg.running": ["day", "n"],
    "agg.ranked": ["id", "place"],
}


def tables_after(arrivals: Sequence[Arrival]) -> dict[str, Rows]:
    """The rows of every final and model table, with the columns of `COLUMNS`."""
    final = _final(arrivals)
    return final | _models(final)


def _final(arrivals: Sequence[Arrival]) -> dict[str, Rows]:
    def events(name: str) -> list[Event]:
        return [e for a in arrivals for e in a.events if e.table.name == f"public.{name}"]

    def columns(name: str) -> Sequence[str]:
        return COLUMNS[f"final.{name}"]

    address_columns = columns("addresses")[:3]
    return {
        "final.customers": final_rows(events("customers"), columns("customers"), made=_renamed),
        "final.addresses": versions(events("addresses"), address_columns, ["street"]),
        # One row per insert, however often it arrives.
        "final.clicks": Counter({(e.row["id"], e.row["page"]): 1 for e in events("clicks") if e.op == "c"}),
        "final.notes": _notes(arrivals),
        "final.orders": final_rows(events("orders"), columns("orders"), "soft"),
        "final.readings": _readings(arrivals),
        "final.visits": _visits(arrivals),
        "staging.payments": _payments(arrivals),
    }


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "email": row.get("email", row.get("mail"))}


def _payments(arrivals: Sequence[Arrival]) -> Rows:
    """Every event; a text among the numbers is in a column of its own."""
    rows: Rows = Counter()
    for event in (e for a in arrivals for e in a.payments):
        id_, order, paid = (event.row[c] if c == "id" or event.op != "d" else None for c in ("id", "order", "paid"))
        is_text = isinstance(paid, str)
        rows[id_, order, None if is_text else paid, paid if is_text else None] += 1
    return rows


def _notes(arrivals: Sequence[Arrival]) -> Rows:
    rows: Rows = Counter()
    for note in (n for a in arrivals for n in a.notes):
        for row, by in ((note.before, -1), (note.after, 1)):
            if row:
                rows[row["text"], row["n"]] += by
    return +rows


def _readings(arrivals: Sequence[Arrival]) -> Rows:
    latest: dict[int, Mapping[str, Any]] = {}
    for row in (r for a in arrivals for r in a.readings):
        if row["id"] not in latest or row["version"] >= latest[row["id"]]["version"]:
            latest[row["id"]] = row
    there = [r for r in latest.values() if r["FLAG"] != "D"]
    return Counter((r["id"], r["version"], r["value"], r["value"] * 10) for r in there)


def _visits(arrivals: Sequence[Arrival]) -> Rows:
    latest: dict[str, tuple[int, tuple[Any, ...] | None]] = {}
    for record in (v for a in arrivals for v in a.visits):
        values = record.get("columnValues")
        # A score that is no number: the record is rejected.
        if values and not values[2].isdigit():
            continue
        id_, at = values[0] if values else record["oldKeyValues"][0], int(record["timestamp"])
        if id_ not in latest or at >= latest[id_][0]:
            latest[id_] = at, (values[0], values[1], int(values[2])) if values else None
    return Counter(row for _, row in latest.values() if row)


def _models(final: Mapping[str, Rows]) -> dict[str, Rows]:
    customers = [dict(zip(COLUMNS["final.customers"], r, strict=True)) for r in final["final.customers"]]
    orders = [dict(zip(COLUMNS["final.orders"], r, strict=True)) for r in final["final.orders"]]
    there = [o for o in orders if not o["__deleted"]]
    ages: dict[str, list[int]] = {}
    balances: dict[str, list[Decimal]] = {}
    placed: Counter[str] = Counter()
    for c in customers:
        ages.setdefault(c["city"], []).append(c["age"])
        balances.setdefault(c["city"], []).append(c["balance"])
        placed[c["city"]] += sum(o["customer"] == c["id"] for o in there)
    days = sorted({o["created"].date() for o in there})
    amounts = {d: [o["amount"] for o in there if o["created"].date() == d] for d in days}
    running = accumulate(len(amounts[d]) for d in days)
    ranked = sorted(orders, key=lambda o: (o["created"], o["id"]))
    return {
        "agg.cities": Counter((c, len(b), sum(b)) for c, b in balances.items()),
        "agg.oldest": Counter((c, max(a), placed[c]) for c, a in ages.items()),
        "agg.days": Counter((d, len(a), sum(a)) for d, a in amounts.items()),
        "agg.running": Counter(zip(days, running, strict=True)),
        "agg.ranked": Counter((o["id"], place) for place, o in enumerate(ranked, 1)),
    }
