"""Metadata of tables with types that PyIceberg does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from pyiceberg.types import ListType
from sqlalchemy import text

from lake_assets import Lake, LakeConfig
from lake_assets.errors import CorruptMetadataError
from lake_assets.lake.variant import VariantType


def with_type(lake: Lake, name: str) -> None:
    """Create the table `a.t`; its column `v` and the elements of `vs` have a type unknown to PyIceberg."""
    lake.ensure_namespace(("a",))
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("vs", pa.list_(pa.string()))])
    table = lake.catalog.create_table("a.t", schema)
    file = Path(urlparse(table.metadata_location).path)
    changed = json.loads(file.read_text().replace('"string"', f'"{name}"')) | {"format-version": 3, "next-row-id": 0}
    other = file.with_name("00001-other.metadata.json")
    other.write_text(json.dumps(changed))
    # Registering it would parse it.
    catalog: Any = lake.catalog
    with catalog.engine.begin() as connection:
        connection.execute(text("UPDATE iceberg_tables SET metadata_location = :path"), {"path": str(other)})


def test_a_table_with_variant_columns_is_loaded(tmp_path: Path) -> None:
    lake = Lake(LakeConfig(home=tmp_path))
    with_type(lake, "variant")
    schema = lake.table("a.t").schema()
    assert isinstance(schema.find_type("v"), VariantType)
    elements = schema.find_type("vs")
    assert isinstance(elements, ListType)
    assert isinstance(elements.element_type, VariantType)
    assert lake.capture("a.t").is_empty


def test_another_unknown_type_is_named(tmp_path: Path) -> None:
    lake = Lake(LakeConfig(home=tmp_path))
    with_type(lake, "mystery")
    with pytest.raises(CorruptMetadataError, match=r"(?s)metadata of a\.t.*mystery"):
        lake.table("a.t")
