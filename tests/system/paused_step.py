"""A deployment of one declaration in a process of its own, whose steps can be paused. Not a test: tests start it.

usage: paused_step.py PIPELINE

PIPELINE is a YAML file. The process reads one command a line, as JSON, and answers each by a line of JSON:

    {"do": "step", "table": T, "rebuild": true, "pause": 7}    {"paused": "sql MERGE INTO ..."}   {"done": 12, "error": ""}
    {"do": "run", "tables": [T]}                               {"done": 0, "error": ""}
    {"do": "check", "table": T}                                {"done": 0, "error": "why T is wrong"}

A step is paused before its n-th call of Spark or of the catalog, after which it waits for any line. `done` is the number
of its calls.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from py4j.java_gateway import JavaMember
from pyiceberg.catalog.sql import SqlCatalog

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.pipeline import step_retries
from lake_assets.pipeline.verification import verify

# Calls that make Spark do something.
OF_SPARK = frozenset(
    {"sql", "collectToPython", "append", "overwrite", "count", "localCheckpoint", "isEmpty", "persist"}
)
OF_CATALOG = ("load_table", "commit_table", "create_table", "register_table", "drop_table")


class Pauses:
    """Counts the calls of a step, and stops at one of them."""

    def __init__(self) -> None:
        self.calls, self.pause = 0, -1

    def before(self, what: str) -> None:
        self.calls += 1
        if self.calls == self.pause:
            answer({"paused": what})
            sys.stdin.readline()

    def install(self) -> None:
        call = JavaMember.__call__

        def of_spark(member: Any, *args: Any) -> Any:
            if member.name in OF_SPARK:
                text = " ".join(str(args[0]).split())[:60] if args and member.name == "sql" else ""
                self.before(f"{member.name} {text}")
            return call(member, *args)

        setattr(JavaMember, "__call__", of_spark)  # noqa: B010 (pyright knows no assignment to it)
        for name in OF_CATALOG:
            setattr(SqlCatalog, name, self.around(getattr(SqlCatalog, name), name))

    def around(self, method: Any, name: str) -> Any:
        def of_catalog(*args: Any, **kwargs: Any) -> Any:
            self.before(name)
            return method(*args, **kwargs)

        return of_catalog


def answer(value: dict[str, object]) -> None:
    os.write(OUT, (json.dumps(value) + "\n").encode())


def main() -> None:
    """Answer commands until there are no more."""
    pipeline, pauses = Pipeline.load(sys.argv[1]), Pauses()
    lake = Lake(LakeConfig.load())
    pauses.install()
    step_retries.ATTEMPTS = 1
    for line in sys.stdin:
        command, error = json.loads(line), ""
        pauses.calls, pauses.pause = 0, command.get("pause", -1)
        specs = {str(s.table): s for s in pipeline.specs(lake)}
        try:
            match command["do"]:
                case "step":
                    step_retries.absorb(lake, specs[command["table"]], rebuild=command["rebuild"])
                case "run":
                    failed = [str(o.error) for o in pipeline.run(lake, command.get("tables")) if o.error]
                    error = "; ".join(failed)
                case _:
                    found = verify(lake, specs[command["table"]])
                    error = "" if found.equal and not pipeline.pending(lake) else f"{found}, {pipeline.pending(lake)}"
        except Exception as e:
            error = f"{type(e).__name__}: {e}"
        answer({"done": pauses.calls, "error": error})


if __name__ == "__main__":
    # What the JVM and libraries print must not come between the answers.
    OUT = os.dup(1)
    os.dup2(2, 1)
    main()
