"""Object stores by URL: what a folder holds, and the content of its objects, through fsspec.

Every listing tells the size and the time of each object, so no object costs a request of its own before it is read.
Errors of all stores become the same named errors. Nothing is cached: another program adds objects at any time.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlparse

from lake_assets.errors import LandingFolderError, MissingPackageError, StorageUnavailableError, UnstableFileError
from lake_assets.lake import thresholds
from lake_assets.lake.foreign_errors import first_line
from lake_assets.lake.redaction import hide_in, secrets_in

# By scheme: the package that reads it, and the extra of this package that installs it. `memory` is fsspec's own store,
# for trials within one process.
STORES = {
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcs")),
    **dict.fromkeys(("abfs", "abfss"), ("adlfs", "azure")),
    "memory": ("fsspec", ""),
}
# Packages whose errors are errors of a store.
_FOREIGN = frozenset({"botocore", "aiobotocore", "aiohttp", "s3fs", "gcsfs", "google", "adlfs", "azure", "fsspec"})
# The stores that begin a listing behind a name. The others list a whole folder.
_ORDERED = frozenset({"s3", "s3a", "gs", "gcs"})


class StoredEntry(NamedTuple):
    """An object of a folder.

    Attributes:
        name: its name in the folder.
        size: bytes.
        modified: when it was written, in seconds; None if the store does not tell.
    """

    name: str
    size: int
    modified: float | None


class Contents(NamedTuple):
    """What a folder of a store holds: objects, and the names of folders."""

    objects: list[StoredEntry]
    folders: list[str]


@dataclass(frozen=True)
class StoredPath:
    """A place in a store: container (a bucket), and the path in it."""

    scheme: str
    container: str
    path: str
    host: str | None = None

    @classmethod
    def of(cls, url: str) -> StoredPath:
        """Parse a URL. In `abfss://container@account.host/path`, the account is in the place of a host."""
        scheme, _, rest = url.partition("://")
        netloc, _, path = rest.partition("/")
        container, _, host = netloc.partition("@")
        return cls(scheme.lower(), container, path, host or None)

    @property
    def key(self) -> str:
        """The path as fsspec takes it: container and path."""
        return f"{self.container}/{self.path}"


@dataclass(frozen=True)
class ObjectStore:
    """One store, with the properties of the lake that open it (`s3.endpoint`, ...)."""

    scheme: str
    host: str | None
    properties: Mapping[str, str] = field(repr=False)

    @property
    def is_ordered(self) -> bool:
        """Whether a listing that begins behind a name costs only what comes after it."""
        return self.scheme in _ORDERED

    def contents(self, url: str, after: str | None = None) -> Contents:
        """Return what the folder of a URL holds, without what its folders hold; empty if there is nothing.

        Args:
            after: begin behind this name.

        Raises:
            LandingFolderError: the bucket or container does not exist.
            StorageUnavailableError: the store does not answer, or denies access.
        """
        at = StoredPath.of(url.rstrip("/") + "/")
        objects: list[StoredEntry] = []
        folders: list[str] = []
        with self._named(url):
            try:
                for found, inner in self._pages(at, after):
                    objects += (o for o in found if o.name and (after is None or o.name > after))
                    folders += filter(None, inner)
            except FileNotFoundError as e:
                if self._has_container(at, e):
                    return Contents([], [])
                raise LandingFolderError(
                    f"{at.scheme}://{at.container} does not exist (listing {url}): create it, or correct the URL"
                ) from e
        return Contents(sorted(objects), sorted(set(folders)))

    def read(self, url: str, size: int) -> bytes:
        """Return the content of an object that has `size` bytes.

        Raises:
            UnstableFileError: it has gone, or has another size now.
            StorageUnavailableError: see `contents`.
        """
        if not size:
            return b""
        with self._named(url):
            # With one byte more than it had: an object that has grown is noticed, without a request for its size.
            content: bytes = self._fs().cat_file(StoredPath.of(url).key, start=0, end=size + 1)
        if len(content) != size:
            raise _unstable(url, f"was listed with {size} bytes and has {_size_text(len(content), size)} now")
        return content

    def open(self, url: str, size: int) -> io.RawIOBase:
        """Open an object that has `size` bytes; its errors are those of `read`."""
        with self._named(url):
            # Requests the size, and with it the version that all later reads insist on.
            stream = self._fs().open(
                StoredPath.of(url).key, "rb", block_size=thresholds.OBJECT_BYTES_A_READ, cache_type="readahead"
            )
        if stream.size != size:
            stream.close()
            raise _unstable(url, f"was listed with {size} bytes and has {stream.size} now")
        return _NamedStream(self, url, stream)

    def _fs(self) -> Any:
        key = (os.getpid(), self.scheme, self.host, tuple(sorted(self.properties.items())))
        with _lock:
            if key not in _opened:
                _opened[key] = _filesystem(self)
            return _opened[key]

    def _pages(self, at: StoredPath, after: str | None) -> Iterator[tuple[Iterable[StoredEntry], Iterable[str]]]:
        match self.scheme:
            case "s3" | "s3a":
                yield from _s3_pages(self._fs(), at, after)
            case "gs" | "gcs":
                yield from _gcs_pages(self._fs(), at, after)
            case _:
                yield _listed(self._fs(), at)

    def _has_container(self, at: StoredPath, error: FileNotFoundError) -> bool:
        if at.scheme in ("s3", "s3a", "gs", "gcs"):
            return False  # an empty folder of these is no error
        return at.scheme == "memory" or bool(self._fs().exists(at.container))

    @contextlib.contextmanager
    def _named(self, url: str) -> Generator[None]:
        """Convert errors of the store within the context."""
        try:
            yield
        except FileNotFoundError as e:
            raise _unstable(url, "was deleted after it was listed") from e
        except Exception as e:
            if not isinstance(e, OSError) and type(e).__module__.partition(".")[0] not in _FOREIGN:
                raise
            if type(e).__name__ == "FileExpired":
                raise _unstable(url, "was replaced while it was read") from e
            raise self._unavailable(url, e) from e

    def _unavailable(self, url: str, error: Exception) -> StorageUnavailableError:
        why = hide_in(f"{type(error).__name__}: {first_line(error)}"[:300], secrets_in(self.properties))
        if isinstance(error, PermissionError) or "credential" in why.lower() or "(403)" in why:
            return StorageUnavailableError(
                f"{url}: the store denies access ({why}). Nothing of it was landed: let the credentials of this "
                "process (its environment, or `storage` of the lake's configuration) list and read it"
            )
        return StorageUnavailableError(
            f"{url}: the store cannot be reached ({why}). Nothing of it was landed: check that it answers from "
            "here, and that its endpoint and region are those in the environment or in `storage` of the lake's "
            "configuration"
        )


class _NamedStream(io.RawIOBase):
    """An object's bytes; errors of the store are named ones, which no reader takes for damage to the file."""

    def __init__(self, store: ObjectStore, url: str, stream: Any) -> None:
        self._store, self._url, self._stream = store, url, stream

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """See `io.RawIOBase`."""
        with self._store._named(self._url):  # pyright: ignore[reportPrivateUsage]
            content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """See `io.RawIOBase`."""
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        """See `io.RawIOBase`."""
        return self._stream.tell()

    def close(self) -> None:
        """See `io.RawIOBase`."""
        self._stream.close()
        super().close()


