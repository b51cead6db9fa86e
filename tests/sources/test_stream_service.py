"""The service of a stream: requests outlast a kill, and its state is written whatever its source says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.lake import thresholds
from lake_assets.pipeline import Pipeline
from lake_assets.service import service_state
from lake_assets.service.live_service import NAME, live_specs
from lake_assets.service.stream_service import StreamService
from lake_assets.sources import snapshot_requests
from lake_assets.sources.live_source import Land, Progress
from lake_assets.sources.snapshot_requests import SnapshotRequests
from tests.support.pipeline_files import write_pipeline


class Source:
    """A source that is asked for rows, and cannot say how it is."""

    def __init__(self) -> None:
        self.requests = SnapshotRequests()

    def check(self, offset: Any) -> None: ...

    def run(self, progress: Progress, land: Land, stop: threading.Event) -> None:
        stop.wait(30)

    def request(self, tables: Sequence[str], begun: Callable[[], None]) -> None:
        self.requests.add(tables, begun)

    def measures(self) -> Mapping[str, object]:
        raise RuntimeError("a bean that is gone")


@pytest.fixture
def spec(plain_lake: Lake, tmp_path: Path) -> RawSpec:
    source = {"postgres": {"database": "shop", "user": "cdc"}}
    stream = {"name": "shop", "source": source, "tables": ["public.users", "public.orders"]}
    file = write_pipeline(tmp_path / "shop.yaml", {"name": "shop", "streams": [stream]})
    (found,) = live_specs(plain_lake, Pipeline.load(file))
    return found


def served(lake: Lake, spec: RawSpec, source: Source, until: Callable[[], Any]) -> None:
    """Run a service until something is so."""
    stop = threading.Event()
    state = service_state.of_this_process(str(spec.table), "", None)
    thread = threading.Thread(target=StreamService(lake, spec, source, stop, state, NAME).run)
    thread.start()
    end = time.monotonic() + 20
    try:
        while not until():
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        stop.set()
        thread.join(30)


def test_a_source_that_cannot_say_how_it_is_does_not_end_the_states(plain_lake: Lake, spec: RawSpec) -> None:
    def is_written() -> bool:
        state = service_state.read(plain_lake, str(spec.table))
        return state is not None and state.state == "reading" and state.measures == {"source": "not known"}

    served(plain_lake, spec, Source(), is_written)


def test_a_request_lasts_until_its_snapshot_has_begun(plain_lake: Lake, spec: RawSpec) -> None:
    folder = service_state.requests_folder(plain_lake, str(spec.table))
    service_state.request_snapshot(plain_lake, str(spec.table), ["public.users", "public.orders"])
    first, second = Source(), Source()
    served(plain_lake, spec, first, lambda: first.requests.waiting())
    assert len(list(folder.glob("*.json"))) == 1
    # The service was killed; the next one asks again, and its snapshots begin, one after the other.
    served(plain_lake, spec, second, lambda: second.requests.waiting())
    second.requests.asked(second.requests.waiting())
    second.requests.begin({"public.users"})
    assert len(list(folder.glob("*.json"))) == 1
    second.requests.begin({"public.orders"})
    assert list(folder.glob("*.json")) == []


def test_another_engine_is_asked_again_for_what_has_not_begun() -> None:
    requests, begun = SnapshotRequests(), list[str]()
    requests.add(["public.users"], lambda: begun.append("users"))
    requests.add(["public.new"])
    assert requests.waiting() == ["public.new", "public.users"]
    requests.asked(requests.waiting())
    assert requests.waiting() == []
    requests.send_again()
    assert requests.waiting() == ["public.users"]
    requests.asked(["public.users"])
    requests.begin({"public.users"})
    requests.send_again()
    assert (requests.waiting(), begun) == ([], ["users"])


def test_one_snapshot_is_asked_for_at_a_time() -> None:
    requests, begun = SnapshotRequests(), list[str]()
    requests.add(["public.bare", "public.users"], lambda: begun.append("both"))
    requests.asked(["public.bare"])
    # It came too late for the snapshot that has been asked for, and the table is read once more.
    requests.add(["public.bare"], lambda: begun.append("bare"))
    assert requests.waiting() == []
    requests.begin({"public.bare"})
    assert (requests.waiting(), begun) == (["public.bare", "public.users"], [])
    requests.asked(["public.bare", "public.users"])
    requests.begin({"public.users"})
    assert (requests.waiting(), begun) == ([], ["both"])
    requests.begin({"public.bare", "public.other"})
    assert (requests.waiting(), begun) == ([], ["both", "bare"])


def test_a_snapshot_that_does_not_begin_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(snapshot_requests, "time", SimpleNamespace(monotonic=lambda: now[0]))
    requests = SnapshotRequests()
    requests.add(["public.users"], lambda: None)
    now[0] += 1000
    assert requests.unheard() == []
    requests.asked(["public.users"])
    now[0] += thresholds.LIVE_SNAPSHOT_SECONDS - 1
    assert requests.unheard() == []
    requests.hear()
    now[0] += thresholds.LIVE_SNAPSHOT_SECONDS - 1
    assert requests.unheard() == []
    now[0] += 2
    assert requests.unheard() == ["public.users"]
    requests.send_again()
    assert (requests.unheard(), requests.waiting()) == ([], ["public.users"])
