"""What a step hands to its job: snapshots, ranges, keys, ICDC tables, as variables, JSON or run configuration."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from lake_assets.capture import FieldRange
from lake_assets.errors import JobError, JobNotStartedError
from lake_assets.lake import TableId
from lake_assets.lake.counts import plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "LAKE_STEP"
# Linux refuses a variable of more than 128 kB.
_LONGEST = 120_000


@dataclass(frozen=True)
class StepSource:
    """One source of a step.

    Attributes:
        start, end: the window: its changes after `start`, up to `end`; None: the source was, or is, empty. On a first
            run `start` is None as well.
        is_empty: whether no row changed.
        after: the ICDC table over the changed files at `end`; None: there are none.
        before: the same at `start`.
        after_metadata, before_metadata: their metadata files, for engines that read tables by path.
    """

    start: int | None
    end: int | None
    is_empty: bool
    after: str | None = None
    before: str | None = None
    after_metadata: str | None = None
    before_metadata: str | None = None


@dataclass(frozen=True)
class StepParameters:
    """What a job has to know about its step; the same in every process.

    Attributes:
        table: the table whose watermark the step moves.
        id: of the step; the same if its windows are run again.
        sources: by name.
        lookups: by name of a table that the job reads as it is, the snapshot to read.
        ranges: the declared ranges, united over the sources.
        keys: the distinct values of the declared key expressions over all changed rows.
        properties: snapshot properties with the watermark, for the job's own commit.
        is_initial: whether the job has to read everything that the sources hold: a first run, or a rebuild.
        is_empty: whether the job has nothing to do.
    """

    table: str
    id: str
    sources: Mapping[str, StepSource]
    lookups: Mapping[str, int | None] = field(default_factory=dict)
    ranges: Mapping[str, FieldRange] = field(default_factory=dict)
    keys: Sequence[Mapping[str, Any]] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    is_initial: bool = False
    is_empty: bool = False

    @property
    def spark_conf(self) -> dict[str, str]:
        """Settings of a Spark session with which every Iceberg commit carries the watermark."""
        return {f"spark.sql.iceberg.snapshot-property.{k}": v for k, v in self.properties.items()}

    def committing(self, spark: SparkSession) -> AbstractContextManager[None]:
        """Add the watermark to the commit that is made in the block. It must be one commit, to the step's table.

        Raises:
            ConcurrentWriteError: another writer was faster; nothing of the commit is in the table.
        """
        from lake_assets.tables.writing.publication import committing

        return committing(spark, TableId.parse(self.table), self.properties)

    def json(self) -> str:
        """Return everything as JSON; see `of_json`."""
        fields = {
            "table": self.table,
            "id": self.id,
            "is_empty": self.is_empty,
            "is_initial": self.is_initial,
            "sources": {n: asdict(s) for n, s in self.sources.items()},
            "lookups": dict(self.lookups),
            "ranges": {n: self._range_to_json(n, r) for n, r in self.ranges.items()},
            "keys": None if self.keys is None else [{n: self._key(n, v)[1] for n, v in k.items()} for k in self.keys],
            "key_types": self._key_types(),
            "properties": dict(self.properties),
        }
        return json.dumps(fields, allow_nan=False)

    @classmethod
    def of_json(cls, text: str) -> Self:
        """Return the parameters in `json()`.

        Raises:
            JobError: it is no such text.
        """
        try:
            fields = json.loads(text)
            types: Mapping[str, str] = fields["key_types"]
            keys = fields["keys"]
            return cls(
                fields["table"],
                fields["id"],
                {n: StepSource(**s) for n, s in fields["sources"].items()},
                fields["lookups"],
                {n: _range_of_json(r) for n, r in fields["ranges"].items()},
                None if keys is None else [{n: _decoded(types.get(n), v) for n, v in k.items()} for k in keys],
                fields["properties"],
                fields["is_initial"],
                fields["is_empty"],
            )
        except (ValueError, TypeError, LookupError, AttributeError) as e:
            raise JobError(
                f"{VARIABLE} does not hold the parameters of a step ({type(e).__name__}: {e}): the step sets it; or "
                "hand on the text of `step.json()` unchanged"
            ) from e

    @property
    def env(self) -> dict[str, str]:
        """Environment variables: `LAKE_STEP` (everything, as JSON), and the single values as `LAKE_STEP_...`.

        A value that is missing (an unbounded end of a range, the start of a first run) is an empty text.

        Raises:
            JobError: two names become the same variable, or the keys do not fit.
        """
        text = self.json()
        if len(text) > _LONGEST:
            raise JobError(
                f"{self.table}: the step's parameters take {len(text):,} bytes, and a variable holds {_LONGEST:,}: "
                f"{plural(len(self.keys or ()), 'key')} changed. Leave `keys` out and read the changed rows from the "
                "ICDC tables (LAKE_STEP_AFTER_..., LAKE_STEP_BEFORE_...), or use `ranges`"
            )
        variables, names = {VARIABLE: text}, {VARIABLE: VARIABLE}
        for name, value in self.values().items():
            variable = "_".join([VARIABLE, *re.findall(r"[A-Za-z0-9]+", name)]).upper()
            if variable in variables:
                raise JobError(
                    f"{self.table}: two parameters are called {variable} in the environment: {names[variable]} and "
                    f"{name}. Name a range otherwise (`ranges: {{NAME: column}}`); a function (`python`) needs no "
                    "variables"
                )
            variables[variable], names[variable] = value, name
        return variables

    def run_config(self, op: str = "job") -> dict[str, Any]:
        """Return a Dagster run configuration that hands the parameters to an op or asset as its configuration."""
        return {"ops": {op: {"config": json.loads(self.json())}}}

    def values(self) -> dict[str, str]:
        """Return the single values by name: `table`, `low.day`, `end.raw.playback`, …; missing ones are empty."""
        values: dict[str, Any] = {
            "table": self.table,
            "id": self.id,
            "is_empty": self.is_empty,
            "is_initial": self.is_initial,
            "properties": json.dumps(dict(self.properties)),
        }
        for name, source in self.sources.items():
            values |= {f"{what}.{name}": value for what, value in asdict(source).items() if what != "is_empty"}
        values |= {f"snapshot.{name}": snapshot for name, snapshot in self.lookups.items()}
        for name, hull in self.ranges.items():
            fields = self._range_to_json(name, hull)
            values |= {f"{what}.{name}": value for what, value in fields.items() if what in _IN_VALUES}
        return {name: _as_text(value) for name, value in values.items()}

    def _key_types(self) -> dict[str, str]:
        return {n: kind for k in self.keys or () for n, v in k.items() if (kind := self._key(n, v)[0]) is not None}

    def _key(self, name: str, value: Any) -> tuple[str | None, Any]:
        return _encoded(value, f"{self.table}: `keys`: {name}")

    def _range_to_json(self, name: str, hull: FieldRange) -> dict[str, Any]:
        where = f"{self.table}: `ranges`: {name}"
        (low_type, low), (high_type, high) = _encoded(hull.low, where), _encoded(hull.high, where)
        return {
            "low": low,
            "high": high,
            "nulls": hull.nulls,
            "nans": hull.nans,
            "exact": hull.exact,
            "has_values": hull.has_values,
            "type": low_type or high_type,
        }


_IN_VALUES = ("low", "high", "nulls")
_PLACEHOLDER = re.compile(r"\{\{|\}\}|(?<!\$)\{([a-z_]+(?:\.[^{}|]+)?)(?:\|([^{}]*))?\}")
# The argument of a command that becomes spark-submit's `--conf` arguments.
SPARK_CONF = "{spark_conf}"
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")


def current_step() -> StepParameters:
    """Return the parameters of the step that runs this process.

    Raises:
        JobError: no step does.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        raise JobError(
            f"{VARIABLE} is not set: no step started this process. Start it through a `lake_assets.CapturedJob`, or "
            "with `env={**os.environ, **step.env}` in a block `with lake.step(...) as step`"
        )
    return StepParameters.of_json(text)


