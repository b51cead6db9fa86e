"""Models: tables computed from tables of the lake, by a SELECT that is maintained or by a Python function.

The folder `sql` parses a query, `operators` holds the rules for absorbing changes (both plain Python over sqlglot), and
`steps` applies them in Spark. The folder `python` calls users' functions with the changes.
"""
