"""`@model`: a table whose rows a Python function computes from the changes of its inputs."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pyspark.sql import DataFrame

from lake_assets.errors import InvalidNameError, ModelError
from lake_assets.lake import TableId
from lake_assets.lake.names import nearest
from lake_assets.models.python.model_inputs import Affected, Changes, Lookup
from lake_assets.tables.writing.table_state import APPENDED

WriteMode = Literal["append", "merge", "replace-keys", "replace-ranges", "overwrite"]
OnChange = Literal["rebuild", "stop", "keep"]
Function = Callable[..., DataFrame]
Kind = type[Changes] | type[Lookup] | type[Affected]
_KINDS = (Changes, Lookup, Affected)
_RESERVED = ("icdc", "raw")


@dataclass(frozen=True)
class PythonModel:
    """A declared Python model; calling it calls its function.

    Attributes:
        table: the table that it computes.
        function: returns its rows; receives one `Changes`, `Lookup` or `Affected` per parameter.
        parameters: the kind of each parameter.
        where: the place of the function: file and line.
        write: how the rows are applied.
        key: columns that identify a row of the table.
        replace: the columns of the result whose affected values are replaced, each with the SQL expression for its
            value in a changed row: one for all inputs, or one per parameter.
        tables: the name of each parameter's table; default: the table named like the parameter.
        full: a function that computes the whole table, for verification; None: `function` over everything.
        version: a new version rebuilds the table.
        cumulative: whether a row also depends on all rows with smaller values of the replaced column.
        back, forward: how far before and after its own value of the replaced column a row reads (`2d`, or a number in
            the unit of the column).
        on_lookup_change: whether a changed lookup recomputes the table.
        declared_on_change: what a changed declaration does; None: it depends on `past`.
        settings: further settings, as in the YAML of a SQL model.
    """

    table: TableId
    function: Function = field(repr=False, compare=False)
    parameters: Mapping[str, Kind]
    where: str
    write: WriteMode
    key: tuple[str, ...] = ()
    replace: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    full: Function | None = field(default=None, repr=False, compare=False)
    version: str = ""
    cumulative: bool = False
    back: str | float = 0
    forward: str | float = 0
    on_lookup_change: Literal["ignore", "rebuild"] = "ignore"
    declared_on_change: OnChange | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError for a declaration that contradicts itself."""
        _check(self)

    def __call__(self, *args: Any, **kwargs: Any) -> DataFrame:
        """Call the function."""
        return self.function(*args, **kwargs)

    @property
    def past(self) -> str:
        """What of the past the table holds that its inputs do not; empty: its rows can be computed again."""
        declared = self.declared_on_change
        if declared == "rebuild" or self.write == "overwrite":
            return ""
        if self.write == "append":
            return APPENDED
        reads = getattr(self.function, "past", "")
        return f"its SELECT {reads}" if reads else f"it declares `on_query_change: {declared}`" if declared else ""

    @property
    def on_query_change(self) -> OnChange:
        """What a changed declaration does: it rebuilds the table, stops it, or applies to later changes only."""
        return self.declared_on_change or ("stop" if self.past else "rebuild")

    def expression(self, column: str, parameter: str) -> str | None:
        """Return the expression for a replaced column over the rows of an input; None if the input has no
        expression."""
        of = self.replace[column]
        return of if isinstance(of, str) else of.get(parameter)


