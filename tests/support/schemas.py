"""Columns of three tables, users, cities and orders, for plans of models."""

from __future__ import annotations

from lake_assets.lake import TableId

SCHEMAS = {
    TableId.parse("final.users"): {"id": "bigint", "name": "string", "city_id": "int"},
    TableId.parse("final.cities"): {"id": "int", "name": "string", "country": "string"},
    TableId.parse("final.orders"): {"id": "bigint", "user_id": "bigint", "price": "decimal(10,2)", "day": "date"},
}
