"""Values that do not fit their columns' types: unchanged in text, null with a reason where that is declared, or rejects."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from lake_assets import Lake
from lake_assets.commands import rejected as command
from lake_assets.facade import Lake as LakeOfCommands
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.lake import TableId
from lake_assets.pipeline import PipelineConfig
from tests.support.item_stream import ITEMS, Stream
from tests.support.seeds import long_seeds
from tests.support.value_records import RECORDS, change_set_record, json_object, read, values_as_text

FORTY = "1234567890123456789012345678901234567890"
# Type, a value as it stands in JSON, and as text where it fits; None: it does not.
VALUES: list[tuple[str, str, str | None]] = [
    ("decimal(38,2)", "12.34", "12.34"),
    ("decimal(38,2)", FORTY, None),
    ("decimal(38,2)", f"0.{FORTY}", None),
    ("decimal(38,2)", "-1e40", None),
    ("decimal(38,2)", '"NaN"', None),
    ("decimal(38,2)", '"Infinity"', None),
    ("int", "7", "7"),
    ("int", "2147483648", None),
    ("int", '"many"', None),
    ("double", '"NaN"', "NaN"),
    ("double", '"-Infinity"', "-Infinity"),
    ("double", '"much"', None),
    ("date", '"2024-02-29"', "2024-02-29"),
    ("date", '"10000-01-01"', None),
    ("date", '"0044-03-15 BC"', None),
    ("date", '"2024-02-30"', None),
    ("timestamp_ntz", '"2024-02-29"', "2024-02-29 00:00:00"),
    ("timestamp_ntz", '"2024-02-29 01:02:03+02"', None),
    ("timestamp", '"2024-02-29T01:02+02:00"', "2024-02-28 23:02:00"),
    ("timestamp", '"12:30:00"', None),
    ("timestamp", '"10000-01-01 00:00:00Z"', None),
    ("array<int>", "[1,2]", "[1, 2]"),
    ("array<int>", '[1,"x"]', None),
]
TEXTS = [FORTY, f"-{FORTY}.50", f"0.{FORTY}", "1e300", "1.10", '"NaN"', '"0044-03-15 BC"', '"1.10"', '"{x}"']


# --- one row as a record of each format: the columns `v0`, ... hold the values ------------------------------------


every_form = pytest.mark.parametrize(
    "form", [f if f in ("change-set in CSV", "debezium") else pytest.param(f, marks=pytest.mark.long) for f in RECORDS]
)


@pytest.mark.parametrize("seed", [1, *long_seeds(2, 2)])
@pytest.mark.parametrize("form", [f if f == "debezium" else pytest.param(f, marks=pytest.mark.long) for f in RECORDS])
def test_every_value_is_read_exactly_or_is_a_misfit_as_declared(spark_lake: Lake, form: str, seed: int) -> None:
    choose = random.Random(f"{form} {seed}")
    name, record = RECORDS[form]
    # A column a type, so that many types meet in one record; some rows hold misfits, some do not.
    kinds = list(dict.fromkeys(kind for kind, _, _ in VALUES))
    made: list[tuple[str, list[tuple[str, str, str | None]]]] = []
    for at in range(40):
        fitting = at % 4 == 0
        row = [choose.choice([v for v in VALUES if v[0] == kind and not (fitting and v[2] is None)]) for kind in kinds]
        made.append((choose.choice("IUD" if form != "debezium" else "IU"), row))
    lines = [record(op, [text for _, text, _ in row]) for op, row in made]
    types = {"id": "int"} | {f"v{i}": kind for i, kind in enumerate(kinds)}
    strict, lenient = (read(spark_lake, name, lines, types=types, on_misfit=m) for m in ("reject", "null"))
    for (op, row), bad, good in zip(made, strict, lenient, strict=True):
        misfits = {i: (kind, text) for i, (kind, text, shown) in enumerate(row) if shown is None}
        # Of a row that is deleted nothing but the key counts.
        assert (bad[BAD] is not None) == bool(misfits and op != "D"), (op, row, bad)
        assert good[BAD] is None
        assert [good[f"v{i}"] for i in range(len(kinds))] == [shown for *_, shown in row], (op, row)
        reasons = good["_misfits"] or []
        assert [r.split(":")[0] for r in reasons] == [f"v{i} does not fit {kind}" for i, (kind, _) in misfits.items()]
        for reason, (kind, text) in zip(reasons, misfits.values(), strict=True):
            # Numbers within arrays are texts on their way.
            assert kind.startswith("array") or values_as_text(text)[:6] in reason


@every_form
def test_text_columns_take_any_value_unchanged(spark_lake: Lake, form: str) -> None:
    name, record = RECORDS[form]
    types = {"id": "int"} | {f"v{i}": "string" for i in range(len(TEXTS))}
    # Values of the same columns in other rows are of other types.
    others = ["1", "2.5", '"x"', "1e2", "2", "3", "4", "2.5", '"y"']
    one, _ = read(spark_lake, name, [record("I", TEXTS), record("I", others)], types=types)
    assert one[BAD] is None
    assert [one[f"v{i}"] for i in range(len(TEXTS))] == [values_as_text(t) for t in TEXTS]


def test_values_of_keys_and_of_the_order_are_never_made_null(spark_lake: Lake) -> None:
    declared: dict[str, Any] = {"types": {"id": "int", "v0": "int"}, "on_misfit": "null"}
    lines = [
        change_set_record("I", ['"x"']),
        change_set_record("D", ['"x"']),
        change_set_record("D", ["1"]).replace('"id":1', '"id":"one"'),
    ]
    assert [r[BAD] for r in read(spark_lake, "change-set", lines, **declared)] == [
        None,
        None,
        "id does not fit int: one",
    ]
    found = [r[BAD] for r in read(spark_lake, "change-set", lines, **declared, order_by=("v0",))]
    assert found == [*["v0 does not fit int: x"] * 2, "id does not fit int: one"]


# --- all the way ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_row_whose_value_does_not_fit_is_neither_lost_nor_frozen(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Declared after the rejects, as the command advises, it takes them in; rows in a CSV file have its lines."""
    table: dict[str, Any] = {"table": ITEMS, "key": "id", "types": {"id": "int", "n": "decimal(38,2)", "at": "date"}}
    stream = Stream(lake, format="change-set", tables=[table])
    (stream.folder / "0.csv").write_text(
        "FLAG,id,n,at,CDC_TIMESTAMP\n"
        "I,1,1.50,2024-01-01,1\n"
        f"I,2,{FORTY},2024-01-01,1\n"
        'I,3,"x\n",2024-01-01,1\n'
        f"U,1,{FORTY},12024-01-01,2\n"
    )
    assert stream.run()["staging.items"].details["rejected"] == 3
    rejected = {r["source_line"]: r["reason"] for r in stream.rows("raw.events_rejected")}
    assert sorted(rejected) == [3, 4, 6]
    assert rejected[3] == f"n does not fit decimal(38,2): {FORTY}"
    monkeypatch.setattr(LakeOfCommands, "load", classmethod(lambda *_: lake))
    printed = CliRunner().invoke(command.app, ["explain", "raw.events", "1"], catch_exceptions=False).output
    assert "`on_misfit: null`" in " ".join(printed.split())
    stream.declare(format="change-set", tables=[table | {"on_misfit": None}])  # as YAML reads a bare null
    replayed = stream.replay()["staging.items"]
    assert (replayed.why, replayed.details["misfits"]) == ("3 records can be read now, 0 cannot", 3)
    stream.run()
    found = {r["id"]: (r["n"], r["at"]) for r in stream.rows("final.items")}
    assert {k: (n is None, at is None) for k, (n, at) in found.items()} == {
        1: (True, True),
        2: (True, False),
        3: (True, False),
    }
    assert "_misfits" not in stream.rows("final.items")[0]
    reasons = {
        r["_position"]: r["_misfits"] and sorted(r["_misfits"], reverse=True) for r in stream.rows("staging.items")
    }
    assert reasons == {
        0: None, 1: [f"n does not fit decimal(38,2): {FORTY}"], 2: ["n does not fit decimal(38,2): x\n"],
        3: [f"n does not fit decimal(38,2): {FORTY}", "at does not fit date: 12024-01-01"],
    }  # fmt: skip
    stream.declare(format="change-set", tables=[table])
    stream.run('{"FLAG":"U","id":2,"n":2,"at":"2024-01-02","CDC_TIMESTAMP":3}')
    assert {r["id"]: r["n"] is None for r in stream.rows("final.items")} == {1: True, 2: False, 3: True}


