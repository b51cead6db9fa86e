"""The lake's configuration, from a file, environment variables or code; the default needs no server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from lake_assets.errors import ConfigError
from lake_assets.lake.paths import LocalPath, file_url, local_path
from lake_assets.lake.project_root import find_project
from lake_assets.lake.redaction import hide, hide_in, secrets_in
from lake_assets.lake.setting_errors import setting_errors
from lake_assets.lake.signal_settings import SignalSettings
from lake_assets.lake.yaml_text import YamlError, line_of, load, read_text

ICEBERG_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
SQLITE_JDBC = "org.xerial:sqlite-jdbc:3.50.3.0"
POSTGRES_JDBC = "org.postgresql:postgresql:42.7.7"
# What Iceberg's Java classes need to reach tables in S3, and Glue; of the version of the runtime.
AWS_BUNDLE = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
# What the names of options of object stores begin with.
_STORES = ("s3.", "gcs.", "adls.", "client.")

_file_values: ContextVar[dict[str, Any]] = ContextVar("file_values", default={})  # noqa: B039 (never mutated)


def catalog_kind(properties: Mapping[str, Any]) -> str:
    """Return the type of a catalog with these properties; see `LakeConfig.kind`."""
    inferred = {"http": "rest", "https": "rest", "thrift": "hive"}.get(urlparse(str(properties.get("uri", ""))).scheme)
    return properties.get("type") or inferred or "sql"


class SparkConfig(BaseModel):
    """Settings of Spark: a local session by default, a Spark Connect server with `remote`."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    remote: str | None = Field(
        default=None, description="Spark Connect server, such as sc://127.0.0.1:15002; default: local Spark"
    )
    master: str = Field(default="local[*]", description="Spark master of a local session")
    driver_memory: str = Field(
        default="4g", description="heap of the local driver; the process's first session fixes it"
    )
    packages: list[str] = Field(default_factory=list, description="more jars, by coordinates group:artifact:version")
    conf: dict[str, str] = Field(default_factory=dict, description="more Spark settings; they override all others")

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the settings without secrets, for `repr` (a hook of pydantic)."""
        return ((name, hide(value, name or "")) for name, value in super().__repr_args__())


class CostsConfig(BaseModel):
    """Prices, by which `lake-assets costs` and `lake-assets report` turn what steps used into money."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    core_hour: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="price of one core for an hour"
    )
    terabyte: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="price of 10^12 bytes that steps read or write"
    )
    currency: str = Field(default="", max_length=12, description="what the prices are in, such as EUR")

    @property
    def are_known(self) -> bool:
        """Whether any price is declared."""
        return self.core_hour is not None or self.terabyte is not None

    def money(self, core_seconds: float, size: float) -> float:
        """Return the price of core-seconds and bytes; what has no price costs nothing."""
        return core_seconds / 3600 * (self.core_hour or 0) + size / 1e12 * (self.terabyte or 0)


