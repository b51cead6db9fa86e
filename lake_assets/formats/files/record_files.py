"""Files of records, as readers see them: local files, and objects of a store."""

from __future__ import annotations

import errno
import io
import os
import stat
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Self

from lake_assets.errors import LandingFolderError, UnstableFileError
from lake_assets.lake import thresholds
from lake_assets.lake.object_stores import ObjectStore, StoredEntry


class RecordFile(ABC):
    """A file of records; its text is where it is.

    Attributes:
        name: its name below the landing folder, as tables store it: `part-1.csv`, or `orders/part-1.csv`.
    """

    name: str

    @property
    @abstractmethod
    def size(self) -> int:
        """Its size in bytes."""

    @property
    @abstractmethod
    def modified(self) -> float | None:
        """When it was last written, in seconds; None if its store does not tell."""

    @abstractmethod
    def open(self) -> io.RawIOBase | IO[bytes]:
        """Open it for reading.

        Raises:
            UnstableFileError: it has gone, or has changed since it was listed.
            LandingFolderError: it is no regular file.
            StorageUnavailableError: its store does not answer, or denies access.
        """

    def fetched(self) -> Self:
        """Return the file with its content in memory, if reading it there saves requests; errors as of `open`."""
        return self

    @property
    def base_name(self) -> str:
        """Its name in its folder."""
        return self.name.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """Its folder below the landing folder; empty: the landing folder itself."""
        return self.name.rpartition("/")[0]

    @property
    def is_compressed(self) -> bool:
        """Whether it is a gzip stream, by its name."""
        return PurePosixPath(self.base_name).suffix.lower() == ".gz"

    @property
    def kind(self) -> str:
        """The end of its name in lower case, such as `.csv`; of `a.csv.gz` as well."""
        path = PurePosixPath(self.base_name)
        return PurePosixPath(path.stem if self.is_compressed else path.name).suffix.lower()


@dataclass(frozen=True)
class LocalFile(RecordFile):
    """A file of this machine.

    Attributes:
        folder_name: the folder below the landing folder that it is in; empty: the landing folder itself.
    """

    path: Path
    folder_name: str = ""

    @cached_property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `RecordFile`. Bytes that are not UTF-8 become `/xff`, which no other name contains."""
        name = self.path.name
        if name.isascii() and not self.folder_name:
            return name
        if not name.isascii():
            name = "".join(f"/x{ord(c) - 0xDC00:02x}" if "\udc80" <= c <= "\udcff" else c for c in name)
        return f"{self.folder_name}/{name}" if self.folder_name else name

    @property
    def base_name(self) -> str:
        """See `RecordFile`."""
        return self.path.name

    @property
    def folder(self) -> str:
        """See `RecordFile`."""
        return self.folder_name

    @property
    def size(self) -> int:
        """See `RecordFile`."""
        return self._stat().st_size

    @property
    def modified(self) -> float:
        """See `RecordFile`."""
        return self._stat().st_mtime

    def open(self) -> io.FileIO:
        """See `RecordFile`. Links are not followed: a link in a landing folder must not make other files readable."""
        # O_NONBLOCK: opening a pipe would wait for a writer.
        flags = os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            raw = io.FileIO(self.path, opener=lambda path, mode: os.open(path, mode | flags))
        except FileNotFoundError as e:
            raise self._gone() from e
        except OSError as e:
            if e.errno != errno.ELOOP:
                raise
            raise LandingFolderError(
                f"{self} is a link, and links in landing folders are not followed: put the file itself there"
            ) from e
        if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
            raw.close()
            raise LandingFolderError(f"{self} is no longer a file, but a pipe or a device: remove it")
        return raw

    def _stat(self) -> os.stat_result:
        try:
            return self.path.stat()
        except FileNotFoundError as e:
            raise self._gone() from e

    def _gone(self) -> UnstableFileError:
        return UnstableFileError(
            f"{self} was deleted after it was listed. Nothing of it was landed, and the next run lists the folder "
            "anew: delete files only after they have landed"
        )

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class StoredObject(RecordFile):
    """An object of a store: its size and time are those of the listing, and cost no request.

    Attributes:
        url: where it is.
        listed: what the listing told.
        content: its bytes, once they are in memory.
    """

    name: str
    url: str
    listed: StoredEntry
    store: ObjectStore = field(repr=False, compare=False)
    content: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def size(self) -> int:
        """See `RecordFile`."""
        return self.listed.size

    @property
    def modified(self) -> float | None:
        """See `RecordFile`."""
        return self.listed.modified

    def open(self) -> io.RawIOBase | IO[bytes]:
        """See `RecordFile`."""
        held = self.fetched()
        return self.store.open(self.url, self.size) if held.content is None else io.BytesIO(held.content)

    def fetched(self) -> Self:
        """See `RecordFile`: a reader may open a file several times, each of which would be a request."""
        if self.content is not None or self.size > thresholds.OBJECT_BYTES_IN_MEMORY:
            return self
        return replace(self, content=self.store.read(self.url, self.size))

    def __str__(self) -> str:
        return self.url
