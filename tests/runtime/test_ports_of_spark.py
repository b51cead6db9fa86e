"""The ports between the parts of a local Spark ask for a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake_assets.lake import LakeConfig, SparkConfig
from lake_assets.lake.spark_session import authentication


@pytest.mark.parametrize(
    ("master", "conf", "is_asked"),
    [
        ("local[*]", {}, True),
        ("local", {}, True),
        ("local[2, 3]", {}, True),
        # Each of their parts needs the secret: whoever sets them up gives it to them.
        ("spark://host:7077", {}, False),
        ("local-cluster[2,1,1024]", {}, False),
        ("yarn", {}, False),
        ("yarn", {"spark.master": "local[1]"}, True),
        ("local[1]", {"spark.master": "k8s://host"}, False),
    ],
)
def test_local_spark_asks_for_a_secret(tmp_path: Path, master: str, conf: dict[str, str], is_asked: bool) -> None:
    config = LakeConfig(home=tmp_path, spark=SparkConfig(master=master, conf=conf))
    assert authentication(config) == ({"spark.authenticate": "true"} if is_asked else {})
