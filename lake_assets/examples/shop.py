"""Feed the recorded stream of `shop` checkpoint by checkpoint, and compare the tables with Postgres's rows.

The stream was recorded with the Debezium engine and Postgres. The rows of every Postgres table at six quiet points are
the oracle for the pipeline's final tables.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql import functions as F

from lake_assets.examples import complete_file, shipped_pipeline
from lake_assets.lake import LakeBase, TableId, quote

DATA = Path(__file__).parent / "data" / "shop"
PIPELINE = shipped_pipeline("shop")
# The rename declared in the pipeline; earlier checkpoints still have the old name.
RENAMED: Mapping[tuple[str, str], str] = {("users", "email"): "email_address"}
EVENTS_PER_FILE = 500


@dataclass(frozen=True)
class Checkpoint:
    """A quiet point of the recording.

    Attributes:
        lines: number of lines of the stream up to this checkpoint.
        tables: by table, its key, and its columns with Postgres's types.
    """

    name: str
    what: str
    lines: int
    tables: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """Result of comparing a final table with Postgres's rows."""

    table: str
    rows: int
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether all rows are equal."""
        return not self.differences


@cache
def checkpoints() -> tuple[Checkpoint, ...]:
    """Return all checkpoints in order."""
    manifest = json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))
    return tuple(Checkpoint(c["name"], c["what"], c["lines"], c["tables"]) for c in manifest["checkpoints"])


def feed(landing: Path, upto: Checkpoint) -> int:
    """Put the stream's events up to a checkpoint into the landing folder, in files of a few hundred events.

    Existing files are not changed, so feeding twice has no effect. Returns the number of new files.
    """
    landing.mkdir(parents=True, exist_ok=True)
    start, new_files = 0, 0
    with gzip.open(DATA / "debezium.jsonl.gz", "rb") as stream:
        for checkpoint in checkpoints():
            if checkpoint.lines > upto.lines:
                break
            for n in itertools.count():
                rows = list(itertools.islice(stream, min(EVENTS_PER_FILE, checkpoint.lines - start)))
                if not rows:
                    break
                start += len(rows)
                target = landing / f"{checkpoint.name}-{n:03}.jsonl"
                if not target.exists():
                    new_files += 1
                    with complete_file(target) as file:
                        file.write_bytes(b"".join(rows))
    return new_files


def compare(lake: LakeBase, checkpoint: Checkpoint) -> list[Comparison]:
    """Compare every final table with Postgres's rows at a checkpoint, by value (1.50 equals 1.5000)."""
    return [_compare(lake, checkpoint, table) for table in checkpoint.tables]


def _compare(lake: LakeBase, checkpoint: Checkpoint, table: str) -> Comparison:
    declared = checkpoint.tables[table]
    names: dict[str, str] = {name: RENAMED.get((table, name)) or name for name, _ in declared["columns"]}
    kinds = {names[name]: kind for name, kind in declared["columns"]}
    with gzip.open(DATA / "checkpoints" / checkpoint.name / f"{table}.jsonl.gz", "rt", encoding="utf-8") as lines:
        recorded = [{names[k]: _value(v, kinds[names[k]]) for k, v in json.loads(line).items()} for line in lines]
    final = TableId(("final",), table)
    if not lake.exists(final):
        return Comparison(table, 0, (f"{final} does not exist",) if recorded else ())
    existing = [f.name for f in lake.table(final).schema().fields]
    if missing := [n for n in kinds if n not in existing]:
        return Comparison(table, 0, (f"no column {', '.join(missing)}",))
    # Timestamps as microseconds: Python would convert them to the local time zone.
    rows = lake.spark().table(lake.sql_name(final)).select(*(_readable(n, kinds[n]) for n in kinds)).collect()
    expected, actual = Counter(_frozen(kinds, r) for r in recorded), Counter(_frozen(kinds, r) for r in rows)
    differences = [f"missing: {_row_text(kinds, r)}" for r in (expected - actual)]
    differences += [f"not in Postgres: {_row_text(kinds, r)}" for r in (actual - expected)]
    return Comparison(table, len(rows), tuple(sorted(differences)))


def _readable(name: str, kind: str) -> Any:
    column = F.col(quote(name))
    return (F.unix_micros(column) if kind == "timestamp with time zone" else column).alias(name)


def _frozen(kinds: Mapping[str, str], row: Mapping[str, Any] | Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in kinds)


def _row_text(kinds: Mapping[str, str], row: tuple[Any, ...]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in zip(kinds, row, strict=True))


def _value(text: str | None, kind: str) -> Any:
    """Convert a value of Postgres's text output to the Python value that Spark returns for it."""
    if text is None:
        return None
    if kind in ("bigint", "integer", "smallint"):
        return int(text)
    if kind.startswith("numeric"):
        return Decimal(text)
    if kind == "date":
        return date.fromisoformat(text)
    if kind == "timestamp without time zone":
        return datetime.fromisoformat(text)
    if kind == "timestamp with time zone":
        moment = datetime.fromisoformat(text + ":00" if text[-3] in "+-" else text).astimezone(UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND
    return text


_MICROSECOND = timedelta(microseconds=1)


def fed(landing: Path) -> Iterator[Checkpoint]:
    """Yield the checkpoints whose events are in the landing folder."""
    names = {p.name for p in landing.glob("*.jsonl")} if landing.is_dir() else set[str]()
    for checkpoint in checkpoints():
        if any(name.startswith(f"{checkpoint.name}-") for name in names):
            yield checkpoint