class LakeConfig(BaseSettings):
    """One configuration for PyIceberg and Spark.

    Sources in order of precedence: arguments, environment variables (`LAKE_HOME`, `LAKE_WAREHOUSE`,
    `LAKE_CATALOG__URI`, `LAKE_SPARK__REMOTE`, ...), the file.
    """

    model_config = SettingsConfigDict(
        env_prefix="LAKE_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    name: str = Field(
        default="lake", description="catalog name, the same in Spark and PyIceberg", pattern=r"^[A-Za-z_]\w*$"
    )
    home: LocalPath = Field(
        default_factory=lambda: _home(),
        description="folder of the embedded default, logs and landing folders; default: .lake in the current folder "
        "or in that of the project",
    )
    catalog: dict[str, str] = Field(
        default_factory=dict, description="PyIceberg catalog properties; without `type` and `uri`: SQLite in `home`"
    )
    warehouse: str | None = Field(default=None, description="folder or URL of the tables; default: `home`/warehouse")
    storage: dict[str, str] = Field(
        default_factory=dict,
        description="options of object stores, by PyIceberg's names (s3.endpoint, s3.region, ...), for landing folders "
        "and tables; default: those of the environment (AWS_REGION, ...)",
    )
    protect: bool = Field(
        default=True, description="whether to tag the snapshots that are still needed of tables that others write"
    )
    spark: SparkConfig = Field(default=SparkConfig(), description="where Spark runs, and its settings")
    signals: SignalSettings = Field(default_factory=SignalSettings, description="what the lake tells other systems")
    costs: CostsConfig = Field(default=CostsConfig(), description="prices, for reports")

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the settings without secrets, for `repr` (a hook of pydantic)."""
        return ((name, hide(value, name or "")) for name, value in super().__repr_args__())

    def hidden(self, text: object) -> str:
        """Replace the secrets of these settings in a text."""
        settings = {*secrets_in(self.catalog), *secrets_in(self.storage), *secrets_in(self.spark.conf)}
        return hide_in(str(text), settings | self.signals.secrets)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources of settings; the first one with a value wins (a hook of pydantic-settings)."""
        # The file comes last: environment variables override it.
        return init_settings, env_settings, _FileSettings(settings_cls)

    @model_validator(mode="after")
    def _resolve(self) -> LakeConfig:
        self.home = self.home.expanduser().absolute()
        if self.home.exists() and not self.home.is_dir():
            raise ValueError(f"home: {self.home} is a file: name a folder in LAKE_HOME, or as `home` in lake.yaml")
        if not {"type", "uri"} & self.catalog.keys():  # none, or only options such as those of a store
            if found := sorted(set("%?") & set(str(self.home))):
                raise ValueError(
                    f"home: {self.home} cannot hold the SQLite catalog: its name contains {' and '.join(found)}"
                )
            self.catalog = self.catalog | {"type": "sql", "uri": f"sqlite:///{self.home / 'catalog.db'}"}
        if self.warehouse is None:
            self.warehouse = self.catalog.get("warehouse")
            if self.warehouse is None and self.kind == "glue":
                # A folder of this machine would be registered where nobody else can read it.
                raise ValueError("warehouse: a glue catalog needs one: name a place such as s3://bucket/tables")
            if self.warehouse is None and self.kind != "rest":
                self.warehouse = file_url(self.home / "warehouse")
        elif self.kind == "sql" and not urlparse(self.warehouse).scheme:
            # Spark and PyIceberg would resolve a relative path from different working directories.
            self.warehouse = file_url(Path(self.warehouse).expanduser().absolute())
        return self

    @property
    def kind(self) -> str:
        """The type of the catalog; of one without it, the type that PyIceberg infers from the URI."""
        return catalog_kind(self.catalog)

    @property
    def object_stores(self) -> dict[str, str]:
        """The options of landing folders in object stores: those of the tables, and `storage`."""
        return {k: v for k, v in self.catalog.items() if k.startswith(_STORES)} | self.storage

    @property
    def catalog_properties(self) -> dict[str, str]:
        """The properties of the catalog, with the options of the store that its tables are in."""
        return {**self.storage, **self.catalog}

    @property
    def scheme(self) -> str:
        """The scheme of the warehouse: `file`, `s3`, ...; empty: the catalog's server chooses the place of tables."""
        return urlparse(self.warehouse or "").scheme.lower()

    @property
    def is_embedded(self) -> bool:
        """Whether the catalog is a SQLite file."""
        return self.catalog.get("uri", "").startswith("sqlite:")

    @classmethod
    def load(cls, path: str | Path | None = None, **overrides: Any) -> LakeConfig:
        """Read the configuration.

        Args:
            path: a YAML file; default: `LAKE_CONFIG`, else an existing lake.yaml in `LAKE_HOME`, in the current folder
                or in that of the project (see `find_project`), else the embedded default.
            overrides: settings that override all sources.

        Raises:
            ConfigError: the file is missing or not YAML, or a setting is wrong; names the file and the setting.
        """
        file = _find_file(path)
        token = _file_values.set(_read(file) if file else {})
        try:
            return cls(**overrides)
        except ValidationError as error:
            where = str(file) if file else "the environment or arguments"
            mistakes = "; ".join(f"{hide_in(text)}{_set_at(at, file)}" for at, text in setting_errors(cls, error))
            raise ConfigError(f"lake configuration from {where}: {mistakes}") from error
        except SettingsError as error:
            raise ConfigError(
                f"lake configuration: {hide_in(str(error))}: write the variable as JSON, or one variable per setting, "
                "such as LAKE_CATALOG__TYPE=rest"
            ) from error
        finally:
            _file_values.reset(token)


def _set_at(place: Sequence[int | str], file: Path | None) -> str:
    """Return where a setting is set: in an environment variable, or on a line of the file; empty if unknown."""
    variables = {"LAKE_" + "__".join(map(str, place[:n])).upper() for n in range(1, len(place) + 1)}
    if found := next((name for name in os.environ if name.upper() in variables), None):
        return f" (in the environment variable {found})"
    node = load(read_text(file))[1] if file and place else None
    return f" (line {line_of(node, place)})" if node is not None else ""


class _FileSettings(PydanticBaseSettingsSource):
    """The YAML file as the last source of settings."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return _file_values.get().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(_file_values.get())


def _find_file(path: str | Path | None) -> Path | None:
    requested = path or os.environ.get("LAKE_CONFIG")
    if requested:
        file = Path(requested).expanduser()
        if not file.is_file():
            raise ConfigError(
                f"no lake configuration at {file}: name an existing YAML file, or leave it out for the default"
            )
        return file
    for folder in (Path(os.environ.get("LAKE_HOME") or _home()), Path(), *_project_folder()):
        if (file := folder / "lake.yaml").is_file():
            return file
    return None


def _home() -> Path:
    """Return the default home: an existing one in the current folder, or the one of the project."""
    here = Path(".lake")
    return here if here.exists() else next((folder / here for folder in _project_folder()), here)


def _project_folder() -> list[Path]:
    project = find_project()
    return [project.root] if project else []


def _read(file: Path) -> dict[str, Any]:
    try:
        content = load(read_text(file))[0] or {}
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except YamlError as error:
        raise ConfigError(error.in_file(file)) from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"{file}: expected settings like `warehouse: ...` at the top, found a {type(content).__name__}"
        )
    # Relative folders in a file are relative to the file, not to a daemon's working directory.
    folder = file.parent.absolute()
    if isinstance(content.get("home"), str):
        try:
            content["home"] = str(folder / local_path(content["home"]))
        except ValueError as error:
            raise ConfigError(f"{file}: home: {error}") from error
    warehouse, catalog = content.get("warehouse"), content.get("catalog") or {}
    is_sql = isinstance(catalog, dict) and catalog_kind(catalog) == "sql"
    if isinstance(warehouse, str) and is_sql and not urlparse(warehouse).scheme:
        content["warehouse"] = str(folder / Path(warehouse).expanduser())
    return content
