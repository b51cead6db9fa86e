"""A real MariaDB, recorded by Debezium: the tables are MariaDB's, but for what its stream does not say."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.event_model import Hints
from lake_assets.lake import TableId
from lake_assets.pipeline import PipelineConfig
from tests.support import mariadb
from tests.support.mariadb import MISSING, TOO_MANY, Checkpoint
from tests.support.parsing import parse
from tests.support.pipeline_runs import run

# What neither stream says, or says otherwise than the server: by reason, how many rows differ at each checkpoint.
Discrepancies = Mapping[str, Mapping[tuple[str, str], Sequence[int]]]
BOTH: Discrepancies = {
    "ALTER TABLE ... ADD ... DEFAULT changes rows without an event": {
        ("users", "score: null"): (0, 0, 31, 18, 16, 11),
        ("users", "tier: null"): (0, 0, 31, 18, 16, 11),
    },
    "Kafka's JSON converter writes the column's default for a null (replace.null.with.default)": {
        ("users", "score: not null"): (0, 0, 13, 10, 10, 9),
    },
    "rows that ON DELETE CASCADE and ON UPDATE CASCADE change are in no event": {
        ("badges", "user_id"): (0, 1, 1, 1, 1, 1),
        ("badges", TOO_MANY): (0, 1, 2, 2, 2, 2),
    },
    "rows that DROP TABLE takes along are in no event": {
        ("recreated", TOO_MANY): (0, 0, 0, 0, 1, 1),
    },
    "a row deleted without the binlog (sql_log_bin=0): an incremental snapshot reads what is there, not what has gone": {
        ("refreshed", TOO_MANY): (0, 0, 0, 0, 1, 1),
    },
    "Debezium moves the last bytes of a UUID that ends in 00, in updates (a key of the snapshot, and another one)": {
        ("accounts", "balance"): (0, 1, 1, 1, 1, 1),
        ("accounts", TOO_MANY): (0, 1, 2, 2, 2, 2),
    },
    "dates with a zero are null, or the first of 1970 where the column is not null; the year 0000 is 1900": {
        ("zeros", "d: null"): (1, 4, 4, 4, 4, 4),
        ("zeros", "d0"): (1, 3, 3, 3, 3, 3),
        ("zeros", "dt: null"): (1, 3, 3, 3, 3, 3),
        ("zeros", "dt0"): (1, 3, 3, 3, 3, 3),
        ("zeros", "ts: null"): (1, 1, 1, 1, 1, 1),
        ("zeros", "ts"): (0, 2, 2, 2, 2, 2),
        ("zeros", "ts0"): (1, 2, 2, 2, 2, 2),
        ("zeros", "y"): (0, 1, 1, 1, 1, 1),
        ("all_types", "y"): (0, 1, 1, 1, 1, 1),
    },
    "years below 100 become 1970 to 2069 (enable.time.adjuster)": {
        ("all_types", "d"): (0, 1, 1, 1, 1, 1),
        ("all_types", "dt"): (0, 1, 1, 1, 1, 1),
    },
    "a comma in a value of an ENUM comes with a backslash": {
        ("all_types", "e"): (0, 1, 1, 1, 1, 1),
    },
}
FLATTENED: Discrepancies = {
    "ExtractNewRecordState drops TRUNCATE": {
        ("emptied", TOO_MANY): (0, 3, 3, 6, 6, 6),
    },
    "unsigned numbers from 2^63 overflow (bigint.unsigned.handling.mode=long)": {
        ("all_types", "u8"): (1, 3, 3, 3, 3, 3),
        ("slots", MISSING): (1, 15, 15, 15, 15, 15),
        ("slots", TOO_MANY): (1, 15, 15, 15, 15, 15),
    },
    "updates without the old row do not say which row of a table without a key they changed": {
        ("tally", MISSING): (0, 9, 10, 12, 10, 12),
        ("tally", TOO_MANY): (0, 11, 12, 16, 16, 18),
    },
}
EXPECTED: Mapping[str, Sequence[Discrepancies]] = {"enveloped": (BOTH,), "flattened": (BOTH, FLATTENED)}
NOT_ABSORBED = ("signals", "checkpoint_marker")


def expected(stream: str, checkpoint: int, tables: Collection[str] | None = None) -> Counter[tuple[str, str]]:
    found = Counter[tuple[str, str]]()
    for reasons in EXPECTED[stream]:
        for counts in reasons.values():
            found += Counter({what: n[checkpoint] for what, n in counts.items() if not tables or what[0] in tables})
    return found


# --- what is in the recording -----------------------------------------------------------------------------------------


def test_the_recording_has_what_makes_a_binlog_hard() -> None:
    events = [e for line in mariadb.lines("enveloped") for e in mariadb.events(0, line)]
    files = dict.fromkeys(e.position[0] for e in events)
    assert list(files) == [999_998, 999_999, 1_000_001, 1_000_002, 1_000_003, 1_000_004, 1_000_005]
    assert sum(b.position < a.position for a, b in itertools.pairwise(events)) == 1  # the connector was killed once
    streamed = Counter((e.table, e.position, e.op) for e in events if e.op != "r")
    assert sum(n > 1 for n in streamed.values()) > 100
    rows = Counter((*e.position[:2],) for e in events if e.op != "r")
    assert max(rows.values()) > 100
    assert Counter(e.op for e in events if e.table in ("refreshed", "user_city"))["r"] > 100
    folders = (mariadb.RECORDED, mariadb.RECORDED_11)
    assert sum(f.stat().st_size for folder in folders for f in folder.iterdir()) < 600_000


@pytest.mark.parametrize("stream", EXPECTED)
def test_in_the_order_of_the_binlog_the_stream_leads_to_mariadbs_rows(stream: str) -> None:
    for n, checkpoint in enumerate(mariadb.checkpoints()):
        rows = mariadb.replayed(stream, checkpoint)
        found = {
            (table, what): count
            for table, held in checkpoint.tables.items()
            for what, count in mariadb.differences(rows.get(table), held).items()
            if table not in NOT_ABSORBED
        }
        assert found == expected(stream, n), checkpoint.name


# --- what becomes of it in a lake -------------------------------------------------------------------------------------


class Shop:
    """A lake's tables of one of the streams."""

    def __init__(self, lake: Lake, *tables: str) -> None:
        declared: dict[str, dict[str, Any]] = {
            "tally": {"key": "*"}, "users": {"rename": {"email": "email_address"}},
        }  # fmt: skip
        names = tables or [t for t in mariadb.checkpoints()[-1].tables if t not in NOT_ABSORBED]
        entries = [{"table": f"shop.{t}", **declared.get(t, {})} for t in names]
        streams = [{"name": "binlog", "tables": entries}]
        self.lake, self.tables = lake, names
        self.pipeline = Pipeline(PipelineConfig.model_validate({"name": "shop", "streams": streams}))
        self.landing = lake.config.home / "landing" / "binlog"
        self.landing.mkdir(parents=True)
        self.files = 0

    def deliver(self, lines: Sequence[str]) -> Counter[str]:
        """Absorb records as one file; return how many were rejected, by table."""
        self.files += 1
        (self.landing / f"{self.files:04}.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
        outcomes = run(self.lake, self.pipeline)
        return Counter({t: o.details["rejected"] for t, o in outcomes.items() if o.details.get("rejected")})

    def differences(self, checkpoint: Checkpoint) -> Counter[tuple[str, str]]:
        """Compare every table with MariaDB's."""
        found = Counter[tuple[str, str]]()
        for table in self.tables:
            held, final = checkpoint.tables[table], TableId(("final",), table)
            exists = self.lake.exists(final)
            rows = mariadb.in_lake(self.lake.spark().table(self.lake.sql_name(final)), held) if exists else None
            found += Counter({(table, what): n for what, n in mariadb.differences(rows, held).items()})
        return found


@pytest.mark.long
@pytest.mark.parametrize("stream", EXPECTED)
def test_the_tables_are_mariadbs_at_every_checkpoint(lake: Lake, stream: str) -> None:
    shop, start, rejected = Shop(lake), 0, Counter[str]()
    for n, checkpoint in enumerate(mariadb.checkpoints()):
        end = checkpoint.lines[stream]
        rejected += shop.deliver(mariadb.lines(stream)[start:end])
        assert (checkpoint.name, shop.differences(checkpoint)) == (checkpoint.name, expected(stream, n))
        start = end
    # Flattened updates of a table without a key have no old row.
    updates = sum(e.table == "tally" and e.op == "u" for line in mariadb.lines(stream) for e in mariadb.events(0, line))
    assert rejected == (Counter({"staging.tally": updates}) if stream == "flattened" else {})


@pytest.mark.long
def test_events_of_one_position_are_in_the_order_of_the_stream(spark_lake: Lake) -> None:
    # MariaDB 11.4 says no position of an event within its transaction: those of all its statements have one file and
    # position, and rows are counted from 0 in each.
    lines = mariadb.lines("enveloped", mariadb.RECORDED_11)
    (checkpoint,) = mariadb.checkpoints(mariadb.RECORDED_11)
    found = Counter[tuple[str, str]]()
    for table, held in checkpoint.tables.items():
        hints = Hints(table=SourceTable("shop", table), rename={"email": "email_address"} if table == "users" else {})
        events = parse(spark_lake.spark(), event_format("debezium"), lines, hints)
        assert [e.bad for e in events if e.bad] == []
        differing = mariadb.differences(mariadb.in_order_of_events(events, held), held)
        found += Counter({(table, what): n for what, n in differing.items()})
    assert found == expected("enveloped", 2, checkpoint.tables)


# Where the order of events decides: keys that move, rows that come again, rows that are read again.
ORDERED = ("users", "positions", "refreshed")


@pytest.mark.long
@pytest.mark.parametrize("tables", [ORDERED[:1], pytest.param(ORDERED, marks=pytest.mark.long)], ids=["some", "all"])
def test_shuffled_and_repeated_flat_events_lead_to_the_same_rows(lake: Lake, tables: tuple[str, ...]) -> None:
    choose = random.Random(7)
    shop = Shop(lake, *tables)
    lines = shuffled(mariadb.lines("flattened"), tables, choose)
    cut = len(lines) // 3
    for part in (lines[:cut], lines[cut:]):
        assert not shop.deliver(part)
    assert shop.differences(mariadb.checkpoints()[-1]) == expected("flattened", 5, tables)


@pytest.mark.long
@pytest.mark.parametrize("stream", EXPECTED)
def test_every_delivery_leads_to_the_same_rows(lake: Lake, stream: str) -> None:
    choose = random.Random(1)
    # A table without a key needs its events in order: equal rows cannot be told apart.
    names = [t for t in mariadb.checkpoints()[-1].tables if t not in (*NOT_ABSORBED, "tally")]
    shop = Shop(lake, *names)
    lines = shuffled(mariadb.lines(stream), names, choose)
    cuts = sorted(choose.sample(range(1, len(lines)), 3))
    for a, b in itertools.pairwise([0, *cuts, len(lines)]):
        shop.deliver(lines[a:b])
    assert shop.differences(mariadb.checkpoints()[-1]) == expected(stream, 5, names)


def shuffled(lines: Sequence[str], tables: Collection[str], choose: random.Random) -> list[str]:
    """These tables' events in another order, a tenth of them twice; those of one position stay as they are."""
    groups: dict[Any, list[str]] = {}
    for line in lines:
        record = json.loads(line)
        if record["value"] and record["destination"].rpartition(".")[2] in tables:
            payload = record["value"]["payload"]
            source = payload.get("source") or {n.removeprefix("__source_"): v for n, v in payload.items()}
            groups.setdefault((source["file"], source["pos"]), []).append(line)
    delivered = [*groups.values(), *choose.sample(list(groups.values()), len(groups) // 10)]
    choose.shuffle(delivered)
    return [line for group in delivered for line in group]
