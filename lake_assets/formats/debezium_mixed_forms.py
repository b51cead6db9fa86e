"""Forms of Debezium's records without schemas, if a batch holds several.

Whether a record is wrapped (with its key) or the value alone, and whether the value is an envelope or a flattened row,
changes when a connector gets another transform or converter. The type of a batch unites both forms, so it is divided
here: each form has its own fields, and a condition that tells its records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from lake_assets.formats.debezium_wrapping import FIELDS as FIELDS_OF_RECORD
from lake_assets.formats.debezium_wrapping import IS_WRAPPED
from lake_assets.formats.log_positions import FIELDS
from lake_assets.formats.types.inferred_types import VOID, Inferred

_ENVELOPE = {"before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns", "transaction"}
_ADDED = ("__op", "__deleted")


def divided(record: Inferred, columns: Collection[str]) -> list[tuple[Inferred, str]]:
    """Return the type of each form that occurs in a batch, and SQL over the variant `v` that tells its records.

    Args:
        record: the common type of all records, whatever their form.
        columns: existing columns of the table, which a flattened row may share with the fields of an envelope.

    Returns:
        One item per form; none if all records have one form.
    """
    value = record.fields.get("value", VOID)
    forms: list[tuple[Inferred, str]] = []
    for inferred, condition in _forms_of_value(value.fields, "$.value", columns):
        others = {n: i for n, i in record.fields.items() if n in FIELDS_OF_RECORD}
        forms.append((Inferred("OBJECT", fields={**others, "value": inferred}), f"{IS_WRAPPED} AND {condition}"))
    shared = FIELDS_OF_RECORD - set(columns) if forms else set[str]()
    of_value = {n: i for n, i in record.fields.items() if n not in shared}
    for inferred, condition in _forms_of_value(of_value, "$", columns):
        forms.append((inferred, f"NOT {IS_WRAPPED} AND {condition}"))
    if len(forms) < 2:
        return []
    # Whatever tells no form is read as the first one, which rejects it.
    rest = " OR ".join(f"({condition})" for _, condition in forms[1:])
    return [(forms[0][0], f"NOT coalesce({rest}, false)"), *forms[1:]]


def _forms_of_value(fields: Mapping[str, Inferred], path: str, columns: Collection[str]) -> list[tuple[Inferred, str]]:
    """Return envelope and flattened row, as far as values with these fields may be one."""
    source = fields.get("source", VOID)
    is_object = (
        f"coalesce(startswith(schema_of_variant(try_variant_get(v, '{path}.source', 'VARIANT')), 'OBJECT') "
        f"AND try_variant_get(v, '{path}.op', 'STRING') IS NOT NULL, false)"
    )
    # A flattened row may have a column of this name: then their common type is none.
    has_envelope = "op" in fields and (source.kind == "OBJECT" or (source.kind == "VARIANT" and "after" in fields))
    shared = _ENVELOPE - set(columns) if has_envelope else set[str]()
    row = {n: i for n, i in fields.items() if n not in shared}
    forms: list[tuple[Inferred, str]] = []
    if has_envelope:
        order = source.fields or {f: Inferred("STRING") for f in FIELDS}
        envelope = {n: i for n, i in fields.items() if n in _ENVELOPE}
        envelope["source"] = replace(source, kind="OBJECT", fields=order)
        forms.append((Inferred("OBJECT", fields=envelope), is_object))
    if any(n in fields for n in _ADDED) and any(not n.startswith("__") for n in row):
        forms.append((Inferred("OBJECT", fields=row), f"NOT {is_object}"))
    return forms
