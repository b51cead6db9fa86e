"""Random histories of a table that another program writes, against a model in plain Python; without Spark."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import And, EqualTo, Or
from pyiceberg.types import LongType, StringType

from lake_assets import Lake
from lake_assets.history.history_document import HistoryRequest, RowHistory
from lake_assets.history.row_history import row_history
from lake_assets.lake import TableId
from tests.support.seeds import long_seeds
from tests.support.upkeep import expire

NAME = TableId.parse("shop.people")
KEYS = [(tenant, n) for tenant in ("a", "zé") for n in range(4)]
Key = tuple[str, int]
Row = dict[int, Any]


class People:
    """A table whose rows have a key of two columns.

    Attributes:
        rows: its rows by key; values by field id.
        states: its kept states, oldest first: the rows, and the ids of the columns.
        names: the first names of columns that were dropped or renamed are not used again.
    """

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake, self.choose = lake, random.Random(seed)
        lake.ensure_namespace(NAME.namespace)
        columns = {"tenant": pa.string(), "id": pa.int64(), "name": pa.string(), "n": pa.int64()}
        lake.catalog.create_table(NAME.parts, pa.schema(list(columns.items())))
        self.rows: dict[Key, Row] = {}
        self.states: list[tuple[dict[Key, Row], set[int]]] = []
        self.is_whole, self.added = True, 0

    @property
    def columns(self) -> dict[int, Any]:
        return {f.field_id: f for f in self.lake.table(NAME).schema().fields}

    def change(self) -> None:
        """One random change."""
        some = self.choose.sample(KEYS, self.choose.randint(1, 3))
        what = self.choose.choice(["upsert"] * 5 + ["delete", "delete", "move", "evolve", "evolve", "expire"])
        if what == "upsert":
            self._write(some, {k: self._new(k) for k in some})
        elif what == "delete":
            self._write([k for k in some if k in self.rows], {})
        elif what == "move":  # a row gets another key
            free = [k for k in KEYS if k not in self.rows]
            if self.rows and free:
                old, new = self.choose.choice(list(self.rows)), self.choose.choice(free)
                self._write([old], {new: {**self.rows[old], **self._key(new)}})
        elif what == "expire" and len(self.states) > 1:
            expire(self.lake, NAME)
            self.states, self.is_whole = self.states[-1:], False
        elif what == "evolve":
            self._evolve()

    def _key(self, key: Key) -> Row:
        tenant, number = (i for i, f in self.columns.items() if f.name in ("tenant", "id"))
        return {tenant: key[0], number: key[1]}

    def _new(self, key: Key) -> Row:
        texts, numbers = ["", "it's", "ü😀", None], [0, 1, 2, None]
        values = {
            i: self.choose.choice(texts if isinstance(f.field_type, StringType) else numbers)
            for i, f in self.columns.items()
        }
        return {**values, **self._key(key)}

    def _write(self, gone: list[Key], new: dict[Key, Row]) -> None:
        """Replace rows in one commit: PyIceberg rewrites the files that held them."""
        held = [k for k in gone if k in self.rows]
        if not held and not new:
            return
        self.rows = {k: r for k, r in self.rows.items() if k not in gone} | new
        table, names = self.lake.table(NAME), {i: f.name for i, f in self.columns.items()}
        listed = [{names[i]: v for i, v in r.items() if i in names} for r in new.values()]
        rows = pa.Table.from_pylist(listed, table.schema().as_arrow())
        conditions = [And(EqualTo("tenant", t), EqualTo("id", n)) for t, n in held]
        condition = Or(*conditions) if len(conditions) > 1 else conditions[0] if conditions else None
        if condition is None:
            table.append(rows)
        elif new:
            table.overwrite(rows, condition)
        else:
            table.delete(condition)
        self.states.append((self.rows, set(self.columns)))

    def _evolve(self) -> None:
        others = [f for f in self.columns.values() if f.name not in ("tenant", "id")]
        what = self.choose.choice(["add", "rename", "drop"])
        self.added += 1
        with self.lake.table(NAME).update_schema(allow_incompatible_changes=True) as update:
            if what == "add" or not others:
                update.add_column(f"c{self.added}", self.choose.choice([StringType(), LongType()]))
            elif what == "rename":
                update.rename_column(self.choose.choice(others).name, f"c{self.added}")
            else:
                update.delete_column(self.choose.choice(others).name)

    def expected(self, key: Key) -> list[tuple[str, Row | None, Row | None]]:
        """The versions of a row: what happened, and the row before and after."""
        found: list[tuple[str, Row | None, Row | None]] = []
        had: Row | None = None
        for number, (rows, columns) in enumerate(self.states):
            row = rows.get(key)
            has = None if row is None else {i: row.get(i) for i in columns}
            if number == 0 and not self.is_whole:
                if has is not None:
                    found.append(("found", None, has))
            elif has is None and had is not None:
                found.append(("deleted", had, None))
            elif has is not None and had is None:
                found.append(("inserted", None, has))
            elif has is not None and had is not None and any(had.get(i) != v for i, v in has.items()):
                found.append(("updated", had, has))
            had = has
        return found


def of(lake: Lake, key: Key) -> RowHistory:
    request = HistoryRequest(NAME, [f"tenant={key[0]}", f"id={key[1]}"])
    return row_history(lake, [], request)


@pytest.mark.parametrize("seed", [0, *long_seeds(1, 40)])
def test_each_version_of_a_row_is_shown_with_what_it_was_before(plain_lake: Lake, seed: int) -> None:
    people = People(plain_lake, seed)
    for _ in range(16):
        people.change()
    names = {f.field_id: f.name for f in plain_lake.table(NAME).schema().fields}

    def plain(row: Any) -> dict[str, Any] | None:
        """A row without the columns that were dropped, which have another name by now."""
        return None if row is None else {n: v for n, v in row.items() if n in names.values()}

    for key in KEYS:
        found = of(plain_lake, key)
        assert [(c.what, plain(c.before), plain(c.after)) for v in found.versions for c in v.changes] == [
            (what, *({names[i]: v for i, v in r.items() if i in names} if r else r for r in (before, after)))
            for what, before, after in people.expected(key)
        ]
        assert ("all snapshots" in found.begins) == people.is_whole
        # Of several identical row versions none is read twice, however many snapshots there are.
        assert found.files <= len({e.path for e in _files(plain_lake)})


def _files(lake: Lake) -> list[Any]:
    from lake_assets.capture.files.manifests import ManifestReader

    table = lake.table(NAME)
    reader = ManifestReader(table.io)
    return [
        e
        for s in table.metadata.snapshots
        for e in reader.entries(reader.manifest_list(s.manifest_list)[0])
        if not e.content
    ]


def test_files_whose_bounds_rule_the_key_out_are_not_read(plain_lake: Lake) -> None:
    plain_lake.ensure_namespace(("shop",))
    table = plain_lake.catalog.create_table(NAME.parts, pa.schema([("tenant", pa.string()), ("id", pa.int64())]))
    for n in range(20):
        table.append(pa.table({"tenant": ["a", "a"], "id": [10 * n, 10 * n + 9]}))
    found = of(plain_lake, ("a", 59))
    assert [c.what for v in found.versions for c in v.changes] == ["inserted"]
    assert (found.snapshots, found.files) == (20, 1)
