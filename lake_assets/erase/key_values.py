"""The keys that are to be erased: read from the command line or a file, as texts, and checked against a table."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lake_assets.errors import ErasureError
from lake_assets.lake import quote
from lake_assets.lake.column_spelling import spelled
from lake_assets.lake.names import nearest
from lake_assets.lake.rows_in_memory import rows_in_memory

Key = tuple[str, ...]
# Spark types whose values have one text.
_TYPES = ("string", "tinyint", "smallint", "int", "bigint", "decimal", "date", "timestamp", "timestamp_ntz", "boolean")
# Shorter texts, and shorter numbers, occur everywhere: they are looked for in the columns of the key alone.
_DISTINCTIVE, _DISTINCTIVE_DIGITS = 6, 12


def read_words(words: Sequence[str]) -> list[dict[str, str]]:
    """Return the keys of words such as `id=17`, one for each column; a column that occurs again begins the next key.

    Raises:
        ErasureError: a word has no `=`.
    """
    keys: list[dict[str, str]] = []
    for word in words:
        column, found, value = word.partition("=")
        if not found or not column:
            raise ErasureError(f"--key {word}: write COLUMN=VALUE, such as --key id=17")
        if not keys or column in keys[-1]:
            keys.append({})
        keys[-1][column] = value
    return keys


def read_file(file: Path) -> list[dict[str, str]]:
    """Return the keys in a CSV file with a header, or in a file of JSON lines.

    Raises:
        ErasureError: it cannot be read, or a line lacks a value.
    """
    rows: list[Any]
    try:
        if file.suffix.lower() == ".csv":
            with file.open(newline="", encoding="utf-8-sig") as opened:
                rows = [*csv.DictReader(opened)]
        elif file.suffix.lower() in (".jsonl", ".json", ".ndjson"):
            rows = [
                json.loads(line, parse_float=str) for line in file.read_text("utf-8-sig").split("\n") if line.strip()
            ]
        else:
            raise ErasureError(f"--keys {file}: name a file that ends in .csv, .jsonl, .ndjson or .json")
    except (OSError, ValueError, csv.Error) as e:
        raise ErasureError(f"--keys {file} cannot be read: {e}. Write a CSV file with a header, or JSON lines") from e
    keys: list[dict[str, str]] = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or None in row or None in row.values():
            raise ErasureError(
                f"--keys {file}: row {number} is no object with a value for each column: correct the file"
            )
        keys.append({str(c): v if isinstance(v, str) else json.dumps(v) for c, v in row.items()})
    return keys


def in_order(given: Iterable[Mapping[str, str]], key: Sequence[str], table: object) -> list[Key]:
    """Return the values of each key in the order of a table's key columns, each key once.

    Raises:
        ErasureError: a key has other columns, or there is none.
    """
    keys: dict[Key, None] = {}
    for one in given:
        values = {spelled(column, key): value for column, value in one.items()}
        if unknown := [c for c in values if c not in key]:
            raise ErasureError(
                f"{unknown[0]} is no key column of {table}{nearest(unknown[0], key)}: its key is {', '.join(key)}"
            )
        if missing := [c for c in key if c not in values]:
            raise ErasureError(
                f"the key of {table} is {', '.join(key)}, and {', '.join(missing)} has no value: name all of its "
                f"columns, as in {' '.join(f'--key {c}=VALUE' for c in key)}"
            )
        keys[tuple(values[c] for c in key)] = None
    if not keys:
        raise ErasureError("name what to erase: --key COLUMN=VALUE, or --keys FILE")
    return [*keys]


def frame(spark: SparkSession, keys: Iterable[Key], types: Mapping[str, str]) -> DataFrame:
    """Return keys as rows; `types` are the Spark SQL types of their columns, in order."""
    rows = rows_in_memory(spark, [*keys], ", ".join(f"{quote(c)} string" for c in types))
    return rows.selectExpr(*(f"CAST({quote(c)} AS {kind}) AS {quote(c)}" for c, kind in types.items()))


def canonical(spark: SparkSession, keys: Sequence[Key], types: Mapping[str, str], table: object) -> list[Key]:
    """Return keys as Spark writes values of the key's types: `017` becomes `17`.

    Raises:
        ErasureError: a value is none of its column's type, or the type cannot be erased by.
    """
    for column, kind in types.items():
        if kind.partition("(")[0] not in _TYPES:
            raise ErasureError(
                f"{table}: {column} has type {kind}, whose values have no plain text: keys of {', '.join(_TYPES)} can "
                "be erased"
            )
    texts = rows_in_memory(spark, keys, ", ".join(f"{quote(c)} string" for c in types))
    read = texts.selectExpr(
        *(f"CAST(try_cast({quote(c)} AS {kind}) AS string) AS {quote(c)}" for c, kind in types.items())
    )
    found = [tuple(row) for row in read.collect()]
    for given, values in zip(keys, found, strict=True):
        for (column, kind), text, value in zip(types.items(), given, values, strict=True):
            if value is None:
                raise ErasureError(f"{column}={text}: {table} has {column} as {kind}: correct the value")
    return [*dict.fromkeys(found)]


def is_distinctive(value: str) -> bool:
    """Whether a value that is found in any text is that of the key, and no other number or word."""
    return len(value) >= (_DISTINCTIVE_DIGITS if value.lstrip("-").isdecimal() else _DISTINCTIVE)


def digest(key: Key, salt: str) -> str:
    """Return a hash of a key that tells, with the salt, whether a key is the same, and not what it is."""
    return hashlib.sha256(json.dumps([salt, *key], ensure_ascii=False).encode()).hexdigest()
