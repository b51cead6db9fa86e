"""Metrics for Prometheus, computed when they are asked for. Needs the extra `prometheus`."""
