"""Temporary views: how a DataFrame gets into SQL, over Spark Connect too."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Generator

from pyspark.sql import DataFrame


@contextlib.contextmanager
def temp_view(rows: DataFrame) -> Generator[str]:
    """A name for `rows` in SQL, gone afterwards."""
    name = f"lake_assets_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)
