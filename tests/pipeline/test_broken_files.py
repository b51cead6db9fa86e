"""Missing and truncated files: their table reports them at once, other tables continue, and the error's advice works."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import CorruptMetadataError, MissingDataFileError
from lake_assets.lake import caching_catalog
from lake_assets.lake.metadata.catalog_repair import examine, repair
from lake_assets.pipeline.verification import verify
from tests.support.faults import Faults, path_of
from tests.support.people import AGES, CITIES, OLDEST, People


def data_files(lake: Lake, table: str) -> list[Path]:
    scan = lake.table(table).scan()
    return [path_of(task.file.file_path) for task in scan.plan_files()]


def manifests(lake: Lake, table: str) -> list[Path]:
    loaded = lake.table(table)
    snapshot = loaded.current_snapshot()
    assert snapshot is not None
    return [path_of(m.manifest_path) for m in snapshot.manifests(loaded.io)]


def manifest_list(lake: Lake, table: str) -> list[Path]:
    snapshot = lake.table(table).current_snapshot()
    assert snapshot is not None
    return [path_of(snapshot.manifest_list)]


def metadata(lake: Lake, table: str) -> list[Path]:
    return [path_of(lake.table(table).metadata_location)]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


FILES: dict[str, Callable[[Lake, str], list[Path]]] = {
    "data": data_files, "manifest": manifests, "manifest list": manifest_list, "metadata": metadata,
}  # fmt: skip
TABLES = ["staging.people", "final.people", "agg.cities"]


OFTEN = {(Path.unlink, "metadata", "final.people")}
CASES = [
    pytest.param(how, what, table, marks=() if (how, what, table) in OFTEN else pytest.mark.long)
    for how in (Path.unlink, cut)
    for what in FILES
    for table in TABLES
]


@pytest.mark.long
@pytest.mark.parametrize(("how", "what", "broken"), CASES)
def test_a_broken_file_is_named_and_stops_its_table_alone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, what: str, how: Callable[[Path], Any], broken: str
) -> None:
    people = People(lake, CITIES, OLDEST)
    for _ in range(2):
        people.land(30)
        people.check()
    people.land(30)
    found = FILES[what](lake, broken)
    for file in found:
        how(file)
    monkeypatch.setattr(caching_catalog, "_cache", caching_catalog.MetadataCache())  # as in a new process
    began = time.monotonic()
    outcomes = people.run()
    assert time.monotonic() - began < 60, "nobody waits for a file to come back"
    failed = {t: o for t, o in outcomes.items() if o.status == "failed"}
    for table, outcome in failed.items():
        assert isinstance(outcome.exception, CorruptMetadataError | MissingDataFileError), (table, outcome.error)
        assert any(f.name in str(outcome.error) for f in found), (table, outcome.error)
    # Tables that do not read the broken file continue.
    assert set(failed) <= {
        broken,
        *{"staging.people": ["final.people"], "final.people": ["agg.cities", "agg.oldest"]}.get(broken, []),
    }
    if what == "metadata":
        assert broken in failed
        for examined in examine(lake):
            if examined.can_be_repaired:
                repair(lake, examined)
        people.check()


OWN_OFTEN = {(Path.unlink, "final.people", "rebuild")}
OWN = [
    pytest.param(how, own, advice, marks=() if (how, own, advice) in OWN_OFTEN else pytest.mark.long)
    for how in (Path.unlink, cut)
    for own in ("final.people", "agg.cities", "agg.ages")
    for advice in ("rebuild", "roll back", "restore")
]


@pytest.mark.long
@pytest.mark.parametrize(("how", "own", "advice"), OWN)
def test_a_table_whose_own_data_is_gone_goes_on_as_its_error_advises(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[Path], Any], own: str, advice: str
) -> None:
    people = People(lake, CITIES, AGES)
    faults = Faults(people, tmp_path, monkeypatch)
    people.land(30)
    people.run()
    before = data_files(lake, own)
    people.land(30)
    people.check()
    for file in faults.keep(f for f in data_files(lake, own) if f not in before):
        how(file)
    people.land(60)
    failed = {o.table: o for o in faults.run()}
    faults.follow(failed[own], advice)
    faults.finish()


@pytest.mark.long
def test_a_file_that_only_history_needs_is_done_without(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = People(lake, CITIES, AGES)
    faults = Faults(people, tmp_path, monkeypatch)
    people.land(30)
    people.check()
    for file in FILES["manifest"](lake, "final.people"):
        cut(file)
    assert faults.command("rebuild final.people")
    for table in ("agg.cities", "agg.ages"):
        outcome = next(o for o in faults.run() if o.table == table)
        assert "`lake-assets rebuild final.people`" not in str(outcome.error)
        spec = next(s for s in people.feed.pipeline.specs(lake) if str(s.table) == table)
        with pytest.raises(CorruptMetadataError, match=f"`lake-assets rebuild {table}`"):
            verify(lake, spec)
        faults.follow(outcome, f"rebuild {table}")
    faults.finish()


@pytest.mark.parametrize(
    "length", [None, pytest.param(0, marks=pytest.mark.long), 40, pytest.param(-8, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("part", ["data", "manifest", "manifest list"])
@pytest.mark.parametrize("table", ["raw.events", pytest.param("raw.events_files", marks=pytest.mark.long)])
def test_a_broken_file_that_landing_reads_is_named_and_its_advice_works(
    plain_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, part: str, length: int | None
) -> None:
    """Without Spark: landing reads its tables with PyIceberg, whose errors do not name the file."""
    people = People(plain_lake)
    faults = Faults(people, tmp_path, monkeypatch)
    for _ in range(2):
        people.land()
        people.run("raw.events")
    file = faults.keep(FILES[part](plain_lake, table))[-1]
    content = file.read_bytes()
    if length is None:
        file.unlink()
    else:
        file.write_bytes(content[:length])
    monkeypatch.setattr(caching_catalog, "_cache", caching_catalog.MetadataCache())
    people.land()
    outcome = people.run("raw.events")["raw.events"]
    if outcome.exception:  # the raw table's own files are only written
        assert isinstance(outcome.exception, CorruptMetadataError | MissingDataFileError), outcome.error
        assert file.name in str(outcome.error)
        faults.follow(outcome, "restore")
    else:
        assert table == "raw.events"
        file.write_bytes(content)
    assert people.run("raw.events")["raw.events"].exception is None
    landed = plain_lake.table("raw.events").scan().to_arrow()["source_file"].to_pylist()
    assert len(set(landed)) == 3


@pytest.mark.long
@pytest.mark.parametrize("what", ["manifest", "manifest list"])
@pytest.mark.parametrize("own", ["staging.people", "final.people", "agg.cities", "agg.ages"])
def test_a_table_whose_own_manifests_are_gone_is_rebuilt(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, what: str
) -> None:
    people = People(lake, CITIES, AGES)
    faults = Faults(people, tmp_path, monkeypatch)
    people.land(30)
    people.check()
    for file in FILES[what](lake, own):
        file.unlink()
    monkeypatch.setattr(caching_catalog, "_cache", caching_catalog.MetadataCache())
    assert faults.command(f"rebuild {own}"), faults.done
    people.land(30)
    faults.finish()
