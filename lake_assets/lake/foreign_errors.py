"""Convert errors of Spark, Iceberg and the operating system to errors that say what, where, and what to do.

Spark's errors can only be told apart by their text, and some quote values of rows, which may contain anything. So only
the text before the first exception or error condition that may quote a value is searched.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Generator

from lake_assets.errors import (
    LOST_FILE_ADVICE,
    CatalogUnavailableError,
    CorruptMetadataError,
    LakeError,
    MissingDataFileError,
    PipelineError,
    SparkUnavailableError,
    StorageFullError,
    StorageUnavailableError,
)

# The name of a folder may contain spaces, so what follows a path, or precedes it, has to be known.
_PATH = r"(?P<path>(?:[a-z][a-z0-9+.-]*:/|/)[^\n,;'\"]+?)"
_LAST = rf"{_PATH}(?=\s*[\n,;'\"]|\s+at\b|\s*$)"
_DENIED = (
    re.compile(rf"(?:^|: ){_PATH} \((?:Permission denied|Read-only file system)\)", re.MULTILINE),
    re.compile(r"(?:Permission denied|Read-only file system): '(?P<path>[^'\n]+)'"),
    re.compile(r"'(?P<path>[^'\n]+)'\. Detail: \[errno (?:13\] Permission denied|30\] Read-only file system)"),
    re.compile(rf"Mkdirs failed to create {_PATH} \("),
    re.compile(rf"Destination exists and is not a directory: {_LAST}"),
)
_MISSING = (
    re.compile(rf"File does not exist: {_LAST}"),
    re.compile(rf"File {_PATH} does not exist"),
    re.compile(rf"Failed to open input stream for file: {_LAST}"),
    re.compile(rf"(?:^|: ){_PATH} \(No such file or directory\)", re.MULTILINE),
    re.compile(rf"Cannot open file, does not exist: {_LAST}"),
)
_BROKEN = (
    re.compile(rf"Checksum error: {_LAST}"),
    re.compile(rf"(?:^|: ){_PATH} is not a Parquet file", re.MULTILINE),
    re.compile(r"Could not read footer for file: .*?path=(?P<path>[^;\n]+)"),
)
# A file that cannot be opened: it is broken, or its storage does not answer.
_UNREADABLE = (
    re.compile(rf"Failed to (?:open|fetch) file: {_LAST}"),
    re.compile(rf"Cannot (?:read|open)[^:\n]*(?:manifest|metadata)[^:\n]*: {_LAST}", re.IGNORECASE),
    re.compile(rf"Failed to (?:read|open|parse)[^:\n]*(?:manifest|metadata)[^:\n]*: {_LAST}", re.IGNORECASE),
)
_DAMAGE = ("EOFException", "Avro", "ChecksumException", "ParquetDecodingException", "CorruptedFile", "Json")
_OUTAGE = re.compile(
    r"(?:UnknownHost|Connect|NoRouteToHost|PortUnreachable|SocketTimeout|HttpHostConnect|ConnectTimeout|SSL\w*"
    r"|SdkClient|ApiCallTimeout|ApiCallAttemptTimeout|AccessDenied|AccessControl)Exception\b[^\n]*"
    r"|Status Code: (?:403|429|5\d\d)|AWS Error NETWORK_CONNECTION[^\n]*|AWS Error ACCESS_DENIED[^\n]*"
)
_ADVICE = f"Nothing was published. {LOST_FILE_ADVICE}"
_DISK_FULL = ("No space left on device", "There is not enough space on the disk", "Disk quota exceeded", "SQLITE_FULL")
_LOCKED = ("SQLITE_BUSY", "SQLITE_LOCKED", "database is locked")

_EXCEPTION = re.compile(r"\b[A-Za-z_$][\w$]*(?:\.[\w$]+)*(?:Exception|Error)\b")
# Wrappers of other errors, and errors of files, databases and networks. Anything else may quote rows.
_TRUSTED = re.compile(
    r"(?:java\.(?:io|nio|net|sql|util\.concurrent)|org\.(?:sqlite|postgresql)|org\.apache\.(?:iceberg|hadoop|parquet|avro)"
    r"|software\.amazon|com\.(?:amazonaws|azure|google\.cloud)|py4j)\.[\w$.]+"
    r"|java\.lang\.RuntimeException|org\.apache\.spark\.SparkException"
)
# Iceberg's error after a clock was set back.
_CLOCK = re.compile(r"java\.lang\.IllegalArgumentException: (?:Invalid \w+ timestamp \d|\[BUG\] Expected sorted)")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9]*(?:[_.][A-Z0-9]+)+)\]")
# A value that an expression cannot compute: an overflow, a cast, a division by zero.
_VALUE = re.compile(r"\[[A-Z][A-Z0-9_.]*\] [^\n]*SQLSTATE: 22[0-9A-Z]{3}")
# The place within a text that Spark names at the end of a message.
_POSITION = re.compile(r"(?:; | \()line (\d+),? pos \d+[);]*$")
# By a part of the message of a client of a catalog, what it means.
_REASONS = {
    "Connection refused": "nothing listens there (connection refused)",
    "Failed to resolve": "its host is not known",
    "could not translate host name": "its host is not known",
    "password authentication failed": "the server refuses the user or the password",
    "timed out": "it does not answer in time",
    "CERTIFICATE_VERIFY_FAILED": "its certificate cannot be verified",
}
# Where the plan of a query begins in a message of the analyzer.
_PLAN = re.compile(r";\n(?=['+A-Z])")
_CARRIERS = (
    "TASK_WRITE_FAILED", "WRITING_JOB_ABORTED", "FAILED_READ_FILE", "SQLITE_", "TABLE_OR_VIEW_ALREADY_EXISTS",
    "INCOMPATIBLE_TABLE_CHANGE_AFTER_ANALYSIS",
)  # fmt: skip


def spark_error_text(error: BaseException) -> str:
    """Return the text of a Spark error before any values of rows; empty for other errors."""
    if type(error).__module__.partition(".")[0] not in ("py4j", "pyspark"):
        return ""
    # Stack frames name only methods.
    text = "\n".join(line for line in str(error).splitlines() if not line.lstrip().startswith("at "))
    ends = [
        m.start() for m in _EXCEPTION.finditer(text) if not (_TRUSTED.fullmatch(m[0]) or _CLOCK.match(text, m.start()))
    ]
    ends += [m.start() for m in _CONDITION.finditer(text) if not m[1].startswith(_CARRIERS)]
    return text[: min(ends, default=len(text))]


def wrapped_value_error(error: BaseException) -> str:
    """Return Spark's message about a value that an expression cannot compute, if PySpark does not raise it as an error
    of its own: an error of a broadcast is wrapped, so it comes as the stack trace of an exception of Java."""
    is_wrapped = type(error).__name__ == "Py4JJavaError"
    found = _VALUE.search(str(error)) if is_wrapped else None
    return found[0] if found else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error that is not empty: the text of Spark's parser begins with an empty one."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


def catalog_problem(error: BaseException) -> str:
    """Return in a few words why a catalog's client could not open it: clients wrap the reason several times."""
    text = " ".join(line.strip() for line in str(error).splitlines() if not line.startswith("(Background on"))
    return next((words for sign, words in _REASONS.items() if sign in text), text)


