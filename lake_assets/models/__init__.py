"""SQL models: a SELECT over tables of the lake, maintained as a table.

`plan` parses a query and finds how it can absorb changes (plain Python over sqlglot); `run` does it in Spark.
"""
