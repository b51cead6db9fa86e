"""All views, upstream first."""

from __future__ import annotations

from tpcdi import dimension_views, fact_views, report_views, staging_views

# By name, the SELECT. The same text is maintained by the pipeline and written in full by Spark.
VIEWS = staging_views.VIEWS | dimension_views.VIEWS | fact_views.VIEWS | report_views.VIEWS

# By name, the columns that identify a row, where the SELECT does not tell.
KEYS = {"staging.market_days": ["symbol", "day"]}
