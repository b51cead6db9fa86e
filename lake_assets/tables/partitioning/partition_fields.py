"""Declared fields of an Iceberg partition spec."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from lake_assets.errors import PipelineError
from lake_assets.lake import quote

_PARTITION = re.compile(r"(?:(years|months|days|hours|bucket|truncate)\s*\(\s*(?:(\d+)\s*,)?)?\s*([^\s(),]+)\s*(\)?)")


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
        """Parse `city`, `days(ts)`, `bucket(16, id)` or `truncate(4, name)`.

        Raises:
            PipelineError: the text has another form.
        """
        match = _PARTITION.fullmatch(text.strip())
        if match:
            transform, width, column = match[1] or "", match[2], match[3].strip("`")
            if bool(transform) == bool(match[4]) and (width is not None) == (transform in ("bucket", "truncate")):
                return cls(column, transform, int(width) if width else None)
        raise PipelineError(
            f"{text!r} is not a partition field: write column, years(column), months(column), days(column), "
            "hours(column), bucket(16, column) or truncate(4, column)"
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
