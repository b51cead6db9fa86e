"""SQL models: a SELECT over tables of the lake, maintained as a table.

The folder `sql` parses a query, `operators` holds the rules for absorbing changes (both plain Python over sqlglot), and
`steps` applies them in Spark.
"""
