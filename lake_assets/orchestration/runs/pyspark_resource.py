"""dagster-pyspark's lazy resource, or its like where that package is missing.

dagster-pyspark pins one Dagster exactly, and some releases of Dagster have no counterpart. So it is an extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import PrivateAttr

if TYPE_CHECKING:
    from dagster_pyspark import LazyPySparkResource
else:
    try:
        from dagster_pyspark import LazyPySparkResource
    except ModuleNotFoundError as error:
        if error.name != "dagster_pyspark":
            raise

        class LazyPySparkResource(dg.ConfigurableResource):
            """A Spark session that is started on first use."""

            spark_config: dict[str, Any]
            _spark_session: Any = PrivateAttr(default=None)

            @property
            def spark_session(self) -> Any:
                """The session, with the settings of `spark_config`."""
                if self._spark_session is None:
                    from pyspark.sql import SparkSession

                    self._spark_session = SparkSession.builder.config(map=flat(self.spark_config)).getOrCreate()
                return self._spark_session


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return Spark's settings by their whole names: `spark.ui.enabled`, also of `{"spark": {"ui.enabled": False}}`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


__all__ = ["LazyPySparkResource", "flat"]
