"""Mistakes in an audit that can be found before it runs: columns that do not exist."""

from __future__ import annotations

from collections.abc import Mapping

from lake_assets.lake import TableId
from lake_assets.lake.names import nearest
from lake_assets.models.sql.sql_errors import column_problems
from lake_assets.pipeline.config.audit_settings import AUDITED, parse_assertion
from lake_assets.tables.audits.audit_kinds import PLACEHOLDER, Assertion, Audit, Relationship


def audit_problems(
    audit: Audit, at: str, own: Mapping[str, str] | None, columns: Mapping[TableId, Mapping[str, str] | None]
) -> list[str]:
    """Return missing columns of an audit.

    Args:
        at: its place and name.
        own: the columns of its table; None if unknown.
        columns: by table that the audits read, its columns.
    """
    problems: list[str] = []
    if own and (missing := [c for c in audit.spelled_as(own).columns if c not in own]):
        problems.append(
            f"{at} names {', '.join(missing)}{nearest(missing[0], own)}, and the table has {', '.join(own)}"
        )
    if isinstance(audit, Relationship) and (others := columns[audit.table]) and audit.other not in others:
        problems.append(f"{at}: no column {audit.other}: {audit.table} has {', '.join(others)}")
    if isinstance(audit, Assertion) and own:
        schemas = {t: others for t in audit.tables if (others := columns[t])} | {AUDITED: own}
        if len(schemas) > len(audit.tables):
            name = ".".join(AUDITED.parts)
            for line, text in column_problems(parse_assertion(audit.sql), schemas):
                problems.append(f"{at}, line {line or 1} of its SQL: {text.replace(name, PLACEHOLDER)}")
    return problems
