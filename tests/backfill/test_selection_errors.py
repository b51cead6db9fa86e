"""Selections of rows that fit no table: what is said of them, and that the ones that are advised choose those rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.backfill.row_selection import Selection
from lake_assets.errors import BackfillError
from lake_assets.lake import thresholds
from tests.support.backfilled_people import History, declare
from tests.support.cli import User
from tests.support.debezium import BIGINT, TEXT, Event, Table
from tests.support.people import AGES, CITIES, OLDEST, PEOPLE
from tests.support.pipeline_files import write_pipeline
from tests.support.streams import Feed


@pytest.mark.parametrize(
    ("given", "message", "mended"),
    [
        ({"partitions": ("a",), "low": "1", "high": "2"}, "give one of them", {"partitions": ("a",)}),
        ({"keys": Path("k.csv"), "partitions": ("a",)}, "give one of them", {"keys": Path("k.csv")}),
        ({"keys": Path("k.csv"), "low": "1", "high": "2"}, "give one of them", {"low": "1", "high": "2"}),
        ({"low": "1"}, "both ends: --from and --to", {"low": "1", "high": "2"}),
        ({"by": "n"}, "give --from and --to as well", {"by": "n", "low": "1", "high": "2"}),
        ({"by": "n", "partitions": ("a",)}, "or leave it out", {"partitions": ("a",)}),
    ],
)
def test_options_that_do_not_belong_together(given: dict[str, Any], message: str, mended: dict[str, Any]) -> None:
    with pytest.raises(BackfillError, match=message):
        Selection(**given)
    assert not Selection(**mended).is_everything


FLAGS = {"name": "agg.flags", "sql": "SELECT id, age > 1 AS grown FROM final.people"}
FILES = {
    "ids.csv": "id\n0\n2\n", "ids.jsonl": '{"id": 0}\n{"id": 2}\n', "ids.txt": "id\n0\n2\n", "bare.csv": "0\n2\n",
    "words.csv": "id\n0\ntwo\n", "torn.jsonl": '{"id": 0}\n{"id": \n', "text.parquet": "id\n0\n", "none.csv": "id\n",
    "lists.jsonl": '{"id": [0]}\n', "many.csv": "id\n" + "\n".join(map(str, range(11))),
}  # fmt: skip
AGED, IDS = ("--by age --from 2 --to 3", "age BETWEEN 2 AND 3"), ("--keys ids.csv", "id IN (0, 2)")
ALL = ("--all", "true")
# A table, a selection, what is said of it, and the selection that is advised, with the condition of its rows.
SELECTIONS = [
    ("agg.cities", "--from 1 --to 9", "no partitions by time: name the column of the range with --by: city, n",
     ("--from 1 --to 9 --by n", "n BETWEEN 1 AND 9")),
    ("final.people", "--by agee --from 1 --to 2",
     "final.people has no column agee (did you mean age?): name a number, date, time or text column with --by: id, ci", AGED),
    ("agg.flags", "--by grown --from false --to true", "agg.flags: grown is boolean, which has no order: name a number",
     ("--by id --from 3 --to 5", "id BETWEEN 3 AND 5")),
    ("final.people", "--by age --from one --to 3", "age is bigint, and 'one' is not: correct --from", AGED),
    ("final.people", "--by age --from 2 --to three", "age is bigint, and 'three' is not: correct --to", AGED),
    ("final.people", "--by age --from 3 --to 2", "3 is after 2: swap --from and --to", AGED),
    ("final.people", "--from 2200-01-01 --to 2200-01-02", "staging.people has no event whose source time (_event_time) "
     "is from 2200-01-01 to 2200-01-02: choose another range, or name a column of the table with --by",
     ("--from 2023-11-14 --to 2023-11-14", "true")),
    ("final.people", "--from soon --to 2200-01-02", "_event_time is timestamp, and 'soon' is not: correct --from",
     ("--from 2023-11-14 --to 2200-01-02", "true")),
    ("final.people", "--from 2200-01-02 --to 2023-11-14", "swap --from and --to",
     ("--from 2023-11-14 --to 2200-01-02", "true")),
    ("final.people", "--partition a", "has no `partitions`: redo a range of a column (--by, --from, --to), keys (--ke",
     ("--by city --from a --to a", "city <=> 'a'")),
    ("agg.ages", "--keys ids.csv", "agg.ages has no key: redo a range of a column (--by, --from, --to), or everything",
     AGED),
    ("final.people", "--keys id.csv", "/id.csv does not exist: correct its name", IDS),
    ("final.people", "--keys pipelines", "/pipelines is a folder: name a file in it", IDS),
    ("final.people", "--keys ids.txt", "--keys: ids.txt: write a .csv with a header, .jsonl or .parquet",
     ("--keys ids.jsonl", IDS[1])),
    ("final.people", "--keys bare.csv", "bare.csv has no column id, but 0: name its columns as the key of final.people,"
     " id", IDS),
    ("final.people", "--keys words.csv", "id is bigint, and 'two' in words.csv is not: correct the file", IDS),
    ("final.people", "--keys torn.jsonl", "has a line that is no JSON object, '{\"id\": ': correct the file", IDS),
    ("final.people", "--keys lists.jsonl", "--keys: lists.jsonl cannot be read as keys (id is bigint): ", IDS),
    ("final.people", "--keys text.parquet", "--keys: text.parquet cannot be read as keys (id is bigint): ", IDS),
    ("final.people", "--keys none.csv", "none.csv has no keys, so there is nothing to redo: write one per line", IDS),
    ("final.people", "--keys many.csv", "more than 10 keys: redo everything (--all) instead", ALL),
    ("final.person", "--all", "did you mean final.people?", None),
]  # fmt: skip


@pytest.mark.long
def test_a_selection_that_fits_no_row_says_which_one_would(
    history: History, at_the_shell: Callable[[Lake], User], monkeypatch: pytest.MonkeyPatch
) -> None:
    people, _ = history
    user, file = at_the_shell(people.lake), declare(people, CITIES, OLDEST, AGES, FLAGS)
    monkeypatch.setattr(thresholds, "BACKFILL_KEYS", 10)  # as there are people
    for name, text in FILES.items():
        Path(name).write_text(text)
    error = user.is_told("backfill agg.flags --all", "agg.flags was never run", "with the file of pipeline 'made_up'")
    user.gets(re.findall(r"`lake-assets ([^`]+)`", error)[0].replace("FILE", str(file)))
    followed: set[tuple[str, str]] = set()
    for table, wrong, message, advised in SELECTIONS:
        user.is_told(f"backfill {table} {wrong} --pipeline {file}", message)
        # Several errors give the same advice, which is followed once.
        if advised and (table, advised[0]) not in followed:
            right, expected = advised
            followed.add((table, right))
            planned = json.loads(user.gets(f"backfill {table} {right} --pipeline {file} --dry-run --json"))
            where = " OR ".join(c["where"] or "true" for c in planned["tables"][0]["chunks"])
            chosen = people.lake.spark().table(people.lake.sql_name(table)).where(where)
            assert chosen.where(expected).count() == chosen.count() > 0, (table, right)
            assert people.lake.spark().table(people.lake.sql_name(table)).where(expected).count() == chosen.count()


@pytest.mark.long
def test_a_range_of_events_finds_the_keys_under_the_names_that_the_table_gives_them(
    lake: Lake, at_the_shell: Callable[[Lake], User]
) -> None:
    user = at_the_shell(lake)
    logs = Table({"id": BIGINT, "city": TEXT}, key=(), name="public.logs")
    tables = [
        {"table": "public.people", "key": ["id"], "columns": ["id AS user_id", "age AS id", "city"]},
        {"table": "public.logs", "key": "*"},
    ]
    feed = Feed(lake, *tables)
    events = [Event(PEOPLE, "c", (n, n), {"id": n, "city": "a", "age": 7 - n}) for n in range(1, 5)]
    feed.deliver([*events, *(Event(logs, "c", (n, n), {"id": n, "city": "b"}) for n in range(11, 14))])
    streams = [{"name": "events", "tables": tables}]
    write_pipeline(Path("pipelines/defs.yaml"), {"name": "made_up", "streams": streams})
    lake.spark().sql(f"UPDATE {lake.sql_name('final.people')} SET city = 'wrong'").collect()
    user.gets("backfill final.people --from 2023-11-14T22:13:20.002Z --to 2023-11-14T22:13:20.003Z")
    assert {(r.user_id, r.id, r.city) for r in feed.rows("final.people").collect()} == {
        (1, 6, "wrong"), (2, 5, "a"), (3, 4, "a"), (4, 3, "wrong"),
    }  # fmt: skip
    Path("ids.csv").write_text("user_id\n1\n")
    user.gets("backfill final.people --keys ids.csv")
    assert feed.rows("final.people").where("city = 'wrong'").count() == 1
    lake.spark().sql(f"DELETE FROM {lake.sql_name('final.logs')} WHERE id < 13").collect()
    error = user.is_told("backfill final.logs --from 2023-11-14 --to 2023-11-15", "__row", "is computed")
    assert "name a column of the table with --by, or redo everything (--all)" in error
    user.gets("backfill final.logs --from 11 --to 11 --by id")
    assert {r.id for r in feed.rows("final.logs").collect()} == {11, 13}
    user.gets("backfill final.logs --all")
    assert {r.id for r in feed.rows("final.logs").collect()} == {11, 12, 13}
