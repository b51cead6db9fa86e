"""Dumps of a whole table in a landing folder: which are complete, in which order they were made, and at what time.

    landing/users/2026-11-01/part-0.parquet
    landing/users/2026-11-01/_SUCCESS

Each dump is a folder, and the folders' names order them, as texts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from lake_assets.errors import LandingFolderError, PipelineError

_UNFINISHED = (".tmp", ".part")
_QUIET = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])\s+quiet")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# A day, perhaps with a time, at the end of a dump's name: 2026-11-01, date=20261101, users_2026-11-01T06-30-00Z.
_MOMENT = re.compile(
    r"(?:^|.*[^0-9])(\d{4})-?(\d{2})-?(\d{2})(?:[T_ -]?(\d{2})[-:]?(\d{2})(?:[-:]?(\d{2}))?)?Z?", re.ASCII
)
SUCCESS = "_SUCCESS"


@dataclass(frozen=True)
class Completeness:
    """When a dump is complete.

    Attributes:
        marker: the name of the file that says so; empty: none does.
        quiet: otherwise, for how many seconds none of its files has changed.
    """

    marker: str = SUCCESS
    quiet: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `_SUCCESS`, or another name, or `10m quiet`.

        Raises:
            PipelineError: it is neither.
        """
        if match := _QUIET.fullmatch(text.strip()):
            return cls("", float(match[1]) * _SECONDS[match[2]])
        if not text.strip() or "/" in text or " " in text.strip():
            raise PipelineError(
                f"{text!r} does not say when a dump is complete: write the name of a file that is written last "
                f"({SUCCESS}), or how long its files have not changed (10m quiet)"
            )
        return cls(text.strip())

    def __str__(self) -> str:
        return self.marker or f"{self.quiet:g}s quiet"


@dataclass(frozen=True)
class FolderDump:
    """A complete dump.

    Attributes:
        name: the name of its folder.
        files: its files of rows, by name.
        bytes: their size.
        fingerprint: differs once a file is added, removed, or written again.
        at: the time in its name, or else when it was completed.
    """

    name: str
    files: tuple[Path, ...]
    bytes: int
    fingerprint: str
    at: datetime
    folder: Path

    @property
    def paths(self) -> tuple[Path, ...]:
        """Its files; of a dump without rows and files, its folder."""
        return self.files or (self.folder,)


def complete_dumps(
    folder: Path, rule: Completeness, *, since: str = "", known: Collection[str] = ()
) -> list[FolderDump]:
    """Return the complete dumps in a folder, oldest first; a missing folder has none.

    Args:
        since: the name of the oldest dump to return; older ones are not looked into.
        known: names of dumps to leave out, but for `since` itself.

    Raises:
        LandingFolderError: the folder cannot be read, or its files lie in no dump's folder, or in one below.
    """
    names = sorted(n for n in _folders(folder) if n == since or (n > since and n not in known))
    return [d for name in names if (d := _dump(folder / name, rule)) is not None]


def late_dumps(folder: Path, rule: Completeness, last: str, known: Collection[str]) -> list[str]:
    """Return the names of complete dumps before the last absorbed one that were never absorbed."""
    late = sorted(n for n in _folders(folder) if n < last and n not in known)
    return [name for name in late if _dump(folder / name, rule) is not None]


def _folders(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            found = [
                (e.name, e.is_dir()) for e in entries if e.name[0] not in "._" and not e.name.endswith(_UNFINISHED)
            ]
    except FileNotFoundError:
        return
    except OSError as e:
        reason = "it is a file" if isinstance(e, NotADirectoryError) else e.strerror
        raise LandingFolderError(
            f"the landing folder {folder} cannot be read: {reason}. Name a folder in the stream's `landing`, and let "
            "this user read it"
        ) from e
    if unreadable := [name for name, _ in found if not name.isprintable()]:
        raise LandingFolderError(
            f"{folder} holds a folder whose name cannot be stored as text: {unreadable[0]!r}. Rename it, so that "
            "its name orders the dump"
        )
    if loose := sorted(name for name, is_folder in found if not is_folder):
        raise LandingFolderError(
            f"{folder} holds files that belong to no dump, such as {loose[0]}. With `format: snapshot`, each dump is a "
            f"folder of its own: {folder}/2026-11-01/{loose[0]}. Move them there"
        )
    yield from (name for name, _ in found)


def _dump(folder: Path, rule: Completeness) -> FolderDump | None:
    """Return the dump in a folder; None while it is not complete."""
    stats: dict[str, os.stat_result] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    if entry.name[0] not in "._":
                        raise LandingFolderError(
                            f"{entry.path} is a folder within a dump. The files of a dump lie directly in its folder: "
                            "write the table without partitions, with their columns in the files"
                        )
                    continue
                # A link that leads nowhere is listed, so that reading it is an error.
                stats[entry.name] = entry.stat(follow_symlinks=not entry.is_symlink())
    except FileNotFoundError:
        return None  # it is being removed
    except OSError as e:
        raise LandingFolderError(f"the dump {folder} cannot be read: {e.strerror}. Let this user read it") from e
    rows = sorted(n for n in stats if n[0] not in "._" and not n.endswith(_UNFINISHED) and n != rule.marker)
    newest = max((s.st_mtime for s in stats.values()), default=0.0)
    if rule.marker:
        if rule.marker not in stats:
            return None
        newest = stats[rule.marker].st_mtime
    elif not rows or any(n.endswith(_UNFINISHED) for n in stats) or time.time() - newest < rule.quiet:
        return None
    parts = [[n, stats[n].st_size, stats[n].st_mtime_ns] for n in rows]
    return FolderDump(
        folder.name,
        tuple(folder / n for n in rows),
        sum(stats[n].st_size for n in rows),
        hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest(),
        time_of(folder.name) or datetime.fromtimestamp(newest, UTC),
        folder,
    )


def time_of(name: str) -> datetime | None:
    """Return the time at the end of a dump's name, in UTC; None if it has none."""
    if match := _MOMENT.fullmatch(name):
        try:
            return datetime(*(int(n or 0) for n in match.groups()), tzinfo=UTC)  # pyright: ignore[reportArgumentType]
        except ValueError:
            return None
    return None
