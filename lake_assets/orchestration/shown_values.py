"""Values of the data that people see in Dagster: all of them pass through `shown`, and none is taken as markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import dagster as dg

from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.metadata.written_rows import written_rows
from lake_assets.lake.sensitive_values import SensitiveColumns
from lake_assets.pipeline.sensitive_columns import SensitiveTables
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.outcome import Outcome

# What may begin markup in a cell of a table; an underscore only where it is not within a word, and addresses.
_MARKUP = re.compile(r"[\\`*\[\]<>#|~&!$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.", re.IGNORECASE)


def shown(table: TableId, column: str, value: object) -> str | None:
    """Return a value of a table as people may see it, in one line; None: it is null.

    Args:
        table: the table.
        column: its column.
        value: the value, or text about values of the column, such as their range.
    """
    if value is None:
        return None
    text = "".join(c if c.isprintable() else " " for c in str(value))
    most = thresholds.SHOWN_CHARACTERS
    return text if len(text) <= most else f"{text[: most - 1]}…"


def cell(table: TableId, column: str, value: object) -> str:
    """Return a value as `shown` does, or `null`."""
    text = shown(table, column, value)
    return "null" if text is None else text


def in_markdown(text: str) -> str:
    """Return a text so that Markdown shows it as it is: as a cell of a table, it stays one."""
    # An entity is text, whatever character it stands for.
    return _MARKUP.sub(lambda m: f"&#{ord(m[0])};", " ".join(text.split()))


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown, of plain texts."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    names = [in_markdown(name) for name in head]
    return "\n".join([line(names), line("---" for _ in names), *(line(map(in_markdown, row)) for row in rows)])


def row_preview(lake: LakeBase, spec: Spec, outcome: Outcome) -> Mapping[str, dg.MarkdownMetadataValue]:
    """Return the first rows that a step has written, if that is declared; of deleted rows, nothing is shown.

    Reads the beginning of the files of one commit in this process, without Spark.
    """
    loaded = lake.find(spec.table) if spec.shown.show_rows and outcome.changed else None
    rows = written_rows(loaded, outcome.snapshot, spec.shown.show_rows) if loaded is not None else []
    if not rows:
        return {}
    hidden = SensitiveTables.of_specs(lake, [spec]).of(spec.table) | SensitiveColumns.stored(loaded)
    rows = [hidden.row(row) for row in rows]
    names = list(rows[0])[: thresholds.SHOWN_COLUMNS]
    left_out = len(rows[0]) - len(names)
    head = [*names, f"and {left_out} more"] if left_out else names
    cells = ([*(cell(spec.table, n, row[n]) for n in names), *[""] * bool(left_out)] for row in rows)
    return {"preview": dg.MetadataValue.md(markdown_table(head, cells))}
