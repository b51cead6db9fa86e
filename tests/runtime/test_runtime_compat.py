"""What is relied on of PySpark and py4j, beyond their public APIs, to hold a JVM."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from py4j.clientserver import ClientServer
from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from lake_assets import Lake
from lake_assets.runtime import _compat


def test_pyspark_keeps_its_gateway_and_its_session_where_they_are_replaced() -> None:
    assert {"_gateway", "_jvm"} <= set(vars(SparkContext))
    assert "_instantiatedSession" in vars(SparkSession)
    assert "gateway" in inspect.signature(SparkContext._ensure_initialized).parameters
    for variable in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS"):
        assert variable in inspect.getsource(java_gateway)


@pytest.mark.spark
def test_the_gateway_lists_the_java_objects_that_python_references(spark_lake: Lake) -> None:
    spark = spark_lake.spark()
    gateway: Any = _compat.gateway()
    assert type(gateway) is ClientServer
    java: Any = gateway.jvm
    one = java.java.util.ArrayList()
    assert _compat.java_id(one) in set(java.java.util.ArrayList(_compat.bindings(gateway)))
    spark.sql("SHOW NAMESPACES").collect()  # opens the catalog
    assert spark_lake.config.name in {catalog.name() for catalog in _compat.java_catalogs(spark)}
