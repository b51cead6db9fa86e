"""`lake-assets erase`: every table is as if the events of the keys had never arrived, and no file holds the keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets import Lake
from tests.support.cli import Done
from tests.support.erased_users import CITIES, JOINED, LOG, NAMES, Users, broken

Call = Callable[..., Done]
GONE = {17, 1700017}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["scd1", "scd2"])
def test_tables_are_as_if_the_events_had_never_arrived(
    lake: Lake, new_lake: Callable[[str], Lake], tmp_path: Path, call: Call, mode: str
) -> None:
    models = [CITIES, JOINED] if mode == "scd1" else [CITIES, NAMES, JOINED]
    users = Users(lake, tmp_path / "p", mode=mode, models=models)
    others = Users(new_lake("others"), tmp_path / "q", mode=mode, models=models, without=GONE)
    users.history(broken(18), broken(17), runs=2)
    # What it is compared with comes at once: rows do not depend on the batches that events come in.
    others.history(broken(18), runs=1)
    before = users.rows()
    words = ("erase", "--table", "final.users", "--key", "id=17", "--pipeline", users.file)
    planned = json.loads(call(*words, "--dry-run", "--json").out)
    assert (planned["keys"], planned["asked"]) == ([["17"], ["1700017"]], 1)
    counted = {t["table"]: t["rows"] for t in planned["tables"]}
    # Two tombstones and a record that cannot be read gave no event.
    assert counted["raw.events"] == 6
    assert (counted["raw.events_rejected"], counted["staging.users"]) == (1, 4)
    assert (counted["final.users"], counted["agg.cities"]) == (1 if mode == "scd1" else 3, None)
    assert users.rows() == before

    done = call(*words, "--yes", "--report", tmp_path / "report.json")
    assert done.code == 0, done.out + done.err
    assert "no file holds a key" in done.out
    assert users.rows() == others.rows()
    assert users.count("raw.events_rejected", "true") == users.count("raw.events_rejected", "record LIKE '%18%'") == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert hashlib.sha256(json.dumps([report["salt"], "17"]).encode()).hexdigest() in report["keys"]
    assert "1700017" not in json.dumps(report)
    assert [(f["file"], f["lines"]) for f in report["landed_files"]] == [
        ("0001.jsonl", [3]),
        ("0002.jsonl", [1]),
        ("0003.jsonl", [1, 2, 3]),
        ("0005.jsonl", [1]),
    ]
    assert all(len(lake.table(t["table"]).metadata.snapshots) == 1 for t in report["tables"])
    assert [f.name for f in (lake.config.home / "erasures").iterdir() if f.name.endswith(".plan.json")] == []

    if mode != "scd2":  # the rest takes as long again
        return
    # What comes later is absorbed as in any lake, and no file is landed again.
    for one in (users, others):
        one.deliver(one.user("c", 40), one.user("u", 2, "the second"), one.order(103, 40))
    assert users.rows() == others.rows()
    for table in ("final.users", "agg.joined"):
        verified = call("verify", table, "--pipeline", users.file)
        assert "equal" in verified.out, verified.out + verified.err
    # Erasing again finds nothing, and searches nevertheless.
    again = call(*words, "--yes", "--json")
    assert again.code == 0, again.err
    result = json.loads(again.out)
    assert (result["records"], result["is_proven"], result["files_scanned"] > 10) == (0, True, True)
    # A new event of the key is new data.
    users.deliver(users.user("c", 17))
    assert users.count("final.users", "id = 17") == 1


@pytest.mark.long
def test_tables_of_code_lose_the_rows_of_a_column_that_is_named(lake: Lake, tmp_path: Path, call: Call) -> None:
    users = Users(lake, tmp_path / "p", models=[LOG, {"name": "agg.n", "sql": "SELECT count(*) AS n FROM agg.log"}])
    users.history()
    kept = users.count("agg.log", "who NOT IN (17, 1700017)")
    words = ("erase", "--table", "final.users", "--key", "id=17", "--pipeline", users.file, "--yes")
    planned = call(*words, "--dry-run")
    assert "agg.log: computed by code that does not say which column holds the key" in planned.out
    done = call(*words, "--column", "agg.log=who")
    assert done.code == 0, done.out + done.err
    assert users.count("agg.log", "true") == kept == users.count("agg.log", "who NOT IN (17, 1700017)")
    assert users.count("agg.n", f"n = {kept}") == 1
