"""The SQL of a pipeline's models and its lines, in the YAML or in separate files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import yaml
from sqlglot import exp

from lake_assets.errors import LakeError, ModelError, PipelineError
from lake_assets.lake import TableId
from lake_assets.lake.paths import local_path
from lake_assets.models.sql.model_plan import parse, sources_of
from lake_assets.models.sql.sql_errors import Origin, line_of, located
from lake_assets.pipeline.config.setting_lines import child, documents_of


@dataclass(frozen=True)
class ModelText:
    """A model's SQL and its position in a file."""

    sql: str
    origin: Origin | None


def read_sql(name: str, sql_file: Path, folder: Path) -> ModelText:
    """Read the SQL of a file.

    Raises:
        PipelineError: the file cannot be read.
    """
    file = folder / sql_file
    try:
        return ModelText(file.read_text(encoding="utf-8"), Origin(str(file)))
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else str(e)
        raise PipelineError(f"model {name}: its sql_file {file} cannot be read: {reason}") from e


def origins(path: Path) -> dict[str, Origin]:
    """Return, by model, the position of its SQL in a YAML file; empty if the file is unreadable or has no models."""
    positions: dict[str, Origin] = {}
    for model in (m for document in documents_of(path) for m in _models(document)):
        name, sql = child(model, "name"), child(model, "sql")
        if isinstance(name, yaml.ScalarNode) and isinstance(sql, yaml.ScalarNode):
            positions[name.value] = _origin(path, sql)
    return positions


def _models(document: yaml.Node | None) -> list[yaml.Node]:
    models = child(document, "attributes", "models")
    return models.value if isinstance(models, yaml.SequenceNode) else []


def _origin(path: Path, sql: yaml.ScalarNode) -> Origin:
    """Return the position of a scalar's lines: each line is known for `|`, only the first for folded scalars."""
    if sql.style == "|":
        return Origin(str(path), sql.start_mark.line + 2)
    line_by_line = sql.start_mark.line == sql.end_mark.line and "\n" not in sql.value
    return Origin(str(path), sql.start_mark.line + 1, line_by_line)


def model_mistakes(path: Path, node: yaml.Node | None) -> tuple[list[str], list[str]]:
    """Return SQL files of models that cannot be read, and mistakes in their SQL that can be found without the lake."""
    missing: list[str] = []
    mistakes: list[str] = []
    reads: dict[TableId, tuple[TableId, ...]] = {}
    texts: dict[TableId, ModelText] = {}
    for model in _models(node):
        name, sql, file = (child(model, key) for key in ("name", "sql", "sql_file"))
        if not isinstance(name, yaml.ScalarNode) or child(model, "write") is not None:
            continue  # templates are read with the declaration
        if isinstance(sql, yaml.ScalarNode):
            text = ModelText(sql.value, _origin(path, sql))
        elif isinstance(file, yaml.ScalarNode):
            try:
                text = read_sql(name.value, local_path(file.value), path.parent)
            except ValueError:
                continue  # a URL: the settings' own check reports it
            except PipelineError as e:
                missing.append(f"{path}, line {file.start_mark.line + 1}: {e}")
                continue
        else:
            continue
        try:
            table = TableId.parse(name.value)
            reads[table] = sources_of(name.value, parse(name.value, text.sql))
            texts[table] = text
        except ModelError as e:
            mistakes.append(str(located(e, text.origin)))
        except LakeError:
            continue  # an invalid name: the settings' own check reports it
    return missing, [*mistakes, *circles_of(reads, texts).values()]


def circles_of(
    reads: Mapping[TableId, Sequence[TableId]], texts: Mapping[TableId, ModelText]
) -> dict[tuple[TableId, ...], str]:
    """Return every circle of models once, with its description."""
    remaining = {t: [s for s in sources if s in reads] for t, sources in reads.items()}
    circles: dict[tuple[TableId, ...], str] = {}
    while True:
        try:
            TopologicalSorter(remaining).prepare()
        except CycleError as e:
            # graphlib lists each node after its dependants.
            circle: list[TableId] = list(reversed(e.args[1]))
            reader, source = circle[0], circle[1]
            text = texts[reader]
            arrows = " -> ".join(str(t) for t in circle)
            position = f"{text.origin.at(line_of_table(text.sql, source))}: " if text.origin else ""
            circles[tuple(circle)] = (
                f"{position}models depend on each other in a circle: {arrows} (each reads the next)"
            )
            remaining = {
                t: [s for s in sources if s not in circle] for t, sources in remaining.items() if t not in circle
            }
        else:
            return circles


def line_of_table(sql: str, table: TableId) -> int | None:
    """Return the line of a query on which a table is first read."""
    tables = parse("", sql).find_all(exp.Table, bfs=False)
    return next((line_of(t) for t in tables if (t.db, t.name) == (table.namespace[0], table.name)), None)
