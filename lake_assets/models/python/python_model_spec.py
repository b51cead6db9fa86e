"""A Python model as a table of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from lake_assets.errors import LakeError
from lake_assets.lake import TableId
from lake_assets.models.python.model_inputs import Changes, Lookup
from lake_assets.models.python.python_model import PythonModel, place_of
from lake_assets.models.python.sql_template import SqlTemplate
from lake_assets.tables.audits.audit_kinds import Audit
from lake_assets.tables.partitioning.table_partitions import Partitions
from lake_assets.tables.specs import BatchSize, Shown, in_words
from lake_assets.tables.table_step import ChangedSetting, differing_settings, setting_text

_PREFIX = "python:"


# What a stored definition consists of, in this order.
_STORED = ("write", "key", "replace", "inputs", "parameters", "reach", "version", "partitions")


def changed_settings(spec: PythonModelSpec, stored: str | None) -> tuple[ChangedSetting, ...]:
    """Return what a model declares otherwise than by a table's stored definition; empty: that does not say.

    A definition has the hash of a template in place of its SQL, and nothing of the function.
    """
    if stored is None or stored == spec.definition:
        return ()
    if not stored.startswith(_PREFIX):
        return (ChangedSetting("computed by", "a query", "code"),)
    try:
        before, after = (json.loads(d.removeprefix(_PREFIX)) for d in (stored, spec.definition))
        pairs = {name: (setting_text(a), setting_text(b)) for name, a, b in zip(_STORED, before, after, strict=True)}
    except (ValueError, TypeError):
        return ()  # of another version
    function = spec.model.function
    if isinstance(function, SqlTemplate) and pairs["version"][0] != pairs["version"][1]:
        pairs = {"sql": ("", function.text.strip()), **{n: p for n, p in pairs.items() if n != "version"}}
    return differing_settings(pairs)


def ignored_lookups(definition: str) -> frozenset[str]:
    """Return the tables that a stored definition reads without waiting for their changes; empty for other models."""
    if not definition.startswith(_PREFIX):
        return frozenset()
    try:
        _, _, _, tables, kinds, (*_, on_change), *_ = json.loads(definition.removeprefix(_PREFIX))
        of = {
            kind: {str(TableId.parse(tuple(tables[p]))) for p in tables if kinds[p] == kind} for kind in kinds.values()
        }
    except (ValueError, TypeError, LookupError, LakeError):
        return frozenset()  # of another version
    lookups = of.get(Lookup.__name__, set()) - of.get(Changes.__name__, set())
    return frozenset() if on_change != "ignore" else frozenset(lookups)


@dataclass(frozen=True)
class PythonModelSpec:
    """One Python model with its tables.

    Attributes:
        names: the table of each parameter that has one.
        back, forward: how far around its own value a row reads: in seconds, or units of a numeric column.
        on_gap: what to do if the absorbed snapshot of an input has expired.
        on_replaced: what to do if an input was replaced by another table.
        skipped: the changes that a step takes as absorbed without having read them: those whose history is lost, or
            all that are pending; empty: none.
    """

    table: TableId
    model: PythonModel
    names: Mapping[str, TableId]
    pipeline: str
    properties: Mapping[str, str] = field(default_factory=dict)
    back: float = 0
    forward: float = 0
    batch: BatchSize = field(default_factory=BatchSize)
    shown: Shown = field(default_factory=Shown, repr=False)
    audits: tuple[Audit, ...] = ()
    partitions: Partitions | None = None
    on_gap: Literal["stop", "rebuild"] = "stop"
    on_replaced: Literal["stop", "rebuild"] = "stop"
    skipped: Literal["", "lost", "pending"] = ""
    landing: ClassVar[None] = None

    @property
    def inputs(self) -> dict[str, TableId]:
        """The tables whose changes the function receives, by parameter."""
        return self._of_kind(Changes)

    @property
    def lookups(self) -> tuple[TableId, ...]:
        """The tables that the function reads at their current snapshots, each once."""
        return tuple(dict.fromkeys(self._of_kind(Lookup).values()))

    @property
    def watched_lookups(self) -> tuple[TableId, ...]:
        """The lookups whose changes recompute the table."""
        return () if self.model.on_lookup_change == "ignore" else self.lookups

    @property
    def sources(self) -> tuple[TableId, ...]:
        """The tables whose changes trigger runs, each once."""
        return tuple(dict.fromkeys((*self.inputs.values(), *self.watched_lookups)))

    @property
    def is_kept(self) -> bool:
        """Whether a changed declaration, or lost history, leaves the rows of the table as they are."""
        return bool(self.skipped) or self.model.on_query_change == "keep"

    @property
    def names_columns_in(self) -> list[str]:
        """The settings in use that name columns of the table."""
        used = {
            "key": self.model.key, "replace": self.model.replace, "partitions": self.partitions, "audits": self.audits
        }  # fmt: skip
        return [setting for setting, value in used.items() if value]

    @property
    def summary(self) -> str:
        """How the table is computed, for asset descriptions."""
        function = self.model.function
        is_sql = isinstance(function, SqlTemplate)
        by = "" if is_sql else f" by `{function.__name__}`"
        how = f"Computed{by} from {in_words(self.inputs.values(), self.lookups)}. Its rows are applied with "
        how += f"`{self.model.write}`."
        if is_sql:
            return f"{how}\n\n```sql\n{function.text.strip()}\n```"
        text = (function.__doc__ or "").strip()
        return f"{text}\n\n{how}" if text else how

    @property
    def place(self) -> tuple[str, int] | None:
        """The file and line of its function; None if it is SQL."""
        return place_of(self.model.function)

    @property
    def definition(self) -> str:
        """A fingerprint of everything that the rows depend on, apart from the function itself."""
        model = self.model
        by = self.partitions.field.sql if self.partitions else ""
        tables = {p: list(t.parts) for p, t in self.names.items()}
        kinds = {p: kind.__name__ for p, kind in model.parameters.items()}
        reach = [self.back, self.forward, model.cumulative, model.on_lookup_change]
        return _PREFIX + json.dumps(
            [model.write, list(model.key), dict(model.replace), tables, kinds, reach, model.version, by],
            sort_keys=True,
            default=dict,
        )

    def _of_kind(self, kind: type) -> dict[str, TableId]:
        return {p: self.names[p] for p, k in self.model.parameters.items() if k is kind}
