"""Settings of upkeep in a pipeline's YAML: of the pipeline, and of streams and tables in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, ByteSize, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from lake_assets.lake import thresholds
from lake_assets.lake.setting_values import share_of
from lake_assets.pipeline.config.setting_types import (
    Duration,
    Names,
    Strict,
    checked,
    combination,
    seconds_of,
)
from lake_assets.tables.partitioning.time_zones import zone_of
from lake_assets.tables.upkeep_policy import DAY, Budget, Hours, UpkeepPolicy, are_all_day

# The check of each table in Dagster that keeps its files few.
UPKEEP_CHECK = "upkeep"

Share = Annotated[str | float, checked(share_of)]


class UpkeepSettings(Strict):
    """How the files, deletes and snapshots of tables are kept few."""

    enabled: bool | None = Field(
        default=None, description="false: no upkeep; default: the enclosing setting, else true"
    )
    target_file_size: ByteSize | None = Field(
        default=None, ge=1 << 20, description="size of rewritten data files; default: 128MiB"
    )
    small_files: Share | None = Field(
        default=None,
        description="share of a table's data files that have to be small before these are combined; default: 5%",
    )
    commits: int | None = Field(
        default=None, ge=2, description="small files are combined once there are so many of them; default: 50"
    )
    bytes: ByteSize | None = Field(
        default=None, gt=0, description="or once they have so many bytes together; default: 1GiB"
    )
    age: Duration | None = Field(default=None, description="or once the oldest of them is this old; default: 1d")
    deleted_rows: Share | None = Field(
        default=None, description="a data file is rewritten once this share of its rows is deleted; default: 30%"
    )
    keep: Duration | None = Field(
        default=None,
        description="how long snapshots stay that nothing needs: tables can be read as of then, and rolled back to "
        "then; default: 5d",
    )
    snapshots: int | None = Field(
        default=None,
        description="how many of the newest snapshots stay at most, whatever their age; each makes every commit "
        "a little slower; default: 200",
    )
    orphans: Duration | None = Field(
        default=None,
        description="how old files are at least that are deleted since no snapshot names them; default: 3d",
    )
    keep_records: Duration | None = Field(
        default=None,
        description="how long records stay in raw once their events are in staging: older ones are deleted; default: "
        "for ever. For pipelines and streams",
    )
    keep_events: Duration | None = Field(
        default=None,
        description="how long each event stays in staging: of older ones, only the last event of each key, so that "
        "late events still find their place; default: for ever. For scd1 tables; not shorter than their `horizon`",
    )
    dead_after: Duration | None = Field(
        default=None,
        description="a table or program that reads this table's changes, and for which they have waited for so long, "
        "loses its claim to the snapshot from which it would go on, a week after a warning at the soonest; null: "
        "never; default: 90d",
    )

    @combination
    def _limits(self) -> Iterator[str]:
        if self.snapshots is not None and self.snapshots < thresholds.SNAPSHOTS_KEPT:
            yield (
                f"`snapshots: {self.snapshots}`: the newest {thresholds.SNAPSHOTS_KEPT} always stay, because the "
                f"watermark is in one of them: write {thresholds.SNAPSHOTS_KEPT} or more"
            )
        if self.orphans is not None and seconds_of(self.orphans) < thresholds.YOUNGEST_ORPHAN_SECONDS:
            hours = thresholds.YOUNGEST_ORPHAN_SECONDS / 3600
            yield (
                f"`orphans: {self.orphans}`: a step that is still running has written files that no snapshot names "
                f"yet: write {hours:g}h or more"
            )
        if self.dead_after is not None and self.keep is not None:
            yield from filter(None, [too_early(seconds_of(self.dead_after), seconds_of(self.keep))])
        elif self.dead_after is not None and seconds_of(self.dead_after) < DAY:
            yield too_early(seconds_of(self.dead_after), 0)


class PipelineUpkeepSettings(UpkeepSettings):
    """The upkeep of a pipeline: the defaults of its tables, and what all of it may cost."""

    budget: Annotated[str, checked(Budget.parse)] | None = Field(
        default=None,
        description="what upkeep may cost: a share of the time (10%), or bytes that are rewritten in an hour (20GiB); "
        "default: 10%",
    )
    quiet: Annotated[Names, checked(lambda hours: [*map(Hours.parse, hours)])] = Field(
        default_factory=list, description="times of day without upkeep: [08:00-18:00]"
    )

    @combination
    def _hours(self) -> Iterator[str]:
        if self.enabled is not False and are_all_day([*map(Hours.parse, self.quiet)]):
            yield (
                f"`quiet: [{', '.join(self.quiet)}]` is the whole day, so nothing would ever be done: leave some "
                "hours, or write `upkeep: false` (`lake-assets upkeep` then does nothing for these tables either)"
            )

    timezone: Annotated[str, checked(zone_of)] = Field(default="UTC", description="time zone of `quiet`, an IANA name")


def _switch(value: object) -> object:
    """Read `upkeep: false` as `upkeep: {enabled: false}`."""
    return {"enabled": value} if isinstance(value, bool) else value


class _OrSwitch:
    """JSON schema of settings that may also be `true` or `false`; see `OrText`."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"if": {"type": "boolean"}, "then": {"type": "boolean"}, "else": handler(core_schema)}


Upkeep = Annotated[UpkeepSettings, BeforeValidator(_switch), _OrSwitch()]
PipelineUpkeep = Annotated[PipelineUpkeepSettings, BeforeValidator(_switch), _OrSwitch()]
_SECONDS = ("age", "keep", "orphans", "dead_after", "keep_records", "keep_events")
_SHARES = ("small_files", "deleted_rows")


def too_early(dead_after: float, keep: float) -> str:
    """Return why consumers cannot lose their claims after so many seconds; empty if they can."""
    if dead_after < DAY:
        return f"`dead_after` is {dead_after / 3600:g} hours: a consumer may be paused for a night: write 1d or more"
    if dead_after < keep:
        return (
            f"`dead_after` is {dead_after / DAY:g} days, and `keep` is {keep / DAY:g}: snapshots stay for that long "
            f"anyway, so consumers that need them keep their claims: write `dead_after: {keep / DAY:g}d` or more, or "
            "a shorter `keep`"
        )
    return ""


def combined_policy(declared: Sequence[UpkeepSettings]) -> UpkeepPolicy:
    """Combine the upkeep settings of a table with the enclosing ones, innermost first."""
    values: dict[str, Any] = {}
    for settings in reversed(declared):
        values |= {k: v for k in UpkeepSettings.model_fields if (v := getattr(settings, k)) is not None}
        if "dead_after" in settings.model_fields_set and settings.dead_after is None:
            values["dead_after"] = None  # `null` is a value of its own
        if isinstance(settings, PipelineUpkeepSettings):
            values["quiet"] = tuple(map(Hours.parse, settings.quiet))
            values["zone"] = zone_of(settings.timezone)
            if settings.budget is not None:
                values["budget"] = Budget.parse(settings.budget)
    values |= {k: seconds_of(v) for k, v in values.items() if k in _SECONDS and v is not None}
    values |= {k: share_of(v) for k, v in values.items() if k in _SHARES}
    # A table may have upkeep where its pipeline has none.
    return UpkeepPolicy(is_on=values.pop("enabled", True), **values)
