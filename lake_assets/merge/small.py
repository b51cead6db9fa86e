"""Settings for steps with little data.

Spark compiles a Java class for every stage of every query before it reads a row. For a micro-batch that compiling is
most of the time; interpreted, a step takes a half to a third as long. Measured in docs/decisions/0005-small-steps.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable

from lake_assets.lake import LakeBase, TableId

SMALL_BYTES, SMALL_ROWS = 32 << 20, 50_000
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@contextlib.contextmanager
def fitting(lake: LakeBase, read: Iterable[TableId]) -> Generator[None]:
    """Interpret queries in the body where all tables that it may read together are small.

    Settings in the lake's own configuration win.

    Args:
        lake: its Spark session is set, and set back.
        read: the target and the sources, as a whole: what a capture leaves out only makes it less.
    """
    settings = {k: v for k, v in _INTERPRETED.items() if k not in lake.config.spark.conf}
    sizes = [size(lake, t) for t in read] if settings else []
    # Rows as well: records of one kind are packed into a hundredth of their size.
    if not sizes or sum(b for b, _ in sizes) > SMALL_BYTES or sum(n for _, n in sizes) > SMALL_ROWS:
        yield
        return
    conf = lake.spark().conf
    before = {key: conf.get(key, None) for key in settings}
    for key, value in settings.items():
        conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                conf.unset(key)
            else:
                conf.set(key, value)


def size(lake: LakeBase, table: TableId) -> tuple[int, int]:
    """Bytes and rows of a table's current data files, as its summary says; 0 for one that is not there."""
    if not lake.exists(table):
        return 0, 0
    current = lake.table(table).current_snapshot()
    said = current.summary.additional_properties if current and current.summary else {}
    return int(said.get("total-files-size") or 0), int(said.get("total-records") or 0)
