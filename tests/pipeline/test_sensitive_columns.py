"""Sensitive columns are declared, follow what is computed from them, and are hidden in whatever steps tell."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import (
    AuditFailedError,
    ConcurrentWriteError,
    HiddenValuesError,
    KeyMissingError,
    LakeError,
    ModelError,
    PipelineError,
    RejectedLimitError,
)
from lake_assets.formats.event_model import MISFITS
from lake_assets.lake import TableId
from lake_assets.lake.sensitive_values import PROPERTY, SensitiveColumns, masked_error, shown
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.pipeline_checks import check
from lake_assets.pipeline.sensitive_columns import SensitiveTables
from tests.support.pipeline_files import load

VALUE = "zebra-4711@example.org"
USERS = pa.schema([(c, pa.string()) for c in ("id", "Email", "city", "phone", "phone__int", MISFITS)])
# Of a query whose columns nobody can follow.
EVERYTHING = {"id", "city", "one", "n", "a", "s", "email"}
MODELS = {
    "agg.copied": ("SELECT id, lower(email) AS mail, city FROM final.users", {"mail"}),
    "agg.all": ("SELECT * FROM final.users", {"email", "phone", "phone__int", "_misfits"}),
    "agg.counted": ("SELECT city, count(*) AS n, max(phone) AS m FROM final.users GROUP BY city", {"m"}),
    "agg.exploded": ("SELECT id, x FROM final.users LATERAL VIEW explode(split(email, '@')) t AS x", {"x"}),
    "agg.inner": ("SELECT city, (SELECT max(email) FROM final.users) AS e, 1 AS one FROM final.users", {"e"}),
    "agg.further": (
        "WITH a AS (SELECT mail AS x, city FROM agg.copied) SELECT concat(x, city) AS y, city FROM a",
        {"y"},
    ),
    "agg.many": ("SELECT city, count(*) AS n FROM (SELECT * FROM final.users) u GROUP BY city", set()),
    "agg.whole": ("SELECT id, struct(u.*) AS s FROM final.users u", EVERYTHING),
    "agg.text": ("WITH a AS (SELECT to_json(struct(*)) AS s FROM final.users) SELECT s, 1 AS n FROM a", EVERYTHING),
    "agg.listed": ("SELECT concat_ws(',', *) AS s FROM final.users", EVERYTHING),
    "agg.inline": (
        "SELECT x.* FROM (SELECT array(struct(u.*)) AS w FROM final.users u) LATERAL VIEW inline(w) x",
        EVERYTHING,
    ),
    "agg.united": ("SELECT id AS a, city AS b FROM final.users UNION ALL SELECT city, email FROM final.users", {"b"}),
}


def _lake(lake: Lake) -> Lake:
    for name in ("staging", "final", "agg"):
        lake.ensure_namespace((name,))
    for table in ("staging.users", "final.users"):
        lake.catalog.create_table(table, USERS)
    lake.catalog.create_table("agg.copied", pa.schema([(c, pa.string()) for c in ("id", "mail", "city")]))
    return lake


def _pipeline(**more: object) -> Pipeline:
    table = {"table": "public.users", "sensitive": ["EMAIL", "phone"]}
    models = [{"name": name, "sql": sql} for name, (sql, _) in MODELS.items()]
    declared = {"name": "shop", "streams": [{"name": "events", "tables": [table]}], "models": models, **more}
    return Pipeline(PipelineConfig.model_validate(declared))


def test_what_is_computed_from_a_sensitive_column_is_sensitive(plain_lake: Lake) -> None:
    lake = _lake(plain_lake)
    specs = _pipeline().specs(lake)
    sensitive = SensitiveTables.of_specs(lake, specs[:1])  # each table knows the others of its pipeline
    for name, (_, expected) in MODELS.items():
        columns = {f.lower() for f in (*USERS.names, "mail", "x", "y", "e", "one", "n", "m", "a", "b", "s")}
        assert {c for c in columns if sensitive.of(name).covers(c)} & {
            *expected,
            "id",
            "city",
            "one",
            "n",
            "a",
        } == expected, name
    assert sensitive.of("raw.events").covers("record")
    rejected = sensitive.of("raw.events_rejected")
    assert [rejected.covers(c) for c in ("record", "reason", "position")] == [True, True, False]
    assert sensitive.of("final.users").covers("email.host"), "a field within a column"
    assert not SensitiveColumns.all(["profile"]).covers("Profile.city")
    assert sensitive.of("staging.users").covers(MISFITS)
    assert not sensitive.of("/landing/events")
    assert not sensitive.of("final.unknown")


def test_a_table_of_another_pipeline_has_its_sensitive_columns_as_a_property(plain_lake: Lake) -> None:
    lake = _lake(plain_lake)
    of_users = SensitiveTables.of_specs(lake, _pipeline().specs(lake))
    for name in ("final.users", "staging.users"):
        of_users.store(TableId.parse(name))
    assert json.loads(lake.table("final.users").properties[PROPERTY]) == ["_misfits", "email", "phone", "phone__int"]
    before = lake.table("final.users").metadata_location
    of_users.store(TableId.parse("final.users"))
    assert lake.table("final.users").metadata_location == before
    model = {"name": "agg.copied", "sql": MODELS["agg.copied"][0]}
    other = Pipeline(PipelineConfig.model_validate({"name": "other", "models": [model]}))
    assert SensitiveTables.of_specs(lake, other.specs(lake)).of("agg.copied") == SensitiveColumns.of(["mail"])
    cleared = Pipeline(PipelineConfig.model_validate({"name": "other", "models": [{**model, "not_sensitive": "Mail"}]}))
    assert not SensitiveTables.of_specs(lake, cleared.specs(lake)).of("agg.copied")
    SensitiveTables(lake, {s.table: s for s in cleared.specs(lake)}).store(TableId.parse("agg.copied"))
    assert PROPERTY not in lake.table("agg.copied").properties


def test_a_model_over_tables_without_sensitive_columns_hides_nothing(plain_lake: Lake) -> None:
    lake = _lake(plain_lake)
    for table in ("staging.orders", "final.orders"):
        lake.catalog.create_table(table, pa.schema([("nr", pa.string()), ("user", pa.string())]))
    stream = {"name": "events", "tables": ["public.users", "public.orders"], "sensitive": ["email"]}
    sqls = {
        "agg.a": "SELECT nr FROM final.orders",
        "agg.b": "SELECT nr FROM final.orders JOIN final.users ON user = id",
    }
    models = [{"name": name, "sql": sql} for name, sql in sqls.items()]
    specs = Pipeline(PipelineConfig.model_validate({"name": "shop", "streams": [stream], "models": models})).specs(lake)
    by_name, tables = {str(s.table): s for s in specs}, SensitiveTables.of_specs(lake, specs)
    assert tables.read_by(by_name["agg.a"]) == []
    assert tables.read_by(by_name["agg.b"]) == [TableId.parse("final.users")]
    assert tables.read_by(by_name["final.orders"]), "a column may arrive with the batch"


def test_where_lineage_ends_all_columns_are_sensitive_but_the_cleared_ones(plain_lake: Lake) -> None:
    lake = _lake(plain_lake)
    append = {"name": "agg.log", "sql": "SELECT * FROM {{ changes('final.users') }}", "write": "append"}
    pipeline = _pipeline(models=[{**append, "not_sensitive": ["id"]}])
    columns = SensitiveTables.of_specs(lake, pipeline.specs(lake)).of("agg.log")
    assert (columns.covers("city"), columns.covers("ID")) == (True, False)
    assert SensitiveColumns.stored(None) == SensitiveColumns()
    both = columns | SensitiveColumns.of(["id"])
    assert both.covers("id")
    assert json.loads(columns.to_property()) == {"all_but": ["id"]}


def test_unknown_columns_and_partitions_by_sensitive_ones_are_mistakes(plain_lake: Lake, tmp_path: Path) -> None:
    lake = _lake(plain_lake)
    pipeline = load(
        tmp_path,
        """type: lake_assets.LakePipeline
