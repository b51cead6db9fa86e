"""Live sources in `status`, `doctor`, `snapshot` and `serve`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.runtime.processes import here, identity
from lake_assets.service import service_state
from lake_assets.service.service_state import StreamState
from tests.support.cli import Done
from tests.support.processes import free_port

Call = Callable[..., Done]


@pytest.fixture
def file(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline over a server that is away."""
    monkeypatch.setenv("LAKE_HOME", str(plain_lake.config.home))
    source = {"postgres": {"port": free_port(), "database": "shop", "user": "cdc"}}
    stream = {"name": "shop", "source": source, "tables": ["public.users", "sales.*"]}
    plain_lake.ensure_namespace(("raw",))
    plain_lake.ensure_namespace(("raw",))
    file = plain_lake.config.home / "shop.yaml"
    text = {"type": "lake_assets.LakePipeline", "attributes": {"name": "shop", "streams": [stream]}}
    file.write_text(json.dumps(text), encoding="utf-8")
    return file


def state_of(lake: Lake, **more: object) -> StreamState:
    state = replace(service_state.of_this_process("raw.shop", "", None), state="reading")
    state = replace(state, **more)
    service_state.write(lake, state)
    return state


def test_a_source_that_is_not_read_is_shown_also_before_its_table_exists(
    file: Path, plain_lake: Lake, call: Call
) -> None:
    state_of(plain_lake, state="failed", error="the server does not answer")
    shown = call("status")
    assert "raw.shop: its source is not read: failed: the server does not answer" in shown.out
    (status,) = json.loads(call("status", "--json").out)
    assert (status["table"], status["source_fails"]) == ("raw.shop", True)
    state_of(plain_lake, records_a_second=12.4, measures={"seconds_behind": 3.2, "slot_lag_bytes": 5 << 20})
    assert "reading, 12 records/s, 3 s behind, 5 MiB of the log unread" in " ".join(call("status").out.split())


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"state": "ended"}, "no service is running"),
        ({"process": (identity()[0], 1.0)}, "the service was killed, and none is running"),
        ({"at": 0.0}, "has not said anything for"),
        ({"host": "elsewhere", "at": 0.0}, "the service was killed, and none is running"),
        ({"state": "paused", "error": "the disk is full"}, "paused: the disk is full"),
    ],
)
def test_a_service_that_is_not_well_says_why(plain_lake: Lake, more: dict[str, object], text: str) -> None:
    state = state_of(plain_lake, **more)
    assert not state.is_well
    assert text in state.text
    assert service_state.read(plain_lake, "raw.shop") == state
    assert replace(state, state="reading", error="", process=identity(), host=here(), at=4e9).is_well


def test_the_doctor_names_what_is_missing(file: Path, call: Call) -> None:
    done = call("doctor", file)
    assert done.code == 1
    assert "source of raw.shop" in done.out
    assert "does not answer" in done.out
    found = {f["what"]: f["is_well"] for f in json.loads(call("doctor", file, "--json").out)}
    looked_at = {
        "versions", "Java", "Spark's jars", "memory", "disk", "ports", "home of the lake", "catalog", "warehouse",
        "clock", "Dagster's settings", "source of raw.shop",
    }  # fmt: skip
    assert set(found) == looked_at
    assert [what for what, is_well in found.items() if not is_well] == ["source of raw.shop"]
    assert call("doctor").code == 0


def test_rows_are_asked_for_again(file: Path, plain_lake: Lake, call: Call) -> None:
    done = call("snapshot", file, "public.users", "sales.orders")
    assert "reads all rows of public.users, sales.orders when it is started" in " ".join(done.out.split())
    (request,) = service_state.requests_folder(plain_lake, "raw.shop").glob("*.json")
    assert json.loads(request.read_text()) == ["public.users", "sales.orders"]
    refused = call("snapshot", file, "public.users", "public.other")
    assert refused.code == 1
    assert "no live source of shop reads public.other; declared tables: public.users, sales.*" in refused.err


def test_a_pipeline_without_live_sources_cannot_be_served(
    plain_lake: Lake, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_HOME", str(plain_lake.config.home))
    done = call("serve", "shop")
    assert done.code == 1
    assert "pipeline shop has no live source: give a stream one" in done.err
