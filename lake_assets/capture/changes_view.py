"""`ChangesView`: the changes of a capture as a temporary view, for SQL."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from lake_assets.capture.captured import Capture
from lake_assets.errors import ConfigError
from lake_assets.lake import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = Literal["feed", "rows", "keys"]
KINDS: tuple[Kind, ...] = ("feed", "rows", "keys")
log = logging.getLogger(__name__)


class ChangesView:
    """A temporary view of the changes in one window.

    Its rows are fixed: later commits to the table do not change them. Each query reads the captured files again.
    `close()`, the end of a `with` block over it, another view of the same name or the end of the process drops the
    view, together with the ICDC tables that it reads.

    Attributes:
        name: the view's name in SQL, quoted; `global_temp.…` if it is shared.
        capture: the capture that it shows.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        capture: Capture,
        kind: Kind = "feed",
        keys: Sequence[str] | None = None,
        *,
        shared: bool = False,
    ) -> None:
        """Create the view; see `Lake.changes_view`.

        Raises:
            InvalidNameError, ConfigError, ColumnNotFoundError: wrong arguments.
        """
        self.name = f"global_temp.{quote(name)}" if shared else quote(name)
        self.capture = capture
        self._spark, self._plain, self._shared = spark, name, shared
        rows = changed_rows(capture, spark, kind, keys)
        if former := _open.get(self._id):
            former.close()
        # These parse the name, those that drop a view do not.
        if shared:
            rows.createOrReplaceGlobalTempView(quote(name))
        else:
            rows.createOrReplaceTempView(quote(name))
        _open[self._id] = self

    def close(self) -> None:
        """Drop the view and the ICDC tables that it reads."""
        if _open.get(self._id) is self:
            del _open[self._id]
            catalog = self._spark.catalog
            (catalog.dropGlobalTempView if self._shared else catalog.dropTempView)(self._plain)
        self.capture.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ChangesView({self.name}, {self.capture!r})"

    @property
    def _id(self) -> tuple[int, str]:
        # Spark compares names without case. Sessions of one Spark share what is global.
        return 0 if self._shared else id(self._spark), self._plain.lower()


def changed_rows(capture: Capture, spark: SparkSession, kind: Kind, keys: Sequence[str] | None) -> DataFrame:
    """Return the rows of a capture: its feed, its upserts, or the distinct keys of its changed rows.

    Raises:
        ConfigError: the kind is unknown, or `keys` are missing or without meaning for it.
        ColumnNotFoundError: the table has no such column at the window's end.
    """
    if kind == "feed":
        return capture.feed(spark, keys)
    if kind == "keys":
        columns = keys or sorted(capture.schema.identifier_field_names())
        if not columns:
            raise ConfigError(f"{capture.window.table} has no identifier fields: name the columns of its keys")
        return capture.keys(spark, columns)
    if kind != "rows":
        raise ConfigError(f"kind {kind!r}: choose {', '.join(KINDS)}")
    if keys:
        raise ConfigError("kind 'rows' takes no keys: it has every inserted or updated row as of the window's end")
    return capture.upserts(spark)


# Open views, by session and name: a second one of the same name replaces the first.
_open: dict[tuple[int, str], ChangesView] = {}


@atexit.register
def _close_all() -> None:
    for view in list(_open.values()):
        try:
            view.close()
        except Exception as e:
            log.warning("the temporary view %s stays behind: %s", view.name, e)
