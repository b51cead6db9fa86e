"""Iceberg's type VARIANT, which PyIceberg does not know: enough to load the metadata of a table that uses it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import InputFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import TableVersion
from pyiceberg.types import PrimitiveType

from lake_assets.lake.metadata_json import decode

_NAME = "variant"
# Properties that name a type in a schema: of a field, a list's elements, a map's keys and values.
_TYPE_OF = ("type", "element", "key", "value")


class VariantType(PrimitiveType):
    """A value of any type, with its type (format v3)."""

    root: Literal["variant"] = Field(default=_NAME)

    def minimum_format_version(self) -> TableVersion:
        """Return the first format version with this type."""
        return 3


def table_metadata(file: InputFile) -> TableMetadata:
    """Read a metadata file, even of a table with VARIANT columns.

    Raises:
        ValidationError: PyIceberg cannot read the file for another reason.
    """
    try:
        return FromInputFile.table_metadata(file)
    except ValidationError:
        with file.open() as f:
            content = f.read()
        raw = decode(content)
        schemas = _with_variants(raw.get("schemas"))
        if schemas == raw.get("schemas"):
            raise
        return TableMetadataUtil.parse_obj({**raw, "schemas": schemas})


def _with_variants(schema: Any) -> Any:
    """Replace the type name `variant` in a schema's JSON, on which PyIceberg would fail, with a type object."""
    if isinstance(schema, list):
        return [_with_variants(s) for s in schema]
    if isinstance(schema, dict):
        return {k: VariantType() if k in _TYPE_OF and v == _NAME else _with_variants(v) for k, v in schema.items()}
    return schema
