"""Rows of tables are changed in one place: no other module has a statement or a call that writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "lake_assets"
STATEMENTS = re.compile(
    r"\b(MERGE INTO|INSERT INTO|INSERT OVERWRITE|DELETE FROM|TRUNCATE TABLE|(CREATE|REPLACE) TABLE|SET TBLPROPERTIES"
    r"|CREATE BRANCH|REPLACE BRANCH|fast_forward|WRITE LOCALLY)\b"
)
CALLS = {"writeTo", "overwritePartitions", "insertInto", "saveAsTable", "delete_where"}
# Commits beside the writer: what they move is no row of a table that a step computes; and what is no commit.
ELSEWHERE = {
    "tables/audits/audit_gate.py": "the branch of a failed batch",
    "tables/snapshot_retention.py": "how many snapshots main keeps",
    "runtime/class_archive.py": "a table in a temporary folder, for the classes that this loads",
    "sources/mysql_checks.py": "SHOW CREATE TABLE, asked of a source's server",
}


# What has none of these words has none of the statements either, however their texts are put together.
WORDS = re.compile(
    r"\b(INTO|OVERWRITE|DELETE|TRUNCATE|TABLE|TBLPROPERTIES|BRANCH|fast_forward|LOCALLY)\b|" + "|".join(CALLS)
)


def _writes(module: Path) -> Iterator[str]:
    text = module.read_text(encoding="utf-8")
    if not WORDS.search(text):
        return
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(n.body[0].value) for n in ast.walk(tree) if isinstance(n, documented) and n.body and isinstance(n.body[0], ast.Expr)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if found := STATEMENTS.search(node.value):
                yield f"{node.lineno}: {found[0]}"
        elif isinstance(node, ast.Attribute) and node.attr in CALLS:
            yield f"{node.lineno}: {node.attr}"


def test_rows_are_written_by_the_writer_alone() -> None:
    found = {}
    for module in sorted(PACKAGE.rglob("*.py")):
        name = str(module.relative_to(PACKAGE))
        if name.startswith(("tables/writing/", "examples/")) or name in ELSEWHERE:
            continue
        if writes := list(_writes(module)):
            found[name] = writes
    assert found == {}


def test_the_rule_finds_what_it_forbids() -> None:
    assert {name for name in ELSEWHERE if list(_writes(PACKAGE / name))} == set(ELSEWHERE)
    assert list(_writes(PACKAGE / "tables/writing/branch_writer.py"))
    assert list(_writes(PACKAGE / "tables/writing/table_ddl.py"))


def test_snapshots_are_read_in_one_way() -> None:
    """Over Spark Connect, frames share the options of a reader: `LakeBase.rows_at` gives each a reader of its own."""
    found = {m.name for m in PACKAGE.rglob("*.py") if "versionAsOf" in m.read_text(encoding="utf-8")}
    assert found == {"lake_base.py"}
