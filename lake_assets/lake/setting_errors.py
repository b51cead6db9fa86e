"""Pydantic's validation errors in plain words, in terms of the YAML that a user wrote."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from lake_assets.lake.names import nearest
from lake_assets.lake.redaction import hide

Place = tuple[int | str, ...]

_MAX_SHOWN = 60
# Names of the branches of a union, which pydantic puts into the location of an error.
_BRANCH = re.compile(r"str|int|float|bool|(list|dict|tuple)\[.*")
# Kinds of files that are taken for formats of change events.
_FILE_KINDS = ("csv", "json", "jsonl", "parquet", "avro", "orc", "xml")
_EXPECTED = {
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "settings as `name: value`",
    "model_type": "settings as `name: value`",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "path_type": "a path",
}
# What the patterns of settings mean.
_PATTERNS = {
    r"^\w+$": "letters, digits and `_` only",
    r"^[A-Za-z_]\w*$": "letters, digits and `_` only, not a digit first",
}


def setting_errors(model: type[BaseModel], error: ValidationError, content: object = None) -> list[tuple[Place, str]]:
    """Return each mistake as the place of the setting, and a text: what is wrong, and what to write.

    A value that fits no branch of a union is one mistake, not one per branch.

    Args:
        content: the settings; their entries are called by their names.
    """
    by_place: dict[Place, list[Any]] = {}
    for details in error.errors():
        place: Place = details["loc"]
        branch = next((i for i, part in enumerate(place) if isinstance(part, str) and _BRANCH.fullmatch(part)), None)
        by_place.setdefault(place if branch is None else place[:branch], []).append(details)
    return [
        (place, text)
        for place, several in _without_consequences(model, by_place)
        for text in _texts(model, place, several, content)
    ]


def _without_consequences(
    model: type[BaseModel], by_place: dict[Place, list[Any]]
) -> Iterator[tuple[Place, list[Any]]]:
    """Yield the mistakes, without the missing settings that were written beside them with a mistyped name."""
    unknown = [place for place, several in by_place.items() if several[0]["type"] == "extra_forbidden"]
    meant = {(*place[:-1], near) for place in unknown if (near := _nearest_setting(model, place))}
    for place, several in by_place.items():
        if several[0]["type"] != "missing" or place not in meant:
            yield place, several


def _texts(model: type[BaseModel], place: Place, several: Sequence[Any], content: object) -> list[str]:
    """Return the mistakes of one setting; settings that are wrong together give one per line of their message."""
    first, at = several[0], _in_words(place, content)
    kind, message = first["type"], str(first["msg"]).removeprefix("Value error, ")
    expected = list(dict.fromkeys(_EXPECTED[d["type"]] for d in several if d["type"] in _EXPECTED))
    if kind == "extra_forbidden":
        message = f"unknown setting{_suggestion(model, place)}"
    elif kind == "missing":
        message = "missing, and it has no default"
    elif len(several) > 1 or expected:
        message = f"expected {' or '.join(expected)}{_value(first)}" if expected else message
    elif kind == "literal_error":
        message = f"expected {first['ctx']['expected']}{_value(first)}{_nearest_word(first)}"
    elif kind == "string_pattern_mismatch" and first["ctx"]["pattern"] in _PATTERNS:
        message = f"expected {_PATTERNS[first['ctx']['pattern']]}{_value(first)}"
    elif kind != "value_error":
        message += _value(first)
    return [f"{at}: {text}" if at else text for text in message.splitlines()]


def _in_words(place: Place, content: object) -> str:
    """Return a place as text, with the names of entries: `models[agg.sales].key`; `models.0.key` if it has no name."""
    text, at = "", content
    for part in place:
        if isinstance(part, int) and isinstance(at, list):
            at = at[part] if part < len(at) else None
            name = (at.get("name") or at.get("table")) if isinstance(at, dict) else None
        else:
            at, name = at.get(part) if isinstance(at, dict) else None, None
        text += f"[{name}]" if isinstance(name, str) else f".{part}"
    return text.removeprefix(".")


def _value(details: Any) -> str:
    value = hide(details["input"], str(details["loc"][-1]) if details["loc"] else "")
    if value is None:
        return ", found nothing"
    if not isinstance(value, str | int | float | list | dict):
        return ""
    try:
        return f", found {value!r}"[: _MAX_SHOWN + 9]
    except ValueError:  # Python does not print integers of more than 4,300 digits
        return ", found a number with thousands of digits"


def _suggestion(model: type[BaseModel], place: Place) -> str:
    """Suggest the most similar setting; without one, list all."""
    if near := _nearest_setting(model, place):
        return f"; did you mean `{near}`?"
    names = _settings_at(model, place)
    return f"; known settings: {', '.join(names)}" if names else ""


def _nearest_setting(model: type[BaseModel], place: Place) -> str | None:
    near = difflib.get_close_matches(str(place[-1]), _settings_at(model, place), n=1)
    return near[0] if near else None


def _settings_at(model: type[BaseModel], place: Place) -> list[str]:
    return list(dict.fromkeys(name for m in _models_at(model, place[:-1]) for name in m.model_fields))


def _nearest_word(details: Any) -> str:
    """Suggest the most similar of the words that a setting may have; of several as similar, all: `v1` and `v2`."""
    words = re.findall(r"'([^']*)'", details["ctx"]["expected"])
    value = details["input"]
    if value in _FILE_KINDS and "change-set" in words:
        return ", the kind of a file, which follows from its name: `format` tells what its rows mean"
    longer = [w for w in words if isinstance(value, str) and value and w.startswith(f"{value}-")]
    return f" (did you mean {' or '.join(longer)}?)" if longer else nearest(str(value), words)


def _models_at(annotation: Any, place: Sequence[int | str]) -> Iterator[type[BaseModel]]:
    """Yield the models whose settings may be written at a place."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not place:
            yield annotation
        elif field := annotation.model_fields.get(str(place[0])):
            yield from _models_at(field.annotation, place[1:])
        return
    # Lists and mappings use up one part of the place; unions and annotated types none.
    parts = 1 if getattr(annotation, "__origin__", None) in (list, dict, tuple) else 0
    if len(place) >= parts:
        for inner in get_args(annotation):
            yield from _models_at(inner, place[parts:])
