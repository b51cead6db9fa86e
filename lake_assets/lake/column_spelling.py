"""Spelling of column names: in the lake, names that differ in case only are one column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lake_assets.errors import UnsupportedEventError


def caseless(name: str) -> str:
    """Return the form that all spellings of a column's name share."""
    return name.lower()


def spelled(name: str, existing: Iterable[str]) -> str:
    """Return a column's name as a table spells it; without such a column, the name itself."""
    columns = list(existing)
    return name if name in columns else next((c for c in columns if caseless(c) == caseless(name)), name)


def by_column(names: Iterable[str], rename: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """Return source names by the column of the lake that they name, in its first spelling.

    by_column(["id", "Name", "name"], {"id": "key"}) -> {"key": ["id"], "Name": ["Name", "name"]}

    Args:
        rename: names in the lake by source name, as far as they differ.
    """
    columns: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for name in names:
        in_lake = rename.get(name, name) if rename is not None else name
        columns.setdefault(first.setdefault(caseless(in_lake), in_lake), []).append(name)
    return columns


def clashes(names: Iterable[str], rename: Mapping[str, str] | None = None) -> list[list[str]]:
    """Return the source names that share a column of the lake; see `by_column`."""
    return [sources for sources in by_column(names, rename).values() if len(sources) > 1]


def lake_names(columns: Iterable[str], rename: Mapping[str, str]) -> dict[str, str]:
    """Return names in the lake by source name.

    Raises:
        UnsupportedEventError: two columns would have the same name.
    """
    names = {c: rename.get(c, c) for c in columns}
    if shared := clashes(names, rename):
        raise UnsupportedEventError(
            f"columns {'; '.join(map(' and '.join, shared))} share one name in the lake, which ignores case: declare "
            "another name for one of them (`rename`)"
        )
    return names


class LakeNames(Mapping[str, str]):
    """Names in the lake by source name: the declared name, or else the existing spelling in the lake."""

    def __init__(self, declared: Mapping[str, str], existing: Iterable[str]) -> None:
        self.declared = dict(declared)
        self._spelled = {caseless(name): name for name in existing}

    def __getitem__(self, name: str) -> str:
        return self.declared[name] if name in self.declared else self._spelled[caseless(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared)

    def __len__(self) -> int:
        return len(self.declared)
