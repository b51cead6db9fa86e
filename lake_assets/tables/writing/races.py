"""Commits that lose a race to another writer."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from lake_assets.errors import ConcurrentWriteError, LakeError
from lake_assets.lake import TableId
from lake_assets.lake.foreign_errors import spark_error_text

# Messages of Iceberg about a conflicting commit of another writer.
_LOST_RACE = (
    "ValidationException",
    "CommitFailedException",
    # Two runs create the same table: the second one has to start again.
    "AlreadyExistsException",
    "TABLE_OR_VIEW_ALREADY_EXISTS",
    "CommitStateUnknownException",
    "Found conflicting files",
    # The clock was set back during the step: the next attempt first corrects the table's times.
    "Invalid update timestamp",
    "Invalid snapshot timestamp",
    "[BUG] Expected sorted",
    "Found new conflicting delete files",
    # A rewrite of files. It goes on with names of exceptions without their packages, before which the text is cut off.
    "Cannot commit rewrite because of a",
    "missing data files",
    "is not an ancestor of",
    # The table was replaced meanwhile, with its snapshots.
    "to unknown snapshot",
    # Its columns changed between the analysis and the execution of a query.
    "INCOMPATIBLE_TABLE_CHANGE_AFTER_ANALYSIS",
)
# An overwrite whose condition cuts through a file: the job's own mistake, which every attempt repeats.
_NO_RACE = "Cannot delete file where some, but not all, rows match"


@contextlib.contextmanager
def as_race(table: TableId) -> Generator[None]:
    """Raise ConcurrentWriteError for a commit that loses a race to another writer."""
    try:
        yield
    except LakeError:
        raise  # its text may quote rows, which may contain any text
    except Exception as e:
        # A PySparkException over Spark Connect, py4j's exception locally: only Iceberg's message is reliable.
        if lost_race(e):
            raise lost(table, _first(e)) from e
        raise


def lost(table: TableId, why: object) -> ConcurrentWriteError:
    """Return the error of a step that another writer has overtaken."""
    return ConcurrentWriteError(f"{table}: another writer committed during this step: {why}")


def lost_race(error: Exception) -> bool:
    """Whether an error of Spark is a commit that lost a race to another writer."""
    # Hadoop's error of the same ending is about a file in the place of a folder.
    message = spark_error_text(error).replace("FileAlreadyExistsException", "")
    return _NO_RACE not in message and any(text in message for text in _LOST_RACE)


def is_unknown(error: Exception) -> bool:
    """Whether it is unknown whether the commit that failed with an error was made."""
    return "CommitStateUnknownException" in spark_error_text(error)


def _first(error: Exception) -> str:
    lines = spark_error_text(error).strip().splitlines()
    return next((line for line in lines if any(text in line for text in _LOST_RACE)), lines[0]).strip(" :")[:300]
