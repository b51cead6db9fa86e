"""Every setting that names columns accepts every name of a column, plain or in backticks, in any case."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import InvalidNameError, PipelineError
from lake_assets.lake.column_spelling import spelled
from lake_assets.lake.names import read_column
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.config.pipeline_config import SqlModel, Stream
from lake_assets.pipeline.pipeline_checks import check
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


def test_the_columns_of_a_model_are_found_in_any_case(plain_lake: Lake) -> None:
    model = {
        "name": "agg.m", "sql": "SELECT max(id) AS `Id`, city AS `a b` FROM final.t GROUP BY city", "key": "A B",
        "range": {"column": "iD"}, "partitions": "A b", "audits": [{"not_null": "ID"}],
    }  # fmt: skip
    streams = [{"name": "s", "tables": ["public.t"]}]
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "streams": streams, "models": [model]}))
    spec = pipeline.specs(plain_lake)[-1]
    assert isinstance(spec, ModelSpec)
    assert spec.span
    assert spec.partitions
    assert (spec.key, spec.span.column, spec.partitions.by) == (("a b",), "Id", "a b")
    assert [a.columns for a in spec.audits] == [("Id",)]


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

# As declared, and as the stream has them.
OWN = {
    "A B": "a b", "`a.b`": "a.b", "IT'S": "it's", "`back``tick`": "back`tick", "ünÏ": "Ünï", "select": "SELECT",
    "a,b": "a,b", "_BAD": "_bad",
}  # fmt: skip


def changes(at: int, v: str) -> str:
    """A change of row 1 of each table, and a row of its own."""
    names, types = ["id", *OWN.values()], ["integer", *("text" for _ in OWN)]
    lines = [
        {"changeType": "insert", "timestamp": str(at), "schema": "public", "table": table, "columnNames": names,
         "columnTypes": types, "columnValues": [i, *(f"{v} {n % 2}" for n in range(len(OWN)))]}
        for table in ("versions", "parts") for i in (1, at)
    ]  # fmt: skip
    return "".join(f"{json.dumps(line)}\n" for line in lines)


@pytest.mark.long  # as each setting by itself
def test_tables_with_odd_names_in_all_settings(lake: Lake) -> None:
    """Two tables, whose settings write the names in another case or in backticks."""
    names = list(OWN)
    # An audit without a name is called like its column, without special characters.
    audits = [*({"not_null": n, "name": f"n{i}"} for i, n in enumerate(names)), {"unique": ["ID", *names]},
              {"accepted_values": {names[0]: ["a 0", "b 0"]}}]  # fmt: skip
    declared: dict[str, dict[str, Any]] = {
        "versions": {"key": "ID", "mode": "scd2", "columns": "*, `a.b` AS `c.d`", "track": [*names, "C.D"],
                     "partitions": names[0], "types": dict.fromkeys(names, "string"), "sort_by": names},
        "parts": {"key": ["`Id`", names[1]], "order_by": names[:3], "audits": audits, "write": "overwrite-partitions",
                  "partition_by": ["truncate(3, A B)", *names[1:4]]},
    }  # fmt: skip
    tables = [{"table": f"public.{name}", **settings} for name, settings in declared.items()]
    streams = [{"name": "s", "format": "simplified", "tables": tables}]
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "streams": streams}))
    (folder := lake.config.home / "landing" / "s").mkdir(parents=True)
    for at, v in ((2, "a"), (3, "b")):
        (folder / f"{at}.jsonl").write_text(changes(at, v))
        assert not [(o.table, o.error) for o in pipeline.run(lake) if o.error]
        assert not check(pipeline, lake).mistakes

    def values(name: str, where: str = "true") -> list[str]:
        # Names in a new table are spelled as they are declared.
        found = lake.spark().table(lake.sql_name(f"final.{name}")).where(where).select("`a b`").collect()
        return sorted(r[0] for r in found)

    assert values("versions", "id = 1") == ["a 0", "b 0"]
    assert values("versions", "id = 1 AND is_current") == ["b 0"]
    assert values("parts") == ["a 0", "a 0", "b 0", "b 0"]
    assert not [o for o in pipeline.run(lake) if o.status != "nothing"]
