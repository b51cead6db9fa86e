"""Errors of Spark and the operating system as errors of this package."""

from __future__ import annotations

import errno
import socket

import py4j.java_gateway
import pytest
from pyspark.errors import PySparkException

from lake_assets.errors import (
    CatalogUnavailableError,
    CorruptMetadataError,
    LakeError,
    MissingDataFileError,
    PipelineError,
    SparkUnavailableError,
    StorageFullError,
    StorageUnavailableError,
)
from lake_assets.lake.foreign_errors import as_named
from lake_assets.tables.writing.races import lost_race


def spark(message: str) -> Exception:
    return PySparkException(message=message)


# The message of Spark 4.1 with Iceberg 1.12.
SAID: list[tuple[Exception, type[LakeError], str]] = [
    (
        spark(
            "org.apache.iceberg.exceptions.RuntimeIOException: Failed to fetch file: file:/w/t/data/a.parquet\n"
            "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(Q.scala:1)\n"
            "Caused by: org.apache.hadoop.fs.ChecksumException: Checksum error: file:/w/t/data/a.parquet at 1536 exp: 1"
        ),
        CorruptMetadataError,
        "file:/w/t/data/a.parquet",
    ),
    (
        spark(
            "org.apache.iceberg.exceptions.RuntimeIOException: Failed to open file: file:/w/t/metadata/snap-1.avro\n\tat x"
        ),
        CorruptMetadataError,
        "file:/w/t/metadata/snap-1.avro",
    ),
    (
        spark(
            "org.apache.iceberg.exceptions.RuntimeIOException: Failed to open file: s3://b/t/metadata/snap-1.avro\n"
            "Caused by: org.apache.iceberg.shaded.org.apache.avro.InvalidAvroMagicException: Not an Avro data file."
        ),
        CorruptMetadataError,
        "s3://b/t/metadata/snap-1.avro",
    ),
    (
        spark(
            "An error occurred while calling o1.collectToPython.\n: org.apache.spark.SparkException: Job aborted: \n"
            "org.apache.iceberg.exceptions.RuntimeIOException: Failed to open file: s3://b/t/metadata/snap-1.avro\n"
            "Caused by: software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request: b"
        ),
        StorageUnavailableError,
        "s3://b/t/metadata/snap-1.avro",
    ),
    (
        spark("org.apache.iceberg.exceptions.RuntimeIOException: Failed to open file: s3://b/t/metadata/snap-1.avro"),
        StorageUnavailableError,
        "s3://b/t/metadata/snap-1.avro",
    ),
    (
        OSError("When reading 'k' in bucket 'b': AWS Error NETWORK_CONNECTION during GetObject operation: no answer"),
        StorageUnavailableError,
        "NETWORK_CONNECTION",
    ),
    (
        spark("[TASK_WRITE_FAILED] Task failed\nCaused by: java.net.UnknownHostException: bucket.s3.local"),
        StorageUnavailableError,
        "bucket.s3.local",
    ),
    (
        spark(
            "org.apache.iceberg.exceptions.NotFoundException: Failed to open input stream for file: s3://b/t/data/a.parquet"
        ),
        MissingDataFileError,
        "s3://b/t/data/a.parquet",
    ),
    (
        spark("(java.io.FileNotFoundException) File file:/w/a.avro does not exist"),
        MissingDataFileError,
        "/w/a.avro",
    ),
    (FileNotFoundError("Cannot open file, does not exist: /w/m0.avro"), MissingDataFileError, "/w/m0.avro"),
    *(
        (error, StorageUnavailableError, f"{path} cannot be opened or created: this user may not")
        for error, path in (
            (spark("java.io.FileNotFoundException: /w/a.parquet (Permission denied)"), "/w/a.parquet"),
            (
                spark("java.io.IOException: Mkdirs failed to create file:/my w/t (exists=false, cwd=file:/)"),
                "file:/my w/t",
            ),
            (
                spark(
                    "org.apache.iceberg.exceptions.NotFoundException: Failed to open input stream for file: /w/a\n"
                    "Caused by: java.io.FileNotFoundException: /w/a (Permission denied)"
                ),
                "/w/a",
            ),
            (
                spark(
                    "org.apache.hadoop.fs.FileAlreadyExistsException: Destination exists and is not a directory: /w/t/data"
                ),
                "/w/t/data",
            ),
            (PermissionError(13, "Permission denied", "/w/t/metadata"), "/w/t/metadata"),
            (OSError(30, "Read-only file system", "/w/t/metadata"), "/w/t/metadata"),
            (
                OSError("[Errno 30] Failed to open local file '/w/1'. Detail: [errno 30] Read-only file system"),
                "/w/1",
            ),
            (
                PermissionError(
                    "[Errno 13] Failed to open local file '/w/1.json'. Detail: [errno 13] Permission denied"
                ),
                "/w/1.json",
            ),
        )
    ),
    (
        spark("java.io.FileNotFoundException: /my lakes/w/a.parquet (No such file or directory)"),
        MissingDataFileError,
        "/my lakes/w/a.parquet is gone",
    ),
    (
        spark(
            "org.apache.iceberg.exceptions.RuntimeIOException: Failed to open file: file:/my lakes/w/snap-1.avro\n\tat x"
        ),
        CorruptMetadataError,
        "file:/my lakes/w/snap-1.avro cannot be read",
    ),
    (spark("[TASK_WRITE_FAILED] x\njava.io.IOException: No space left on device"), StorageFullError, "spark.local.dir"),
    (
        spark("org.sqlite.SQLiteException: [SQLITE_FULL] Insertion failed because database is full"),
        StorageFullError,
        "make room",
    ),
    (
        spark(
            "org.apache.iceberg.jdbc.UncheckedSQLException: Failed to execute\n"
            "Caused by: org.sqlite.SQLiteException: [SQLITE_BUSY] The database file is locked (database is locked)"
        ),
        CatalogUnavailableError,
        "end that process",
    ),
    (
        OSError(errno.ENOSPC, "No space left on device", "/w/raw/data/x.parquet"),
        StorageFullError,
        "/w/raw/data/x.parquet",
    ),
]
TOLD_BY_A_ROW = (
    "File /etc/x does not exist",
    "Caused by: java.io.FileNotFoundException: File /etc/x does not exist",
    "\n\tat a.b\nCaused by: java.io.IOException: No space left on device",
    "org.apache.iceberg.exceptions.ValidationException: Found conflicting files",
    "SQLITE_BUSY",
)


