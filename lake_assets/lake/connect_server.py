"""A Spark Connect server on loopback for a lake: one warm Spark that all runs share."""

from __future__ import annotations

import os

from lake_assets.lake.config import LakeConfig
from lake_assets.lake.spark_session import jvm_conf
from lake_assets.runtime.connect_tokens import VARIABLE, token_for
from lake_assets.runtime.jars import spark_home
from lake_assets.runtime.java import jvm_variables
from lake_assets.runtime.jvm_folders import new_folder
from lake_assets.runtime.jvm_launch import arguments_for, with_folder, write_settings
from lake_assets.runtime.private_files import make_private

PORT = 15002


def command(config: LakeConfig, port: int = PORT) -> tuple[list[str], dict[str, str]]:
    """Return command line and environment of a server process with the lake's jars.

    The catalog is not included: every session sends its own (see `catalog_conf`), so one server serves several lakes.
    The server listens on 127.0.0.1 only and requires a token.

    Raises:
        JavaNotFoundError, JarsError: Java or the jars are missing.
    """
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        **jvm_conf(config),
        **config.spark.conf,
    }
    settings = config.home / f"spark-server-{port}.conf"
    make_private(config.home)
    # This process becomes the server by exec, so the folder lives as long as the server.
    write_settings(settings, with_folder(conf, new_folder()))
    arguments = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *arguments_for(settings),
        "spark-internal",
    ]
    env = {k: v for k, v in os.environ.items() if k not in ("SPARK_REMOTE", "SPARK_HOME")}
    return arguments, {**env, **jvm_variables(), VARIABLE: token_for(port)}
