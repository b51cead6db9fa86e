"""A lake whose landing folder and tables are in an object store: commands of the product, by catalog.

What needs a local folder, the home with its catalog, locks, notes and logs, keeps one.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, LakeConfig
from tests.support.object_store import KEY, SECRET, Bucket
from tests.support.postgres import database
from tests.support.processes import ROOT, SMALL_SPARK
from tests.support.rest_server import RestServer

pytestmark = [pytest.mark.system, pytest.mark.long]

PIPELINE = """
type: lake_assets.LakePipeline
attributes:
  name: p
  upkeep: {{commits: 2, age: 1s, orphans: 24h}}
  streams:
    - name: cdc
      format: change-set
      landing: s3://{bucket}/cdc/{{table}}
      landing_order: by-name
      tables:
        - {{table: shop.orders, key: id, properties: {{format-version: "3"}}}}
        - {{table: "shop.*", key: id}}
  models:
    - name: agg.by_name
      sql: SELECT name, count(*) AS n FROM final.orders GROUP BY name
"""


def line(flag: str, n: int, name: str, at: int) -> bytes:
    return json.dumps({"FLAG": flag, "id": n, "name": name, "CDC_TIMESTAMP": at}).encode() + b"\n"


class LakeOnS3:
    """A lake in a bucket, driven by commands in processes of their own."""

    def __init__(self, bucket: Bucket, home: Path, catalog: dict[str, str]) -> None:
        home.mkdir()
        self.bucket, self.home = bucket, home
        self.pipeline = home / "defs.yaml"
        self.pipeline.write_text(PIPELINE.format(bucket=bucket.name))
        self.config = LakeConfig(
            home=home, warehouse=f"{bucket.url}/tables", catalog=catalog, storage=bucket.server.options
        )
        self.env = {
            **SMALL_SPARK,
            "LAKE_HOME": str(home),
            "LAKE_WAREHOUSE": f"{bucket.url}/tables",
            "LAKE_STORAGE": json.dumps(bucket.server.options),
            **({"LAKE_CATALOG": json.dumps(catalog)} if catalog else {}),
        }

    def put(self, key: str, *lines: bytes) -> None:
        self.bucket.put(f"cdc/{key}", lines)

    def commands(self, *commands: Sequence[str], code: int = 0) -> str:
        """Run commands in one process, each of which ends with an exit code; return what they print."""
        file = self.home / "commands"
        file.write_text("\n".join(json.dumps([c, code]) for c in commands))
        script = [sys.executable, str(ROOT / "tests" / "system" / "run_commands.py"), str(file)]
        env = {**os.environ, **self.env, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(script, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        return done.stdout + done.stderr

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        found = Lake(self.config).table(table).scan(selected_fields=columns).to_arrow().to_pylist()
        return sorted(tuple(r[c] for c in columns) for r in found)

    def verified(self) -> list[list[str]]:
        """The commands that compare each table with its sources."""
        return [["verify", t, "--pipeline", str(self.pipeline)] for t in ("final.orders", "final.users", "agg.by_name")]

    def check_secrets(self) -> None:
        keys = self.bucket.all_keys()
        contents = [self.bucket.server.client.get_object(Bucket=self.bucket.name, Key=k)["Body"].read() for k in keys]
        contents += [f.read_bytes() for f in self.home.rglob("*") if f.is_file()]
        assert not [c for c in contents if SECRET.encode() in c]


@pytest.fixture(params=["sqlite", "postgres", "rest", "glue"])
def lake(
    request: pytest.FixtureRequest, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LakeOnS3]:
    with contextlib.ExitStack() as stack:
        catalog: dict[str, str] = {}
        if request.param == "glue":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
            catalog = {"type": "glue", "glue.endpoint": bucket.server.endpoint, "client.region": "us-east-1"}
        elif request.param == "postgres":
            catalog = {"type": "sql", "uri": stack.enter_context(database())}
        elif request.param == "rest":
            server = RestServer(tmp_path, with_s3=True)
            stack.callback(server.close)
            options = {
                "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
                "warehouse": f"{bucket.url}/tables",
                "s3.path-style-access": "true",
                **bucket.server.options,
                "client.region": "us-east-1",
            }
            catalog = stack.enter_context(server.catalog(tmp_path, **options))
        yield LakeOnS3(bucket, tmp_path / "home", catalog)


def test_changes_go_from_a_landing_folder_in_s3_to_tables_in_s3(lake: LakeOnS3) -> None:
    run, upkeep = ["run", str(lake.pipeline)], ["upkeep", "--pipeline", str(lake.pipeline)]
    lake.put("orders/0001.jsonl", *(line("I", n, f"n{n % 2}", n) for n in range(1, 7)))
    lake.put("users/0001.jsonl", line("I", 1, "u", 1))
    lake.commands(run)
    assert lake.rows("final.orders", "id", "name") == [(n, f"n{n % 2}") for n in range(1, 7)]
    assert lake.rows("final.users", "id", "name") == [(1, "u")]
    lake.put("orders/0002.jsonl", line("U", 1, "changed", 11), line("D", 2, "n0", 12))
    lake.put("users/0002.jsonl", line("U", 1, "v", 11))
    printed = lake.commands(run, *lake.verified(), upkeep, run, ["status"])
    assert printed.count("equal: ") >= 3
    assert lake.rows("final.orders", "id", "name") == [(1, "changed"), (3, "n1"), (4, "n0"), (5, "n1"), (6, "n0")]
    assert lake.rows("final.users", "id", "name") == [(1, "v")]
    assert lake.rows("agg.by_name", "name", "n") == [("changed", 1), ("n0", 2), ("n1", 2)]
    assert not [f for f in lake.home.rglob("*") if f.suffix in (".parquet", ".avro")]
    lake.check_secrets()
    if lake.config.catalog.get("type") == "glue":
        of = ["final.orders", "--pipeline", str(lake.pipeline)]
        erase = ["erase", "--table", *of, "--key", "id=4", "--yes"]
        refused = " ".join(lake.commands(["backfill", *of, "--all"], erase, code=1).split())
        assert "backfills need a SQL catalog" in refused
        assert "an erasure needs a SQL or a REST catalog" in refused
        assert "equal: " in lake.commands(["rebuild", *of], *lake.verified())


@pytest.mark.parametrize("lake", ["sqlite", "postgres", "rest"], indirect=True)
def test_tables_in_s3_are_redone_and_erased_from(lake: LakeOnS3) -> None:
    run = ["run", str(lake.pipeline)]
    for n in range(1, 5):
        lake.put(f"orders/{n:04}.jsonl", line("I", n, "a", n), line("U", 1, f"at {n}", 10 + n))
        lake.put(f"users/{n:04}.jsonl", line("I", n, "u", n))
    lake.commands(
        run,
        ["backfill", "final.orders", "--pipeline", str(lake.pipeline), "--all"],
        ["erase", "--table", "final.orders", "--pipeline", str(lake.pipeline), "--key", "id=4", "--yes"],
        run,
        *lake.verified(),
        ["repair"],
    )
    assert lake.rows("final.orders", "id", "name") == [(1, "at 4"), (2, "a"), (3, "a")]
    lake.check_secrets()
