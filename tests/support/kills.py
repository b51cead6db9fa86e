"""Ending a step in the middle, at one point after the other, as the end of its process would."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import pytest

from lake_assets.lake.metadata import refs

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


def around_refs(points: Points, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points around the commits of branches and tags that are made beside Spark."""
    for call, what in (
        ("create_branch", "CREATE BRANCH"),
        ("publish", "publishing"),
        ("drop", "DROP BRANCH"),
        ("set_tag", "a tag"),
    ):
        monkeypatch.setattr(refs, call, points.around(getattr(refs, call), lambda *_, what=what: what))
