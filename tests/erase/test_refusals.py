"""What `lake-assets erase` refuses, with what to do, before anything is changed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets import Lake
from tests.support.cli import Done
from tests.support.erased_users import CITIES, Users
from tests.support.pipeline_files import write_pipeline
from tests.support.pipeline_runs import run
from tests.support.streams import heads

Call = Callable[..., Done]


def test_requests_that_cannot_be_carried_out(lake: Lake, tmp_path: Path, call: Call) -> None:
    users = Users(lake, tmp_path / "p", models=[CITIES])
    users.deliver(users.user("c", 17), users.order(100, 17))
    (tmp_path / "keys.csv").write_text("nr\n17\n")
    (tmp_path / "keys.txt").write_text("17\n")
    lake.ensure_namespace(("src",))
    lake.spark().sql("CREATE TABLE src.others (id INT) USING iceberg")
    before = heads(lake)
    for words, told in {
        "--table final.user --key id=17": "no table final.user in pipeline shop (did you mean final.users?)",
        "--table src.others --key id=17": "no table src.others in pipeline shop",
        "--table raw.events --key position=1": "raw.events is a raw table: name the final or staging table",
        "--table agg.cities --key city=Rome": "agg.cities is computed from other tables: name the final or staging table",
        "--table final.users --key ids=17": "ids is no key column of final.users (did you mean id?): its key is id",
        "--table final.users --key name=x": "name is no key column of final.users: its key is id",
        "--table final.users --key id=seven": "id=seven: final.users has id as bigint: correct the value",
        "--table final.users --key 17": "--key 17: write COLUMN=VALUE, such as --key id=17",
        "--table final.users": "name what to erase: --key COLUMN=VALUE, or --keys FILE",
        f"--table final.users --keys {tmp_path / 'keys.csv'}": "nr is no key column of final.users",
        f"--table final.users --keys {tmp_path / 'keys.txt'}": "name a file that ends in .csv",
        "--table final.users --key id=17 --column agg.cities=city": "what becomes of its rows is known without",
        "--table final.users --key id=17 --json": "--json cannot ask: add --yes, or --dry-run",
    }.items():
        done = call("erase", *shlex.split(words), "--pipeline", users.file, *([] if "--json" in words else ["--yes"]))
        assert (done.code, done.out) == (1, ""), words
        assert told in " ".join(done.err.split()), words
        assert "unexpected" not in done.err
    assert heads(lake) == before
    users.land(users.user("u", 17))
    run(lake, users.pipeline, ["raw.events"])
    done = call("erase", "--table", "final.users", "--key", "id=17", "--pipeline", users.file, "--yes")
    assert done.code == 1
    assert "staging.users has not read all records of raw.events yet: run the pipeline first" in done.err


@pytest.mark.long  # an erasure at all: test_requests_that_cannot_be_carried_out
@pytest.mark.parametrize("others_go", [False, True])
def test_a_record_with_events_of_other_rows_is_named(lake: Lake, tmp_path: Path, call: Call, others_go: bool) -> None:
    stream = {"name": "events", "format": "wal2json-v1", "tables": [{"table": "public.users"}]}
    file = write_pipeline(tmp_path / "defs.yaml", {"name": "shop", "streams": [stream]})
    folder = lake.config.home / "landing" / "events"
    folder.mkdir(parents=True)

    def change(key: int) -> dict[str, object]:
        names, types = ["id", "name"], ["bigint", "text"]
        return {
            "kind": "insert", "schema": "public", "table": "users", "columnnames": names, "columntypes": types,
            "columnvalues": [key, f"name of {key}"], "pk": {"pknames": ["id"], "pktypes": ["bigint"]},
        }  # fmt: skip

    transactions = [
        {"xid": n, "nextlsn": f"0/{n}0", "change": [*map(change, ids)]} for n, ids in ((1, (17, 18)), (2, (19,)))
    ]
    (folder / "1.jsonl").write_text("\n".join(map(json.dumps, transactions)) + "\n")
    assert call("run", file).code == 0
    before = heads(lake)
    refused = call("erase", "--table", "final.users", "--key", "id=17", "--pipeline", file, "--yes")
    assert refused.code == 1
    assert "events of other rows would be lost with 1 record of the keys, which also holds them" in refused.err
    assert "positions 0 (staging.users)" in refused.err
    assert heads(lake) == before
    if not others_go:
        return
    done = call("erase", "--table", "final.users", "--key", "id=19", "--pipeline", file, "--yes")
    assert done.code == 0, done.out + done.err
    assert lake.spark().table("lake.final.users").count() == 2
