"""Manifests, data files, delete files and their bounds: what a snapshot is made of, without Spark."""
