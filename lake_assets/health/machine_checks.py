"""What a machine, an environment and a lake need before a pipeline runs: versions, memory, disk, clock, places, ports.

Each check is a name and a function that returns what was found, or raises LakeError with what to do. Nothing changes.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pyiceberg.io import load_file_io

from lake_assets.errors import LakeError
from lake_assets.lake import LakeBase, LakeConfig, thresholds
from lake_assets.lake.disk_space import disks
from lake_assets.lake.metadata.clock_skew import TOLERANCE_MS
from lake_assets.lake.redaction import hide_in
from lake_assets.lake.spark_session import check_remote

Check = tuple[str, Callable[[], str]]
_PACKAGE = "lake-assets"
# What is named if all versions fit; of all others, only those that do not fit are.
_SHOWN = ("dagster", "pyspark", "pyiceberg")
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)(?:([kmgt])b?|(b))?")
_UI_PORT = 3000


def machine_checks(config: LakeConfig) -> Iterator[Check]:
    """Yield the checks of the environment and the machine."""
    yield "versions", _versions
    if remote := config.spark.remote:
        yield "Spark Connect", lambda: _spark_server(remote)
    else:
        yield "memory", lambda: _memory(config.spark.driver_memory)
    yield "disk", lambda: _disk(config)
    yield "ports", _ports


def lake_checks(config: LakeConfig, lake: LakeBase) -> Iterator[Check]:
    """Yield the checks of a lake: its places, its catalog, and the clocks of those who write it."""
    yield "home of the lake", lambda: _writable(config.home)
    yield "catalog", lambda: _catalog(lake)
    yield "warehouse", lambda: _warehouse(config)
    yield "clock", lambda: _clock(config, lake)


def _versions() -> str:
    try:
        declared = metadata.requires(_PACKAGE) or []
        python = metadata.metadata(_PACKAGE)["Requires-Python"]
    except metadata.PackageNotFoundError:
        return f"Python {platform.python_version()}; {_PACKAGE} is not installed as a package, so no bounds are known"
    wrong: list[str] = []
    if python and platform.python_version() not in SpecifierSet(python, prereleases=True):
        wrong.append(f"Python {platform.python_version()} is not {python}")
    shown = [f"Python {platform.python_version()}", f"{_PACKAGE} {metadata.version(_PACKAGE)}"]
    for requirement in map(Requirement, declared):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement.name} {found} is not {requirement.specifier}")
        elif requirement.name in _SHOWN:
            shown.append(f"{requirement.name} {found}")
    if wrong:
        raise LakeError(f"{'; '.join(wrong)}: `pip install {_PACKAGE}` in this environment says what stands in the way")
    return ", ".join(shown)


def _memory(driver: str) -> str:
    memory = psutil.virtual_memory()
    size = _SIZE.fullmatch(driver.strip().lower())
    if size is None:
        raise LakeError(f"spark.driver_memory is {driver!r}, and Spark takes a size such as 4g or 512m")
    wanted = int(size[1]) * _UNITS[size[2] or size[3] or "m"]  # without a unit, Spark takes mebibytes
    if memory.total < wanted:
        raise LakeError(
            f"this machine has {_gigabytes(memory.total)}, and Spark's heap is {driver}: lower spark.driver_memory in "
            "lake.yaml, or LAKE_SPARK__DRIVER_MEMORY"
        )
    free = f"{_gigabytes(memory.available)} of {_gigabytes(memory.total)} are free"
    if memory.available < wanted:
        return f"{free}, and Spark's heap may grow to {driver}: end something, or lower spark.driver_memory"
    return f"{free}; Spark's heap is {driver}"


def _spark_server(remote: str) -> str:
    check_remote(remote)
    return f"a server listens at {hide_in(remote)}"


def _disk(config: LakeConfig) -> str:
    spaces = disks(config)
    if little := [d.advice for d in spaces if d.is_little]:
        raise LakeError("; ".join(little))
    return "; ".join(d.text for d in spaces)


def _ports() -> str:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", 0))
        except OSError as e:
            raise LakeError(
                f"no port of 127.0.0.1 can be bound ({e.strerror}), by which Spark and Dagster talk to their "
                "processes: look at the loopback interface (`ip addr show lo`)"
            ) from e
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex(("127.0.0.1", _UI_PORT)) == 0:
            return f"{_UI_PORT} is in use, by Dagster or something else: `dg dev -p PORT` takes another one"
    return f"{_UI_PORT} is free for Dagster's UI"


def _writable(home: Path) -> str:
    folder = _existing(home)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise LakeError(f"{folder} cannot be written to: choose another folder with LAKE_HOME, or change its mode")
    if not home.exists():
        return f"{home} does not exist yet; the first run creates it"
    if home.stat().st_mode & 0o002:
        raise LakeError(f"{home} can be written to by every user of this machine: `chmod o-w {home}`")
    return str(home)


def _catalog(lake: LakeBase) -> str:
    if not lake.is_there:
        return "SQLite; the first run creates it"
    config = lake.config
    count = len(lake.namespaces())
    where = hide_in(config.hidden(config.catalog.get("uri") or config.catalog.get("type", "")))
    return f"{where}, named {config.name}; {count} namespace{'' if count == 1 else 's'}"


def _warehouse(config: LakeConfig) -> str:
    if not config.warehouse:
        return "the server of the catalog chooses it"
    if config.scheme == "file":
        folder = _existing(_local_warehouse(config))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise LakeError(
                f"{folder} cannot be written to: choose another place with LAKE_WAREHOUSE, or change its mode"
            )
        return config.warehouse
    try:
        # Asks for an object that need not exist: that takes address, credentials and the right to read.
        load_file_io(config.catalog_properties, config.warehouse).new_input(f"{config.warehouse}/lake-assets").exists()
    except Exception as e:  # of the store's library, or of PyIceberg
        raise LakeError(
            f"{config.warehouse} cannot be read: {config.hidden(e)}: check the address, the credentials and `storage` "
            "in lake.yaml (docs/lake.md)"
        ) from e
    return config.warehouse


def _clock(config: LakeConfig, lake: LakeBase) -> str:
    folder = _existing(config.home)
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"not compared: {folder} cannot be written to"
    before = time.time()
    with tempfile.TemporaryFile(dir=folder) as file:
        written = os.fstat(file.fileno()).st_mtime
    # A file system of another machine has that machine's clock.
    if not before - thresholds.CLOCK_SECONDS < written < time.time() + thresholds.CLOCK_SECONDS:
        raise LakeError(
            f"the clock of the file system of {config.home} differs from this machine's by "
            f"{abs(written - before):,.0f} s: set both by a time server"
        )
    ahead = 0.0
    newest = ""
    try:
        tables = tuple(lake.all_tables()) if lake.is_there else ()
    except LakeError:
        tables = ()  # the check of the catalog says why
    for table in tables:
        found = lake.find(table)
        if found is not None and found.metadata.last_updated_ms / 1000 - before > ahead:
            ahead, newest = found.metadata.last_updated_ms / 1000 - before, str(table)
    if ahead * 1000 > TOLERANCE_MS:
        raise LakeError(
            f"{newest} was written {ahead:,.0f} s in the future of this machine's clock: set the clocks of all "
            "machines that write the lake by a time server; the next step of the table resets its times"
        )
    return "no table is of the future" if tables else "as that of the file system"


def _existing(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    return next(f for f in (folder, *folder.parents) if f.exists())


def _local_warehouse(config: LakeConfig) -> Path:
    return Path(unquote(urlparse(config.warehouse or "").path))


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
