"""Calls a Spark Connect server without its token. Not a test: tests start it."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

print(SparkSession.builder.remote(sys.argv[1]).create().range(3).count())
