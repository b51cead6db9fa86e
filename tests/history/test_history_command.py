"""`lake-assets history`: what it prints, and its errors; without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from lake_assets import Lake
from lake_assets.errors import RowHistoryError
from lake_assets.history.wanted_rows import text_of, value_of
from lake_assets.journal import step_journal
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake.metadata.watermark import Watermark, to_properties
from tests.support.cli import Done
from tests.support.faults import files_of

Call = Callable[..., Done]
SCHEMA = Schema(
    NestedField(1, "tenant", StringType(), required=True),
    NestedField(2, "id", LongType(), required=True),
    NestedField(3, "name", StringType()),
    identifier_field_ids=[1, 2],
)


@pytest.fixture
def call(plain_lake: Lake, call_on: Callable[[Lake], Call]) -> Call:
    """Calls commands on a lake with one table of two commits, which another program made."""
    plain_lake.ensure_namespace(("shop",))
    table = plain_lake.catalog.create_table(("shop", "people"), SCHEMA)
    _append(table, ("a", 1, "Ada"), ("a", 2, None), ("b", 1, "\x1b[31mred"))
    table.overwrite(_rows(table, ("a", 1, "Ada L.")), "tenant = 'a' and id = 1")
    return call_on(plain_lake)


def _rows(table: Any, *rows: tuple[Any, ...]) -> pa.Table:
    names = table.schema().column_names
    return pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in rows], table.schema().as_arrow())


def _append(table: Any, *rows: tuple[Any, ...]) -> None:
    table.append(_rows(table, *rows))


def test_versions_are_printed_with_what_changed(call: Call) -> None:
    done = call("history", "shop.people", "--key", "tenant=a", "--key", "ID=1")
    assert done.code == 0, done.err
    assert "Ada -> Ada L." in done.out
    assert done.out.index("inserted") < done.out.index("updated")
    assert "all snapshots of the table are kept" in done.out
    assert "name its pipeline with --pipeline" in done.out
    updated = done.out.split("updated")[1]
    assert "tenant" not in updated.split(" compared, ")[0]
    assert "tenant" in call(
        "history", "shop.people", "--key", "tenant=a", "--key", "id=1", "--all-columns"
    ).out.split("updated")[1]  # fmt: skip


@pytest.fixture
def stepped(plain_lake: Lake, call: Call) -> Callable[..., int]:
    """Commits as a step does, and leaves its record."""

    def step(name: str, run: str = "", host: str = "", *, recorded: bool = True) -> int:
        table = plain_lake.table("shop.people")
        mark = to_properties({"staging.people": Watermark("u", 7)})
        table.overwrite(_rows(table, ("a", 1, name)), "tenant = 'a' and id = 1", snapshot_properties=mark)
        snapshot = plain_lake.table("shop.people").metadata.current_snapshot_id
        assert snapshot is not None
        if recorded:
            of = StepRecord(
                "p", "shop.people", "absorbed", time.time(), 1.0, 1.0, snapshot=snapshot, run=run, host=host
            )
            step_journal.note(plain_lake, of)
        return snapshot

    return step


def test_versions_tell_the_run_that_made_them(call: Call, stepped: Callable[..., int], plain_lake: Lake) -> None:
    by_dagster = stepped("Ada K.", run="dagster 3f2a1b6c", host="worker-1")
    step_journal.flush(plain_lake)
    by_command = stepped("Ada M.", host="worker-2")
    unrecorded = stepped("Ada N.", recorded=False)
    key = ("history", "shop.people", "--key", "tenant=a", "--key", "id=1")
    done = call(*key)
    lines = done.out.splitlines()

    def maker(snapshot: int) -> str:
        at = next(n for n, line in enumerate(lines) if line.endswith(f"snapshot {snapshot}"))
        return lines[at + 1].strip().split(";")[0]

    assert maker(by_dagster) == "by a step, in Dagster's run 3f2a1b6c"
    assert maker(by_command) == "by a step, in a command on worker-2"
    assert maker(unrecorded) == "by a step"
    assert "the runs of 1 version are not known: lake_assets.steps, which keeps 90 days, has no record" in done.out
    document = json.loads(call(*key, "--json").out)
    # What other programs wrote has no run, and no note says that it is missing.
    assert [(v["run"], v["host"]) for v in document["versions"]] == [
        ("", ""), ("", ""), ("dagster 3f2a1b6c", "worker-1"), ("", "worker-2"), ("", "")
    ]  # fmt: skip


def test_a_broken_journal_takes_the_runs_alone(call: Call, stepped: Callable[..., int], plain_lake: Lake) -> None:
    stepped("Ada K.", run="dagster 3f2a1b6c")
    step_journal.flush(plain_lake)
    for file in files_of(plain_lake, str(step_journal.TABLE), "data"):
        file.unlink()
    done = call("history", "shop.people", "--key", "tenant=a", "--key", "id=1")
    assert done.code == 0, done.err
    assert "Ada L. -> Ada K." in done.out
    assert "the runs are not shown: lake_assets.steps cannot be read: MissingDataFileError" in done.out


def test_the_document_holds_the_same(call: Call) -> None:
    document = json.loads(call("history", "shop.people", "--key", "tenant=a", "--key", "id=1", "--json").out)
    assert [c["what"] for v in document["versions"] for c in v["changes"]] == ["inserted", "updated"]
    change = document["versions"][1]["changes"][0]
    assert (change["before"]["name"], change["after"]["name"], change["changed"]) == ("Ada", "Ada L.", ["name"])
    assert document["versions"][1]["committed_at"].endswith("+00:00")
    assert document["key"] == {"tenant": "a", "id": 1}


def test_control_characters_of_values_do_not_reach_the_terminal(call: Call) -> None:
    done = call("history", "shop.people", "--key", "tenant=b", "--key", "id=1")
    assert "\\x1b[31mred" in done.out
    assert "\x1b[31m" not in done.out


def test_a_part_of_the_key_lists_rows(call: Call) -> None:
    done = call("history", "shop.people", "--key", "tenant=a")
    assert done.code == 0, done.err
    assert "`lake-assets history shop.people --key tenant=a --key id=2`" in done.out
    assert "tenant = b" not in done.out
    assert (
        "2 rows match, of which 1 are listed" in call("history", "shop.people", "--key", "tenant=a", "--limit", 1).out
    )


def test_a_key_that_never_existed_says_how_far_it_looked(call: Call) -> None:
    done = call("history", "shop.people", "--key", "tenant=a", "--key", "id=77")
    assert done.code == 1
    assert "no such row in any of the 2 kept states" in done.out
    assert "Traceback" not in done.err
    assert (
        json.loads(call("history", "shop.people", "--key", "tenant=a", "--key", "id=77", "--json").out)["versions"]
        == []
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["shop.people", "--key", "tenat=a"], "no column tenat (did you mean tenant?)"),
        (["shop.people", "--key", "name=Ada"], "name is not part of the key of shop.people"),
        (["shop.people", "--key", "id"], "write COLUMN=VALUE, such as --key tenant=17"),
        (["shop.people", "--key", "id=x", "--key", "tenant=a"], "id of shop.people is long"),
        (["shop.people", "--key", "id=1", "--key", "id=2"], "occurs twice"),
        (["shop.people"], "--key tenant=VALUE --key id=VALUE"),
        (["shop.peple", "--key", "id=1"], "peple"),
        (["people", "--key", "id=1"], "write namespace.table"),
    ],
)
def test_errors_say_what_to_write(call: Call, words: list[str], told: str) -> None:
    done = call("history", *words)
    assert (done.code, "Traceback" in done.err) == (1, False)
    assert told in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (LongType(), "17", 17),
        (StringType(), " 17", " 17"),
        (DateType(), "2026-01-31", date(2026, 1, 31)),
        (TimestampType(), "2026-01-31 12:30", datetime(2026, 1, 31, 12, 30)),  # noqa: DTZ001 (a column without a zone)
        (TimestamptzType(), "2026-01-31T12:30:00.5+02:00", datetime(2026, 1, 31, 10, 30, 0, 500000, UTC)),
        (TimestamptzType(), "2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        (DecimalType(5, 2), "1.5", Decimal("1.50")),
        (BooleanType(), "TRUE", True),
    ],
)
def test_values_are_read_by_the_type_of_their_column(kind: Any, text: str, value: Any) -> None:
    column = NestedField(1, "c", kind)
    assert value_of(text, column, "shop.t") == value
    assert value_of(text_of(value), column, "shop.t") == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (LongType(), "1.5"),
        (LongType(), str(2**63)),
        (DateType(), "31.1.2026"),
        (TimestampType(), "2026-01-31T12:30:00+02:00"),
        (DecimalType(5, 2), "1.505"),
        (DecimalType(5, 2), "1000"),
        (DecimalType(5, 2), "nan"),
        (BooleanType(), "1"),
    ],
)
def test_values_that_do_not_fit_are_errors(kind: Any, text: str) -> None:
    with pytest.raises(RowHistoryError, match="--key c="):
        value_of(text, NestedField(1, "c", kind), "shop.t")
