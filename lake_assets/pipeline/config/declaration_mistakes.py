"""Mistakes of a pipeline's declarations that concern several tables, collected instead of raised one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

from lake_assets.errors import PipelineError, TableClaimedError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.names import nearest
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.python.sql_template import SqlTemplate
from lake_assets.pipeline.config.setting_lines import Place, SettingLines
from lake_assets.pipeline.config.sql_positions import line_of_table
from lake_assets.pipeline.table_graph import Spec, lookups_of
from lake_assets.tables.pending_windows import GONE, is_gone


@contextlib.contextmanager
def collected(mistakes: list[PipelineError], at: str = "") -> Generator[None]:
    """Add a mistake of the context to the others; `at`: its file and line."""
    try:
        yield
    except PipelineError as e:
        mistakes.append(type(e)(f"{at}{e}") if at else e)


def once_each(
    placed: Sequence[tuple[Spec, Place]], pipeline: str, lines: SettingLines | None, mistakes: list[PipelineError]
) -> list[Spec]:
    """Return the tables, the first of each name; add to `mistakes` which declarations claim a name twice."""
    first: dict[TableId, tuple[Spec, Place]] = {}
    told: set[tuple[Place, Place]] = set()
    for spec, place in placed:
        kept, other = first.setdefault(spec.table, (spec, place))
        if kept is spec or (other, place) in told:
            continue
        # A table of a stream is two in the lake, of one declaration.
        told.add((other, place))
        also = f" (also in {lines.at(*other).removesuffix(': ')})" if lines else ""
        at = lines.at(*place) if lines else ""
        why = f"pipeline {pipeline!r} declares {spec.table} twice{also}: give one of them another `name`"
        mistakes.append(TableClaimedError(f"{at}{why}"))
    return [spec for spec, _ in first.values()]


def foreign_mistakes(specs: Sequence[Spec], pipeline: str, external: Sequence[str] = ()) -> Iterator[PipelineError]:
    """Yield the mistakes in `depends_on` and `external_tables`."""
    own = {"/".join(s.table.parts) for s in specs}
    for name in (n for n in external if "/".join(TableId.parse(n).parts) in own):
        yield PipelineError(
            f"pipeline {pipeline!r}: `external_tables` names {name}, a table of the same pipeline: leave it out"
        )
    for table, key in ((s.table, key) for s in specs for key in s.shown.depends_on if key in own):
        yield PipelineError(
            f"pipeline {pipeline!r}: {table}: `depends_on` names {key}, a table of the same pipeline: "
            "tables that are read are dependencies anyway, and `depends_on` is for other assets"
        )


def with_existing_sources(
    lake: LakeBase,
    specs: list[Spec],
    made: set[TableId],
    may_declare: Callable[[TableId], bool],
    pipeline: str,
    mistakes: list[PipelineError],
) -> list[Spec]:
    """Refuse SQL models that read a table that nothing creates; such Python models and jobs are mistakes.

    Args:
        made: the tables that the pipeline declares, also those with mistakes.
        may_declare: whether the pipeline may have another table.
    """
    others = [
        (spec, s) for spec in specs for s in (*spec.sources, *lookups_of(spec)) if s not in made and not may_declare(s)
    ]
    # Only lists names; each table is loaded when it is absorbed.
    there = {t for namespace in {s.namespace for _, s in others} for t in lake.tables(namespace)}
    declared = ", ".join(str(t) for t in sorted(made))
    missing: dict[TableId, list[str]] = {}
    for spec, source in others:
        if source not in there:
            near = nearest(str(source), (str(t) for t in (*made, *there) if t != spec.table))
            why = f"neither exists in the lake nor is declared{near}. Declared are: {declared}"
            if is_gone(lake.find(spec.table), source):
                why = f"{GONE}{near}. Restore it, or read another table. {spec.table} keeps its rows"
            missing.setdefault(spec.table, []).append(
                f"{_read_at(spec, source)}pipeline {pipeline!r}: {spec.table} reads {source}, which {why}"
            )
    mistakes += [PipelineError(why) for s in specs if not isinstance(s, ModelSpec) for why in missing.get(s.table, ())]
    return [
        replace(s, refused="\n".join(missing[s.table])) if isinstance(s, ModelSpec) and s.table in missing else s
        for s in specs
    ]


def _read_at(spec: Spec, source: TableId) -> str:
    if isinstance(spec, PythonModelSpec):
        template = spec.model.function
        if isinstance(template, SqlTemplate) and template.origin:
            return f"{template.origin.at(template.line_of(source))}: "
        return f"{spec.model.where}: "
    if not isinstance(spec, ModelSpec) or spec.origin is None:
        return ""
    return f"{spec.origin.at(line_of_table(spec.sql, source))}: "
