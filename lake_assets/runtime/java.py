"""Find a Java for Spark, and the variables that its JVM starts with."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from lake_assets.errors import JavaNotFoundError

SUPPORTED = (17, 21)
# Spark looks its machine's name up before it reads any setting, unless one of these says more.
_OWN_ADDRESS = ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME")
_USUAL = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
    "~/.local/share/mise/installs/java/*",
    "~/.asdf/installs/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)


def find_java() -> Path:
    """Return the home of a Java 17 or 21: `JAVA_HOME`, else the `java` on PATH, else one in a usual place.

    Raises:
        JavaNotFoundError: none was found; lists the searched places and how to install one.
    """
    seen: dict[Path, str] = {}
    for home in _candidates():
        if home in seen:
            continue
        version = _version(home)
        if version in SUPPORTED:
            return home
        seen[home] = f"Java {version}" if version else "no working Java"
    searched = "; ".join(f"{home}: {what}" for home, what in seen.items()) or "none at all"
    hint = "brew install openjdk@17" if sys.platform == "darwin" else "apt-get install openjdk-17-jre-headless"
    raise JavaNotFoundError(
        f"Spark needs Java 17 or 21. Looked at JAVA_HOME, PATH and the usual places and found: {searched}. "
        f"Install one (for example `{hint}`) or point JAVA_HOME at one."
    )


def jvm_variables() -> dict[str, str]:
    """Return the variables of the environment that Spark's JVM needs: `JAVA_HOME`, and an address if the machine's own
    name has none, as in some containers.

    Raises:
        JavaNotFoundError: as `find_java`.
    """
    found = {name: os.environ[name] for name in _OWN_ADDRESS if os.environ.get(name)}
    if not found:
        try:
            socket.getaddrinfo(socket.gethostname(), None)
        except OSError:
            found["SPARK_LOCAL_IP"] = "127.0.0.1"
    return {"JAVA_HOME": str(find_java()), **found}


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        # /usr/bin/java is a chain of links into the real home, whose bin folder holds it.
        yield Path(java).resolve().parent.parent
    for pattern in _USUAL:
        base = Path(pattern).expanduser()
        yield from sorted(p.resolve() for p in Path(base.anchor).glob(str(base.relative_to(base.anchor))))


def _version(home: Path) -> int | None:
    """Return the feature release of the Java in `home`, or None if none starts there."""
    java = home / "bin" / "java"
    if not java.is_file():
        return None
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        release = ""
    match = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    if match is None:
        try:
            output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None