_lock = threading.Lock()
# By process: fsspec's connections do not survive a fork.
_opened: dict[tuple[object, ...], Any] = {}


def is_store(text: str) -> bool:
    """Whether a text is the URL of an object store."""
    return urlparse(text).scheme.lower() in STORES


def store_of(url: str, properties: Mapping[str, str]) -> ObjectStore:
    """Return the store of a URL. It is opened when it is first read."""
    at = StoredPath.of(url)
    return ObjectStore(at.scheme, at.host, properties)


def _filesystem(store: ObjectStore) -> Any:
    """Return fsspec's object for a store.

    Raises:
        MissingPackageError: the package for it is not installed.
    """
    import fsspec

    if store.scheme == "memory":
        return fsspec.filesystem("memory")
    package, extra = STORES[store.scheme]
    try:
        from pyiceberg.io.fsspec import FsspecFileIO

        # Options have PyIceberg's names, so that one configuration opens landing folders and tables.
        return FsspecFileIO(dict(store.properties)).get_fs(store.scheme, store.host)
    except ImportError as e:
        raise MissingPackageError(
            f"{store.scheme}:// needs the package {package}, which is not installed: install lake-assets[{extra}] in "
            "the environment that lake_assets runs in"
        ) from e


def _s3_pages(fs: Any, at: StoredPath, after: str | None) -> Iterator[tuple[Iterable[StoredEntry], Iterable[str]]]:
    request = {"Bucket": at.container, "Prefix": at.path, "Delimiter": "/"}
    start = {"StartAfter": at.path + after} if after is not None else {}
    while True:
        page = fs.call_s3("list_objects_v2", fs.req_kw, **request, **start)
        objects = (
            StoredEntry(o["Key"].removeprefix(at.path), o["Size"], _seconds(o.get("LastModified")))
            for o in page.get("Contents", ())
        )
        yield objects, (_last_part(p["Prefix"]) for p in page.get("CommonPrefixes", ()))
        if not page.get("IsTruncated"):
            return
        start = {"ContinuationToken": page["NextContinuationToken"]}


def _gcs_pages(fs: Any, at: StoredPath, after: str | None) -> Iterator[tuple[Iterable[StoredEntry], Iterable[str]]]:
    # The name itself is listed too, and left out by the caller.
    request = {"prefix": at.path, "delimiter": "/", "startOffset": None if after is None else at.path + after}
    token = None
    while True:
        page = fs.call("GET", "b/{}/o", at.container, **request, pageToken=token, json_out=True)
        objects = (
            StoredEntry(o["name"].removeprefix(at.path), int(o["size"]), _seconds(o.get("updated")))
            for o in page.get("items", ())
        )
        yield objects, map(_last_part, page.get("prefixes", ()))
        token = page.get("nextPageToken")
        if not token:
            return


def _listed(fs: Any, at: StoredPath) -> tuple[Iterable[StoredEntry], Iterable[str]]:
    """Return a folder's contents as any store of fsspec lists them."""
    fs.invalidate_cache()
    found: list[dict[str, Any]] = fs.ls(at.key.rstrip("/"), detail=True)
    times = ("LastModified", "last_modified", "mtime", "updated", "created")
    return (
        [
            StoredEntry(_last_part(e["name"]), e["size"], _seconds(next((e[t] for t in times if e.get(t)), None)))
            for e in found
            if e["type"] == "file" and not e["name"].endswith("/")
        ],
        [_last_part(e["name"]) for e in found if e["type"] == "directory"],
    )


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _seconds(time: Any) -> float | None:
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    return time.timestamp() if isinstance(time, datetime) else time


def _size_text(read: int, listed: int) -> str:
    return "more" if read > listed else str(read)


def _unstable(url: str, what: str) -> UnstableFileError:
    return UnstableFileError(
        f"{url} {what}. Nothing of it was landed, and the next run lists and reads anew. Landed files must not change: "
        "deliver new records under a new name, and delete files only after they have landed"
    )
