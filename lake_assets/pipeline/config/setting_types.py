"""Types and helpers for the settings of a pipeline's YAML."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from lake_assets.errors import LakeError
from lake_assets.lake import TableId
from lake_assets.lake.names import read_column
from lake_assets.lake.setting_values import seconds_of

_COMBINATION = "_is_combination"

C = TypeVar("C", bound=Callable[..., Iterable[str]])


def combination(check: C) -> C:
    """Mark a method of `Strict` settings that yields what is wrong with several settings together."""
    setattr(check, _COMBINATION, True)
    return check


class Strict(BaseModel):
    """Settings that reject unknown names, and report all wrong combinations at once (see `combination`)."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        checks = {
            name: check
            for of in reversed(type(self).__mro__)
            for name, check in vars(of).items()
            if getattr(check, _COMBINATION, False)
        }
        problems: list[str] = []
        for check in checks.values():
            try:
                problems.extend(check(self))
            except ValueError as e:
                problems.append(str(e))
        if problems:
            raise ValueError("\n".join(problems))
        return self


@contextlib.contextmanager
def as_value_errors() -> Generator[None]:
    """Convert errors of the package into ValueErrors, to which pydantic adds the location."""
    try:
        yield
    except LakeError as e:
        raise ValueError(str(e)) from e


def checked(read: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that keeps a value which `read` accepts."""

    def check(value: Any) -> Any:
        with as_value_errors():
            read(value)
        return value

    return AfterValidator(check)


def listed(value: object) -> object:
    """Wrap a single name in a list."""
    return [value] if isinstance(value, str) else value


def text_as(name: str) -> BeforeValidator:
    """Return a validator that reads a text as settings with this text under a name."""
    return BeforeValidator(lambda value: {name: value} if isinstance(value, str) else value)


class OrText:
    """JSON schema of a setting that is text or the annotated type.

    It uses `if` instead of `anyOf`, so a validator reports the wrong setting and its line, rather than a whole mapping
    that matches neither of two schemas.
    """

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"if": {"type": "string"}, "then": {"type": "string"}, "else": handler(core_schema)}


def _column(value: str) -> str:
    with as_value_errors():
        return read_column(value)


ColumnName = Annotated[str, AfterValidator(_column)]
"""A column's name, as `read_column` reads it. Every setting that names columns has it."""

Columns = Annotated[list[ColumnName], BeforeValidator(listed), OrText()]
"""One column or a list of them."""

Names = Annotated[list[str], BeforeValidator(listed), OrText()]
"""One name or a list of them."""

Duration = Annotated[str | float, checked(seconds_of)]
"""A number of seconds, or a text such as `30s`, `5m`, `1h` and `7d`."""

TableName = Annotated[str, checked(TableId.parse)]
"""The name of a table in the lake: `namespace.name`."""


def table_to_write(advice: str) -> AfterValidator:
    """Return a validator of tables that users name, which are in no layer that the package fills itself."""

    def check(name: str) -> None:
        layer = TableId.parse(name).namespace[0]
        if layer.lower() in ("icdc", "raw"):
            raise ValueError(f"{name}: tables in {layer} are {advice} another namespace, for example agg")

    return checked(check)
