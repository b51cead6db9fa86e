"""The error classes of lake_assets.

One root, one subclass per cause. A message says what was found, where, and what to do next. `permanent` tells the
orchestration whether a retry of the step can help: a lost race or an unavailable server is temporary, a wrong
configuration is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self


class LakeError(Exception):
    """Root of all errors of this package.

    Attributes:
        permanent: whether a repetition fails in the same way.
        quotes_values: whether its text may have values of rows anywhere.
        is_of_metadata: whether its text never has values of rows, whatever its cause says.
        quoted: the parts of its text that have values of rows.
    """

    permanent: bool = True
    quotes_values: ClassVar[bool] = False
    is_of_metadata: ClassVar[bool] = False
    quoted: tuple[str, ...] = ()

    def quoting(self, *parts: object) -> Self:
        """Name the parts of the text that have values of rows, and return the error."""
        self.quoted = tuple(map(str, parts))
        return self


class HiddenValuesError(LakeError):
    """An error whose text may quote values of sensitive columns: its class is told, and its text is hidden."""

    def __init__(self, message: str, *, permanent: bool = True) -> None:
        super().__init__(message)
        self.permanent = permanent


class TransientError(LakeError):
    """Trying again later may succeed."""

    permanent = False


# --- the lake and its surroundings ------------------------------------------------------------------------------


class ConfigError(LakeError):
    """A configuration (lake.yaml, environment, code) is malformed or contradicts itself."""


class JavaNotFoundError(LakeError):
    """No suitable Java for Spark was found."""


class JarsError(LakeError):
    """The Spark jars could not be resolved, or cached ones are not the expected ones."""


class MissingPackageError(ConfigError):
    """A setting needs a package that is not installed."""


class CatalogUnavailableError(TransientError):
    """The Iceberg catalog cannot be opened, or does not answer."""


class StorageFullError(TransientError):
    """A disk has no space left for the files of a step."""


class StorageUnavailableError(TransientError):
    """Files of a table cannot be reached: the network or the object store does not answer, or denies access."""


class WebhookError(TransientError):
    """The receiver of alerts does not take a message."""


class LakeNotFoundError(LakeError):
    """The lake to read does not exist: its catalog was never created."""


class MovedLakeError(LakeError):
    """The folder of an embedded lake was moved or copied, and its tables name files at the former place."""


class SparkUnavailableError(TransientError):
    """No Spark session is available (the local JVM did not start, or the Spark Connect server is unavailable)."""


class TableNotFoundError(LakeError):
    """The catalog has no such table."""


class ColumnNotFoundError(LakeError):
    """A table has no such column."""


class InvalidNameError(LakeError):
    """An invalid table or column name."""


# --- history ----------------------------------------------------------------------------------------------------


class HistoryError(LakeError):
    """Root of errors about a table's history."""

    is_of_metadata = True


class SnapshotNotFoundError(HistoryError):
    """A table has no such snapshot, tag, branch or point in time."""


class SnapshotExpiredError(HistoryError):
    """A snapshot that a watermark points at has expired."""


class TableReplacedError(HistoryError):
    """A table was dropped and created again: its uuid is not the one that was absorbed. Or one of its columns was, with
    another type."""


class LostEventsError(HistoryError):
    """A staging table no longer holds change events that its final table has absorbed."""


class NotAnAncestorError(HistoryError):
    """The start of a window must be an ancestor of its end, and is not."""


class WindowError(HistoryError):
    """An invalid window (its start is newer than its end)."""


# How to recover from an unreadable file that a snapshot names.
LOST_FILE_ADVICE = (
    "Where the catalog was restored from a backup, run `lake-assets repair` first. Restore the file from a backup; or "
    "roll the table that it belongs to back to a snapshot without it; or `lake-assets rebuild` that table, where its "
    "sources still hold what it is made of"
)
# Of a capture: its caller may begin without the past. A step has its own advice.
LOST_FILE_ADVICE_OF_CAPTURE = (
    f"{LOST_FILE_ADVICE}. If only old snapshots name it, a full capture (start=None) does not need it"
)


class MissingDataFileError(HistoryError):
    """A data, delete or metadata file that a snapshot names is missing."""


class CorruptMetadataError(HistoryError):
    """A manifest or metadata file cannot be read."""


class RepairError(LakeError):
    """A table's metadata cannot be repaired, or the user has to choose a version."""


