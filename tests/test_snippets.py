"""Every fenced block of the documentation is loaded, parsed or executed by a test, or is listed with the reason why not.

Settings are loaded by what reads them, commands are read by the command line, and Python is compiled. What is executed in addition
is in EXECUTED, with the test that does it. A new block that none of this reaches fails `test_no_snippet_is_forgotten`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.documents import PAGES, Snippet, snippets, text_of
from tests.support.processes import ROOT
from tests.support.snippet_checks import (
    CHECKS,
    command_mistake,
    commands,
    inline_commands,
    launcher_of,
    unknown_word,
    yaml_mistake,
)

SNIPPETS = [s for page in PAGES for s in snippets(page)]
# A page, or a page and the first line of a block: the test that executes it.
EXECUTED = {
    "docs/postgres-in-ten-minutes.md": "tests/system/test_ten_minutes.py",
    "docs/tutorial.md": "tests/system/test_tutorial.py",
    "docs/how-to/dagster-deployment.md": "tests/system/test_dagster_deployment.py",
    "docs/reading-the-lake.md": "tests/system/test_reading_the_lake.py",
    (
        "docs/dagster.md",
        '@dg.asset(ins={"users": dg.AssetIn(["final", "users"], input_manager_key="lake_io_manager")})',
    ): "tests/orchestration/test_lake_io_manager.py",
    ("docs/live-sources.md", "type: lake_assets.LakePipeline"): "tests/orchestration/test_live_sources.py",
    ("docs/pipelines.md", "from lake_assets import Lake, Pipeline"): "tests/system/test_documented_code.py",
    ("docs/capture.md", "from lake_assets import Lake"): "tests/system/test_documented_code.py",
    ("docs/capture.md", 'with lake.changes_view("users_changed", "final.users", start="yesterday", keys=["id"]):'): (
        "tests/system/test_documented_code.py"
    ),
    ("docs/lake.md", "SELECT table, count(*) AS steps, sum(cpu_seconds) AS core_seconds, max(lag_seconds) AS lag"): (
        "tests/system/test_documented_code.py"
    ),
    ("docs/own_code.md", "from lake_assets import Changes, Lookup, model"): "tests/system/test_documented_code.py",
    ("docs/own_code_jobs.md", "from datetime import timedelta"): "tests/system/test_documented_code.py",
    ("docs/streams.md", "from lake_assets import Lake, Pipeline"): "tests/pipeline/test_settings_in_a_table.py",
}
OUTPUT = "what a command prints"
PART = "a part of a program of the reader's; compiled"
BEFORE = "a batch job as readers have it, and what becomes of it"
ELSEWHERE = "for programs and servers that the tests do not have"
UNTESTED = "the page says that it is untested"
NOT_EXECUTED: dict[str | tuple[str, str], str] = {
    (
        "docs/how-to/backup.md",
        "mv /data/lake /big/lake",
    ): "as in tests/lake/test_moved_lake.py, with folders of the test",
    ("docs/how-to/containers.md", "FROM python:3.11-slim-trixie"): UNTESTED,
    (
        "docs/how-to/production.md",
        "* * * * * cd /srv/my-shop && flock -n -E 0 .lake/cron.lock /srv/venv/bin/lake-assets run >> .lake/cron.log 2>&1",
    ): ELSEWHERE,
    ("docs/clusters.md", "sbin/start-connect-server.sh \\"): ELSEWHERE,
    ("docs/clusters.md", "export HADOOP_CONF_DIR=/etc/hadoop/conf"): ELSEWHERE,
    ("docs/dagster.md", '@dg.asset(deps=[dg.AssetKey(["final", "users"])], required_resource_keys={"pyspark"})'): PART,
    (
        "docs/decisions/0056-comet.md",
        "CREATE TABLE x.t USING iceberg AS SELECT * FROM VALUES (1, -0.0D), (2, 0.0D), (3, 1.0D) AS t(id, d);",
    ): ELSEWHERE,
    (
        "docs/erasing.md",
        "import hashlib, json",
    ): PART,
    ("docs/kafka.md", "connector.class=org.apache.iceberg.connect.IcebergSinkConnector"): ELSEWHERE,
    ("docs/live-sources.md", "ALTER SYSTEM SET wal_level = logical;     -- then restart the server"): (
        "as in docs/postgres-in-ten-minutes.md, where it is executed"
    ),
    (
        "docs/own_code.md",
        "FROM {{ changes('raw.playback') }} p   -- the changed rows; trigger runs",
    ): "the end of a SELECT",
    (
        "docs/own_code.md",
        'spark.table("lake.raw.playback").where("started_at >= current_date() - 14").groupBy(',
    ): BEFORE,
    (
        "docs/own_code.md",
        '-    rows = spark.table("lake.raw.playback").where("started_at >= current_date() - 14")',
    ): BEFORE,
    ("docs/own_code.md", """changes = playback.feed("id").where("_change_type <> 'update_before'")"""): PART,
    ("docs/own_code_jobs.md", "table.append(rows, snapshot_properties=step.properties)  # PyIceberg"): PART,
    (
        "docs/own_code_jobs.md",
        'with lake.step("agg.playback_daily", ["raw.playback"], ranges=["day"], lifetime=timedelta(hours=2)) as step:',
    ): PART,
    ("docs/own_code_jobs.md", "from lake_assets.jobs import current_step"): PART,
    (
        "docs/own_code_jobs.md",
        """rows = duckdb.sql(f"SELECT * FROM iceberg_scan('{os.environ['LAKE_STEP_AFTER_METADATA_RAW_PLAYBACK']}')")""",
    ): ELSEWHERE,
    ("docs/rebuilding.md", "from lake_assets import Lake"): PART,
    ("docs/final-tables.md", "delete 1, insert 2    # A moves to 2, where B still is"): "events, in short",
    ("docs/models.md", "stages    1. read the changes of final.users (1 file, 1,973 bytes)"): OUTPUT,
    (
        "docs/previews.md",
        "final.user_city is declared otherwise: its declaration, or the key of its source, has changed since its rows were computed: the next run computes it again from 123 events of staging.user_city",
    ): OUTPUT,
    ("docs/previews.md", "final.user_city: 0 inserted, 0 updated, 0 deleted (123 to 123 rows)"): OUTPUT,
    ("docs/row-history.md", "final.users, id = 5"): OUTPUT,
}


def _key(snippet: Snippet) -> tuple[str, str]:
    return snippet.page, snippet.first


def _is_checked(snippet: Snippet) -> bool:
    """Whether the tests below load or read a block as what it is."""
    return snippet.language in ("yaml", "json") or bool(commands(snippet))


def test_no_snippet_is_forgotten() -> None:
    listed = {*EXECUTED, *NOT_EXECUTED}
    forgotten = [s for s in SNIPPETS if not _is_checked(s) and not {s.page, _key(s)} & listed]
    assert [f"{s.place}: {s.language or 'text'}: {s.first}" for s in forgotten] == []


def test_the_lists_name_blocks_that_exist_and_need_it() -> None:
    unchecked = {k for s in SNIPPETS if not _is_checked(s) for k in (s.page, _key(s))}
    assert set(NOT_EXECUTED) - unchecked == set()
    assert set(EXECUTED) - {k for s in SNIPPETS for k in (s.page, _key(s))} == set()
    assert set(EXECUTED) & set(NOT_EXECUTED) == set()


def test_tests_that_execute_a_page_read_it() -> None:
    for key, test in EXECUTED.items():
        page = key if isinstance(key, str) else key[0]
        assert Path(page).name in text_of(ROOT / test), f"{test} does not read {page}"


@pytest.mark.parametrize("language", sorted({s.language for s in SNIPPETS if s.language in CHECKS}))
def test_code_is_valid(language: str) -> None:
    assert [m for s in SNIPPETS if s.language == language and (m := CHECKS[language](s))] == []


def test_settings_load(tmp_path: Path) -> None:
    # A page that is executed has files of other programs too.
    settings = [s for s in SNIPPETS if s.language == "yaml" and (s.page not in EXECUTED or "lake_assets." in s.text)]
    launchers = [s for s in settings if "run_launcher:" in s.text]
    assert len(settings) > 45
    assert [m for s in settings if s not in launchers and (m := yaml_mistake(s, tmp_path))] == []
    assert launchers
    assert all(launcher_of(s) for s in launchers)


def test_commands_can_be_entered_so() -> None:
    found = [c for s in SNIPPETS for c in commands(s)]
    assert len(found) > 100
    assert [m for c in found if (m := command_mistake(c))] == []


def test_commands_within_sentences_exist() -> None:
    found = {c for page in PAGES for c in inline_commands(text_of(page))}
    assert len(found) > 100
    assert sorted(m for c in found if (m := unknown_word(c))) == []