def model(
    table: str,
    *,
    write: WriteMode,
    key: str | Sequence[str] = (),
    replace: str | Sequence[str] | Mapping[str, str | Mapping[str, str]] | None = None,
    inputs: Mapping[str, str] | None = None,
    full: Function | None = None,
    version: str | int = "",
    cumulative: bool = False,
    back: str | float = 0,
    forward: str | float = 0,
    on_lookup_change: Literal["ignore", "rebuild"] = "ignore",
    on_query_change: OnChange | None = None,
    **settings: Any,
) -> Callable[[Function], PythonModel]:
    """Declare a table whose rows the decorated function computes.

    Each parameter of the function is annotated: `Changes` (an input whose changes trigger runs), `Lookup` (a table that
    is read at its current snapshot), or `Affected` (the keys or the range to recompute).

    Args:
        table: `layer.name`.
        write: how the returned rows are applied. `append`: they are added. `merge`: they replace rows of the same
            `key`; a boolean column `_deleted` that is true deletes the row. `replace-keys`: they replace all rows with
            the affected values of the columns in `replace`. `replace-ranges`: the same for the range of one such
            column. `overwrite`: they replace all rows.
        key: columns that identify a row of the table.
        replace: columns of the result whose affected values are replaced; a mapping gives the SQL expression over the
            rows of the inputs, or one by parameter. Default for `replace-keys`: `key`.
        inputs: the table of a parameter. A parameter that is not listed is the only table of its name.
        full: a function over the same parameters that computes the whole table in another way; `verify` compares the
            table with its rows.
        version: a new version rebuilds the table. A changed function alone does not.
        cumulative: a row also depends on all rows with smaller values, so all rows from the least changed value on are
            replaced. Only for `replace-ranges`.
        back, forward: how far before and after its own value of the replaced column a row reads (`2d`, `12h`, or a
            number). Only for `replace-ranges`.
        on_lookup_change: `ignore`: existing rows stay. `rebuild`: everything is recomputed.
        on_query_change: what another `version`, or other settings here, do. `rebuild`: the next run computes the table
            again. `stop`: the table stops, and its rows are never computed again unless a command says so; the default
            of `append`. `keep`: rows stay, and the new declaration applies to later changes.
        settings: further settings of a SQL model in YAML: `audits`, `partitions`, `owners`, `freshness`, `max_rows`,
            `on_gap`, ...

    Raises:
        ModelError: the declaration contradicts itself; the message says what and where.
    """

    def declare(function: Function) -> PythonModel:
        try:
            name = TableId.parse(table)
            declared = PythonModel(
                name,
                function,
                _parameters(function, table),
                where_is(function),
                write,
                names_of("key", key),
                replaced(write, names_of("key", key), replace),
                _named_tables(inputs or {}),
                full,
                str(version),
                cumulative,
                back,
                forward,
                on_lookup_change,
                on_query_change,
                settings,
            )
            if full is not None and _parameters(full, table, "`full`: ") != declared.parameters:
                wanted = ", ".join(f"{p}: {kind.__name__}" for p, kind in declared.parameters.items())
                raise ValueError(f"`full` has other parameters than the function: declare them as {wanted}")
        except (ValueError, InvalidNameError) as e:
            raise ModelError(f"{where_is(function)}: model {table}: {e}") from e
        return declared

    return declare


def where_is(function: Function) -> str:
    """Return the place of a function for messages: file and line."""
    place = place_of(function)
    return f"{place[0]}, line {place[1]}" if place else repr(function)


def place_of(function: Function) -> tuple[str, int] | None:
    """Return the file and the first line of a function; None if it is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else None


def names_of(setting: str, names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns in a setting as a tuple.

    Raises:
        ValueError: something else is among them.
    """
    given: Any = names
    listed = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    if wrong := [n for n in listed if not isinstance(n, str) or not n]:
        raise ValueError(f"`{setting}`: {wrong[0]!r} is not the name of a column: write one name, or a list of names")
    return listed


def replaced(
    write: str, key: tuple[str, ...], replace: str | Sequence[str] | Mapping[str, str | Mapping[str, str]] | None
) -> dict[str, str | Mapping[str, str]]:
    """Return the expression of each replaced column; see `model`."""
    if isinstance(replace, Mapping):
        names_of("replace", list(replace))
        return dict(replace)
    is_by_key = replace is None and write == "replace-keys"
    names = key if is_by_key else names_of("replace", () if replace is None else replace)
    return {n: f"`{n.replace('`', '``')}`" for n in names}


def _named_tables(inputs: Mapping[str, str]) -> dict[str, str]:
    given: Any = inputs
    if not isinstance(given, Mapping):
        raise ValueError(f'`inputs` is {given!r}: name the table of a parameter: inputs={{"parameter": "layer.name"}}')
    named: dict[str, str] = {}
    for parameter, name in inputs.items():
        try:
            named[parameter] = str(TableId.parse(name))
        except InvalidNameError as e:
            raise ValueError(f"`inputs`: {parameter}: {e}") from e
    return named


