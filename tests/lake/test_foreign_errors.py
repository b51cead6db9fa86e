"""Errors of Spark and the operating system under the names that they have here."""

from __future__ import annotations

import errno

import pytest

from lake_assets.errors import (
    CorruptMetadataError,
    LakeError,
    MissingDataFileError,
    PipelineError,
    StorageFullError,
)
from lake_assets.lake.foreign_errors import as_named

# As Spark 4.1 with Iceberg 1.12 says it.
SAID: list[tuple[Exception, type[LakeError], str]] = [
    (
        RuntimeError(
            "org.apache.iceberg.exceptions.RuntimeIOException: Failed to fetch file: file:/w/t/data/a.parquet\n"
            "Caused by: org.apache.hadoop.fs.ChecksumException: Checksum error: file:/w/t/data/a.parquet at 1536 exp: 1"
        ),
        CorruptMetadataError,
        "file:/w/t/data/a.parquet",
    ),
    (
        RuntimeError("RuntimeIOException: Failed to open file: file:/w/t/metadata/snap-1.avro\n\tat x"),
        CorruptMetadataError,
        "file:/w/t/metadata/snap-1.avro",
    ),
    (
        RuntimeError("NotFoundException: Failed to open input stream for file: s3://b/t/data/a.parquet"),
        MissingDataFileError,
        "s3://b/t/data/a.parquet",
    ),
    (
        RuntimeError("java.io.FileNotFoundException: File file:/w/a.avro does not exist"),
        MissingDataFileError,
        "/w/a.avro",
    ),
    (RuntimeError("java.io.IOException: No space left on device"), StorageFullError, "spark.local.dir"),
    (
        OSError(errno.ENOSPC, "No space left on device", "/w/raw/data/x.parquet"),
        StorageFullError,
        "/w/raw/data/x.parquet",
    ),
]


@pytest.mark.parametrize(("error", "kind", "where"), SAID)
def test_what_is_known_is_named_with_the_table_and_the_file(
    error: Exception, kind: type[LakeError], where: str
) -> None:
    named = as_named(error, "final.users")
    assert type(named) is kind
    assert str(named).startswith("final.users: ")
    assert where in str(named)


@pytest.mark.parametrize("error", [ValueError("a row says: nothing"), PipelineError("File /x does not exist")])
def test_what_is_not_known_and_what_has_a_name_stays_as_it_is(error: Exception) -> None:
    assert as_named(error, "final.users") is None
