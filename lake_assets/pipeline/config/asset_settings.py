"""Settings of tables as assets: owners, tags, group, kinds, description, freshness, external dependencies.

Dagster checks these as well when it loads definitions, but cannot name the line. The checks here match Dagster's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from lake_assets.lake.column_spelling import caseless
from lake_assets.pipeline.config.setting_types import (
    Columns,
    Duration,
    OrText,
    Strict,
    combination,
    listed,
    seconds_of,
    text_as,
)
from lake_assets.pipeline.config.upkeep_settings import Upkeep, UpkeepSettings
from lake_assets.tables.specs import Freshness, Sensitive, Shown

_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
_GROUP = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*")
_TAG_NAME, _TAG_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,63}"), re.compile(r"([A-Za-z0-9_.-]{1,63}/)?")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")
_SHORTEST = 60
_OWN_PREFIX = "lake_assets/"

Several = Annotated[list[str], BeforeValidator(listed), OrText()]


class FreshnessSettings(Strict):
    """When an asset counts as stale: by the age of its last materialization, or by a time of day."""

    fail: str | float | None = Field(default=None, description="stale if the last materialization is older (1h, 2d)")
    warn: str | float | None = Field(default=None, description="warn if the last materialization is older")
    cron: str | None = Field(
        default=None, description="deadlines for a materialization, instead of fail, as a cron expression: 0 9 * * *"
    )
    within: str | float | None = Field(
        default=None, description="with cron: how long before a deadline a materialization counts (1h)"
    )
    timezone: str = Field(default="UTC", description="with cron: IANA name of the time zone")

    @field_validator("fail", "warn", "within")
    @classmethod
    def _durations(cls, value: str | float | None) -> str | float | None:
        if value is not None and seconds_of(value) < _SHORTEST:
            raise ValueError(f"{value!r}: Dagster checks freshness once a minute: at least 1m")
        return value

    @field_validator("cron")
    @classmethod
    def _cron(cls, value: str | None) -> str | None:
        if value is not None and len(value.split()) != 5:
            raise ValueError(
                f"{value!r} is not a cron expression: minute, hour, day, month, weekday, such as 0 9 * * *"
            )
        return value

    @combination
    def _one_kind(self) -> Iterator[str]:
        if (self.fail is None) == (self.cron is None):
            yield "freshness is a maximum age (`fail`) or a deadline (`cron`): exactly one of them"
            return
        if self.cron is not None and (self.within is None or self.warn is not None):
            yield ("`cron` needs `within` (how long before a deadline a materialization counts), and no `warn`")
        if self.fail is not None and self.within is not None:
            yield "`within` goes with `cron`"
        if self.fail is not None and self.warn is not None and seconds_of(self.warn) >= seconds_of(self.fail):
            yield f"`warn` ({self.warn}) has to be shorter than `fail` ({self.fail})"

    @property
    def policy(self) -> Freshness:
        """The settings in seconds."""
        fail, warn, within = (None if d is None else seconds_of(d) for d in (self.fail, self.warn, self.within))
        return Freshness(fail, warn, self.cron, within, self.timezone)


def _texts(value: object) -> object:
    """Convert numbers back to text, as YAML parses unquoted digits as numbers."""
    if not isinstance(value, dict):
        return value
    return {k: str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v for k, v in value.items()}


class AssetSettings(Strict):
    """Attributes of assets that do not follow from their tables."""

    owners: Several | None = Field(
        default=None, description="emails, or teams as team:name; default: the enclosing setting"
    )
    tags: Annotated[dict[str, str], BeforeValidator(_texts)] = Field(
        default_factory=dict, description="Dagster tags, in addition to enclosing ones"
    )
    group: str | None = Field(default=None, description="asset group; default: the pipeline's name")
    kinds: Several = Field(default_factory=list, description="kinds in addition to iceberg and spark, such as postgres")
    target_lag: Duration | None = Field(
        default=None,
        description="how far a table may be behind what has arrived in the lake (5m, 1h): the capture sensor waits for "
        "as long as that allows; default: the enclosing setting, else a table is absorbed for those that read it, or "
        "at once if there are none",
    )

    @field_validator("owners")
    @classmethod
    def _owners(cls, value: list[str] | None) -> list[str] | None:
        for owner in value or []:
            if not _EMAIL.fullmatch(owner) and not (owner.startswith("team:") and len(owner) > len("team:")):
                raise ValueError(f"{owner!r} is not an owner: write an email address, or a team as team:name")
        return value

    @field_validator("tags")
    @classmethod
    def _tags(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            prefix, slash, last = name.rpartition("/")
            if not _TAG_NAME.fullmatch(last) or not _TAG_PREFIX.fullmatch(prefix + slash):
                raise ValueError(
                    f"{name!r} is not a tag: letters, digits, `_`, `-`, `.`, up to 63, optionally with prefix and slash"
                )
            if name.startswith(_OWN_PREFIX):
                raise ValueError(f"{name!r}: tags that begin with {_OWN_PREFIX} are reserved for the package")
            if not _TAG_VALUE.fullmatch(text):
                raise ValueError(f"{name}: {text!r} is not a tag value: letters, digits, `_`, `-` and `.`, up to 63")
        return value

    @field_validator("group")
    @classmethod
    def _group(cls, value: str | None) -> str | None:
        if value is not None and not _GROUP.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a group: letters, digits and `_`, with slashes between the parts of a path"
            )
        return value

    @field_validator("kinds")
    @classmethod
    def _kinds(cls, value: list[str]) -> list[str]:
        if wrong := [k for k in value if not _TAG_NAME.fullmatch(k)]:
            raise ValueError(
                f"{wrong[0]!r} is not a kind: a short name of letters, digits, `_`, `-` and `.`, such as postgres"
            )
        return value


class TableSettings(AssetSettings):
    """Further attributes of the asset of one table."""

    description: str | None = Field(
        default=None, description="contents of the table; shown before the generated description"
    )
    freshness: Annotated[FreshnessSettings | None, text_as("fail"), OrText()] = Field(
        default=None,
        description="when the table counts as stale: the longest age (2h), or fail and warn, or cron and within",
    )
    upkeep: Upkeep = Field(
        default_factory=UpkeepSettings,
        description="how the table's files, deletes and snapshots are kept few; false: not at all; default: the "
        "enclosing settings",
    )
    sensitive: Columns = Field(
        default_factory=list,
        description="columns whose values are personal or secret: reports, events, alerts and previews show *** "
        "instead, here and in everything that is computed from them; in addition to those of the enclosing settings",
    )
    not_sensitive: Columns = Field(
        default_factory=list,
        description="columns whose values may be shown, although they are computed from sensitive ones",
    )
    depends_on: Several = Field(
        default_factory=list,
        description="upstream assets outside the pipeline, as other/asset: adds lineage, and order if a run has both",
    )

    @combination
    def _sensitive_or_not(self) -> Iterator[str]:
        if both := {*map(caseless, self.sensitive)} & {*map(caseless, self.not_sensitive)}:
            yield f"{', '.join(sorted(both))}: in `sensitive` and in `not_sensitive`: name each in one of them"
        partitions: Any = getattr(self, "partitions", None)
        if partitions is not None and caseless(partitions.declared.by) in map(caseless, self.sensitive):
            by = partitions.declared.by
            yield f"`partitions` by {by}, which is sensitive: its values would be the names of partitions in Dagster"

    @field_validator("depends_on")
    @classmethod
    def _depends_on(cls, value: list[str]) -> list[str]:
        for key in value:
            if not all(part.strip() == part and part for part in key.split("/")):
                raise ValueError(
                    f"{key!r} is not an asset key: write the key as Dagster shows it, with slashes: other/asset"
                )
        if len(set(value)) < len(value):
            raise ValueError("an asset is named twice")
        return value


def combined_settings(declared: Sequence[AssetSettings], *, own: bool = True) -> Shown:
    """Combine the declared settings of one table.

    Args:
        declared: the settings of the table and the enclosing settings, innermost first.
        own: whether description, freshness and dependencies of the innermost settings apply to the table.
    """
    inner = declared[0] if own and isinstance(declared[0], TableSettings) else None
    tags = {name: text for d in reversed(declared) for name, text in d.tags.items()}
    return Shown(
        owners=tuple(next((d.owners for d in declared if d.owners is not None), [])),
        tags=tags,
        group=next((d.group for d in declared if d.group is not None), None),
        kinds=tuple(dict.fromkeys(k for d in declared for k in d.kinds)),
        description=inner.description if inner else None,
        freshness=inner.freshness.policy if inner and inner.freshness else None,
        depends_on=tuple(inner.depends_on) if inner else (),
        target_lag=next((seconds_of(d.target_lag) for d in declared if d.target_lag is not None), None),
        sensitive=_sensitive(declared),
    )


def _sensitive(declared: Sequence[AssetSettings]) -> Sensitive:
    """Combine what is declared about sensitive columns; `not_sensitive` of a table clears what encloses it."""
    tables = [d for d in declared if isinstance(d, TableSettings)]
    own = {caseless(c) for d in tables[:1] for c in d.not_sensitive}
    columns = dict.fromkeys(c for d in tables for c in d.sensitive if caseless(c) not in own)
    return Sensitive(tuple(columns), tuple(dict.fromkeys(c for d in tables for c in d.not_sensitive)))
