"""Commands that show rows hide values of sensitive columns, unless they are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from lake_assets import Lake
from lake_assets.backfill.changed_columns import ColumnChange
from lake_assets.backfill.comparison import TableComparison
from lake_assets.commands.compared_tables import show_differences
from lake_assets.facade import Lake as LakeOfCommands
from lake_assets.history.history_document import HistoryRequest
from lake_assets.history.row_history import row_history
from lake_assets.ingest.raw_tables import ARROW, ensure_raw
from lake_assets.ingest.records.rejects import ensure_rejected
from lake_assets.lake import TableId
from lake_assets.lake.metadata import table_properties
from lake_assets.lake.sensitive_values import PROPERTY, SensitiveColumns
from lake_assets.pipeline.paired_rows import CHANGED
from lake_assets.report.table_differences import table_differences
from lake_assets.tables.writing.table_state import KEY_PROPERTY
from tests.support.cli import Done, caller

VALUE = "zebra-4711@example.org"
RAW = TableId.parse("raw.events")
AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def call(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    monkeypatch.setattr(LakeOfCommands, "load_existing", classmethod(lambda *_: plain_lake))
    return caller(monkeypatch, capsys)


def _users(lake: Lake) -> None:
    lake.ensure_namespace(("agg",))
    schema = pa.schema([("id", pa.int64()), ("email", pa.string()), ("city", pa.string())])
    table = lake.catalog.create_table("agg.users", schema, properties={PROPERTY: '["email"]'})
    for city in ("Rome", "Bari"):
        table.overwrite(pa.table({"id": [1, 2], "email": [VALUE, None], "city": [city, "Rome"]}, schema=schema))


def test_the_history_of_a_row(plain_lake: Lake) -> None:
    _users(plain_lake)
    name = TableId.parse("agg.users")
    for word in ("id=1", f"email={VALUE}"):
        asked = HistoryRequest(name, [word])
        found = row_history(plain_lake, [], asked)
        (change,) = found.versions[-1].changes
        assert change.after == {"id": 1, "email": "***", "city": "Bari"}
        assert change.changed == ("city",)
        assert VALUE not in str(found)
        assert VALUE in str(row_history(plain_lake, [], asked, shows_sensitive=True))
    assert "None" in str(row_history(plain_lake, [], HistoryRequest(name, ["id=2"])).versions[0].changes)


def test_commands_with_hidden_values_are_explained(plain_lake: Lake) -> None:
    plain_lake.ensure_namespace(("agg",))
    properties = {PROPERTY: '["email"]', KEY_PROPERTY: '["day", "email"]'}
    rows = pa.table({"day": [1], "email": [VALUE]})
    plain_lake.catalog.create_table("agg.mails", rows.schema, properties=properties).append(rows)
    asked = HistoryRequest(TableId.parse("agg.mails"), ["day=1"])
    assert "--show-sensitive" in row_history(plain_lake, [], asked).notes[-1]
    assert not row_history(plain_lake, [], asked, shows_sensitive=True).notes


def test_captures(plain_lake: Lake, call: Callable[..., Done]) -> None:
    _users(plain_lake)
    for words in (("capture", "agg.users"), ("capture", "agg.users", "--json")):
        done = call(*words)
        assert (done.code, VALUE[:10] in done.out + done.err) == (0, False), (words, done.out + done.err)
        assert "***" in done.out
        assert VALUE[:10] in call(*words, "--show-sensitive").out  # bounds are cut


REASONS = {
    f"email does not fit int: {VALUE}": "email does not fit int: ***",
    "key column id is null": "key column id is null",
    f"no such operation: '{VALUE}'": "***",
}


def test_rejected_records(plain_lake: Lake, call: Callable[..., Done]) -> None:
    raw = ensure_raw(plain_lake, RAW, "shop")
    record = f'{{"email": "{VALUE}"}}'
    raw.append(pa.Table.from_pylist([_record(record)], schema=ARROW))
    table_properties.put(plain_lake.table(RAW), {PROPERTY: SensitiveColumns.of(["record"]).to_property()})
    rejected = ensure_rejected(plain_lake, RAW)
    own = {"event_index": 0, "rejected_at": AT, "source_table": "public.users"}
    of = {k: v for k, v in _record(record).items() if k in rejected.schema().column_names}
    rows = [{**of, **own, "reason": reason, "position": n} for n, reason in enumerate(REASONS)]
    rejected.append(pa.Table.from_pylist(rows, schema=rejected.schema().as_arrow()))
    for words in (("rejected",), ("rejected", "explain", "raw.events", 0)):
        done = call(*words)
        assert (done.code, VALUE in done.out + done.err) == (0, False), (words, done.out + done.err)
        assert "email does not fit int" in done.out
    listed = json.loads(call("rejected", "list", "--json").out)
    assert sorted(r["reason"] for r in listed) == sorted(REASONS.values())
    assert {r["record"] for r in listed} == {"***"}
    assert VALUE in call("rejected", "list", "--json", "--show-sensitive").out


def _record(text: str) -> dict[str, object]:
    names = {"position": 0, "source_file": "f", "source_line": 1, "arrived_at": AT, "record": text}
    return {f.name: names.get(f.name) for f in ARROW}


def test_comparisons_tell_that_a_value_differs_and_not_which(capsys: pytest.CaptureFixture[str]) -> None:
    images = (
        {"id": 1, "email": VALUE, "age": 7, "_change_type": "update_before"},
        {"id": 1, "email": f"new {VALUE}", "age": 7, "_change_type": "update_after", CHANGED: ["email"]},
    )
    added = ColumnChange("mail", "added", 1, after="string", values=(VALUE,))
    found = TableComparison("agg.users", 0, 1, 0, ("id",), None, {"pay": (4711, 1)}, images, (added,))
    hidden = found.without_values_of(SensitiveColumns.of(["email", "mail", "pay"]))
    assert hidden.sums == {"pay": ("***", "***")}
    assert hidden.samples[1] == {"id": 1, "email": "***", "age": 7, "_change_type": "update_after", CHANGED: ["email"]}
    assert found.without_values_of(SensitiveColumns()) is found
    show_differences(table_differences(hidden))
    shown = capsys.readouterr().out
    assert "*** -> ***" in shown
    assert "4711" not in shown
