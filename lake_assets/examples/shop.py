"""The recorded stream of `shop`: feeding it checkpoint by checkpoint, and what Postgres held at each of them.

The recording is of the real Debezium engine on a real Postgres; the rows of every table at six quiet points are the
oracle that the pipeline's final tables are compared with.
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
from importlib.resources import files
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql import functions as F

from lake_assets.lake import LakeBase, TableId, quote

DATA = Path(str(files("lake_assets.examples"))) / "data" / "shop"
PIPELINE = Path(str(files("lake_assets.examples"))) / "defs" / "shop" / "defs.yaml"
# The owner's declaration in the pipeline; Postgres's earlier checkpoints still have the old name.
RENAMED: Mapping[tuple[str, str], str] = {("users", "email"): "email_address"}
EVENTS_A_FILE = 500


@dataclass(frozen=True)
class Checkpoint:
    """A quiet point of the recording.

    Attributes:
        lines: how many lines of the stream belong to it and those before.
        tables: by table, its key and columns with Postgres's types.
    """

    name: str
    what: str
    lines: int
    tables: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """A final table beside what Postgres held."""

    table: str
    rows: int
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether every row is the same."""
        return not self.differences


@cache
def checkpoints() -> tuple[Checkpoint, ...]:
    """All checkpoints, in order."""
    manifest = json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))
    return tuple(Checkpoint(c["name"], c["what"], c["lines"], c["tables"]) for c in manifest["checkpoints"])


def feed(landing: Path, upto: Checkpoint) -> int:
    """Put the stream's events up to a checkpoint into the landing folder, in files of some hundred events.

    Files that are there already are left as they are, so that feeding twice changes nothing. Returns the number of
    new files.
    """
    landing.mkdir(parents=True, exist_ok=True)
    start, made = 0, 0
    with gzip.open(DATA / "debezium.jsonl.gz", "rb") as stream:
        for checkpoint in checkpoints():
            if checkpoint.lines > upto.lines:
                break
            for n in itertools.count():
                rows = list(itertools.islice(stream, min(EVENTS_A_FILE, checkpoint.lines - start)))
                if not rows:
                    break
                start += len(rows)
                target = landing / f"{checkpoint.name}-{n:03}.jsonl"
                if not target.exists():
                    made += 1
                    temporary = landing / f".{target.name}"
                    temporary.write_bytes(b"".join(rows))
                    temporary.rename(target)  # whole or not at all
    return made


def compare(lake: LakeBase, checkpoint: Checkpoint) -> list[Comparison]:
    """Every final table beside the rows that Postgres held at a checkpoint: values as values (1.50 equals 1.5000)."""
    return [_compare(lake, checkpoint, table) for table in checkpoint.tables]


def _compare(lake: LakeBase, checkpoint: Checkpoint, table: str) -> Comparison:
    declared = checkpoint.tables[table]
    names: dict[str, str] = {name: RENAMED.get((table, name)) or name for name, _ in declared["columns"]}
    kinds = {names[name]: kind for name, kind in declared["columns"]}
    with gzip.open(DATA / "checkpoints" / checkpoint.name / f"{table}.jsonl.gz", "rt", encoding="utf-8") as lines:
        held = [{names[k]: _value(v, kinds[names[k]]) for k, v in json.loads(line).items()} for line in lines]
    final = TableId(("final",), table)
    if not lake.exists(final):
        return Comparison(table, 0, (f"there is no {final}",) if held else ())
    there = [f.name for f in lake.table(final).schema().fields]
    if missing := [n for n in kinds if n not in there]:
        return Comparison(table, 0, (f"no column {', '.join(missing)}",))
    # Moments as microseconds: Python would turn them into the local time zone of whoever looks.
    rows = lake.spark().table(lake.sql_name(final)).select(*(_readable(n, kinds[n]) for n in kinds)).collect()
    expected, actual = Counter(_frozen(kinds, r) for r in held), Counter(_frozen(kinds, r) for r in rows)
    differences = [f"missing: {_shown(kinds, r)}" for r in (expected - actual)]
    differences += [f"not in Postgres: {_shown(kinds, r)}" for r in (actual - expected)]
    return Comparison(table, len(rows), tuple(sorted(differences)))


def _readable(name: str, kind: str) -> Any:
    column = F.col(quote(name))
    return (F.unix_micros(column) if kind == "timestamp with time zone" else column).alias(name)


def _frozen(kinds: Mapping[str, str], row: Mapping[str, Any] | Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in kinds)


def _shown(kinds: Mapping[str, str], row: tuple[Any, ...]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in zip(kinds, row, strict=True))


def _value(text: str | None, kind: str) -> Any:
    """A value of Postgres's text output as the Python value that Spark gives for it."""
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
    """The checkpoints whose events are in the landing folder."""
    there = {p.name for p in landing.glob("*.jsonl")} if landing.is_dir() else set[str]()
    for checkpoint in checkpoints():
        if any(name.startswith(f"{checkpoint.name}-") for name in there):
            yield checkpoint
