"""Writes the sources of each batch as Iceberg tables in `src`."""

from __future__ import annotations

from lake_assets import Lake
from tpcdi import markets, parties
from tpcdi.sizes import Sizes

PROPERTIES = (
    "'format-version' = '3', 'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read', "
    "'write.merge.mode' = 'merge-on-read'"
)


def extracts(sizes: Sizes, batch: int) -> dict[str, str]:
    """Return, by table, the SELECT of the rows that a batch appends."""
    appended = {
        "batchdate": parties.market_day(batch),
        "trade": markets.trade(sizes, batch),
        "dailymarket": markets.daily_market(sizes, batch),
        "cashtransaction": markets.cash_transactions(sizes, batch),
        "holdinghistory": markets.holding_history(sizes, batch),
        "watchhistory": markets.watch_history(sizes, batch),
    }
    if batch == 1:
        return appended | markets.references() | {
            "finwire": markets.finwire(sizes),
            "customermgmt": parties.customer_management(sizes),
            "hr": parties.employees(sizes),
            "tradehistory": markets.trade_history(sizes),
            # Batch 1 has no such extracts: the tables are empty.
            "customer": f"{parties.customers_of(sizes, 2)} WHERE false",
            "account": f"{parties.accounts_of(sizes, 2)} WHERE false",
        }  # fmt: skip
    return appended | {"customer": parties.customers_of(sizes, batch), "account": parties.accounts_of(sizes, batch)}


def summary_of(lake: Lake, table: str) -> dict[str, str]:
    """Return the summary of a table's current snapshot: numbers of rows and bytes, as text."""
    snapshot = lake.table(table).current_snapshot()
    return dict(snapshot.summary.additional_properties) if snapshot and snapshot.summary else {}


def load(lake: Lake, sizes: Sizes, batch: int) -> dict[str, int]:
    """Write a batch: create the tables with the first one; return the rows written, by table."""
    spark = lake.spark()
    lake.ensure_namespace(("src",))
    written: dict[str, int] = {}
    selects = extracts(sizes, batch)
    prospect = parties.prospects(sizes, batch)
    for table, select in (selects | {"prospect": prospect}).items():
        if batch == 1:
            spark.sql(f"CREATE TABLE src.{table} USING iceberg TBLPROPERTIES ({PROPERTIES}) AS {select}")
        elif table == "prospect":
            spark.sql(f"INSERT OVERWRITE src.{table} {select}")
        else:
            spark.sql(f"INSERT INTO src.{table} {select}")
        written[table] = int(summary_of(lake, f"src.{table}").get("added-records", 0))
    return written