class RowHistoryError(HistoryError):
    """The row whose history is asked for cannot be found: its key does not fit the table, or it has none."""


class UnsupportedCaptureError(HistoryError):
    """A window cannot be captured exactly, so it is not captured at all."""


class ConsumerNotFoundError(HistoryError):
    """A table has no consumer of this name."""


class CaptureWriteError(HistoryError):
    """The metadata-only tables of a capture cannot be written."""


# --- input ------------------------------------------------------------------------------------------------------


class InputError(LakeError):
    """Root of errors about incoming data."""


class LandingFolderError(InputError):
    """A landing folder is not a folder, or cannot be read."""


class UnstableFileError(InputError):
    """A file has gone, or has changed, between its listing and its reading; the next run lists it anew."""

    permanent = False


class InputTooLargeError(InputError):
    """A file holds more than declared (`max_file`)."""


class TruncatedInputError(InputError):
    """A stream file ends in the middle of a record."""


class MalformedRecordError(InputError):
    """A record does not conform to its format."""

    quotes_values = True


class UnsupportedEventError(InputError):
    """A change event that cannot be applied without losing something."""


class OrderUnknownError(InputError):
    """Nothing in the events of a source table orders their changes, and no order is declared."""


class RejectedLimitError(InputError):
    """More records are rejected than the declaration allows."""


class ChangedInputError(InputError):
    """A landed file has changed since it was landed."""


class DumpHeldBackError(InputError):
    """A dump of a whole table deletes or changes more rows than the declaration allows."""


class DuplicateKeyError(InputError):
    """Several rows of a dump have one key."""


# --- live sources ------------------------------------------------------------------------------------------------


class SourceError(LakeError):
    """A live source is declared wrongly, or its server lacks what reading its changes needs."""


class SourceUnavailableError(TransientError):
    """The server of a live source does not answer, or refuses the connection."""


class SourceGapError(HistoryError):
    """The server of a live source no longer has the changes after the last landed one."""


# --- pipelines and models ---------------------------------------------------------------------------------------


class PipelineError(LakeError):
    """A pipeline's declaration is wrong."""


class TableClaimedError(PipelineError):
    """Two pipelines, or two source tables, claim one table."""


class KeyMissingError(PipelineError):
    """A key column does not exist, or a required key is neither declared nor known from the stream."""


class KeyChangedError(InputError):
    """The events of one source table have different keys, so they cannot be read as one table."""


class RecordsGoneError(HistoryError):
    """A raw table no longer holds the records of a table, so they cannot be read again."""


class SchemaConflictError(PipelineError):
    """A column's type cannot change to the stream's new type."""


class ModelError(PipelineError):
    """A SQL model cannot be parsed, or names a missing table or column.

    Attributes:
        model: its table, if known.
        problems: line in its SQL (None if unknown) and text of each mistake.
        is_located: whether the message already contains file and line.
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
    """A table has absorbed nothing yet, so nothing is known about its rows."""


class DefinitionChangedError(PipelineError):
    """A table was built from another definition than the current one."""


class RebuildError(PipelineError):
    """A table cannot be rebuilt from the current state of its sources."""


class BackfillError(PipelineError):
    """A backfill cannot do what was asked of it, in its state or for its tables."""


class BackfillNotFoundError(BackfillError):
    """The lake has no backfill with this id."""


class StaleBackfillError(BackfillError):
    """Tables of a backfill have changed on main in a way that its working copies cannot catch up with."""


class ErasureError(PipelineError):
    """Keys cannot be erased, or their erasure cannot be completed as things are."""


class AuditFailedError(PipelineError):
    """A batch fails the audits of its table; nothing of it is published.

    Attributes:
        findings: the result of each audit of the step (`tables.audit_gate.Finding`), passed ones included.
    """

    def __init__(self, message: str, *, findings: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


class JobError(PipelineError):
    """A user's job fails, or does not do what it is declared to do."""


class JobNotStartedError(JobError):
    """A user's job cannot be started: nothing of it has run."""


class StepRunningError(TransientError):
    """Another process runs a step over the same table."""


class StepUnknownError(LakeError):
    """A step was interrupted, and whether its job was done is unknown."""


class ConcurrentWriteError(TransientError):
    """Another writer changed the table during this step."""


# --- no error ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refused:
    """What a function returns in place of a result if it has done nothing: the caller does something else.

    Attributes:
        reason: why nothing was done, as a clause.
    """

    reason: str
