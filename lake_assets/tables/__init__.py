"""What every written table shares: pending windows, commits with the watermark, schemas, partitions, pruning, audits.

What belongs to one layer alone is in `ingest` (raw, staging), `final` or `models`.
"""
