"""A batch's values are read in the usual notations first: whatever that plan returns, the complete one does too."""

from __future__ import annotations

import random

from pyspark.sql import functions as F

from lake_assets import Lake
from lake_assets.formats.log_positions import position
from lake_assets.formats.sequences import placed, version
from lake_assets.formats.types.connect_types import read_value
from lake_assets.formats.types.text_types import rare, read_text, usual
from tests.support.json_numbers import KINDS, NUMBERS, random_numbers

USUAL = [
    "0",
    "-7",
    "1234",
    "12.5",
    "2024-01-31",
    "2024-01-31 10:20:30.5",
    "2024-01-31T10:20:30Z",
    '["90","100"]',
    '[null,"100"]',
]
# Extreme doubles, as Java writes them and as others do.
OF_DOUBLES = [
    "1.0E300", "4.9E-324", "9.007199254740992E15", "1.7976931348623157E308", "-0.0", "1e+300", "5e-324",
    "1700000000000000", "1700000000000000.0", "-9007199254740991", "123456789012345e100",
]  # fmt: skip
TEXTS = [
    *USUAL, *OF_DOUBLES, *NUMBERS, "", "x", "NaN", "2024-1-3", "2024-01-31 10:20", "2024-01-31T10:20:30.1234567+02", "16/B374D848",
    '["90", "0/16B3748"]', '["90"]', "[90,100]", "binlog.000999", "[1.5,2]", '["1e2", 3]', "true",
]  # fmt: skip


def test_usual_plans_return_what_complete_ones_do_or_nothing(spark_lake: Lake) -> None:
    kinds = [*KINDS, "date", "timestamp", "timestamp_ntz", "array<bigint>", "array<double>", "boolean", "tinyint"]
    expressions = {kind: read_text(kind).inline("t") for kind in kinds}
    for kind in ("int32", "int64", "float", "double"):
        expressions[f"connect {kind}"] = read_value({"type": kind, "field": "v"}).inline("t")
    lsn, sequence = position({"lsn": "t"}, "false"), position({"sequence": "t", "lsn": "t"}, "false")
    assert lsn
    assert sequence
    expressions |= {"lsn": lsn, "sequence": sequence, "placed": placed("t"), "version": version("t")}
    texts = [*TEXTS, *random_numbers(random.Random(7), 200)]
    both = [f"CAST({sql} AS STRING)" for complete in expressions.values() for sql in (complete, usual(complete))]
    frame = spark_lake.spark().createDataFrame([(t,) for t in texts], "t STRING")
    rows = frame.select(F.col("t"), F.expr(f"array({', '.join(both)})").alias("values")).collect()
    assert len(rows) == len(texts)
    rare_ones, read, doubles = set[str](), set[str](), set[str]()
    for row in rows:
        values = row["values"]
        for name, complete, quick in zip(expressions, values[::2], values[1::2], strict=True):
            assert quick in (None, complete), (name, row["t"], complete)
            rare_ones |= {name} if quick is None and complete is not None else set()
            read |= {name} if quick is not None and row["t"] in USUAL else set()
            doubles |= {row["t"]} if quick is not None and name == "connect double" else set()
    assert read == expressions.keys()
    assert doubles >= {*OF_DOUBLES}
    assert rare_ones >= {
        "bigint",
        "double",
        "decimal(12,2)",
        "timestamp",
        "connect int64",
        "lsn",
        "placed",
        "array<bigint>",
    }


def test_rare_parts_are_left_out_also_if_they_contain_others() -> None:
    inner = rare(f"f({rare('b')}, c)")
    sql = f"coalesce(a, {inner}, {rare('d')})"
    assert usual(sql) == "coalesce(a, NULL, NULL)"
    assert usual("coalesce(a, b)") == "coalesce(a, b)"
