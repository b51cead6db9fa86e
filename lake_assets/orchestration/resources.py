"""The Spark session of a run: dagster-pyspark's lazy resource with the settings of the lake.

Its settings are put together when the session is first asked for, not when definitions are loaded: that resolves jars
and looks for Java, which a code server, a sensor or a run with nothing to do must never wait for. It also keeps the
catalog's passwords out of the configuration that Dagster's UI shows.
"""

import os
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from lake_assets.errors import SparkUnavailableError
from lake_assets.lake import LakeConfig, warm
from lake_assets.lake.java import find_java
from lake_assets.lake.spark import adopt_session, check_remote, session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK = "pyspark"


class LakePySparkResource(LazyPySparkResource):
    """The lake's Spark session, started on first use and shared by all steps of a run.

    Local Spark, or a Spark Connect server where the lake's configuration names one (`spark.remote`).
    """

    spark_config: dict[str, Any] = Field(
        default_factory=dict, description="Spark settings beside those of the lake's configuration; they win"
    )
    _session: Any = PrivateAttr(default=None)
    _config: Any = PrivateAttr(default=None)

    @property
    def spark_session(self) -> Any:
        """The session of the lake that the environment names (`LAKE_HOME`, `LAKE_CONFIG`)."""
        return self.session_of(self._config or LakeConfig.load())

    @property
    def spark_context(self) -> Any:
        """The session's Spark context; there is none in a Spark Connect session."""
        return self.spark_session.sparkContext

    def session_of(self, config: LakeConfig) -> "SparkSession":
        """The session of `config`'s lake; one a run.

        Raises:
            SparkUnavailableError: the JVM did not start, or nothing answers at `spark.remote`.
            JavaNotFoundError: a local session needs Java 17 or 21.
        """
        if self._session is None:
            self._session, self._config = _open(config, self.spark_config), config
        return self._session

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Give a Spark Connect session back to its server; a local one ends with the run's process."""
        if self._session is not None and self._config.spark.remote:
            self._session.stop()
        self._session = None


def session_of(resource: Any, config: LakeConfig) -> "SparkSession":
    """The session that a resource gives: ours, or any that has a `spark_session` (dagster-pyspark's own)."""
    return resource.session_of(config) if isinstance(resource, LakePySparkResource) else resource.spark_session


def _open(config: LakeConfig, more: dict[str, Any]) -> "SparkSession":
    from pyspark.errors import PySparkException

    remote = config.spark.remote
    if remote:
        check_remote(remote)
    else:
        os.environ["JAVA_HOME"] = str(find_java())
    settings = {**session_conf(config), **more}
    try:
        session: SparkSession
        if not remote and warm.is_kept():
            session = warm.session(settings, config.home / "logs" / "spark.log")
        else:
            session = LazyPySparkResource(spark_config=settings).spark_session
            # Spark keeps a catalog as it was when first used: a second lake in one process needs a session of its own.
            session = session if remote else session.newSession()
        adopt_session(session, config)
        return session
    except (PySparkException, RuntimeError, OSError) as e:
        raise SparkUnavailableError(f"Spark did not start: {e}. The run's stderr holds what the JVM said") from e
