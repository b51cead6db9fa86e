"""Ranges and keys of what changed in all sources of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from lake_assets.capture import Capture, FieldRange
from lake_assets.capture.field_ranges import NOTHING
from lake_assets.errors import ColumnNotFoundError, JobError
from lake_assets.jobs.step_settings import ByColumn, of_source
from lake_assets.lake import TableId, quote, thresholds
from lake_assets.lake.foreign_errors import first_line
from lake_assets.lake.names import nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def united_ranges(
    table: TableId, declared: Mapping[str, ByColumn], changed: Mapping[str, Capture]
) -> dict[str, FieldRange]:
    """Return the hull of each declared column over the changed sources.

    Raises:
        ColumnNotFoundError: a source has no such column.
        JobError: the types of two sources cannot be compared.
    """
    hulls: dict[str, FieldRange] = {}
    for name, by in declared.items():
        hull, of = NOTHING, list[str]()
        for source, change in changed.items():
            column = of_source(by, source)
            if column is None:
                continue
            if column not in change.ranges:
                raise ColumnNotFoundError(
                    f"{table}: `ranges`: {source} has no column {column!r}{nearest(column, change.ranges)}, so "
                    f"its changes belong to no range of {name}. Name the column by source, or read {source} as a lookup"
                )
            try:
                hull |= change.ranges[column]
            except TypeError as e:
                rest = ", ".join(f"{s}: {c}" for s in changed if s != source and (c := of_source(by, s)))
                raise JobError(
                    f"{table}: `ranges`: {name} has another type in {source} than in {', '.join(of)}. Name "
                    f"columns of one type by source, or give {source} a range of its own: `{{{name}: {{{rest}}}, "
                    f"NAME: {{{source}: {column}}}}}` ({e})"
                ) from e
            of.append(source)
        hulls[name] = hull
    return hulls


def changed_keys(
    table: TableId,
    spark: Callable[[], SparkSession],
    declared: Mapping[str, ByColumn],
    changed: Mapping[str, Capture],
) -> list[dict[str, Any]]:
    """Return the distinct values of expressions over the changed rows of all sources.

    Raises:
        JobError: there are too many; or Spark does not accept an expression.
    """
    from pyspark.errors import PySparkException

    parts: list[Any] = []
    for source, change in changed.items():
        # A source has all keys or none.
        expressions = {name: e for name, by in declared.items() if (e := of_source(by, source)) is not None}
        if not expressions:
            continue
        columns = [f"{e} AS {quote(name)}" for name, e in expressions.items()]
        try:
            parts.append(change.signed(spark()).selectExpr(*columns))
        except PySparkException as e:
            raise JobError(
                f"{table}: `keys`: Spark does not accept {', '.join(columns)} over {source}: {first_line(e)}. Correct "
                "the expression"
            ) from e
    if not parts:
        return []
    rows = reduce(lambda a, b: a.unionAll(b), parts).distinct().limit(thresholds.JOB_KEYS + 1).collect()
    if len(rows) > thresholds.JOB_KEYS:
        raise JobError(
            f"{table}: more than {thresholds.JOB_KEYS:,} keys changed, too many to hand to a job: leave `keys` out, "
            "and use `ranges` or read the changed rows (`step.capture(source)`, or the ICDC tables)"
        )
    return sorted((row.asDict() for row in rows), key=lambda k: [(v is None, str(v)) for v in k.values()])