class Py4JJavaError(Exception):
    """As py4j's, which asks a JVM for its text."""

    __module__ = "py4j.protocol"


def test_a_value_that_cannot_be_computed_is_named_without_the_stack_of_java() -> None:
    error = Py4JJavaError(
        "An error occurred while calling o980.localCheckpoint.\n: java.util.concurrent.ExecutionException: "
        "org.apache.spark.SparkArithmeticException: [ARITHMETIC_OVERFLOW] Overflow in sum of decimals. SQLSTATE: 22003\n"
        "\tat java.base/java.util.concurrent.CompletableFuture.get(CompletableFuture.java:2096)"
    )
    named = as_named(error, "agg.t")
    assert isinstance(named, PipelineError)
    assert str(named).startswith("agg.t: Spark cannot compute a value: [ARITHMETIC_OVERFLOW] Overflow in sum of")
    assert "CompletableFuture" not in str(named)
    other = Py4JJavaError(
        "An error occurred while calling o1.x.\n: java.lang.IllegalStateException: [X] SQLSTATE: XX000"
    )
    assert as_named(other, "agg.t") is None


@pytest.mark.parametrize("message", TOLD_BY_A_ROW)
@pytest.mark.parametrize(
    "quoted",
    [
        '[CAST_INVALID_INPUT] The value \'{}\' of the type "STRING" cannot be cast to "BIGINT"',
        "An error occurred while calling o1.append.\n: org.apache.spark.SparkException: Job aborted due to stage failure: "
        "Task 0 in stage 1.0 failed: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value '{}'",
        'java.lang.NumberFormatException: For input string: "{}"',
        "[USER_RAISED_EXCEPTION] {}",
        "pyspark.errors.exceptions.base.PythonException: ValueError: {}",
    ],
)
def test_values_of_rows_are_not_mistaken_for_errors_of_files_or_races(quoted: str, message: str) -> None:
    error = spark(quoted.format(message))
    assert as_named(error, "final.users") is None
    assert not lost_race(error)


@pytest.mark.parametrize(
    "message",
    [
        "org.apache.iceberg.exceptions.CommitFailedException: Metadata location has changed",
        "[TABLE_OR_VIEW_ALREADY_EXISTS] Cannot create table `a`.`t` because it already exists",
        "org.apache.iceberg.exceptions.ValidationException: Found conflicting files that can contain records matching x",
        # A clock set back during a step: the step is retried with reset timestamps.
        "java.lang.IllegalArgumentException: Invalid update timestamp 1: before last snapshot log entry at 9",
        "[BUG] Expected sorted snapshot log entries.\n\nJVM stacktrace:\njava.lang.IllegalArgumentException: [BUG] Expected sorted",
        "org.apache.iceberg.exceptions.ValidationException: Invalid snapshot timestamp 1: before last updated timestamp",
    ],
)
def test_a_lost_race_is_recognized_by_icebergs_message(message: str) -> None:
    assert lost_race(spark(message))


def test_a_file_in_the_place_of_a_folder_is_no_lost_race() -> None:
    told = "org.apache.hadoop.fs.FileAlreadyExistsException: Destination exists and is not a directory: /lake/t/data"
    assert not lost_race(spark(told))


@pytest.mark.parametrize(("error", "kind", "where"), SAID)
def test_known_errors_name_the_table_and_the_file(error: Exception, kind: type[LakeError], where: str) -> None:
    named = as_named(error, "final.users")
    assert type(named) is kind
    assert str(named).startswith("final.users: ")
    assert where in str(named)


@pytest.mark.parametrize("error", [ValueError("a row says: nothing"), PipelineError("File /x does not exist")])
def test_unknown_errors_and_lake_errors_are_not_changed(error: Exception) -> None:
    assert as_named(error, "final.users") is None


def test_a_call_of_a_jvm_that_has_ended_says_so() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    client = py4j.java_gateway.GatewayClient(port=port)
    with pytest.raises(Exception) as refused:  # noqa: PT011  py4j raises errors of several kinds
        client.send_command("x\n")
    assert isinstance(named := as_named(refused.value, "final.users"), SparkUnavailableError)
    assert "final.users: Spark's JVM has ended" in str(named)
    # A connection to something else is not a JVM's.
    assert as_named(ConnectionRefusedError(111, "Connection refused"), "final.users") is None