def names_in(command: Sequence[str]) -> set[str]:
    """Return the names in the placeholders of a command."""
    return {m[1] for argument in command for m in _PLACEHOLDER.finditer(argument) if m[1]}


def filled(command: Sequence[str], step: StepParameters, setting: str = "command") -> list[str]:
    """Fill in the placeholders of a command: `{low.day}`, or `{low.day|1970-01-01}` with a text for a missing value.

    Each stays within its argument. In the text of a shell (`bash -c TEXT`), values are quoted. An argument that is
    `{spark_conf}` becomes the `--conf` arguments of spark-submit with which every commit carries the watermark.

    Raises:
        JobNotStartedError: a name is unknown, or its value is missing.
    """
    values, arguments = step.values(), list[str]()
    for n, argument in enumerate(command):
        if argument == SPARK_CONF:
            arguments += [a for k, v in step.spark_conf.items() for a in ("--conf", f"{k}={v}")]
            continue
        is_script = _is_script(command, n)

        def value(match: re.Match[str], *, is_script: bool = is_script) -> str:
            name, default = match[1], match[2]
            if not name:
                return match[0][0]
            if name not in values:
                raise JobNotStartedError(f"{step.table}: `{setting}` names {name!r}; the names are {', '.join(values)}")
            if not (text := values[name] or default or "") and default is None:
                raise JobNotStartedError(
                    f"{step.table}: `{setting}`: {name} has no value in this step (an unknown bound, the start of "
                    f"a first run): give it a text for this case, {{{name}|none}}, or an empty one, {{{name}|}}"
                )
            return shlex.quote(text) if is_script else text

        arguments.append(_PLACEHOLDER.sub(value, argument))
    return arguments


def _is_script(command: Sequence[str], at: int) -> bool:
    """Whether an argument is the text that a shell runs."""
    option = re.fullmatch(r"-[a-z]*c", command[at - 1]) if at else None
    return option is not None and any(Path(a).name in _SHELLS for a in command[: at - 1])


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _range_of_json(fields: Mapping[str, Any]) -> FieldRange:
    low, high = (_decoded(fields["type"], fields[end]) for end in ("low", "high"))
    return FieldRange(low, high, fields["exact"], fields["nulls"], fields["nans"], fields["has_values"])


def _encoded(value: Any, where: str) -> tuple[str | None, Any]:
    """Return the type of a value, and the value as JSON has it; `where` begins the error about one that has none."""
    match value:
        case None:
            return None, None
        case bool() | int() | str():
            return None, value
        case float():
            return ("float", value) if math.isfinite(value) else ("float", str(value))
        case datetime():
            return "timestamp", value.isoformat(sep=" ")
        case date():
            return "date", value.isoformat()
        case time_of_day():
            return "time", value.isoformat()
        case Decimal():
            return "decimal", f"{value:f}"
        case UUID():
            return "uuid", str(value)
        case bytes() | bytearray():
            return "binary", value.hex()
        case _:
            raise JobError(
                f"{where} has a value of type {type(value).__name__}, which cannot be handed to a job: use an "
                "expression that gives a text"
            )


_DECODE = {
    "float": float,
    "timestamp": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time_of_day.fromisoformat,
    "decimal": Decimal,
    "uuid": UUID,
    "binary": bytes.fromhex,
}


def _decoded(kind: str | None, value: Any) -> Any:
    return value if value is None or kind is None else _DECODE[kind](value)