def error_text(error: BaseException) -> str:
    """Return an error's class and text; of Spark's analyzer without the query plan that follows its message."""
    text = str(error)
    if type(error).__module__.startswith("pyspark."):
        text = _PLAN.split(text, 1)[0].rstrip("; \n")
    return f"{type(error).__name__}: {text}"


def first_line_and_place(error: BaseException) -> tuple[str, int | None]:
    """Return the first line of an error of Spark without the place that it names, and the line of that place."""
    text = first_line(error)
    found = _POSITION.search(text)
    return (text[: found.start()], int(found[1])) if found else (text, None)


@contextlib.contextmanager
def named_errors(table: object) -> Generator[None]:
    """Convert known errors within the context to errors of this package; `table` is the table being written."""
    try:
        yield
    except Exception as e:
        if (named := as_named(e, str(table))) is not None:
            raise named from e
        raise


def is_unreadable(error: Exception, location: str) -> bool:
    """Whether an error reports a missing or broken file of a table."""
    named = error if isinstance(error, LakeError) else as_named(error, "")
    folder = location.rstrip("/").removeprefix("file://").removeprefix("file:")
    return isinstance(named, MissingDataFileError | CorruptMetadataError) and f"{folder}/" in str(named)


def as_named(error: Exception, table: str) -> LakeError | None:
    """Convert an error to one of this package; None if it is unknown or already a LakeError."""
    if isinstance(error, LakeError):
        return None
    if _is_jvm_lost(error):
        return SparkUnavailableError(
            f"{table}: Spark's JVM has ended: it was killed, or ran out of memory. Nothing is lost, and nothing is "
            "half-published: run again; if it ends again, give it more memory (`spark.driver_memory`)"
        )
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _full(table, f" of {error.filename}" if error.filename else "")
        text = f"{type(error).__name__}: {error}"
    else:
        text = spark_error_text(error)
    if any(sign in text for sign in _DISK_FULL):
        return _full(table, "")
    if any(sign in text for sign in _LOCKED):
        return CatalogUnavailableError(
            f"{table}: the catalog is locked: another process has held its lock for a minute; end that process, or let "
            "it finish. Run again afterwards: commits are kept, and nothing is half-published"
        )
    if path := _first(_DENIED, text):
        return StorageUnavailableError(
            f"{table}: {path} cannot be opened or created: this user may not, its file system is read-only, or a file "
            "is in the place of a folder. Nothing was published: correct it, and run again"
        )
    if path := _first(_MISSING, text):
        return MissingDataFileError(
            f"{table}: {path} is gone, but a table still names it: it was deleted outside of Iceberg. {_ADVICE}"
        )
    if path := _first(_BROKEN, text):
        return _broken(table, path)
    path, outage = _first(_UNREADABLE, text), _OUTAGE.search(text)
    if outage or (path and not path.startswith(("file:", "/")) and not any(s in text for s in _DAMAGE)):
        where, why = path or "a file of a table", f" ({outage[0].strip()[:200]})" if outage else ""
        return StorageUnavailableError(
            f"{table}: {where} cannot be reached{why}. Nothing was published, and the file may be intact: check that "
            "the storage answers, and that the credentials (`storage` in the lake's configuration, or the environment) "
            "may read and write there; then run again. `lake-assets doctor` tries it"
        )
    if path:
        return _broken(table, path)
    if message := wrapped_value_error(error):
        return PipelineError(
            f"{table}: Spark cannot compute a value: {message}. Nothing was published: correct the value or the "
            "expression, and run again"
        )
    return None


def _is_jvm_lost(error: Exception) -> bool:
    """Whether a call found that no JVM answers."""
    if type(error).__name__ == "Py4JNetworkError":
        return True
    at = error.__traceback__ if isinstance(error, ConnectionError) else None
    while at is not None:
        if at.tb_frame.f_globals.get("__name__", "").startswith("py4j."):
            return True
        at = at.tb_next
    return False


def _broken(table: str, path: str) -> CorruptMetadataError:
    return CorruptMetadataError(f"{table}: {path} cannot be read: it is broken or truncated. {_ADVICE}")


def _full(table: str, where: str) -> StorageFullError:
    return StorageFullError(
        f"{table}: no space is left on the device{where}. Nothing was published, and nothing is lost: make room "
        "for the lake and for Spark's temporary files (`spark.local.dir`, else /tmp), and run again. `lake-assets "
        "doctor` says which disk has how much left"
    )


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> str | None:
    return next((m["path"] for p in patterns if (m := p.search(text))), None)
