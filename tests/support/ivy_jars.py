"""Files of programs that tests start, by their coordinates. Ivy, which comes with Spark, knows where to find them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import platformdirs
import pytest

from lake_assets.runtime.jars import spark_home
from lake_assets.runtime.java import find_java

_IVY = """
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tests" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""


def files_of(name: str, *dependencies: str) -> list[Path]:
    """Return the files of dependencies and of what they need; skip the test if they cannot be had.

    Args:
        name: names their folder, and them in the reason of a skip.
        dependencies: Ivy's elements.
    """
    text = _IVY.format(name=name, dependencies="".join(dependencies))
    parent = Path(os.environ.get("LAKE_JARS") or platformdirs.user_cache_path("lake-assets") / "jars").expanduser()
    folder = parent / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not folder.exists():
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix=".resolving-") as temp:
            (Path(temp) / "ivy.xml").write_text(text.strip())
            ivy = next((spark_home() / "jars").glob("ivy-*.jar"))
            into = f"{temp}/files/[artifact]-[revision](-[classifier]).[ext]"
            command = [find_java() / "bin" / "java", "-jar", ivy, "-ivy", f"{temp}/ivy.xml", "-cache", f"{temp}/cache"]
            done = subprocess.run(
                [*command, "-retrieve", into], check=False, capture_output=True, text=True, timeout=600
            )
            if done.returncode != 0 or not (Path(temp) / "files").exists():
                lines = [
                    line.strip() for line in done.stdout.splitlines() if "unresolved" in line or "not found" in line
                ]
                pytest.skip(f"there is no {name}: its files cannot be had ({'; '.join(lines[:3])})")
            # Another process may have been faster.
            with contextlib.suppress(OSError):
                (Path(temp) / "files").rename(folder)
    return sorted(folder.iterdir())


def dependency(organisation: str, name: str, revision: str) -> str:
    """Return the element of a jar and of what it needs."""
    return f'<dependency org="{organisation}" name="{name}" rev="{revision}" conf="default->default"/>'


def jar(organisation: str, name: str, revision: str) -> str:
    """Return the element of a jar alone."""
    return (
        f'<dependency org="{organisation}" name="{name}" rev="{revision}" conf="default->default" transitive="false"/>'
    )


def archive(organisation: str, name: str, revision: str, classifier: str, kind: str) -> str:
    """Return the element of an archive alone."""
    artifact = f'<artifact name="{name}" type="{kind}" ext="{kind}" m:classifier="{classifier}"/>'
    return (
        f'<dependency org="{organisation}" name="{name}" rev="{revision}" conf="default->default" transitive="false">'
        f"{artifact}</dependency>"
    )
