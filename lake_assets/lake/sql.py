"""What is to be known of SQL texts wherever they come from."""

from __future__ import annotations

from sqlglot import exp

DIALECT = "spark"

_NOT_REPEATABLE = (
    exp.Rand,
    exp.Randn,
    exp.CurrentTimestamp,
    exp.CurrentDate,
    exp.CurrentTime,
    exp.CurrentUser,
    exp.Uuid,
    exp.TableSample,
)
_NOT_REPEATABLE_NAMES = {
    "random",
    "rand",
    "randn",
    "uuid",
    "now",
    "shuffle",
    "monotonically_increasing_id",
    "unix_timestamp",
}


def not_repeatable(tree: exp.Expr) -> str | None:
    """The first part of an expression that gives another value each time; None: there is none."""
    for node in tree.walk():
        called = node.name.lower() if isinstance(node, exp.Anonymous) else ""
        if isinstance(node, _NOT_REPEATABLE) or called in _NOT_REPEATABLE_NAMES:
            return node.sql(DIALECT)
    return None