def test_on_misfit_is_declared_for_a_stream_or_a_table() -> None:
    def declared(stream: dict[str, Any], table: dict[str, Any]) -> tuple[str, str | None]:
        streams = [{"name": "s", "tables": [{"table": "a.b", **table}], **stream}]
        found = PipelineConfig.model_validate({"name": "p", "streams": streams}).streams[0]
        return found.on_misfit, found.tables[0].on_misfit

    assert declared({}, {}) == ("reject", None)
    assert declared({"on_misfit": None}, {"on_misfit": "reject"}) == ("null", "reject")
    assert declared({}, {"on_misfit": "null"}) == ("reject", "null")
    with pytest.raises(ValidationError, match="'reject' or 'null'"):
        declared({"on_misfit": "nil"}, {})


@pytest.mark.long
def test_a_batch_with_a_rare_notation_a_reject_and_a_new_column_is_read_once_more_and_stored_once(lake: Lake) -> None:
    table: dict[str, Any] = {"table": ITEMS, "key": "id"}
    stream = Stream(lake, format="change-set", tables=[table])

    def row(id_: str, time: int, **more: str) -> str:
        return json_object({"id": id_, **more}, FLAG='"U"', CDC_TIMESTAMP=str(time))

    stream.run(row("1", 1, n="5"), row("2", 1, n="5"))
    before = lake.table(TableId.parse("staging.items")).history()
    outcome = stream.run(
        row("1", 2, n="7e0", c='"new"'), row("2", 2, n='"many"'), row("3", 2, n="8", c='"x"'), row("3", 2, n="9")
    )["staging.items"]
    assert outcome.inserted == 3
    assert (outcome.details["rejected"], outcome.details["schema_changes"]) == (1, ["add c string"])
    assert len(lake.table(TableId.parse("staging.items")).history()) == len(before) + 1
    assert {r["id"]: (r["n"], r["c"]) for r in stream.rows("final.items")} == {
        1: (7, "new"),
        2: (5, None),
        3: (9, None),
    }
    assert [reason for _, _, reason in stream.rejected()] == ["n does not fit bigint: many"]
