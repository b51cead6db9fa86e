"""Every setting that names columns accepts every name of a column, plain or in backticks, in any case."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.commands.check import checked
from lake_assets.errors import InvalidNameError, PipelineError
from lake_assets.lake.names import read_column, spelled
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.config.pipeline_config import SqlModel, Stream
from lake_assets.tables.partitioning.partition_fields import PartitionField

NAMES = (
    "a b", "it's", 'say "hi"', "back`tick", "a.b", "straße", "Ünï", "SELECT", "order", "a,b", "x)", "(y", "what?",
    "tab\tname", "new\nline", "${x}", "%2e", "back\\slash", "🚲", "1", "-", "#c", " d",
)  # fmt: skip
# A plain name that means something else in `partition_by`.
CALLS = ("days(x)", "bucket(4, x)", "f(x)")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def table(**settings: Any) -> Stream:
    declared = {"table": "public.t", **settings}
    return Stream.model_validate({"name": "s", "format": "change-set", "tables": [declared]})


def of_table(name: str) -> Callable[[str], Any]:
    return lambda written: getattr(table(**{name: [written]}).tables[0], name)[0]


def of_source(name: str) -> Callable[[str], Any]:
    def read(written: str) -> Any:
        source = Stream.model_validate({"name": "s", "source": {"table": "a.b", name: written}}).source
        value = getattr(source, name)
        return value[0] if isinstance(value, list) else value

    return read


def audit(kind: str, put: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda written: next(iter(getattr(table(audits=[{kind: put(written)}]).tables[0].audits[0], kind)))


MODEL = {"name": "agg.m", "sql": "SELECT 1 AS a"}
# How each setting reads a name.
SETTINGS: Mapping[str, Callable[[str], Any]] = {
    **{name: of_table(name) for name in ("key", "sort_by", "order_by")},
    "track": lambda written: (table(track=[written], mode="scd2").tables[0].track or [""])[0],
    "keys": lambda written: table(key=[["k"], [written]]).tables[0].keys[1][0],
    "types": lambda written: next(iter(table(types={written: "int"}).tables[0].types)),
    "rename": lambda written: next(iter(table(rename={written: "n"}).tables[0].rename)),
    "renamed": lambda written: table(rename={"n": written}).tables[0].rename["n"],
    "partition_by": lambda written: PartitionField.parse(of_table("partition_by")(written)).column,
    "days": lambda written: PartitionField.parse(f"days({written})").column,
    "bucket": lambda written: PartitionField.parse(f"bucket(16, {written})").column,
    "truncate": lambda written: PartitionField.parse(f"truncate( 4 ,{written} )").column,
    "partitions": lambda written: (p := table(partitions={"by": written}).tables[0].partitions) and p.by,
    "partitions, short": lambda written: (p := table(partitions=written).tables[0].partitions) and p.by,
    "unique": audit("unique", lambda n: n),
    "not_null": audit("not_null", lambda n: [n]),
    "accepted_values": audit("accepted_values", lambda n: {n: [1]}),
    "relationships": audit("relationships", lambda n: {n: "a.b.c"}),
    **{f"source.{name}": of_source(name) for name in ("value", "key", "order")},
    "flag": lambda written: (f := table_of_flag(written).flag) and f.column,
    "time": lambda written: table_of_flag("x", written).time[0],
    "model.key": lambda written: SqlModel.model_validate({**MODEL, "key": written}).key[0],
    "model.range": lambda written: (
        (r := SqlModel.model_validate({**MODEL, "range": {"column": written}}).range) and r.column
    ),
    "model.partitions": lambda written: (
        (p := SqlModel.model_validate({**MODEL, "partitions": written}).partitions) and p.by
    ),
}


def table_of_flag(column: str, *time: str) -> Stream:
    return Stream.model_validate(
        {"name": "s", "format": "change-set", "flag": {"column": column, "insert": "I"}, "time": list(time)}
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_reads_every_name(setting: str) -> None:
    read = SETTINGS[setting]
    assert [read(quoted(n)) for n in (*NAMES, *CALLS)] == [*NAMES, *CALLS]
    trims = setting in ("partition_by", "days", "bucket", "truncate")
    assert [read(n) for n in NAMES] == [n.strip() if trims else n for n in NAMES]


@pytest.mark.parametrize("text", ["days(x", "day(x)", "days()", "bucket(x)", "bucket(4)", "days(4, x)", "f(x)", "`"])
def test_what_looks_like_a_transform_and_is_none_is_named(text: str) -> None:
    if text in ("days(x", "`"):
        assert PartitionField.parse(text).column == text
        return
    with pytest.raises(PipelineError, match="a column of such a name in backticks"):
        PartitionField.parse(text)


def test_a_name_needs_a_character() -> None:
    for text in ("", "a\0b", "`\0`"):
        with pytest.raises(InvalidNameError, match="not the name of a column"):
            read_column(text)
    assert read_column("``") == "``"
    assert spelled("ID", ["id", "ID"]) == "ID"
    assert spelled("Id", ["x", "iD"]) == "iD"
    assert spelled("y", ["x"]) == "y"


# --- tables -------------------------------------------------------------------------------------------------------

OWN = tuple(n for n in NAMES if n not in ("1", "-", " d"))
# Spelled otherwise in the declaration than in the stream.
OTHER_CASE = {"a b": "A B", "Ünï": "ünÏ", "SELECT": "select", "it's": "IT'S"}


def rows(*values: str) -> str:
    """Changes of row 1, and of a row of its own for each value."""
    lines = [
        {"FLAG": "U", "CDC_TIMESTAMP": n, "id": i, **{c: f"{v} {k % 2}" for k, c in enumerate(NAMES)}, "v": v}
        for n, v in enumerate(values)
        for i in (1, 10 + n)
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


@pytest.mark.parametrize("write", [quoted, lambda n: OTHER_CASE.get(n, n)], ids=["in backticks", "in another case"])
def test_tables_with_all_names_in_all_settings(lake: Lake, write: Callable[[str], str]) -> None:
    names, key = [write(n) for n in OWN], write("id") if write is quoted else "ID"
    fields = [f"truncate(3, {quoted(write('a b')) if write is not quoted else write('a b')})", *names[1:]]
    audits = [{"not_null": names}, {"unique": [key, *names]}, {"accepted_values": {names[0]: ["a 0", "b 0", "c 0"]}}]
    declared: dict[str, dict[str, Any]] = {
        "versions": {"key": key, "mode": "scd2", "track": names, "partition_by": fields, "sort_by": names},
        "wide": {"key": [key, *names], "order_by": names, "audits": audits, "sort_by": names},
        "parts": {"key": key, "partition_by": names[:4], "write": "overwrite-partitions"},
        "daily": {"key": key, "partitions": names[0], "types": dict.fromkeys(names, "string")},
        "columns": {"key": key, "columns": "*, `a.b` AS `c.d`", "mode": "scd2", "track": ["c.D"]},
    }
    streams = [
        {"name": name, "format": "change-set", "tables": [{"table": f"public.{name}", **settings}]}
        for name, settings in declared.items()
    ]
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "streams": streams}))
    for file, text in (("a", rows("a", "b")), ("b", rows("b", "c"))):
        for name in declared:
            (folder := lake.config.home / "landing" / name).mkdir(parents=True, exist_ok=True)
            (folder / f"{file}.jsonl").write_text(text.replace('"CDC_TIMESTAMP": ', f'"CDC_TIMESTAMP": {ord(file)}'))
        assert not [(o.table, o.error) for o in pipeline.run(lake) if o.error]
        assert not checked(pipeline, lake).mistakes

    def values(name: str, where: str = "true") -> list[str]:
        found = lake.spark().table(lake.sql_name(f"final.{name}")).where(where).collect()
        return sorted(r["a b"] for r in found)

    assert values("parts") == values("daily") == ["b 0", "c 0", "c 0"]
    assert values("versions", "id = 1") == values("columns", "id = 1") == ["a 0", "b 0", "c 0"]
    assert values("versions", "id = 1 AND is_current") == ["c 0"]
    assert len(values("wide")) == 6
    assert not [o for o in pipeline.run(lake) if o.status != "nothing"]
