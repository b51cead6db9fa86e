"""Every error that lake_assets raises on purpose.

One root, one subclass a cause. A message says what was found, where, and what to do next. `permanent` tells the
orchestration whether trying the same step again can help: a lost race or a server that is away may pass, a wrong
configuration will not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class LakeError(Exception):
    """Root of all errors of this package."""

    permanent: ClassVar[bool] = True


class TransientError(LakeError):
    """Trying again later may succeed."""

    permanent: ClassVar[bool] = False


# --- the lake and its surroundings ------------------------------------------------------------------------------


class ConfigError(LakeError):
    """A configuration (lake.yaml, environment, code) is malformed or contradicts itself."""


class JavaNotFoundError(LakeError):
    """No Java that Spark runs on was found."""


class JarsError(LakeError):
    """The Spark jars could not be resolved, or what was kept is not what was expected."""


class CatalogUnavailableError(TransientError):
    """The Iceberg catalog cannot be opened, or does not answer."""


class StorageFullError(TransientError):
    """A disk has no room left for what a step writes."""


class StorageUnavailableError(TransientError):
    """Files of a table cannot be reached: the network or the object store does not answer, or denies access."""


class LakeNotFoundError(LakeError):
    """There is no lake where one is read: its catalog was never made."""


class SparkUnavailableError(TransientError):
    """No Spark session could be had (local JVM did not start, or the Spark Connect server is away)."""


class TableNotFoundError(LakeError):
    """The catalog has no such table."""


class ColumnNotFoundError(LakeError):
    """A table has no such column."""


class InvalidNameError(LakeError):
    """A table or column name that cannot be one."""


# --- history ----------------------------------------------------------------------------------------------------


class HistoryError(LakeError):
    """Root of errors about what lies between two snapshots."""


class SnapshotNotFoundError(HistoryError):
    """A table has no such snapshot, tag, branch or point in time."""


class SnapshotExpiredError(HistoryError):
    """A snapshot that a watermark points at is gone from its table."""


class TableReplacedError(HistoryError):
    """A table was dropped and made again: its uuid is not the one that was absorbed."""


class LostEventsError(HistoryError):
    """A staging table no longer holds change events that its final table has absorbed."""


class NotAnAncestorError(HistoryError):
    """The start of a window is no ancestor of its end, where that matters."""


class WindowError(HistoryError):
    """A window that cannot be one (its start is newer than its end)."""


# What can be done about a file that a snapshot names and that cannot be read.
LOST_FILE_ADVICE = (
    "Where the catalog was restored from a backup, run `lake-assets repair` first. Restore the file from a backup; or "
    "roll the table that it belongs to back to a snapshot without it; or `lake-assets rebuild` that table, where its "
    "sources still hold what it is made of"
)


class MissingDataFileError(HistoryError):
    """A data, delete or metadata file that a snapshot names is gone."""


class CorruptMetadataError(HistoryError):
    """A manifest or metadata file cannot be read."""


class RepairError(LakeError):
    """A table's metadata cannot be repaired, or not without somebody's choice."""


class UnsupportedCaptureError(HistoryError):
    """A window holds something that cannot be captured exactly, so that it is not captured at all."""


class ConsumerNotFoundError(HistoryError):
    """A table has no consumer of this name."""


class CaptureWriteError(HistoryError):
    """The metadata-only tables of a capture cannot be written."""


# --- input ------------------------------------------------------------------------------------------------------


class InputError(LakeError):
    """Root of errors about what arrives from outside."""


class LandingFolderError(InputError):
    """A landing folder is no folder, or cannot be read."""


class InputTooLargeError(InputError):
    """A file holds more than declared (`max_file`)."""


class TruncatedInputError(InputError):
    """A stream file ends in the middle of a record."""


class MalformedRecordError(InputError):
    """A record is not what its format says."""


class UnsupportedEventError(InputError):
    """A change event that cannot be applied without losing something."""


class RejectedLimitError(InputError):
    """More records are rejected than the declaration allows."""


class ChangedInputError(InputError):
    """A landed file is no longer what was taken in."""


# --- pipelines and models ---------------------------------------------------------------------------------------


class PipelineError(LakeError):
    """A pipeline's declaration is wrong."""


class TableClaimedError(PipelineError):
    """Two pipelines, or two source tables, claim one table."""


class KeyMissingError(PipelineError):
    """A key column that the table does not have, or a key that is needed and was not declared or found."""


class KeyChangedError(InputError):
    """The events of one source table say different keys: each can be read, and they cannot be read as one table's."""


class RecordsGoneError(HistoryError):
    """A raw table no longer holds the records that a table was made of, so that they cannot be read again."""


class SchemaConflictError(PipelineError):
    """A column's type cannot become what the stream now says it is."""


class ModelError(PipelineError):
    """A SQL model cannot be parsed, or names what does not exist.

    Attributes:
        model: its table, where it is known.
        problems: line in its SQL (None: not known) and text of each mistake.
        is_located: whether the message says file and line already.
    """

    def __init__(
        self,
        message: str,
        *,
        model: str = "",
        problems: tuple[tuple[int | None, str], ...] = (),
        is_located: bool = False,
    ) -> None:
        super().__init__(message)
        self.model, self.problems, self.is_located = model, problems, is_located


class NotRunError(PipelineError):
    """A table has absorbed nothing yet, so that nothing can be said of its rows."""


class DefinitionChangedError(PipelineError):
    """A table was built from another definition than the one that is declared now."""


class RebuildError(PipelineError):
    """A table cannot be rebuilt from its sources as they are now."""


class AuditFailedError(PipelineError):
    """A batch does not pass the audits that are declared for its table: nothing of it is published.

    Attributes:
        findings: what came of each audit of the step (`merge.auditing.Finding`), those that passed as well.
    """

    def __init__(self, message: str, *, findings: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


class ConcurrentWriteError(TransientError):
    """Another writer moved the table while this step was at work."""