attributes:
  name: shop
  streams:
    - name: events
      sensitive: [city, fone]
      tables:
        - table: public.users
          sensitive: [Email, emial]
  models:
    - name: agg.copied
      sql: SELECT id, lower(email) AS mail, city FROM final.users
      not_sensitive: [town]
      partitions: mail
""",
    )
    mistakes = sorted(check(pipeline, lake).mistakes, key=lambda m: int(_line(m)))
    assert [*map(_line, mistakes)] == ["6", "9", "13", "14"], mistakes
    assert "`sensitive` names fone (did you mean phone?)" in mistakes[0]
    assert "names emial" in mistakes[1]
    assert "`not_sensitive` names town" in mistakes[2]
    assert "`partitions` by mail, which is sensitive" in mistakes[3]
    with pytest.raises(PipelineError, match=r"a: in `sensitive` and in `not_sensitive`"):
        load(tmp_path, "type: lake_assets.LakePipeline\nattributes:\n  name: x\n  models:\n    - {name: agg.a, "
             "sql: SELECT 1 AS a, sensitive: A, not_sensitive: a}\n")  # fmt: skip
    with pytest.raises(PipelineError, match=r"`partitions` by a, which is sensitive"):
        load(tmp_path, "type: lake_assets.LakePipeline\nattributes:\n  name: x\n  models:\n    - {name: agg.a, "
             "sql: SELECT 1 AS a, sensitive: A, partitions: a}\n")  # fmt: skip


def _line(mistake: str) -> str:
    return mistake.partition(", line ")[2].partition(":")[0]


def _raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as e:
        return e


@pytest.mark.parametrize(
    ("error", "cause", "kept"),
    [
        (ValueError(f"bad: {VALUE}"), None, "ValueError"),
        (KeyError(VALUE), None, "KeyError"),
        (ModelError(f"m.py, line 3: model agg.a: its function failed: {VALUE}"), ValueError(VALUE), "m.py, line 3"),
        (PipelineError(f"agg.a: Spark cannot: [CAST] The value '{VALUE}' of"),
         ValueError(f"x.SparkException: [CAST] The value '{VALUE}' of\n at x"), "agg.a: Spark cannot"),
        (PipelineError(f"agg.a: said otherwise: {VALUE}"), ValueError("something"), "PipelineError, by ValueError"),
        (KeyMissingError(f"agg.a: 2 rows for ('{VALUE}',)").quoting((VALUE,)), None, "agg.a: 2 rows for ***"),
        (RejectedLimitError(f"1 of 2. The first: {VALUE}. Raise").quoting(VALUE), None, "1 of 2. The first: ***"),
        (ConcurrentWriteError(f"final.a: another writer: ref(name) == {VALUE}"),
         RuntimeError(f"org.X: Found conflicting files: ref(name) == {VALUE}"), "final.a: another writer"),
        (AuditFailedError("agg.a: 1 of 1 audits do not pass"), None, "1 of 1 audits"),
    ],
)  # fmt: skip
def test_an_error_says_what_happened_without_the_values_that_it_quotes(
    error: Exception, cause: Exception | None, kept: str
) -> None:
    raised = _raised(error, cause)
    masked = masked_error(raised, ["final.users"], lambda e: e)
    assert VALUE not in str(masked)
    assert kept in str(masked)
    assert (masked.__cause__, masked.__context__) == (None, None)
    assert masked.__traceback__ is raised.__traceback__
    assert shown(masked) is raised
    assert isinstance(masked, LakeError)
    assert masked.permanent == getattr(error, "permanent", True)
    if not isinstance(masked, HiddenValuesError):
        assert type(masked) is type(error)