def _check(declared: PythonModel) -> None:
    """Raise ValueError for a declaration that contradicts itself."""
    write, kinds = declared.write, declared.parameters
    if declared.table.namespace[0].lower() in _RESERVED:
        raise ValueError(
            f"tables in {declared.table.namespace[0]} are written by lake_assets itself: use another layer"
        )
    if write not in get_args(WriteMode):
        raise ValueError(f"`write` is {write!r}: write one of {', '.join(get_args(WriteMode))}")
    if declared.on_lookup_change not in ("ignore", "rebuild"):
        raise ValueError(f"`on_lookup_change` is {declared.on_lookup_change!r}: write ignore or rebuild")
    if declared.declared_on_change not in (None, *get_args(OnChange)):
        raise ValueError(f"`on_query_change` is {declared.declared_on_change!r}: write rebuild, stop or keep")
    if declared.on_lookup_change == "rebuild" and declared.past:
        raise ValueError(
            f"`on_lookup_change: rebuild` computes all rows again, and that cannot be done: {declared.past}. Leave it "
            "out; or declare `on_query_change: rebuild` if the inputs tell all rows"
        )
    if declared.cumulative not in (True, False):
        raise ValueError(f"`cumulative` is {declared.cumulative!r}: write True or False")
    if write == "merge" and not declared.key:
        raise ValueError("`merge` replaces rows by their key: declare `key`")
    if write == "append" and declared.key:
        raise ValueError(
            "appended rows have no `key`: two of them may share its values. Leave it out, or declare `write: merge`"
        )
    is_replacing = write in ("replace-keys", "replace-ranges")
    if is_replacing and not declared.replace:
        either = "`replace`, or `key`" if write == "replace-keys" else "`replace`"
        raise ValueError(f"`{write}` needs the columns whose affected values are replaced: declare {either}")
    if write == "replace-ranges" and len(declared.replace) > 1:
        raise ValueError(
            f"`replace-ranges` replaces the range of one column; `replace` has {len(declared.replace)}. Name one, or "
            "declare `write: replace-keys`"
        )
    if declared.replace and not is_replacing:
        raise ValueError(
            f"`replace` is for replace-keys and replace-ranges, not for {write}: leave it out, or declare one of these"
        )
    if write != "replace-ranges" and (declared.cumulative or declared.back or declared.forward):
        raise ValueError(
            f"`cumulative`, `back` and `forward` are for replace-ranges, not for {write}: leave them out, or declare "
            "`write: replace-ranges`"
        )
    if Affected in kinds.values() and not is_replacing:
        raise ValueError(f"`{write}` has no affected keys or range: remove the parameter of type Affected")
    _check_inputs(declared)


def _check_inputs(declared: PythonModel) -> None:
    """Raise ValueError for inputs, or expressions over them, that contradict the parameters of the function."""
    kinds = declared.parameters
    if not (changed := [p for p, kind in kinds.items() if kind is Changes]):
        raise ValueError(
            "no parameter of its function is of type Changes, so nothing would trigger the model: annotate the table "
            "whose changes it applies as Changes"
        )
    if wrong := [p for p in declared.tables if p not in kinds]:
        raise ValueError(
            f"`inputs` names {', '.join(wrong)}{nearest(wrong[0], kinds)}; the function has {', '.join(kinds)}: name "
            "its parameters"
        )
    for column, of in declared.replace.items():
        expressions: list[Any] = [*of.values()] if isinstance(of, Mapping) else [of]
        if wrong := [e for e in expressions if not isinstance(e, str) or not e]:
            raise ValueError(
                f"`replace`: {wrong[0]!r} is not the SQL expression of {column}: write a text such as to_date(at)"
            )
        if isinstance(of, Mapping) and (wrong := [p for p in of if p not in changed]):
            raise ValueError(
                f"`replace`: {column} has an expression for {', '.join(map(str, wrong))}, whose changes the model does "
                f"not read: write one for each of {', '.join(changed)}"
            )
        if isinstance(of, Mapping) and (missing := [p for p in changed if p not in of]):
            raise ValueError(
                f"`replace`: {column} has no expression for {', '.join(missing)}: add it, or write one expression for "
                "all inputs"
            )


def _parameters(function: Function, table: str, setting: str = "") -> dict[str, Kind]:
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        kind = "lambda" if inspect.isfunction(function) else type(function).__name__
        raise ValueError(f"{setting}{kind} is not a function: declare one with `def`, and annotate its parameters")
    try:
        hints = typing.get_type_hints(function)
    except NameError:
        # A name that only type checkers import: its text says enough.
        hints = inspect.get_annotations(function)
    kinds: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ModelError(
                f"{where_is(function)}: model {table}: inputs are passed by name: make {name!r} an ordinary parameter"
            )
        hint = hints.get(name)
        text = hint if isinstance(hint, str) else ""
        kind = next((k for k in _KINDS if hint is k or re.fullmatch(rf"(\w+\.)*{k.__name__}", text)), None)
        if kind is None:
            raise ModelError(
                f"{where_is(function)}: model {table}: annotate the parameter {name!r} as Changes, Lookup or Affected"
            )
        kinds[name] = kind
    return kinds
