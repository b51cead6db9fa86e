"""How a session reads SQL."""

from __future__ import annotations

import pytest

from lake_assets import Lake
from lake_assets.lake import quote
from lake_assets.lake.names import literal

TEXTS = ("${env:HOME}", "${spark.app.name}", "${system:user.name}", "${nothing}", "a\\${env:HOME}", "$", ":k0", "'--")


@pytest.mark.parametrize("text", TEXTS)
def test_literals_and_identifiers_keep_their_text(spark_lake: Lake, text: str) -> None:
    spark = spark_lake.spark()
    expression = f"{literal(text)} AS {quote(text)}"
    for rows in (spark.sql(f"SELECT {expression}"), spark.range(1).selectExpr(expression)):
        assert rows.columns == [text]
        assert [tuple(r) for r in rows.collect()] == [(text,)]
