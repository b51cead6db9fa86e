"""Settings of the columns by which the rows of a change set tell what happened: `flag`, with named presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from lake_assets.formats.flat_rows import CHANGE_SET
from lake_assets.formats.row_layouts import RowLayout, word_of
from lake_assets.lake.names import nearest
from lake_assets.pipeline.config.setting_types import ColumnName, OrText, Strict

# Layouts of tools that always write the same columns.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "aws-dms": {
        "column": "Op", "insert": "I", "update": "U", "delete": "D", "missing": "load", "load_files": "LOAD*",
    },
}  # fmt: skip


def _words(value: object) -> object:
    """Return values of the flag as a list of texts: YAML reads an unquoted `true` or `1` as something else."""
    values = value if isinstance(value, list) else [value]
    return [word_of(v) if isinstance(v, str | int | float) else v for v in values]


def preset(value: object) -> object:
    """Return the settings of a named preset."""
    if not isinstance(value, str):
        return value
    if value not in PRESETS:
        raise ValueError(
            f"no preset {value!r}{nearest(value, PRESETS)}: known are {', '.join(PRESETS)}. For another layout, write "
            "{column: ..., insert: ..., update: ..., delete: ...}"
        )
    return dict(PRESETS[value])


Words = Annotated[
    list[str],
    BeforeValidator(_words),
    WithJsonSchema(
        {"type": ["string", "boolean", "number", "array"], "items": {"type": ["string", "boolean", "number"]}}
    ),
]


class FlagSettings(Strict):
    """The column that tells whether a row was inserted, updated or deleted, and its values."""

    column: ColumnName = Field(description="the column of the operation; it is not a column of the tables")
    insert: Words = Field(
        default_factory=list, description='values for an insert, in any case; "*": any value that is not named'
    )
    update: Words = Field(default_factory=list, description="values for an update")
    delete: Words = Field(default_factory=list, description="values for a delete")
    missing: Literal["insert", "update", "delete", "load"] | None = Field(
        default=None,
        description="what a row without a value in the column is; load: a row of a first load, which comes before "
        "all changes; default: the row is rejected",
    )
    load_files: str = Field(
        default="",
        description="pattern of file names of a first load, which land before all other files: LOAD*",
    )

    @property
    def words(self) -> dict[str, str]:
        """The op of each declared value."""
        return {word: op for op in ("insert", "update", "delete") for word in getattr(self, op)}

    @model_validator(mode="after")
    def _means_something(self) -> FlagSettings:
        listed = [word for op in ("insert", "update", "delete") for word in getattr(self, op)]
        if duplicates := sorted({w for w in listed if listed.count(w) > 1}):
            raise ValueError(
                f"{', '.join(duplicates)} is named twice (upper and lower case are the same): name each value under "
                "one of insert, update and delete"
            )
        if "" in listed:
            raise ValueError('an empty value counts as missing: write `missing: insert` instead of `insert: ""`')
        if not self.insert and not self.update and self.missing in (None, "delete"):
            raise ValueError("no value stands for an insert or update: name one in `insert` or `update`")
        return self


Flag = Annotated[FlagSettings | None, BeforeValidator(preset), OrText()]


def row_layout(flag: FlagSettings | None, time: list[str]) -> RowLayout | None:
    """Return the declared columns of a change set; None if neither setting is declared."""
    if flag is None:
        return RowLayout(CHANGE_SET.op, tuple(CHANGE_SET.words.items()), time=tuple(time)) if time else None
    return RowLayout(flag.column, tuple(flag.words.items()), flag.missing or "", tuple(time), flag.load_files)
