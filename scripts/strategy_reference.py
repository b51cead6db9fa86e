"""Which strategy absorbs a change of which SQL: the planner's own answer for an example of each construct."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml
from reference_text import code, escaped, page, table

from lake_assets.errors import ModelError
from lake_assets.lake import TableId
from lake_assets.models.operators.maintenance import maintained
from lake_assets.models.operators.query_tree import Project, Scan, walk
from lake_assets.models.sql.model_plan import ModelPlan, plan

_INTRO = """
How a change of a source reaches the table of a [SQL model](../models.md), by what the query consists of.
The planner of this version has answered for each example, over two tables: `final.orders` (`id`, `customer`, `day`,
`amount`, `items`; key `id`; `items` is an int) and `final.customers` (`id`, `city`; key `id`). `lake-assets explain`
answers for your own query, and says what the pending change costs.

{table}

Whatever the table says, a step that would cost more than computing everything does that instead
([why](../decisions/0041-few-rows.md)). The result is the same.
"""
_STRATEGIES = [
    [
        "`retract`",
        "adds inserted rows and subtracts deleted ones, in stored groups or among the rows of the result",
        "the changed rows, and their matches in joins",
    ],
    [
        "`keys`",
        "finds the keys of changed rows, and computes the result of these keys at both ends of the window",
        "all source rows of these keys",
    ],
    [
        "`ranges`",
        "computes the declared range of a column around the changed rows again ([`range`](../models.md))",
        "all source rows of the range",
    ],
    ["`full`", "computes everything, and writes the rows that differ", "all source rows"],
]
EXAMPLES: Mapping[str, Mapping[str, str]] = yaml.safe_load(
    Path(__file__).with_name("strategy_examples.yaml").read_text(encoding="utf-8")
)
_SCHEMAS = {
    TableId(("final",), "orders"): {
        "id": "bigint",
        "customer": "bigint",
        "day": "date",
        "amount": "decimal(12,2)",
        "items": "int",
    },
    TableId(("final",), "customers"): {"id": "bigint", "city": "string"},
}


def strategies_page() -> str:
    """Return the page about strategies."""
    sections: list[str] = []
    for title, examples in EXAMPLES.items():
        rows = [[escaped(name), code(sql), *_answer(sql)] for name, sql in examples.items()]
        sections.append(f"## {title}\n\n{table(['construct', 'example', 'strategy', 'how'], rows)}")
    intro = _INTRO.replace("{table}", table(["strategy", "a step", "reads"], _STRATEGIES))
    return page("Operators and strategies", intro, sections)


def planned(sql: str) -> ModelPlan:
    """Plan an example; raises ModelError if it is refused."""
    return plan("agg.example", sql, _SCHEMAS, keys=lambda _: [("id",)])


def _answer(sql: str) -> tuple[str, str]:
    try:
        found = planned(sql)
    except ModelError as e:
        return "refused", escaped(str(e).removeprefix("model agg.example: ").replace("agg.example: ", ""))
    if found.strategy == "full":
        return "`full`", escaped(found.why)
    assert found.tree
    how = [maintained(n) for n in walk(found.tree.root) if not isinstance(n, Scan | Project)]
    if found.strategy == "retract" and found.retraction:
        return "`retract`", escaped(found.why)
    return f"`{found.strategy}`", escaped("; ".join(dict.fromkeys(how)))
