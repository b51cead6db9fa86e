"""Every change of a table's rows: what a commit must agree with, the ways to write, and the publication.

No other module writes rows. What does not belong here: which rows a step computes.
"""
