"""Names of tables: split, quoted, written out, and made folders of."""

from __future__ import annotations

import re

import pytest

from lake_assets.errors import InvalidNameError
from lake_assets.lake import TableId, quote
from lake_assets.lake.names import folder_of, literal

HOSTILE = ["`; DROP TABLE final.users; --", "a b", "select", "ä€😀", "x'y\"z", "back\\slash", "new\nline", "``"]


@pytest.mark.parametrize(
    ("text", "namespace", "name"),
    [
        ("final.users", ("final",), "users"),
        ("a.b.c", ("a", "b"), "c"),
        ("final.`a.b`", ("final",), "a.b"),
        ("`x.y`.z", ("x.y",), "z"),
        ("final.`tick``ed`", ("final",), "tick`ed"),
        ("final.Order Items", ("final",), "Order Items"),
    ],
)
def test_a_name_is_split_at_dots_outside_backticks(text: str, namespace: tuple[str, ...], name: str) -> None:
    assert TableId.parse(text) == TableId(namespace, name)
    assert TableId.parse(text).parts == (*namespace, name)


@pytest.mark.parametrize("text", ["users", "", ".", "final.", ".users", "final..users", "final.`users", "``.users"])
def test_invalid_table_names_are_rejected(text: str) -> None:
    with pytest.raises(InvalidNameError, match=r"not a table name|not closed"):
        TableId.parse(text)


@pytest.mark.parametrize("name", [*HOSTILE, "a.b", "..", "users"])
def test_a_name_written_out_is_read_back(name: str) -> None:
    table = TableId(("final",), name)
    assert TableId.parse(str(table)) == table


@pytest.mark.parametrize("name", HOSTILE)
def test_a_quoted_name_is_one_identifier(name: str) -> None:
    quoted = quote("final", name)
    inside = quoted.removeprefix("`final`.`").removesuffix("`")
    assert "`" not in inside.replace("``", "")
    assert inside.replace("``", "`") == name


@pytest.mark.parametrize("part", ["", "a\x00b"])
def test_unquotable_names_are_rejected(part: str) -> None:
    with pytest.raises(InvalidNameError, match="cannot be a name"):
        quote("final", part)


def test_a_table_knows_its_name_in_sql() -> None:
    assert TableId.parse("final.`a.b`").sql("lake") == "`lake`.`final`.`a.b`"


@pytest.mark.parametrize("text", ["plain", "it's", "back\\slash", "\\'", "ends with \\", *HOSTILE])
def test_a_literal_is_the_text_itself(spark_lake, text: str) -> None:
    assert spark_lake.spark().sql(f"SELECT {literal(text)} AS t").collect()[0]["t"] == text


@pytest.mark.parametrize("name", ["users", "Order Items", "a.b", "ä", "_x", "a-b$1"])
def test_a_plain_name_is_its_folder(name: str) -> None:
    assert folder_of(name) == name


WILD = [
    "..",
    ".",
    "../x",
    "a/b",
    "a\\b",
    ".hidden",
    "a.",
    "a?b",
    "a#b",
    "%2e%2e",
    "a\tb",
    "",
    " a",
    "n" * 300,
    "é" * 150,
]


def test_other_names_become_distinct_folders() -> None:
    folders = [folder_of(name) for name in (*HOSTILE[:1], *WILD)]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{20,80}", f) for f in folders)
    assert len(set(folders)) == len(folders)
