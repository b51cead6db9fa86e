"""Iceberg's own REST catalog, as its project tests clients with it, on a port of 127.0.0.1."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import platformdirs
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from lake_assets.runtime.jars import resolve, spark_home
from lake_assets.runtime.java import find_java

# Ivy, which comes with Spark, knows where to find them.
_JARS = """
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tests" module="rest-server"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.iceberg" name="iceberg-core" rev="1.10.1" conf="default->default">
      <artifact name="iceberg-core" type="jar"/>
      <artifact name="iceberg-core" type="jar" m:classifier="tests"/>
    </dependency>
    <dependency org="org.eclipse.jetty" name="jetty-servlet" rev="11.0.24" conf="default->default"/>
    <dependency org="org.xerial" name="sqlite-jdbc" rev="3.50.3.0" conf="default->default"/>
  </dependencies>
</ivy-module>
"""


# Tables in S3, with the SDK of this version: the next ones have other classes.
_SDK = "org.apache.iceberg:iceberg-aws-bundle:1.10.1"
_WITH_S3 = _JARS.replace(
    "  </dependencies>",
    """    <dependency org="org.apache.iceberg" name="iceberg-aws" rev="1.10.1" conf="default->master"/>
    <dependency org="dev.failsafe" name="failsafe" rev="3.3.2" conf="default->master"/>
  </dependencies>""",
)


class RestServer:
    """A JVM in which catalogs can be served."""

    def __init__(self, folder: Path, *, with_s3: bool = False) -> None:
        """Start the JVM; its output goes to a file in `folder`."""
        java = find_java()
        # What Py4J is given is written to by threads of its own.
        self._log = (folder / "rest-server.log").open("w")
        port = launch_gateway(
            classpath=":".join(map(str, [*_classpath(java, with_s3), *(resolve([_SDK]) if with_s3 else [])])),
            javaopts=["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
            java_path=str(java / "bin" / "java"),
            die_on_exit=True,
            redirect_stdout=self._log,
            redirect_stderr=self._log,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))

    @contextlib.contextmanager
    def catalog(self, folder: Path, **properties: str) -> Generator[dict[str, str]]:
        """Serve a new catalog that is kept in a folder, with more properties; yields its settings for a lake."""
        jvm: Any = self._gateway.jvm
        settings = jvm.java.util.HashMap()
        settings.put("uri", f"jdbc:sqlite:{folder}/catalog.db")
        settings.put("warehouse", (folder / "warehouse").as_uri())
        settings.put("jdbc.schema-version", "V1")
        for name, value in properties.items():
            settings.put(name, value)
        catalog = jvm.org.apache.iceberg.jdbc.JdbcCatalog()
        catalog.setConf(jvm.org.apache.hadoop.conf.Configuration())
        catalog.initialize("rest", settings)
        rest = jvm.org.apache.iceberg.rest
        servlet = rest.RESTCatalogServlet(rest.RESTCatalogAdapter(catalog))
        context = jvm.org.eclipse.jetty.servlet.ServletContextHandler()
        context.addServlet(jvm.org.eclipse.jetty.servlet.ServletHolder(servlet), "/*")
        server = jvm.org.eclipse.jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
        server.setHandler(context)
        server.start()
        try:
            yield {"type": "rest", "uri": f"http://127.0.0.1:{server.getConnectors()[0].getLocalPort()}"}
        finally:
            server.stop()

    def close(self) -> None:
        """End the JVM."""
        self._gateway.shutdown()
        self._log.close()


def _classpath(java: Path, with_s3: bool) -> list[Path]:
    described = _WITH_S3 if with_s3 else _JARS
    parent = Path(os.environ.get("LAKE_JARS") or platformdirs.user_cache_path("lake-assets") / "jars").expanduser()
    folder = parent / f"rest-server-{hashlib.sha256(described.encode()).hexdigest()[:16]}"
    if not folder.exists():
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix=".resolving-") as temp:
            (Path(temp) / "ivy.xml").write_text(described.strip())
            ivy = next((spark_home() / "jars").glob("ivy-*.jar"))
            into = f"{temp}/jars/[artifact]-[revision](-[classifier]).[ext]"
            command = [java / "bin" / "java", "-jar", ivy, "-ivy", f"{temp}/ivy.xml", "-cache", f"{temp}/cache"]
            subprocess.run([*command, "-retrieve", into], check=True, capture_output=True, timeout=300)
            # Another process may have been faster.
            with contextlib.suppress(OSError):
                (Path(temp) / "jars").rename(folder)
    of_spark = ("hadoop-client-*.jar", "commons-logging-*.jar", "log4j-*.jar")
    return [*folder.glob("*.jar"), *(jar for name in of_spark for jar in (spark_home() / "jars").glob(name))]
