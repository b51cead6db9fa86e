"""Random histories of faults: every error has a name, its advice works, and all tables end as a replay of the events.

Disks that are full, clocks that are set back, files that are cut or gone, tables that others roll back or expire, a
catalog that is locked or restored from a backup, records that are none: between runs and in the middle of them. One
history a seed: a failure says what was done and names the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets.lake import caching_catalog
from tests.support.faults import Faults, small_disk
from tests.support.lakes import small_lake
from tests.support.people import AGES, CITIES, People
from tests.support.seeds import seeds

pytestmark = [pytest.mark.system, pytest.mark.spark]
# Of these the long run has a short part too, and every run that of the first: together they hold most kinds of faults.
SHORT = (0, 1, 2)


def history(seed: int, home: Path, faults_each: int, patch: pytest.MonkeyPatch, is_mounted: bool) -> str:
    """One history; returns what was done, in short."""
    patch.setattr(caching_catalog, "LOCK_SECONDS", 0.5)
    lake = small_lake(home)
    people = People(lake, *((CITIES, AGES) if faults_each > 1 else (CITIES,)), seed=seed)
    faults = Faults(people, home.parent, patch)
    try:
        people.land()
        people.run()
        faults.catalog_kept()
        for _ in range(faults_each):
            people.land()
            faults.any()
            faults.settle()
            people.land()
            faults.any_while_running()
            faults.settle()
        faults.finish()
    except Exception as e:
        raise AssertionError("\n".join([f"seed {seed}, own disk: {is_mounted}", *faults.done])) from e
    finally:
        faults.relieve()
    return f"{dict(faults.count)}, followed: {dict(Counter(faults.followed))}"


@pytest.mark.parametrize(
    ("seed", "faults_each"),
    [
        *(pytest.param(seed, 1, marks=pytest.mark.long) for seed in SHORT),
        *(pytest.param(seed, 2, marks=pytest.mark.long) for seed in seeds(0, 10)),
    ],
)
def test_a_history_of_faults_ends_in_the_tables_that_its_events_lead_to(
    spark_lake: object, seed: int, faults_each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    with small_disk(tmp_path / "lake") as is_mounted:
        done = history(seed, tmp_path / "lake", faults_each, monkeypatch, is_mounted)
        record_property("summary", done)
