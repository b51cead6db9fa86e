"""Debezium's history of a schema, which it needs when it starts again: a file that is made of landed lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lake_assets.sources.live_source import Progress

# Among the lines about the schema: those before it are of a log that is no longer read.
_RESTART = b'{"source":{"server":"lake_assets"},"databaseName":"","ddl":""}'


class SchemaHistory:
    """The file of Debezium's history of a schema, and how much of it is landed.

    It restarts, empty, where another log is read than before.
    """

    def __init__(self, file: Path, progress: Progress, *, restarts: bool) -> None:
        self.file, self.progress, self.restarts, self.landed = file, progress, restarts, 0

    def write(self) -> None:
        """Write what the lake has of it, of the log that is read."""
        lines = [] if self.restarts else list(self.progress.history())
        if _RESTART in lines:
            del lines[: len(lines) - lines[::-1].index(_RESTART)]
        self.file.write_bytes(b"".join(line + b"\n" for line in lines))
        self.landed = self.file.stat().st_size

    def new(self) -> tuple[Sequence[bytes], int]:
        """Return the lines that are not landed yet, and the size up to which they are then."""
        first = [_RESTART] if self.restarts else []
        if not self.file.exists():
            return first, 0
        with self.file.open("rb") as opened:
            opened.seek(self.landed)
            whole = opened.read().rpartition(b"\n")[0]
        lines = [line for line in whole.split(b"\n") if line]
        return [*first, *lines], self.landed + len(whole) + 1 if whole else self.landed

    def done(self, size: int) -> None:
        """Note that lines up to a size of the file are landed."""
        self.landed, self.restarts = size, False
