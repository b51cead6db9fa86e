"""Manifests, data files, delete files and their bounds, read without Spark."""
