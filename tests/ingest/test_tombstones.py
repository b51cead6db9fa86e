"""A tombstone repeats the delete before it, or is all that a stream says of a delete."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing import land, land_records
from lake_assets.ingest.records import rejects, tombstones
from lake_assets.ingest.records.routing import replay
from lake_assets.ingest.staging.exactness import reasons_of
from lake_assets.lake import TableId, thresholds
from tests.support.item_stream import Stream
from tests.support.unwrapped import Unwrapped

RAW = TableId(("raw",), "events")


class Landing:
    """A landing folder, and what its records are about."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.folder = lake, lake.config.home / "landing"
        self.folder.mkdir(parents=True)
        self.files = 0

    def take_in(self, *lines: str) -> list[str | None]:
        """Land lines as one file; return the table of each, or the problem with it."""
        self.files += 1
        file = self.folder / f"{self.files:03}.jsonl"
        file.write_text("".join(f"{line}\n" for line in lines))
        land(self.lake, RawSpec(RAW, self.folder, "debezium", "p"))
        found = self.lake.table(RAW).scan(row_filter=f"source_file = '{file.name}'").to_arrow().to_pylist()
        return [r["problem"] or r["source_table"] for r in sorted(found, key=lambda r: r["source_line"])]


@pytest.fixture
def landing(plain_lake: Lake) -> Landing:
    return Landing(plain_lake)


def users(**options: Any) -> Unwrapped:
    return Unwrapped(**{"table": "users", "form": "flat", "topic": "shop.public.users", **options})


def row(of_row: int) -> dict[str, Any]:
    return {"id": of_row, "email": f"{of_row}@x", "n": 1}


@pytest.mark.parametrize("form", ["envelope", "flat rewritten"])
@pytest.mark.parametrize("topic", ["shop.public.users", pytest.param("renamed", marks=pytest.mark.long), None])
def test_a_tombstone_after_its_own_delete_is_about_no_row(landing: Landing, form: Any, topic: str | None) -> None:
    source = users(form=form, topic=topic)
    inserts = [line for i in range(3) for line in source.write("c", row(i))]
    assert landing.take_in(*inserts, *source.delete(0)) == ["public.users"] * 4 + [None]
    # The file ends between the two, or they are apart because several partitions were read.
    (one, its_tombstone), (other, another) = source.delete(1), source.delete(2)
    assert landing.take_in(one, other) == ["public.users"] * 2
    assert landing.take_in(*source.write("c", row(9)), another, its_tombstone) == ["public.users", None, None]


@pytest.mark.parametrize("form", ["flat", "flat with schemas"])
@pytest.mark.parametrize("topic", ["shop.public.users", pytest.param("renamed", marks=pytest.mark.long), None])
def test_a_tombstone_without_a_delete_is_about_the_table_of_its_topic(
    landing: Landing, form: Any, topic: str | None
) -> None:
    source = users(form=form, topic=topic)
    landing.take_in(*source.write("c", row(1)))
    assert landing.take_in(*source.delete(1)) == ["public.users"]


def test_a_second_tombstone_does_not_repeat_the_delete_of_an_earlier_row(landing: Landing) -> None:
    source = users(form="flat rewritten")
    deleted, its_tombstone = [*source.write("c", row(1)), *source.delete(1)][1:]
    assert landing.take_in(deleted, *source.write("c", row(1)), its_tombstone) == ["public.users"] * 3


def test_the_topic_is_called_like_the_table_with_other_characters_replaced(landing: Landing) -> None:
    odd, other = (
        users(table="order items", topic="shop.public.order_items"),
        users(table="items", topic="s.public.items"),
    )
    landing.take_in(*odd.write("c", row(1)), *other.write("c", row(1)))
    assert landing.take_in(*odd.delete(1), *other.delete(1)) == ["public.order items", "public.items"]


def test_a_topic_of_several_tables_does_not_tell_the_table(landing: Landing) -> None:
    odd, other = (
        users(table="order items", topic="shop.public.order_items"),
        users(table="order_items", topic="shop.public.order_items"),
    )
    landing.take_in(*odd.write("c", row(1)))
    landing.take_in(*other.write("c", row(1)))
    (problem,) = landing.take_in(*odd.delete(1))
    assert problem is not None
    assert problem == (
        "a tombstone of topic shop.public.order_items, and it may be about public.order items, public.order_items: "
        "which row was deleted is unknown (set delete.tombstone.handling.mode=rewrite and add.fields=op,table in "
        "ExtractNewRecordState)"
    )
    # The advice, followed: the deletes name their table.
    for source in (odd, other):
        source.form = "flat rewritten"
    odd.rows[1] = row(1)
    assert landing.take_in(*odd.delete(1), *other.delete(1)) == [
        "public.order items", None, "public.order_items", None,
    ]  # fmt: skip


def test_a_tombstone_without_a_key_is_rejected_unless_it_repeats_a_delete(landing: Landing) -> None:
    source = users(form="envelope")

    def keyless(lines: list[str]) -> list[str]:
        return [json.dumps({**json.loads(line), "key": None}) for line in lines]

    landing.take_in(*keyless(source.write("c", row(1))), *keyless(source.write("c", row(2))))
    both = keyless([*source.delete(1), *source.delete(2)])
    assert landing.take_in(both[0], both[2], both[1], both[3])[2:] == [None, None]
    (problem,) = landing.take_in(both[3])
    assert problem is not None
    assert "a tombstone of topic shop.public.users without a key: which row was deleted is unknown" in problem


