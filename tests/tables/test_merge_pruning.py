"""The condition that lets a MERGE skip files: it must hold for every changed key, and reach the scan."""

from __future__ import annotations

import pytest

from lake_assets import Lake
from lake_assets.lake import thresholds
from lake_assets.tables.merge_pruning import prune

CASES = [
    ("BIGINT", ["1", "-5", "9"], ["-6", "10", "4"]),
    ("INT", ["1", "3"], ["0", "2"]),
    ("STRING", ["''", "'a\\'b'", "'z😀'"], ["'zz'", "'b'"]),
    ("DATE", ["DATE'1969-12-31'", "DATE'+10000-01-01'"], ["DATE'1969-12-30'"]),
    ("TIMESTAMP_NTZ", ["TIMESTAMP_NTZ'2024-11-03 01:30:00'"], ["TIMESTAMP_NTZ'2024-11-03 01:30:00.000001'"]),
    ("TIMESTAMP", ["TIMESTAMP'2024-11-03 05:30:00Z'", "TIMESTAMP'2024-11-03 06:30:00Z'"], ["TIMESTAMP'1970-01-01'"]),
    ("DECIMAL(38,10)", ["-1234567890123456789012345678.0123456789BD", "0.1BD"], ["0.2BD"]),
]


# Of each way of pruning, some types in every run: each type at least once.
OFTEN = {
    "literals": ("STRING", "DATE", "TIMESTAMP_NTZ", "TIMESTAMP"),
    "range": ("BIGINT", "TIMESTAMP"),
    "hashes": ("INT", "STRING", "DECIMAL(38,10)"),
}


@pytest.fixture
def far_from_utc(lake: Lake) -> Lake:
    """The hour from 01:00 local time occurred twice on 2024-11-03, so texts of timestamps are ambiguous."""
    lake.spark().conf.set("spark.sql.session.timeZone", "America/New_York")
    return lake


@pytest.mark.parametrize(
    ("by", "kind", "keys", "others"),
    [
        pytest.param(by, *case, id=f"{by}-{case[0]}", marks=() if case[0] in OFTEN[by] else pytest.mark.long)
        for by in OFTEN
        for case in CASES
    ],
)
def test_every_changed_key_meets_the_condition(
    far_from_utc: Lake, monkeypatch: pytest.MonkeyPatch, by: str, kind: str, keys: list[str], others: list[str]
) -> None:
    monkeypatch.setattr(thresholds, "LITERAL_KEYS", 1_000 if by == "literals" else 0)
    if by == "hashes":
        monkeypatch.setattr(thresholds, "HASHES_TARGET_ROWS", 0)
        monkeypatch.setattr(thresholds, "HASHES_ROWS_A_KEY", 0)
    spark, table = far_from_utc.spark(), far_from_utc.sql_name("final.t")
    far_from_utc.ensure_namespace(("final",))
    spark.sql(f"CREATE TABLE {table} (k {kind}) USING iceberg")
    spark.sql(f"INSERT INTO {table} SELECT CAST(k AS {kind}) FROM VALUES {', '.join(f'({k})' for k in keys)} AS s(k)")
    pruning = prune(spark.table(table), ["k"], far_from_utc.table("final.t"))
    assert ("hashes" in pruning.why) == (by == "hashes")
    matching = spark.sql(f"SELECT * FROM {table} t WHERE {pruning.condition}", args=pruning.values)
    assert matching.count() == len(keys)
    # Files are skipped by the conditions that Spark pushes into the scan.
    plan = matching._jdf.queryExecution().executedPlan().toString() if hasattr(matching, "_jdf") else ""
    assert "filters=" in plan
    assert "k >= " in plan or "k IN (" in plan or "k = " in plan
    if by != "range":
        values = ", ".join(f"({k})" for k in others)
        rest = f"SELECT count(*) FROM (SELECT CAST(k AS {kind}) AS k FROM VALUES {values} AS s(k)) t"
        assert spark.sql(f"{rest} WHERE {pruning.condition}", args=pruning.values).collect()[0][0] == 0


def test_keys_of_several_columns_are_told_by_their_hashes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "HASHES_TARGET_ROWS", 0)
    spark, table = lake.spark(), lake.sql_name("final.t")
    lake.ensure_namespace(("final",))
    spark.sql(f"CREATE TABLE {table} (a INT, b STRING, v INT) USING iceberg")
    spark.sql(f"INSERT INTO {table} SELECT id % 100, CAST(id DIV 100 AS STRING), 0 FROM range(40000)")
    keys = "SELECT CAST(id % 100 AS INT) AS a, CAST(id DIV 100 AS STRING) AS b FROM range(0, 40000, 100)"
    changed = spark.sql(f"{keys} UNION ALL SELECT NULL, 'x' UNION ALL SELECT 1, NULL").persist()
    pruning = prune(changed, ["a", "b"], lake.table("final.t"))
    assert pruning.why == "402 keys, pruned by their range and their hashes"
    matching = spark.sql(f"SELECT a, b FROM {table} t WHERE {pruning.condition}", args=pruning.values)
    assert matching.intersect(changed).count() == 400
    assert matching.count() < 2_500  # other rows share a bit with a key
    changed.createOrReplaceTempView("changed")
    values = "SELECT a, b, 1 AS v FROM changed"
    nulls = "(a IS NULL OR b IS NULL)"
    assert (
        spark.sql(f"SELECT * FROM ({values}) t WHERE {nulls} AND {pruning.condition}", args=pruning.values).count() == 2
    )


def test_null_keys_are_kept(spark_lake: Lake) -> None:
    spark = spark_lake.spark()
    rows = spark.sql("SELECT * FROM VALUES (1, 'a'), (NULL, 'b'), (3, NULL) AS t(x, y)")
    pruning = prune(rows, ["x", "y"])
    rows.createOrReplaceTempView("nulls")
    assert spark.sql(f"SELECT * FROM nulls t WHERE {pruning.condition}", args=pruning.values).count() == 3


def test_no_key_means_no_row(spark_lake: Lake) -> None:
    pruning = prune(spark_lake.spark().sql("SELECT 1 AS x WHERE false"), ["x"])
    assert pruning.condition == "1 = 0"


@pytest.mark.parametrize("kind", ["double", "boolean", "binary", "array<int>"])
def test_keys_without_an_order_are_not_pruned_by(spark_lake: Lake, kind: str) -> None:
    pruning = prune(spark_lake.spark().sql(f"SELECT CAST(NULL AS {kind}) AS x"), ["x"])
    assert (pruning.condition, pruning.values) == ("", {})
