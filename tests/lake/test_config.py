"""The lake's settings: where each comes from, which wins, and the message of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake_assets import LakeConfig
from lake_assets.errors import ConfigError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_any_setting_the_lake_is_embedded_in_the_current_folder(tmp_path: Path) -> None:
    config = LakeConfig.load()
    assert config.home == tmp_path / ".lake"
    assert config.catalog == {"type": "sql", "uri": f"sqlite:///{tmp_path}/.lake/catalog.db"}
    assert config.warehouse == (tmp_path / ".lake" / "warehouse").as_uri()
    assert config.is_embedded
    assert config.spark.remote is None


def test_arguments_win_over_the_environment_and_the_environment_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "my.yaml", "name: from_file\nwarehouse: file:///from_file\nspark: {driver_memory: 1g}\n")
    assert LakeConfig.load(file).name == "from_file"
    assert LakeConfig.load(file).warehouse == "file:///from_file"
    monkeypatch.setenv("LAKE_NAME", "from_env")
    monkeypatch.setenv("LAKE_SPARK__REMOTE", "sc://127.0.0.1:15002")
    config = LakeConfig.load(file)
    assert config.name == "from_env"
    assert config.warehouse == "file:///from_file"
    assert config.spark.remote == "sc://127.0.0.1:15002"
    assert config.spark.driver_memory == "1g"
    assert LakeConfig.load(file, name="from_code").name == "from_code"


@pytest.mark.parametrize("where", ["argument", "LAKE_CONFIG", "LAKE_HOME", "current folder", "default home"])
def test_the_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    folder = {"current folder": tmp_path, "default home": tmp_path / ".lake"}.get(where, tmp_path / "else")
    file = write(folder / "lake.yaml", "name: found\n")
    if where == "LAKE_CONFIG":
        monkeypatch.setenv("LAKE_CONFIG", str(file))
    if where == "LAKE_HOME":
        monkeypatch.setenv("LAKE_HOME", str(folder))
    assert LakeConfig.load(file if where == "argument" else None).name == "found"


def test_a_relative_home_in_a_file_is_relative_to_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "deep" / "lake.yaml", "home: data\n")
    assert LakeConfig.load(file).home == tmp_path / "deep" / "data"


def test_a_relative_home_elsewhere_is_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_HOME", "data")
    assert LakeConfig.load().home == tmp_path / "data"
    assert LakeConfig(home=Path("other")).home == tmp_path / "other"


def test_a_tilde_means_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert LakeConfig.load(write(tmp_path / "lake.yaml", "home: ~/lake\n")).home == tmp_path / "me" / "lake"
    assert LakeConfig(home=Path("~/lake")).home == tmp_path / "me" / "lake"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae: lake\n", "nmae: unknown setting; did you mean `name`?"),
        (
            "zzz: lake\n",
            "zzz: unknown setting; known settings: name, home, catalog, warehouse, storage, protect, spark",
        ),
        ("spark: {remot: x}\n", "spark.remot: unknown setting; did you mean `remote`?"),
        ("spark: {conf: [a]}\n", "spark.conf: expected settings as `name: value`, found ['a']"),
        ("home: s3://bucket/lake\n", "home: s3://bucket/lake is a URL"),
        ("home: bad.yaml\n", "bad.yaml is a file: name a folder in LAKE_HOME"),
        ("name: 'a-b'\n", "name"),
        ("spark: {remotee: x}\n", "spark.remotee"),
        ("spark: {packages: one}\n", "spark.packages"),
        ("catalog: [1]\n", "catalog"),
        ("- a\n", "found a list"),
        ("name: [unclosed\n", "line 2: no valid YAML"),
        ("name: a\nname: b\n", "line 2: name: set twice in one place"),
        ("catalog: {type: sql, uri: 'secret', uri: 'secret'}\n", "line 1: uri: set twice in one place"),
        ("[" * 5_000, "nested too deeply"),
    ],
)
def test_a_wrong_file_is_named_with_its_mistake(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "bad.yaml", text)
    with pytest.raises(ConfigError) as caught:
        LakeConfig.load(file)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_relative_warehouse_in_a_file_is_relative_to_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "deep" / "lake.yaml", "warehouse: tables\n")
    assert LakeConfig.load(file).warehouse == (tmp_path / "deep" / "tables").as_uri()
    assert LakeConfig(warehouse="tables").warehouse == (tmp_path / "tables").as_uri()
    rest = {"type": "rest", "uri": "http://localhost:8181"}
    assert LakeConfig(warehouse="tables", catalog=rest).warehouse == "tables"


def test_tables_are_in_the_home_whatever_its_name(tmp_path: Path) -> None:
    home = tmp_path / "Größe 1+1 (ä&b)"
    assert LakeConfig(home=home).warehouse == f"file://{home}/warehouse"
    assert LakeConfig(home=tmp_path, warehouse=str(home)).warehouse == f"file://{home}"
    for name in ("50%", "a?b", "a#b"):
        with pytest.raises(ConfigError, match=r"tables cannot be in .*contains [%?#].*LAKE_WAREHOUSE|SQLite catalog"):
            LakeConfig.load(home=tmp_path / name)
        with pytest.raises(ConfigError, match=r"tables cannot be in .*contains [%?#].*LAKE_WAREHOUSE"):
            LakeConfig.load(home=tmp_path, warehouse=str(tmp_path / name))
    assert LakeConfig.load(home=tmp_path / "a#b", warehouse=str(tmp_path)).warehouse == f"file://{tmp_path}"


def test_a_home_may_be_a_file_url_but_no_other_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LakeConfig.load(write(tmp_path / "lake.yaml", f"home: file://{tmp_path}/a%20b\n")).home == tmp_path / "a b"
    monkeypatch.setenv("LAKE_HOME", "gs://bucket/lake")
    with pytest.raises(ConfigError, match=r"gs://bucket/lake is a URL"):
        LakeConfig.load()
    assert not (tmp_path / "gs:").exists()


def test_an_empty_variable_counts_as_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_HOME", "")
    assert LakeConfig.load().home == tmp_path / ".lake"


def test_a_variable_with_invalid_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_CATALOG", "rest")
    with pytest.raises(ConfigError, match=r"\"catalog\".*LAKE_CATALOG__TYPE=rest"):
        LakeConfig.load()


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_NAME", "not a name")
    with pytest.raises(ConfigError, match=r"environment.*name"):
        LakeConfig.load()


@pytest.mark.parametrize("how", ["argument", "LAKE_CONFIG"])
def test_a_requested_file_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    file = tmp_path / "none.yaml"
    monkeypatch.setenv("LAKE_CONFIG", str(file))
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        LakeConfig.load(file if how == "argument" else None)


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert LakeConfig.load(write(tmp_path / "lake.yaml", "\n")).name == "lake"


def test_a_file_read_earlier_does_not_affect_later_loads(tmp_path: Path) -> None:
    LakeConfig.load(write(tmp_path / "x.yaml", "name: first\n"))
    assert LakeConfig().name == "lake"


def test_a_rest_catalog_decides_where_tables_live() -> None:
    for catalog in ({"type": "rest", "uri": "http://localhost:8181"}, {"uri": "https://localhost:8181"}):
        config = LakeConfig(catalog=catalog)
        assert config.warehouse is None
        assert not config.is_embedded


def test_the_catalogs_own_warehouse_counts() -> None:
    assert LakeConfig(catalog={"type": "glue", "warehouse": "s3://w/"}).warehouse == "s3://w/"


def test_options_of_a_store_alone_leave_the_catalog_in_the_home(tmp_path: Path) -> None:
    config = LakeConfig(home=tmp_path, catalog={"s3.region": "eu-central-1"})
    assert config.is_embedded
    assert config.catalog_properties["s3.region"] == "eu-central-1"
    assert config.catalog_properties["uri"] == f"sqlite:///{tmp_path}/catalog.db"


def test_a_glue_catalog_needs_a_warehouse() -> None:
    with pytest.raises(ConfigError, match=r"warehouse: a glue catalog needs one: .*s3://bucket/tables"):
        LakeConfig.load(catalog={"type": "glue", "client.region": "eu-central-1"})
