"""Ending a step in the middle, at one point after the other, as the end of its process would."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrameWriterV2, SparkSession

from lake_assets.lake.metadata import refs
from lake_assets.tables.writing import branch_writer
from lake_assets.tables.writing.position_files import NewFiles

VERBS = ("MERGE", "ALTER TABLE", "CREATE OR REPLACE TABLE", "CREATE TABLE", "CALL")


class Killed(BaseException):
    """Stands for the end of the process: nothing in the product catches it."""


class Points:
    """Kills once at every point it has not killed at before; what is killed does nothing any more, in any thread.

    Args:
        only_after: whether it kills after calls alone: what comes before one is after the one before it.
    """

    def __init__(self, *, only_after: bool = False) -> None:
        self.only_after = only_after
        self.seen: list[str] = []
        # Points of each table are points of their own.
        self.table = ""
        self.armed, self.ended = False, False
        self.hook: Callable[[str], None] | None = None
        self._lock = Lock()

    def cross(self, what: str) -> None:
        """A point is come to: the step ends here, or the hook is called."""
        point = f"{self.table}: {what}" if self.table else what
        with self._lock:
            is_new = point not in self.seen and (not self.only_after or what.startswith("after"))
            if self.armed and (self.ended or is_new):
                if not self.ended:
                    self.seen.append(point)
                self.ended = True
                raise Killed(point)
        if self.hook:
            self.hook(what)

    def around(self, call: Callable[..., Any], name: Callable[..., str | None]) -> Callable[..., Any]:
        """A call with a point before it and one after it, where `name` says what it is."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            what = name(*args)
            if what:
                self.cross(f"before {what}")
            result = call(*args, **kwargs)
            if what:
                self.cross(f"after {what}")
            return result

        return wrapped


def verb(_: object, sql: str, *__: object) -> str | None:
    """The first words of a statement that writes."""
    return " ".join(sql.split()[:2]) if sql.startswith(VERBS) else None


def named(_: object, sql: str, *__: object) -> str | None:
    """`verb`, with the part of an ALTER TABLE that says what it does."""
    found = verb(_, sql)
    return found and next((v for v in ("CREATE BRANCH", "DROP BRANCH", "WRITE LOCALLY") if v in sql), found)


def around_refs(points: Points, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points around the commits of branches and tags that are made beside Spark."""
    for call, what in (
        ("create_branch", "CREATE BRANCH"),
        ("publish", "publishing"),
        ("drop", "DROP BRANCH"),
        ("set_tags", "a tag"),
    ):
        monkeypatch.setattr(refs, call, points.around(getattr(refs, call), lambda *_, what=what: what))


def around_writes(points: Points, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points around everything that writes: Spark's statements and appends, branches, tags and ICDC tables."""
    monkeypatch.setattr(SparkSession, "sql", points.around(SparkSession.sql, named))
    around_refs(points, monkeypatch)
    for owner, call, what in (
        # By position or by Spark, it is the one commit of the rows.
        (branch_writer, "commit_files", "MERGE INTO"),
        (NewFiles, "_write", "a file by position"),
    ):
        monkeypatch.setattr(owner, call, points.around(getattr(owner, call), lambda *_, what=what: what))
    for call in ("append", "overwrite"):
        write = getattr(DataFrameWriterV2, call)
        monkeypatch.setattr(DataFrameWriterV2, call, points.around(write, lambda *_, c=call: c))
    register = points.around(SqlCatalog.register_table, lambda *_: "registering an ICDC table")
    monkeypatch.setattr(SqlCatalog, "register_table", register)


def killed_everywhere(points: Points, step: Callable[[], Any]) -> list[str]:
    """Run a step, killing it at each point in turn, until it completes; return these points."""
    points.seen, points.armed = [], True
    while True:
        try:
            step()
        except Killed:
            points.ended = False
            continue
        points.armed = False
        return points.seen
