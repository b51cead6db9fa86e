"""Processes that a lake runs on: Java, Spark's jars, warm JVMs and what they leave on this machine.

Knows no table, no catalog and no settings of a lake.
"""
