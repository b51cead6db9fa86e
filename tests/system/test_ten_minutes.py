"""`docs/postgres-in-ten-minutes.md`, word for word: every block is executed, and prints what the page shows."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from lake_assets.runtime import jars
from tests.support import postgres
from tests.support.executed_page import Block, Reader, blocks, same
from tests.support.processes import ROOT, SMALL_SPARK, free_port

pytestmark = [pytest.mark.system]

PAGE = (ROOT / "docs" / "postgres-in-ten-minutes.md").read_text("utf-8")
# Not executed: what would change the environment of the tests.
NOT_EXECUTED = ("pip install 'lake-assets[postgres]' duckdb\n",)
# The page says in words that the server is restarted after this.
RESTARTS = "ALTER SYSTEM SET wal_level = logical;"
# What runs until it is interrupted.
FOREGROUND = ("lake-assets serve sales.yaml", "dagster dev -f definitions.py -p 3000")
# What is another word on each machine: paths.
VARIES = (r"(?:file://)?/\S+",)
PASSWORD = "the superuser's"


@pytest.fixture
def server() -> Generator[postgres.Server]:
    with postgres.server("postgres", PASSWORD) as made:
        yield made


@pytest.fixture
def reader(server: postgres.Server) -> Generator[Reader]:
    # Its name is short, so that no table of the output is wrapped in the middle of a path.
    folder = Path(tempfile.mkdtemp())
    for name in ("home", "work", "logs"):
        (folder / name).mkdir()
    env = {
        "HOME": str(folder / "home"),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "LAKE_JARS": str(jars._cache()),  # otherwise they were downloaded
        "PYDBZ_JVM_OPTS": "-Xmx512m -XX:TieredStopAtLevel=1",
        **SMALL_SPARK,
    }
    # All that is not word for word: the ports.
    ports = {"5432": str(server.port), "3000": str(free_port())}
    made = Reader(folder / "work", folder / "logs", env, ports, VARIES, FOREGROUND, {"postgres": PASSWORD})
    with made.working():
        yield made
    shutil.rmtree(folder)


def do(reader: Reader, server: postgres.Server, page: Sequence[Block]) -> None:
    for block in page:
        if block.text in NOT_EXECUTED:
            continue
        reader.do(block)
        if RESTARTS in block.text:
            server.restart()


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        ("table  rows\nraw.shop  8", "table     rows\nraw.shop     8\n", True),
        ("table  rows\nraw.shop  8", "table     rows\nraw.shop     9\n", False),
        ("a  ... +1 ~0 -0 ...", "a  1 file, 2 kB  +1 ~0 -0  append  0.5", True),
        ("a  ... +1 ~0 -0 ...", "a  1 file, 2 kB  +2 ~0 -0  append  0.5", False),
        ("a ...", "a", True),
        ("ok  /usr/lib/java", "ok  /opt/java", True),
        ("ok  /usr/lib/java", "no  /opt/java", False),
        ("", "something", False),
    ],
)
def test_what_is_printed_is_compared_with_what_is_shown(shown: str, printed: str, is_same: bool) -> None:
    assert same(shown, printed, VARIES) == is_same


def test_up_to_the_doctor_nothing_is_missing(reader: Reader, server: postgres.Server) -> None:
    end = next(n for n, block in enumerate(blocks(PAGE), 1) if "lake-assets doctor" in block.text)
    do(reader, server, blocks(PAGE)[:end])


@pytest.mark.long  # a minute of work, and another one in Dagster
def test_a_table_follows_postgres_by_commands_and_in_dagster(reader: Reader, server: postgres.Server) -> None:
    do(reader, server, blocks(PAGE))
