"""What the settings of a pipeline's YAML are made of."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from lake_assets.errors import LakeError


class Strict(BaseModel):
    """Settings; what is not known is a mistake."""

    model_config = ConfigDict(extra="forbid")


@contextlib.contextmanager
def said() -> Generator[None]:
    """Errors of the package as pydantic wants them, which then says where."""
    try:
        yield
    except LakeError as e:
        raise ValueError(str(e)) from e


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class OrText:
    """In the JSON schema: text, or else what the annotated type says.

    By `if` instead of `anyOf`: a validator then says which setting of a mapping is wrong, and on which line, instead of
    that the whole fits none of two schemas.
    """

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"if": {"type": "string"}, "then": {"type": "string"}, "else": handler(core_schema)}


Names = Annotated[list[str], BeforeValidator(_listed), OrText()]
"""One name or a list of them."""
