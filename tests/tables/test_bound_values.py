"""Values that are bound in SQL reach Spark, also past the parser of an extension that leaves them out (Delta's)."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import lake_assets
from lake_assets import Lake
from lake_assets.tables import spark_frames
from lake_assets.tables.merge_pruning import Pruning, prune
from lake_assets.tables.spark_frames import over

ANALYZER = "spark.sql.legacy.parameterSubstitution.constantsOnly"


class Forgetful:
    """A session whose parser leaves out the bound values, as Spark's default for other parsers does (SPARK-59672)."""

    def __init__(self, spark: SparkSession) -> None:
        self.session, self.conf = spark, spark.conf

    def sql(self, text: str, args: Mapping[str, Any] | None = None, **frames: Any) -> DataFrame:
        """Run SQL; only the analyzer binds values."""
        is_bound = self.conf.get(ANALYZER, "false") == "true"
        return self.session.sql(text, args=dict(args) if args and is_bound else None, **frames)


@pytest.mark.parametrize("keys", [3, 1_500])
def test_a_merge_with_bound_values_runs_whatever_the_parser(
    lake: Lake, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_frames, "_left_out", threading.Event())
    monkeypatch.setattr("lake_assets.lake.thresholds.HASHES_TARGET_ROWS", 0)
    monkeypatch.setattr("lake_assets.lake.thresholds.HASHES_ROWS_A_KEY", 0)
    spark = lake.spark()
    lake.ensure_namespace(("final",))
    spark.sql("CREATE TABLE final.t USING iceberg AS SELECT concat('it''s ', id) AS k, 0 AS n FROM range(2000)")
    changes = spark.sql(f"SELECT concat('it''s ', id) AS k, 1 AS n FROM range({keys})").localCheckpoint()
    pruning: Pruning = prune(changes, ["k"], lake.table("final.t"))
    assert pruning.values
    forgetful = cast("SparkSession", Forgetful(spark))
    with pytest.raises(AnalysisException, match="UNBOUND_SQL_PARAMETER"):
        forgetful.sql(f"SELECT * FROM final.t t WHERE {pruning.condition}", args=pruning.values)
    on = f"t.k = s_source.k AND {pruning.condition}"
    text = f"MERGE INTO final.t t USING s_source ON {on} WHEN MATCHED THEN UPDATE SET n = 1"
    over(forgetful, text, {"s_source": changes}, pruning.values)
    (matching,) = over(
        forgetful, f"SELECT count(*) FROM final.t t WHERE n = 1 AND {pruning.condition}", {}, pruning.values
    ).collect()
    assert matching[0] == keys
    # An error of the text itself stays one.
    with pytest.raises(AnalysisException, match="UNBOUND_SQL_PARAMETER"):
        over(forgetful, "SELECT :other", {}, {"k": 1})


def test_values_are_bound_in_one_place_only() -> None:
    files = {
        str(path.relative_to(lake_assets.__path__[0])): len(re.findall(r"\bargs=", path.read_text()))
        for path in Path(lake_assets.__path__[0]).rglob("*.py")
        if re.search(r"sql\([^)]*\bargs=", path.read_text())
    }
    assert files == {"tables/spark_frames.py": 1}
