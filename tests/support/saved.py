"""A lake with a history that takes a while, for many tests: each finds it as it was."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables
from sqlalchemy import Engine, delete, insert, select

from lake_assets import Lake

_MODELS = (IcebergTables, IcebergNamespaceProperties)
# Files of the lake itself that stay open, or that no test reads.
_LEFT = ("catalog.db", "catalog.db-wal", "catalog.db-shm", "logs", "spark-warehouse")


class SavedLake:
    """A lake as it was at some time, and what its tests know of it."""

    def __init__(self, lake: Lake, known: Any, shared: tuple[Any, ...], backup: Path) -> None:
        """
        Args:
            lake: the lake, in a SQL catalog.
            known: objects about the lake; each test gets a copy.
            shared: objects in `known` that are not copied, in addition to the lake.
            backup: a folder for copies of the lake's files.
        """
        self.lake, self._known, self._backup = lake, known, backup
        self._shared = {id(o): o for o in (lake, *shared)}
        self._home = lake.config.home
        shutil.copytree(self._home, backup, ignore=lambda folder, _: _LEFT if Path(folder) == self._home else ())
        with self._engine.connect() as connection:
            self._rows = [[dict(r) for r in connection.execute(select(m.__table__)).mappings()] for m in _MODELS]

    def put_back(self, **others: tuple[Any, Any]) -> Any:
        """Let the lake be as it was; returns a copy of what was known of it then.

        Args:
            others: pairs of an object in what was known and the one that replaces it in the copy.
        """
        with self._engine.begin() as connection:
            for model, rows in zip(_MODELS, self._rows, strict=True):
                connection.execute(delete(model))
                if rows:
                    connection.execute(insert(model), rows)
        _mirror(self._backup, self._home, _LEFT)
        return copy.deepcopy(self._known, self._shared | {id(old): new for old, new in others.values()})

    @property
    def _engine(self) -> Engine:
        catalog: Any = self.lake.catalog
        return catalog.engine


def _mirror(source: Path, target: Path, left: tuple[str, ...] = ()) -> None:
    """Make a folder equal to another one; files of one name and size in the same second are taken for equal."""
    theirs = {p.name: p for p in source.iterdir()}
    for path in target.iterdir():
        if path.name not in theirs and path.name not in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, path in theirs.items():
        own = target / name
        if path.is_dir():
            own.mkdir(exist_ok=True)
            _mirror(path, own)
        elif not own.exists() or own.stat().st_mtime_ns != path.stat().st_mtime_ns:
            shutil.copy2(path, own)
