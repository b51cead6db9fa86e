"""The files of a landing folder: of this machine or of an object store, in one folder or in one per table."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from lake_assets.errors import LandingFolderError
from lake_assets.formats.files.record_files import LocalFile, RecordFile, StoredObject
from lake_assets.ingest.landing_places import Landing, pattern_of
from lake_assets.lake import thresholds
from lake_assets.lake.object_stores import ObjectStore, store_of

T = TypeVar("T")

_UNFINISHED = (".tmp", ".part")


def nothing_arrived(landing: Landing, home: Path) -> tuple[Literal["waiting", "nothing"], str]:
    """Return the status of a landing from which no file has ever arrived, and what it watches.

    A relative folder is below the lake's home, and may have been meant to lie elsewhere.
    """
    path = landing.path
    where = " (a relative `landing` is below the home of the lake)" if path and path.is_relative_to(home) else ""
    if path and not path.exists():
        return "waiting", f"the folder {path} does not exist yet{where}"
    return "nothing", f"no file has arrived in {landing} yet{where}{_inner_folders(landing)}"


def _inner_folders(landing: Landing) -> str:
    """Say that the files of inner folders are not read, if a landing's folder holds nothing but folders."""
    if landing.path is None or landing.segments or not os.access(landing.path, os.R_OK | os.X_OK):
        return ""
    with os.scandir(landing.path) as entries:
        inner = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith((".", "_")))
    if not inner:
        return ""
    return f": its folders ({', '.join(inner[:3])}{', ...' if len(inner) > 3 else ''}) are not read, only its own files"


def listing(landing: Landing, options: Mapping[str, str], after: Mapping[str, str] | None = None) -> list[RecordFile]:
    """Return a landing's files by folder and name, without hidden and unfinished ones (`.`, `_`, `.tmp`, `.part`).

    A missing folder is empty: the program that fills it creates it.

    Args:
        options: those of object stores, from the lake's configuration.
        after: by folder below the landing's root, the name behind which its listing begins.

    Raises:
        LandingFolderError: a folder is a file or a link, or cannot be read.
        StorageUnavailableError: the store does not answer, or denies access.
        MissingPackageError: the package for the store is not installed.
    """
    place = _place_of(landing, options)
    after, folders = after or {}, [""]
    for segment in landing.segments:
        folders = sorted(_matching(place, folders, segment))
    listed = _each(place, lambda folder: place.files(folder, after.get(folder)), folders)
    return [file for files in listed for file in files]


class _Place(ABC):
    """Folders below the root of a landing. Each is named by its path from there, the root itself by an empty text."""

    at_once: ClassVar[int] = 1

    @abstractmethod
    def files(self, folder: str, after: str | None) -> Sequence[RecordFile]:
        """Return the files of a folder whose names come after one, by name."""

    @abstractmethod
    def folders(self, folder: str) -> Sequence[str]:
        """Return the names of the folders in a folder."""


@dataclass(frozen=True)
class _LocalPlace(_Place):
    root: Path

    def files(self, folder: str, after: str | None) -> Sequence[RecordFile]:
        # Links to files are listed, so that reading them raises the error about links. scandir knows which entries are
        # files; one stat call per file would dominate with 100,000 files.
        names = [
            e.name
            for e in self._entries(folder)
            if _is_wanted(e.name) and (after is None or e.name > after) and _is_file(e)
        ]
        path = self.root / folder
        return [LocalFile(path / name, folder) for name in sorted(names)]

    def folders(self, folder: str) -> Sequence[str]:
        found = [e for e in self._entries(folder) if e.name[0] not in "._" and _is_folder(e)]
        for entry in found:
            if entry.is_symlink() or not _is_text(entry.name):
                what = "is a link" if entry.is_symlink() else "has a name that is not UTF-8"
                raise LandingFolderError(
                    f"{entry.path!r} {what}, and would be the folder of a table: replace it by a folder, or remove it"
                )
        return [e.name for e in found]

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        path = self.root / folder
        try:
            with os.scandir(path) as entries:
                return list(entries)
        except FileNotFoundError:
            return []
        except OSError as e:
            reason = "it is a file" if isinstance(e, NotADirectoryError) else e.strerror
            raise LandingFolderError(
                f"the landing folder {path} cannot be read: {reason}. Name a folder in the stream's `landing`, and let "
                "this user read it"
            ) from e


@dataclass(frozen=True)
class _StorePlace(_Place):
    root: str
    store: ObjectStore
    at_once: ClassVar[int] = thresholds.OBJECTS_AT_ONCE

    def files(self, folder: str, after: str | None) -> Sequence[RecordFile]:
        url = _joined(self.root, folder)
        found = (o for o in self.store.contents(url, after).objects if _is_wanted(o.name))
        return [StoredObject(_joined(folder, o.name), _joined(url, o.name), o, self.store) for o in found]

    def folders(self, folder: str) -> Sequence[str]:
        return [n for n in self.store.contents(_joined(self.root, folder)).folders if n[0] not in "._"]


def _place_of(landing: Landing, options: Mapping[str, str]) -> _Place:
    if landing.path is not None:
        return _LocalPlace(landing.path)
    return _StorePlace(landing.root, store_of(landing.root, options))


def _matching(place: _Place, folders: list[str], segment: str) -> list[str]:
    """Return the folders in some folders that match one segment of a pattern."""
    if "{" not in segment:
        return [_joined(f, segment) for f in folders]
    pattern = pattern_of(segment)
    inner = zip(folders, _each(place, place.folders, folders), strict=True)
    return [_joined(folder, name) for folder, names in inner for name in names if pattern.fullmatch(name)]


def _each(place: _Place, function: Callable[[str], Sequence[T]], folders: Sequence[str]) -> list[Sequence[T]]:
    if place.at_once == 1 or len(folders) < 2:
        return [function(f) for f in folders]
    with ThreadPoolExecutor(place.at_once) as pool:
        return list(pool.map(function, folders))


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder and name else folder or name


def _is_wanted(name: str) -> bool:
    return name[0] not in "._" and not name.endswith(_UNFINISHED)


def _is_file(entry: os.DirEntry[str]) -> bool:
    return _leads_to(entry, entry.is_file)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return _leads_to(entry, entry.is_dir)


def _leads_to(entry: os.DirEntry[str], test: Callable[[], bool]) -> bool:
    try:
        return test()
    except OSError:
        # A circular link, or one into a folder without permission, leads to neither.
        if entry.is_symlink():
            return False
        raise


def _is_text(name: str) -> bool:
    return name.isascii() or not any("\udc80" <= c <= "\udcff" for c in name)
