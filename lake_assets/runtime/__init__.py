"""Processes of a lake: Java, Spark's jars, warm JVMs and their files on this machine.

Knows no table, no catalog and no settings of a lake.
"""
