"""No message shows a secret of the configuration."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.errors import CatalogUnavailableError, ConfigError, LakeError
from lake_assets.lake import SparkConfig
from lake_assets.lake.redaction import hide, hide_in, hide_in_error, secrets_in, without_quoted
from lake_assets.lake.spark_session import catalog_conf, check_remote

PLANTED = "pl4nted/secret"
IN_URI = "pl4nted%2Fsecret"


def no_secret(text: object) -> None:
    assert "pl4nted" not in str(text), text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://me:pl4nted@db:5432/lake", "postgresql://me:***@db:5432/lake"),
        ("postgresql+psycopg://me:pl4nted@db/lake", "postgresql+psycopg://me:***@db/lake"),
        ("jdbc:postgresql://db/lake?user=me&password=pl4nted&ssl=true", "jdbc:postgresql://db/lake?user=me&password=***&ssl=true"),
        ("sc://127.0.0.1:15002/;token=pl4nted;user_id=me", "sc://127.0.0.1:15002/;token=***;user_id=me"),
        ("sc://127.0.0.1:15002/;authorization=Bearer%20pl4nted", "sc://127.0.0.1:15002/;authorization=Bearer%20***"),
        ("postgresql://me:pl4@nted@db:5432/lake", "postgresql://me:***@db:5432/lake"),
        ('{"user": "me", "password": "pl4nted"}', '{"user": "me", "password": "***"}'),
        ("AWS_SECRET_ACCESS_KEY=pl4nted was refused", "AWS_SECRET_ACCESS_KEY=*** was refused"),
        ("https://s3/a?X-Amz-Signature=pl4nted&b=1", "https://s3/a?X-Amz-Signature=***&b=1"),
        ("Authorization: Basic pl4nted", "Authorization: Basic ***"),
        ("write `password: {env: NAME}`; extra input 'token': x", "write `password: {env: NAME}`; extra input 'token': x"),
        ("sqlite:////tmp/a@b/catalog.db", "sqlite:////tmp/a@b/catalog.db"),
        ("https://catalog:8181/api", "https://catalog:8181/api"),
    ],
)  # fmt: skip
def test_addresses_are_shown_without_secrets(text: str, expected: str) -> None:
    assert hide_in(text) == expected


@pytest.mark.parametrize(
    "name",
    ["s3.secret-access-key", "s3.access-key-id", "token", "credential", "fs.s3a.access.key", "spark.hadoop.fs.s3a.secret.key",
     "adls.account-key", "adls.sas-token", "jdbc.password", "gcs.oauth2.token", "javax.jdo.option.ConnectionPassword",
     "s3.sse.key", "gcs.encryption-key", "gcs.decryption-key", "ssl.key.passphrase", "db.pwd"],
)  # fmt: skip
def test_settings_with_secrets_are_recognized_by_name(name: str) -> None:
    assert hide({name: "pl4nted", "warehouse": "s3://bucket"}) == {name: "***", "warehouse": "s3://bucket"}


def config(tmp_path: Path, **more: Any) -> LakeConfig:
    catalog = {
        "type": "sql",
        "uri": f"postgresql+psycopg2://me:{IN_URI}@127.0.0.1:1/lake",
        "s3.secret-access-key": PLANTED,
    }
    conf = {"spark.hadoop.fs.s3a.secret.key": PLANTED}
    return LakeConfig(home=tmp_path / "lake", catalog=catalog | more, spark=SparkConfig(conf=conf))


def test_a_configuration_is_printed_without_secrets(tmp_path: Path) -> None:
    settings = config(tmp_path)
    for text in (repr(settings), str(settings), f"{settings.spark!r}", repr(Lake(settings).config)):
        no_secret(text)
    assert "127.0.0.1:1/lake" in repr(settings)
    assert settings.catalog["s3.secret-access-key"] == PLANTED


def test_errors_of_the_catalog_show_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises((LakeError, Exception)) as raised:
        Lake(config(tmp_path)).table("final.t")
    error: BaseException | None = raised.value
    while error is not None:
        no_secret(f"{error!r} {error}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    no_secret(caplog.text)
    with pytest.raises(CatalogUnavailableError) as unknown:
        Lake(config(tmp_path, uri=f"nodatabase://me:{IN_URI}@h/lake")).table("final.t")
    no_secret(unknown.value)


def test_errors_of_the_configuration_show_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lake.yaml"
    for text in (
        f"catalog:\n  password: {PLANTED}\n  - x\n",
        f"catalog: {{uri: 'postgresql://me:{IN_URI}@h/l', s3.secret-access-key: [{PLANTED}]}}\n",
        f"spark: {{remote: 'sc://h/;token={IN_URI}', nothing: 1}}\n",
        f"catalog: postgresql://me:{IN_URI}@h/l\n",
    ):
        file.write_text(text)
        with pytest.raises(ConfigError) as raised:
            LakeConfig.load(file)
        no_secret(f"{raised.value} {raised.value.__cause__}")
    monkeypatch.setenv("LAKE_CATALOG", f"postgresql://me:{IN_URI}@h/l")
    with pytest.raises(ConfigError) as raised:
        LakeConfig.load()
    no_secret(f"{raised.value} {raised.value.__cause__}")
    monkeypatch.delenv("LAKE_CATALOG")
    with pytest.raises(ConfigError) as raised:
        catalog_conf(config(tmp_path, uri=f"mysql://me:{IN_URI}@h/l"))
    no_secret(raised.value)
    with pytest.raises(ConfigError) as raised:
        check_remote(f"http://h/;token={IN_URI}")
    no_secret(raised.value)


def test_an_error_and_its_causes_are_shown_without_secrets() -> None:
    class OfJava(Exception):
        def __str__(self) -> str:
            return "jdbc:postgresql://db/lake?password=pl4nted"

    class OfSpark(Exception):
        def __init__(self, message: str) -> None:
            self.message = message

        def __str__(self) -> str:
            return self.message

    def fail() -> None:
        try:
            try:
                raise OfJava
            except OfJava as e:
                raise OfSpark("log in as postgresql://me:pl4nted@db") from e
        except OfSpark as e:
            raise LakeError("password=pl4nted") from e

    with pytest.raises(LakeError) as caught:
        fail()
    hide_in_error(caught.value, hide_in)
    # Without the lines of this file.
    text = "\n".join(x for x in "".join(traceback.format_exception(caught.value)).splitlines() if x[:1] != " ")
    no_secret(text)
    assert "OfJava: jdbc:postgresql://db/lake?password=***" in text
    assert "log in as postgresql://me:***@db" in text


def test_a_switch_is_no_secret() -> None:
    settings = {"token-refresh-enabled": "true", "rest.token": "s3cr3t"}
    assert list(secrets_in(settings)) == ["s3cr3t"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no such kind: 'v4lue' (3)", "no such kind: '…' (3)"),
        ("the table's key 'v4lue' occurs twice, can't go on", "the table's key '…' occurs twice, can't go on"),
        ("the streams' records 'v4lue'", "the streams' records '…'"),
        ("no such kind: " + repr("O'Brien") + " (3)", "no such kind: '…' (3)"),
        (f"no such kind: {b'v4lue'!r}, " + repr(b"O'v4lue"), "no such kind: b'…', b'…'"),
        ("'it's v4lue' and 'v4lue'", "'…' and '…'"),
        (r"'O\'v4lue' and 'O''v4lue'", "'…' and '…''…'"),
        ("""a "name" isn't "another" """, """a "name" isn't "another" """),
        ("'" + "v4lue " * 1_000 + "'", "'…'"),
    ],
)  # fmt: skip
def test_what_may_be_a_value_is_hidden_beside_apostrophes(text: str, expected: str) -> None:
    assert without_quoted(text) == expected
