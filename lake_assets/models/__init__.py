"""SQL models: a SELECT over tables of the lake, kept as a table of its own.

`plan` parses a query and finds how it can absorb changes (plain Python over sqlglot); `run` does it in Spark.
"""