def test_a_tombstone_of_a_topic_without_records_deletes_nothing(landing: Landing) -> None:
    source = users(rows={1: row(1)})
    assert landing.take_in(*source.delete(1)) == [None]


def test_a_missing_value_alone_is_rejected_unless_it_repeats_a_delete(landing: Landing) -> None:
    source = users(form="envelope", topic=None)
    values = [json.dumps(json.loads(line)["value"]) for line in [*source.write("c", row(1)), *source.delete(1)]]
    assert landing.take_in(*values) == ["public.users", "public.users", None]
    (problem,) = landing.take_in("null")
    assert problem is not None
    assert "a tombstone without a topic without a key" in problem


def test_a_delete_is_remembered_for_a_while_only(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "TOMBSTONE_RECORDS", 20)
    source = users(form="flat rewritten")
    first = [*source.write("c", row(0)), *source.delete(0)]
    more = [line for i in range(1, 30) for line in (source.write("c", row(i)) + source.delete(i)[:1])]
    # If its tombstone comes later, staging finds the delete before it.
    assert landing.take_in(*first[:2], *more, first[2])[-1] == "public.users"
    properties = landing.lake.table(RAW).current_snapshot().summary.additional_properties  # pyright: ignore
    assert len(json.loads(properties[tombstones.DELETES_PROPERTY])) <= 2


def test_a_rejected_tombstone_is_not_routed_again_to_nothing(landing: Landing) -> None:
    source = users(form="envelope")
    landing.take_in(*source.write("c", row(1)))
    keyless = json.dumps({"topic": source.topic, "key": None, "value": None})
    landing.take_in(keyless)
    assert replay(landing.lake, RawSpec(RAW, landing.folder, "debezium", "p")) == 0
    assert rejects.unrouted_positions(landing.lake, RAW) == [1]


def test_records_from_python_are_followed_too(plain_lake: Lake, tmp_path: Path) -> None:
    source = users()
    lines = [*source.write("c", row(1)), *source.delete(1)]
    land_records(
        plain_lake,
        RawSpec(RAW, tmp_path, "debezium", "p"),
        lambda last: enumerate(lines[(last or -1) + 1 :]) if last is None else [],
    )
    assert [r["source_table"] for r in plain_lake.table(RAW).scan().to_arrow().to_pylist()] == ["public.users"] * 2


# --- in tables --------------------------------------------------------------------------------------------------------

# How each table of one stream sends its deletes, and how it is declared.
FORMS: dict[str, Any] = {
    "flat": "flat", "schemas": "flat with schemas", "email": "flat", "whole": "flat",
}  # fmt: skip
DECLARED: dict[str, dict[str, Any]] = {
    "flat": {"deletes": "soft"}, "schemas": {"mode": "scd2"}, "email": {"key": "email"}, "whole": {"key": "*"},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("forms", [["schemas", "whole"], pytest.param([*FORMS], marks=pytest.mark.long)])
def test_tombstones_delete_the_rows_of_their_keys_whatever_the_batches(lake: Lake, forms: list[str]) -> None:
    tables = [{"table": f"public.{t}", **DECLARED.get(t, {})} for t in forms]
    stream = Stream(lake, format="debezium", tables=tables)
    choose = random.Random(3)
    sources = {t: Unwrapped(t, form, f"shop.public.{t}") for t, form in FORMS.items() if t in forms}
    sent: dict[str, list[str]] = {t: [] for t in forms}
    for batch in range(3):
        lines: list[str] = []
        for t, source in sources.items():
            # The end of the stream is sent again, from any record on, a tombstone included.
            again = sent[t][choose.randrange(len(sent[t])) :] if batch == 2 else []
            if t == "whole":
                # Without a key and without the old row, a row can be inserted and deleted.
                changes = [line for i in range(batch * 6, batch * 6 + 6) for line in source.write("c", row(i))]
                changes += [line for i in choose.sample(sorted(source.rows), 3) for line in source.delete(i)]
            else:
                changes = [line for _ in range(40) for line in source.change(choose, range(8))]
            sent[t] += changes
            lines += [*again, *changes]
        stream.run(*lines)
        for t, source in sources.items():
            found = [r for r in stream.rows(f"final.{t}") if not r.get("__deleted") and r.get("is_current", True)]
            assert sorted((r["id"], r["n"]) for r in found) == sorted(
                (r["id"], r["n"]) for r in source.rows.values()
            ), t
    assert stream.rejected() == []
    # Only versions have times, which tombstones do not have.
    inexact = {t for t in forms if reasons_of(lake, TableId(("final",), t))}
    assert inexact == {"schemas"}


@pytest.mark.long
def test_a_tombstone_follows_the_event_before_it_even_if_that_is_read_later(lake: Lake) -> None:
    declared = {"table": "public.users", "types": {"n": "decimal(2,0)"}}
    stream = Stream(lake, format="debezium", tables=[declared])
    source = users()
    inserted = source.write("c", row(1)) + source.write("c", row(2))
    rejected = source.write("u", {**row(1), "n": 1_000})
    stream.run(*inserted)
    stream.run(*rejected)
    stream.run(*source.delete(1))
    assert [r["id"] for r in stream.rows("final.users")] == [2]
    declared["types"] = {"n": "decimal(9,0)"}
    stream.declare(format="debezium", tables=[declared])
    stream.replay()
    stream.run()
    assert stream.rejected() == []
    assert [r["id"] for r in stream.rows("final.users")] == [2]
