"""`verify`: compare a table with its query at the snapshots that it has absorbed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import (
    DefinitionChangedError,
    LakeError,
    ModelError,
    NotRunError,
    PipelineError,
    SnapshotExpiredError,
    TableReplacedError,
)
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.verification import Difference, Verification, verify
from tests.support.cli import invoke
from tests.support.html_pages import check_accessible, check_alone, read_page
from tests.support.upkeep import forget_history

COUNT = "SELECT g, count(*) AS n FROM final.t GROUP BY g"


class World:
    """One table and models over it."""

    def __init__(self, lake: Lake, **models: str) -> None:
        self.lake = lake
        lake.ensure_namespace(("final",))
        self.sql(
            "CREATE TABLE final.t (id INT, g STRING, x DOUBLE) USING iceberg TBLPROPERTIES ('format-version' = '3')"
        )
        self.sql("INSERT INTO final.t VALUES (1, 'a', 0.1), (2, 'a', 0.2), (3, NULL, CAST('NaN' AS DOUBLE))")
        self.declare(**models)

    def declare(self, **models: str) -> None:
        declared = [{"name": f"agg.{name}", "sql": sql} for name, sql in models.items()]
        self.pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "models": declared}))

    def sql(self, text: str) -> None:
        self.lake.spark().sql(text)

    def run(self) -> None:
        assert not [o.error for o in self.pipeline.run(self.lake) if o.error]

    def verify(self, name: str, *, sample: float = 1.0, limit: int = 20) -> Verification:
        (spec,) = [s for s in self.pipeline.specs(self.lake) if str(s.table) == f"agg.{name}"]
        assert isinstance(spec, ModelSpec)
        return verify(self.lake, spec, sample=sample, limit=limit)


def test_a_table_is_compared_at_the_snapshots_that_it_has_absorbed(lake: Lake) -> None:
    world = World(lake, m=COUNT, rows="SELECT * FROM final.t")
    world.run()
    world.sql("DELETE FROM final.t WHERE id = 1")
    for name, rows in (("m", 2), ("rows", 3)):
        result = world.verify(name)
        assert (result.equal, result.expected, result.found) == (True, rows, rows)
    world.run()
    assert world.verify("rows").found == 2


def test_differing_rows_are_reported_with_their_counts(lake: Lake) -> None:
    world = World(lake, m="SELECT g, id % 2 AS odd FROM final.t")
    world.run()
    world.sql("INSERT INTO agg.m VALUES (NULL, 1), ('more', 7)")
    world.sql("DELETE FROM agg.m WHERE odd = 0")
    result = world.verify("m")
    assert (result.expected, result.found, result.different) == (3, 4, 3)
    assert (result.missing, result.additional, result.changed, result.key) == (1, 2, 0, ())
    assert result.differences == (
        Difference({"g": None, "odd": 1}, 1, 2),
        Difference({"g": "a", "odd": 0}, 1, 0),
        Difference({"g": "more", "odd": 7}, 0, 1),
    )
    assert len(world.verify("m", limit=1).differences) == 1


@pytest.mark.long
def test_floats_may_differ_in_their_last_digits_only(lake: Lake) -> None:
    world = World(lake, m="SELECT g, x, id FROM final.t UNION ALL SELECT g, x, id FROM final.t")
    world.run()
    world.sql(f"UPDATE agg.m SET x = {math.nextafter(0.1, 1)!r}D WHERE id = 1")
    assert world.verify("m").equal
    world.sql("UPDATE agg.m SET x = 0.1000001D WHERE id = 1")
    result = world.verify("m")
    assert [(d.row["x"], d.expected, d.found) for d in result.differences] == [(0.1, 2, 0), (0.1000001, 0, 2)]
    world.sql("UPDATE agg.m SET x = 0.1D WHERE id = 1")
    world.sql("UPDATE agg.m SET x = 1.0D WHERE id = 3")
    assert world.verify("m").different == 2  # 1.0 is never close to NaN


@pytest.mark.long
def test_values_that_depend_on_ties_are_not_compared(lake: Lake) -> None:
    world = World(
        lake,
        numbered="SELECT id, g, row_number() OVER (PARTITION BY 1 ORDER BY length(g)) AS n FROM final.t",
        one="SELECT id, g FROM (SELECT id, g, row_number() OVER (PARTITION BY g ORDER BY 1) AS n FROM final.t) WHERE n = 1",
        nothing_else="SELECT collect_list(id) AS ids FROM final.t",
    )
    world.run()
    # Another computation numbers them differently, and takes the other row of `a`.
    world.sql("UPDATE agg.numbered SET n = 5 - n WHERE n > 1")
    world.sql("UPDATE agg.one SET id = 3 - id WHERE g = 'a'")
    result = world.verify("numbered")
    assert result.equal
    assert "row_number() depends on how ties are broken" in result.not_compared["n"].lower()
    one = world.verify("one")
    assert (one.different, list(one.not_compared)) == (2, [])
    assert "depends on how ties are broken" in one.doubt
    assert world.verify("nothing_else").equal
    world.sql("UPDATE agg.nothing_else SET ids = reverse(ids)")
    with pytest.raises(
        ModelError, match="every column can have other values in each computation .* depends on the order"
    ):
        world.verify("nothing_else")
    # Columns that do not depend on ties are compared as usual.
    world.sql("UPDATE agg.numbered SET g = 'b' WHERE id = 1")
    assert world.verify("numbered").different == 2
    assert world.verify("numbered").doubt == ""


@pytest.mark.long
def test_a_sample_picks_the_same_keys_on_both_sides(lake: Lake) -> None:
    world = World(lake, m="SELECT id, count(*) AS n FROM final.t GROUP BY id", rows="SELECT id, x FROM final.t")
    world.sql("INSERT INTO final.t SELECT CAST(id AS INT), 'r', 1 FROM range(10, 1010)")
    world.run()
    for name in ("m", "rows"):
        first, again = world.verify(name, sample=0.2), world.verify(name, sample=0.2)
        assert first == again
        assert first.equal
        assert 100 < first.found < 300
    world.sql("UPDATE agg.m SET n = 2")
    result = world.verify("m", sample=0.2)
    assert result.different == 2 * result.found > 200
    with pytest.raises(PipelineError, match="is not valid"):
        world.verify("m", sample=0)


def test_what_cannot_be_verified_is_named(lake: Lake) -> None:
    world = World(lake, m=COUNT)
    cases: list[tuple[Callable[[], object], type[LakeError] | None, str]] = [
        (lambda: None, NotRunError, "never run"),
        (lambda: (world.run(), world.declare(m=COUNT + " HAVING n > 1")), DefinitionChangedError, "was changed"),
        (lambda: world.declare(m=f"{COUNT} -- the same"), None, ""),
        (lambda: world.sql("ALTER TABLE agg.m ALTER COLUMN n DROP NOT NULL"), None, ""),
        (lambda: world.sql("ALTER TABLE agg.m RENAME COLUMN n TO m"), DefinitionChangedError, "n bigint"),
        (lambda: world.sql("ALTER TABLE agg.m RENAME COLUMN m TO n"), None, ""),
        (
            lambda: world.sql("DROP TABLE final.t"),
            LakeError,
            "final.t, which no longer exists: it was dropped or renamed",
        ),
        (lambda: world.__init__(lake, m=COUNT), TableReplacedError, "dropped and created again"),
    ]
    for prepare, error, message in cases:
        prepare()
        if error:
            with pytest.raises(error, match=message):
                world.verify("m")
        else:
            assert world.verify("m").equal


def test_an_expired_snapshot_is_named(lake: Lake) -> None:
    world = World(lake, m=COUNT)
    world.run()
    world.sql("INSERT INTO final.t VALUES (9, 'z', 1)")
    # Another process removes the tag that protects the absorbed snapshot.
    forget_history(lake, "final.t")
    with pytest.raises(SnapshotExpiredError, match="expired"):
        world.verify("m")


def test_the_command_exits_with_one_if_the_table_differs(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(lake)
    file = tmp_path / "defs.yaml"
    file.write_text(
        f"type: lake_assets.LakePipeline\nattributes:\n  name: p\n  models:\n    - {{name: agg.m, sql: '{COUNT}'}}\n"
    )
    world.pipeline = Pipeline.load(file)
    world.run()
    monkeypatch.setattr(Lake, "load", lambda: lake)

    def called(*arguments: str) -> tuple[int, str]:
        result = invoke("verify", "agg.m", *arguments)
        return result.exit_code, result.stdout

    code, output = called("--pipeline", str(file))
    assert (code, "equal: 2 rows" in output) == (0, True)
    world.sql("UPDATE agg.m SET n = 5 WHERE g = 'a'")
    monkeypatch.setenv("LAKE_PIPELINES", str(tmp_path))
    code, output = called("--sample", "100%", "--html", str(tmp_path / "m.html"))
    assert (code, "2 rows differ" in output, "column n: 1 row differs" in output) == (1, True, True)
    page = (tmp_path / "m.html").read_text("utf-8")
    check_alone(page)
    check_accessible(page)
    assert "By g: 1 row with other values, 0 missing in the table" in read_page(page).text
    assert [mark.text for mark in read_page(page).all("mark")] == ["2", "5"]
    code, output = called("--json")
    assert code == 1
    assert (json.loads(output)["changed"], json.loads(output)["columns"]) == (1, {"n": 1})
    assert [d["row"] for d in json.loads(output)["differences"]] == [{"g": "a", "n": 2}, {"g": "a", "n": 5}]
    monkeypatch.delenv("LAKE_PIPELINES")
    assert called()[0] == 1, "the lake knows the file from which the pipeline has run"
    file.rename(tmp_path / "away.yaml")
    with pytest.raises(PipelineError, match="--pipeline"):
        called()
    with pytest.raises(PipelineError, match="is not a share"):
        called("--sample", "150%")
