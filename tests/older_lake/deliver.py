"""Deliver what arrives to a lake: files, Python records, and rows of another system's table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.older_lake.history import Arrival
from tests.support.debezium import to_lines, write_lines

KAFKA = "lake.kafka.payments"


def land_files(home: Path, n: int, arrival: Arrival) -> None:
    """Put the files of an arrival into the landing folders."""
    texts = [*(note.line() for note in arrival.notes), *(f"{line}\n" for line in arrival.broken)]
    if lines := [*to_lines(arrival.events), *(t.encode() for t in texts)]:
        write_lines(home / "in" / "shop" / f"{n:04}.jsonl", lines)
    if arrival.readings:
        write_lines(home / "landing" / "readings" / f"{n:04}.jsonl", [_line(r) for r in arrival.readings])


def _line(record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


def append_payments(lake: Any, n: int, arrival: Arrival) -> None:
    """Append an arrival's payments to the table of another system; the first arrival creates it."""
    spark = lake.spark()
    if n == 0:
        spark.sql("CREATE NAMESPACE lake.kafka")
        spark.sql(f"CREATE TABLE {KAFKA} (key STRING, value STRING, partition INT, offset BIGINT) USING iceberg")
    rows = [
        (json.dumps(r["key"]), json.dumps(r["value"]), 0, n * 100 + at)
        for at, r in enumerate(r for e in arrival.payments for r in e.records() if r["value"])
    ]
    if rows:
        spark.createDataFrame(rows, "key STRING, value STRING, partition INT, offset BIGINT").writeTo(KAFKA).append()


def visits_of(arrival: Arrival) -> Callable[[Any], Iterator[tuple[Any, Any]]]:
    """The visits as `Pipeline.land` reads them; each offset is the place after the last one's."""

    def read(after: Any) -> Iterator[tuple[Any, Any]]:
        for offset, record in enumerate(arrival.visits, 0 if after is None else after["next"]):
            yield {"next": offset + 1}, dict(record)

    return read
