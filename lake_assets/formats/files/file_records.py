"""Rows of CSV and Parquet files as records: one JSON object per row, read in batches so that memory stays flat."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lake_assets.formats.files.csv_files import csv_records
from lake_assets.formats.files.limited_files import Limits, Record
from lake_assets.formats.files.parquet_files import parquet_records
from lake_assets.formats.files.record_files import RecordFile


def reader_of(file: RecordFile) -> Callable[[RecordFile, Limits], Iterator[Record]] | None:
    """Return the reader of a file by its name (.csv, .csv.gz, .parquet); None for JSON lines."""
    return {".csv": csv_records, ".parquet": parquet_records}.get(file.kind)
