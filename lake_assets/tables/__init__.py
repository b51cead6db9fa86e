"""What every written table shares: pending windows, commits with the watermark, schemas, partitions, pruning, audits.

Code for a single layer is in `ingest` (raw, staging), `final` or `models`.
"""
