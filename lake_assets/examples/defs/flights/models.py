"""Flights with weather and plane; delays by day; hours by plane."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets import Changes, Lookup, model


@model(
    "agg.flights_enriched",
    write="append",
    inputs={"flights": "raw.flights", "weather": "raw.weather", "planes": "raw.planes"},
    on_query_change="rebuild",  # flights are only added, so the inputs tell all rows of the table
)
def enriched(flights: Changes, weather: Lookup, planes: Lookup) -> DataFrame:
    """Each flight, once, with the weather of the hour at its airport and the plane that flew."""
    rows = flights.rows.join(F.broadcast(weather.table), ["origin", "hour_at"], "left")
    return rows.join(F.broadcast(planes.table), "tailnum", "left").select(
        "id", "day", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "air_time",
        "temperature", "visibility", "manufacturer", "built",
    )  # fmt: skip


@model("agg.flights_delays", write="replace-ranges", key="day", replace="day", inputs={"flights": "raw.flights"})
def delays(flights: Changes) -> DataFrame:
    """Delays by scheduled day: the range of days with new flights is computed again."""
    return (
        flights.affected()
        .groupBy("day")
        .agg(
            F.count("*").alias("flights"),
            F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
            F.percentile("arr_delay", 0.5).alias("median_delay"),
        )
    )


@model(
    "agg.flights_planes",
    write="replace-keys",
    key="tailnum",
    replace="tailnum",
    inputs={"flights": "agg.flights_enriched"},
)
def planes(flights: Changes) -> DataFrame:
    """Flights and hours in the air by plane: only planes that flew are computed again."""
    return (
        flights.affected()
        .groupBy("tailnum")
        .agg(F.count("*").alias("flights"), F.sum("air_time").alias("minutes"), F.max("day").alias("last_day"))
    )
