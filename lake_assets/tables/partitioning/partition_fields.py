"""Declared fields of an Iceberg partition spec."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from lake_assets.errors import PipelineError
from lake_assets.lake import quote
from lake_assets.lake.names import read_column

_CALL = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)
_WIDTH = re.compile(r"(\d+)\s*,(.*)", re.DOTALL)
_PLAIN, _WITH_WIDTH = ("years", "months", "days", "hours"), ("bucket", "truncate")


@dataclass(frozen=True)
class PartitionField:
    """A field of an Iceberg partition spec.

    Attributes:
        column: the column that its values are computed from.
        transform: `years`, `months`, `days`, `hours`, `bucket`, `truncate`; empty: the value itself.
        width: number of buckets, or length.
    """

    column: str
    transform: str = ""
    width: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `city`, `days(ts)`, `bucket(16, id)` or `truncate(4, name)`; see `read_column` for the column.

        Raises:
            PipelineError: the text has another form.
        """
        call = _CALL.fullmatch(text.strip())
        if call is None:
            return cls(read_column(text.strip()))
        transform, inner = call[1], call[2].strip()
        if transform in _PLAIN and inner and not _WIDTH.fullmatch(inner):
            return cls(read_column(inner), transform)
        if transform in _WITH_WIDTH and (parts := _WIDTH.fullmatch(inner)) and parts[2].strip():
            return cls(read_column(parts[2].strip()), transform, int(parts[1]))
        raise PipelineError(
            f"{text!r} is not a partition field: write column, years(column), months(column), days(column), "
            "hours(column), bucket(16, column) or truncate(4, column); a column of such a name in backticks"
        )

    @property
    def sql(self) -> str:
        """The field in Spark's DDL."""
        inner = ", ".join([*([str(self.width)] if self.width is not None else []), quote(self.column)])
        return f"{self.transform}({inner})" if self.transform else inner

    @property
    def iceberg(self) -> str:
        """The transform in Iceberg's metadata."""
        if not self.transform:
            return "identity"
        # Spark's functions have plural names.
        return f"{self.transform}[{self.width}]" if self.width is not None else self.transform.removesuffix("s")
