"""The events that the lake was made of, those that were pending, and those that arrive later."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.support.debezium import BIGINT, INT, TEXT, TIMESTAMP, Event, Table, decimal

CUSTOMERS = Table(
    {"id": BIGINT, "mail": TEXT, "city": TEXT, "age": INT, "balance": decimal(9, 2)}, name="public.customers"
)
# Renamed, widened and added columns.
CUSTOMERS_NOW = Table(
    {"id": BIGINT, "email": TEXT, "city": TEXT, "age": BIGINT, "balance": decimal(12, 4), "vip": INT},
    name="public.customers",
)
ADDRESSES = Table({"id": BIGINT, "street": TEXT, "remark": TEXT}, name="public.addresses")
CLICKS = Table({"id": BIGINT, "page": TEXT}, name="public.clicks")
ORDERS = Table(
    {"id": BIGINT, "customer": BIGINT, "created": TIMESTAMP, "status": TEXT, "amount": decimal(8, 2)},
    name="public.orders",
)
PAYMENTS = Table({"id": BIGINT, "order": BIGINT, "paid": BIGINT}, name="public.payments")
# A type that the column cannot become: such values have a column of their own.
PAYMENTS_NOW = Table({"id": BIGINT, "order": BIGINT, "paid": TEXT}, name="public.payments")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Note:
    """A change of public.notes, which has no key: the event holds the whole row before it, and after it."""

    sequence: int
    before: Row | None
    after: Row | None

    def line(self) -> str:
        op = "u" if self.before and self.after else "c" if self.after else "d"
        at = self.sequence
        source = {"db": "shop", "schema": "public", "table": "notes", "lsn": at, "sequence": f'["{at}","{at}"]'}
        value = {"op": op, "before": self.before, "after": self.after, "source": source | {"ts_ms": at}}
        return json.dumps(value) + "\n"


@dataclass(frozen=True)
class Arrival:
    """What arrives at one time.

    Attributes:
        events: of the tables of shop_events.
        notes: of public.notes, after them in the same file.
        broken: lines of that file that are no events.
        readings: rows of the change set.
        visits: simplified change events.
        payments: events that another system appends to an Iceberg table.
    """

    events: Sequence[Event] = ()
    notes: Sequence[Note] = ()
    broken: Sequence[str] = ()
    readings: Sequence[Row] = ()
    visits: Sequence[Row] = ()
    payments: Sequence[Event] = ()


def customer(
    at: int,
    op: Any,
    id: int,
    contact: str = "",
    city: str = "",
    age: int = 0,
    balance: str = "0.00",
    *,
    now: bool = False,
) -> Event:
    row = {"id": id, "email" if now else "mail": contact, "city": city, "age": age, "balance": Decimal(balance)}
    return Event(CUSTOMERS_NOW if now else CUSTOMERS, op, (at, at), row | ({"vip": id % 2} if now else {}))


def address(at: int, op: Any, id: int, street: str = "", remark: str | None = None) -> Event:
    return Event(ADDRESSES, op, (at, at), {"id": id, "street": street, "remark": remark})


def click(at: int, op: Any, id: int, page: str = "") -> Event:
    return Event(CLICKS, op, (at, at), {"id": id, "page": page})


def order(
    at: int, op: Any, id: int, customer: int = 0, day: int = 1, status: str = "new", amount: str = "1.00"
) -> Event:
    created = dt.datetime(2024, 1, day, 12)  # noqa: DTZ001 (a timestamp without zone)
    row = {"id": id, "customer": customer, "created": created, "status": status, "amount": Decimal(amount)}
    return Event(ORDERS, op, (at, at), row)


def payment(at: int, op: Any, id: int, order: int = 0, paid: int | str = 0) -> Event:
    return Event(
        PAYMENTS_NOW if isinstance(paid, str) else PAYMENTS, op, (at, at), {"id": id, "order": order, "paid": paid}
    )


def reading(flag: str, id: int, version: int, value: int) -> Row:
    time = f"2024-01-01 00:00:{version:02}"
    return {"FLAG": flag, "CDC_TIMESTAMP": time, "id": id, "version": version, "value": value, "unit": "mm"}


def visit(at: int, kind: str, id: str, page: str = "", score: str = "0") -> Row:
    record: dict[str, Any] = {"changeType": kind, "timestamp": str(at)}
    if kind != "delete":
        record |= {"columnNames": ["id", "page", "score"], "columnValues": [id, page, score]}
    return record | ({"oldKeyNames": ["id"], "oldKeyValues": [id]} if kind != "insert" else {})


ABSORBED = [
    Arrival(
        events=[
            customer(1, "r", 1, "ann@x", "Bonn", 31, "10.50"),
            customer(1, "r", 2, "bob@x", "Bonn", 45, "20.00"),
            customer(1, "r", 3, "cem@x", "Kiel", 28, "5.25"),
            address(10, "c", 1, "Oak St", "blue door"),
            address(11, "c", 2, "Elm St"),
            click(20, "c", 1, "/"),
            click(21, "c", 2, "/cart"),
            order(30, "c", 1, 1, 1, "new", "9.99"),
            order(31, "c", 2, 2, 1, "new", "5.00"),
            order(32, "c", 3, 3, 2, "paid", "7.50"),
        ],
        notes=[Note(40, None, {"text": "buy milk", "n": 1}), Note(41, None, {"text": "buy milk", "n": 1})],
        readings=[reading("I", 1, 1, 5), reading("I", 2, 1, 6), reading("U", 1, 9, 7)],
        visits=[visit(8, "insert", "a", "/", "3"), visit(9, "insert", "b", "/cart", "4")],
        payments=[payment(1, "c", 1, 1, 999), payment(2, "c", 2, 2, 500)],
    ),
    Arrival(
        events=[
            customer(100, "u", 1, "ann@y", "Bonn", 32, "11.50"),
            customer(101, "d", 3),
            customer(102, "c", 4, "dan@x", "Ulm", 60, "0.75"),
            # A key that changes.
            customer(103, "d", 2),
            customer(103, "c", 12, "bob@x", "Kiel", 45, "20.00"),
            address(110, "u", 1, "Oak St", "red door"),
            address(111, "u", 2, "Ash St"),
            address(112, "c", 3, "Fir St"),
            click(120, "c", 3, "/pay"),
            click(121, "u", 1, "/home"),
            order(130, "u", 1, 1, 1, "paid", "9.99"),
            order(131, "d", 3),
            order(132, "c", 4, 4, 3, "new", "2.25"),
            # Moves to another partition.
            order(133, "u", 2, 12, 4, "sent", "5.00"),
        ],
        notes=[
            Note(140, {"text": "buy milk", "n": 1}, {"text": "buy bread", "n": 2}),
            Note(141, None, {"text": "call Ann", "n": None}),
        ],
        broken=['{"op": "c", "after": {"id": 1}', "[]"],
        readings=[reading("U", 1, 10, 8), reading("D", 2, 2, 6), reading("I", 3, 1, 1)],
        visits=[visit(10, "update", "a", "/home", "5"), visit(11, "insert", "c", "/", "many")],
        payments=[payment(10, "u", 1, 1, 1000), payment(11, "d", 2)],
    ),
    Arrival(
        events=[
            # Late: an event of before, and one that comes again.
            customer(99, "u", 1, "ann@z", "Bonn", 31, "11.00"),
            customer(102, "c", 4, "dan@x", "Ulm", 60, "0.75"),
            customer(200, "u", 4, "dan@y", "Ulm", 61, "1000000.7512", now=True),
            customer(201, "c", 5, "eve@x", "Bonn", 2**33, "3.00", now=True),
            address(105, "u", 2, "Elm St", "bell is broken"),
            address(210, "d", 3),
            address(211, "u", 1, "Yew St", "red door"),
            click(220, "c", 4, "/"),
            order(230, "u", 4, 4, 1, "paid", "2.25"),
            order(231, "c", 5, 5, 5, "new", "8.00"),
        ],
        notes=[Note(240, {"text": "call Ann", "n": None}, None)],
        readings=[reading("U", 1, 8, 99), reading("U", 3, 2, 2)],
        visits=[visit(7, "insert", "d", "/late", "1"), visit(12, "delete", "b")],
        payments=[payment(20, "c", 3, 4, 225), payment(21, "c", 6, 2, "5 EUR")],
    ),
]
# Landed, but absorbed by some tables only. The audit of the orders fails.
HALF_ABSORBED = Arrival(
    events=[
        customer(300, "u", 5, "eve@y", "Kiel", 20, "4.00", now=True),
        customer(301, "c", 6, "fay@x", "Ulm", 33, "1.00", now=True),
        address(310, "u", 2, "Bay St", "bell works"),
        click(320, "c", 5, "/end"),
        order(330, "u", 5, 5, 5, "lost", "8.00"),
        order(331, "c", 6, 6, 6, "new", "1.10"),
    ],
    notes=[Note(340, None, {"text": "water plants", "n": 3})],
)
# Not landed.
PENDING = Arrival(
    events=[
        customer(400, "u", 12, "bob@y", "Bonn", 46, "19.00", now=True),
        address(410, "c", 3, "Fir St", "back again"),
        click(420, "c", 6, "/"),
        order(430, "u", 5, 5, 5, "paid", "8.00"),
    ],
    notes=[Note(440, {"text": "buy bread", "n": 2}, {"text": "buy bread", "n": 4})],
    readings=[reading("U", 1, 11, 12), reading("I", 4, 1, 4)],
    payments=[payment(30, "u", 3, 4, 230), payment(31, "c", 4, 5, "8 EUR")],
)
# Arrives at the current version.
LATER = Arrival(
    events=[
        customer(500, "d", 1),
        customer(501, "c", 7, "gus@x", "Bonn", 50, "6.00", now=True),
    ],
    notes=[Note(540, {"text": "buy milk", "n": 1}, None), Note(541, None, {"text": "water plants", "n": 3})],
    visits=[visit(100, "update", "a", "/far", "6"), visit(11, "update", "d", "/mid", "2")],
)
