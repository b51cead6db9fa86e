"""Borrows a warm JVM, makes a table with it, and keeps it until its input ends. Not a test: tests start it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lake_assets.runtime import warm_jvm

given = json.loads(sys.argv[1])
warm_jvm.keep(warm_jvm.KeeperSettings(**given["keeping"]))
session = warm_jvm.session(json.loads(Path(given["conf"]).read_text()), Path(given["log"]))
session.sql("CREATE NAMESPACE lake.final")
session.sql("CREATE TABLE lake.final.t USING iceberg AS SELECT 1 AS a")
session.table("lake.final.t").groupBy("a").count().collect()
print("at work", flush=True)
sys.stdin.read()
