"""How much room the disks of a lake have left: a step on a full disk fails, and its note may not fit either."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

from lake_assets.lake import thresholds
from lake_assets.lake.config import LakeConfig


@dataclass(frozen=True)
class DiskSpace:
    """The room on the disk of a folder.

    Attributes:
        what: what is in the folder.
        free, total: bytes.
    """

    folder: Path
    what: str
    free: int
    total: int

    @property
    def is_little(self) -> bool:
        """Whether the next steps may not find room."""
        return self.free < min(thresholds.DISK_FREE_BYTES, thresholds.DISK_FREE_SHARE * self.total)

    @property
    def text(self) -> str:
        """What is left, and of what."""
        return f"{_size(self.free)} of {_size(self.total)} are free on the disk of {self.folder} ({self.what})"

    @property
    def advice(self) -> str:
        """What is left, and what to do."""
        return (
            f"{self.text}: make room, because steps fail without it. `lake-assets upkeep` expires snapshots and "
            "removes files that nothing needs; `spark.local.dir` moves Spark's temporary files"
        )


def disks(config: LakeConfig) -> list[DiskSpace]:
    """Return the disks that a lake writes to on this machine, each once."""
    found: dict[int, DiskSpace] = {}
    for folder, what in _folders(config):
        existing = next(f for f in (folder, *folder.parents) if f.exists())
        try:
            device, usage = existing.stat().st_dev, shutil.disk_usage(existing)
        except OSError:  # whoever writes there learns it
            continue
        if usage.total:
            found.setdefault(device, DiskSpace(existing, what, usage.free, usage.total))
    return list(found.values())


def _folders(config: LakeConfig) -> Iterator[tuple[Path, str]]:
    yield config.home.absolute(), "home of the lake"
    if config.warehouse:
        at = urlparse(config.warehouse)
        if at.scheme in ("", "file"):
            yield Path(at.path).absolute(), "tables"
    if not config.spark.remote:
        local = config.spark.conf.get("spark.local.dir") or tempfile.gettempdir()
        yield Path(local.split(",")[0]).absolute(), "Spark's temporary files"


def _size(count: int) -> str:
    amount = count / 1e6
    return f"{amount:,.0f} MB" if amount < 10_000 else f"{amount / 1000:,.0f} GB"
