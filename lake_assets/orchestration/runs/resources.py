"""The Spark session of a run: dagster-pyspark's lazy resource with the settings of the lake.

Settings are assembled on first use of the session, not when definitions are loaded. Assembling them resolves jars and
looks for Java, and a code server, a sensor or a run with nothing to do must not wait for that. It also keeps the
catalog's passwords out of the configuration that Dagster's UI shows.
"""

import contextlib
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from dagster_spark.utils import flatten_dict
from pydantic import Field, PrivateAttr

from lake_assets.errors import SparkUnavailableError
from lake_assets.lake import LakeConfig
from lake_assets.lake.spark_session import adopt_session, check_one_kind, check_remote, session_conf
from lake_assets.runtime import warm_jvm
from lake_assets.runtime.connect_tokens import with_token
from lake_assets.runtime.java import jvm_variables
from lake_assets.runtime.jvm_launch import start_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK = "pyspark"

# Seconds to wait for sessions to end.
_STOP_SECONDS = 10.0
# Sessions are opened one at a time: the first starts the JVM.
_opening = threading.Lock()


class _Sessions:
    """The sessions of one run: one per thread, since a commit's properties are settings of its session."""

    def __init__(self, config: LakeConfig) -> None:
        self.config = config
        self.local = threading.local()
        self.all: list[SparkSession] = []
        _active.add(self)


# The sessions of all runs in this process.
_active: weakref.WeakSet[_Sessions] = weakref.WeakSet()


class LakePySparkResource(LazyPySparkResource):
    """The lake's Spark, started on first use and shared by all steps of a run; each thread has its own session.

    Local Spark, or a Spark Connect server if the lake's configuration names one (`spark.remote`).
    """

    spark_config: dict[str, Any] = Field(
        default_factory=dict, description="Spark settings that override those of the lake's configuration"
    )
    _sessions: Any = PrivateAttr(default=None)

    @property
    def spark_session(self) -> Any:
        """The session of the environment's lake (`LAKE_HOME`, `LAKE_CONFIG`)."""
        return self.session_of(self._sessions.config if self._sessions else LakeConfig.load())

    @property
    def spark_context(self) -> Any:
        """The session's Spark context; Spark Connect sessions have none."""
        return self.spark_session.sparkContext

    def session_of(self, config: LakeConfig) -> "SparkSession":
        """Return the session of `config`'s lake for this thread of the run.

        Raises:
            SparkUnavailableError: the JVM did not start, or no server answers at `spark.remote`.
            JavaNotFoundError: a local session needs Java 17 or 21.
        """
        with _opening:
            self._sessions = sessions = self._sessions or _Sessions(config)
            if not hasattr(sessions.local, "session"):
                sessions.local.session = _open(sessions.config, self.spark_config)
                sessions.all.append(sessions.local.session)
            return sessions.local.session

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop Spark Connect sessions; local ones end with the run's process."""
        if self._sessions is not None:
            _active.discard(self._sessions)
            if self._sessions.config.spark.remote:
                _stop(self._sessions.all)
        self._sessions = None


def _stop(sessions: "list[SparkSession]") -> None:
    """Stop Spark Connect sessions in parallel: PySpark would retry an unreachable server for ten minutes each."""
    threads = [threading.Thread(target=session.stop, daemon=True) for session in sessions]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _STOP_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def interrupt_sessions(done: threading.Event) -> None:
    """Cancel this process's Spark jobs repeatedly until `done` is set, so that threads waiting for them can end.

    Returns at once, since an unreachable server does not answer for minutes.
    """
    for sessions in list(_active):
        for session in list(sessions.all):
            threading.Thread(target=_interrupt, args=(session, sessions.config, done), daemon=True).start()


def _interrupt(session: "SparkSession", config: LakeConfig, done: threading.Event) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    while not done.is_set():
        with contextlib.suppress(PySparkException, Py4JError, OSError):  # Spark has ended: nothing to cancel
            if config.spark.remote:
                session.interruptAll()
            else:
                session.sparkContext.cancelAllJobs()
        done.wait(1)


def session_of(resource: Any, config: LakeConfig) -> "SparkSession":
    """Return the session of `LakePySparkResource`, or of any resource with a `spark_session` (dagster-pyspark's)."""
    return resource.session_of(config) if isinstance(resource, LakePySparkResource) else resource.spark_session


def _open(config: LakeConfig, overrides: dict[str, Any]) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    remote = config.spark.remote
    if remote:
        check_remote(remote)
        remote = with_token(remote)
    check_one_kind(remote)
    if not remote:
        os.environ.update(jvm_variables())
    settings = {**session_conf(config), **overrides}
    try:
        if remote:
            # A new session per thread.
            session = SparkSession.builder.config(map={**settings, "spark.remote": remote}).create()
        elif warm_jvm.is_kept():
            session = warm_jvm.session(settings, config.home / "logs" / "spark.log")
        else:
            # A session's catalog does not change after its first use, so a second lake in one process needs a new one.
            start_jvm(dict(flatten_dict(settings)))
            session = LazyPySparkResource(spark_config=settings).spark_session.newSession()
        adopt_session(session, config, is_own=True)
        return session
    except (PySparkException, RuntimeError, OSError) as error:
        raise SparkUnavailableError(
            f"Spark did not start: {config.hidden(error)}. The JVM's messages are in the run's stderr"
        ) from error
