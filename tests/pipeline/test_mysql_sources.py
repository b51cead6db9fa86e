"""The declaration of MariaDB and MySQL as live sources."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lake_assets.pipeline.config.live_specs_of_streams import live_spec
from lake_assets.pipeline.config.pipeline_config import Stream
from lake_assets.sources.live_specs import MysqlSpec, SourceTableSpec


def stream(source: dict[str, Any], **more: Any) -> Stream:
    return Stream.model_validate({"name": "shop", "tables": ["shop.users"], "source": source, **more})


@pytest.mark.parametrize("product", ["mariadb", "mysql"])
def test_a_server_becomes_a_spec(product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"host": "db", "user": "lake", "password": {"env": "SECRET"}, "on_gap": "snapshot", "max_wait": "5s"}
    declared = stream(
        {product: settings},
        tables=[{"table": "shop.users", "key": "email", "rename": {"mail": "email"}}],
        exclude=["shop.tmp_*"],
    )
    spec = live_spec("p", declared)
    assert isinstance(spec, MysqlSpec)
    assert (spec.product, spec.port, spec.wait, spec.on_gap) == (product, 3306, 5.0, "snapshot")
    # Names as the source has them.
    assert spec.tables == (SourceTableSpec("shop.users", (("mail",),)),)
    assert spec.exclude == ("shop.tmp_*",)
    monkeypatch.setenv("SECRET", "s3cret")
    assert spec.password == "s3cret"
    assert "s3cret" not in repr(spec)


def server_id(pipeline: str, declared: Stream) -> int:
    spec = live_spec(pipeline, declared)
    assert isinstance(spec, MysqlSpec)
    return spec.server_id


def test_each_stream_reads_under_a_number_of_its_own() -> None:
    source = {"mariadb": {"user": "lake"}}
    numbers = {server_id(p, stream(source, name=n)) for p in "ab" for n in ("shop", "crm")}
    assert len(numbers) == 4
    assert all(1 << 30 <= n < 1 << 31 for n in numbers)
    assert server_id("a", stream({"mariadb": {"user": "lake", "server_id": 12}})) == 12


@pytest.mark.parametrize(
    ("source", "more", "text"),
    [
        ({"mariadb": {"user": "u"}, "mysql": {"user": "u"}}, {}, "exactly one of `table`, `postgres`, `mariadb`, `mysql`"),
        ({}, {}, "there is none"),
        ({"mariadb": {"user": "u", "password": "open"}}, {}, "a password does not belong in a file"),
        ({"mariadb": {"user": "u", "properties": {"database.server.id": "1"}}}, {}, "set by lake_assets itself"),
        ({"mariadb": {"user": "u"}}, {"format": "wal2json-v2"}, "`source: mariadb` gives records of `format: debezium`"),
        ({"mysql": {"user": "u"}}, {"tables": []}, "`source: mysql` needs the `tables` to read"),
        ({"mysql": {"user": "u", "server_id": 0}}, {}, "server_id"),
        ({"mysql": {}}, {}, "user"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_an_error(source: dict[str, Any], more: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        stream(source, **more)
