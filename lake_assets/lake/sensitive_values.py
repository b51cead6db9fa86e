"""Which columns of a table hold sensitive values, and what is shown in place of these values.

Everything that shows values of rows passes them through `SensitiveColumns` first: previews, comparisons, findings of
audits, histories, ranges of columns. Errors pass through `masked_error`, since what Spark and users' code say may quote
any value. The columns are declared, and follow column lineage (`pipeline/sensitive_columns.py`); each table has those
of its last step as a property, for readers that do not have its declaration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pyiceberg.table import Table

from lake_assets.errors import HiddenValuesError, LakeError
from lake_assets.lake.column_spelling import caseless
from lake_assets.lake.redaction import HIDDEN

PROPERTY = "lake-assets.sensitive"
# Columns for values of another type, and of an earlier one, are called `email__string` and `email__was_int`.
_BESIDE = "__"
# Between the names of a column and of a field within its values.
_WITHIN = "."
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9]*(?:[_.][A-Z0-9]+)+)\]")
# A part of a line that a message may quote by itself: after a colon, or from an error condition on.
_PART = re.compile(r":\s+(?=\S)|(?=\[)")
# Messages quote up to so many characters of a longer text.
_CUT = (300, 200, 120)

V = TypeVar("V")


@dataclass(frozen=True)
class SensitiveColumns:
    """The sensitive columns of one table.

    Attributes:
        names: names of columns, in their caseless form.
        all_but: if not None, all columns are sensitive except these: it is not known what they are computed from.
    """

    names: frozenset[str] = frozenset()
    all_but: frozenset[str] | None = None

    @classmethod
    def of(cls, names: Iterable[str]) -> SensitiveColumns:
        """Return columns by their names, in any spelling."""
        return cls(frozenset(map(caseless, names)))

    @classmethod
    def all(cls, but: Iterable[str] = ()) -> SensitiveColumns:
        """Return all columns except some."""
        return cls(all_but=frozenset(map(caseless, but)))

    @classmethod
    def stored(cls, table: Table | None) -> SensitiveColumns:
        """Return the columns that a table's properties name; all columns if the property cannot be read."""
        text = table.properties.get(PROPERTY) if table is not None else None
        if not text:
            return NOTHING
        try:
            read = json.loads(text)
            return cls.all(map(str, read["all_but"])) if isinstance(read, dict) else cls.of(map(str, read))
        except (ValueError, TypeError, LookupError):
            return cls.all()

    def __bool__(self) -> bool:
        return bool(self.names) or self.all_but is not None

    def __or__(self, other: SensitiveColumns) -> SensitiveColumns:
        if self.all_but is not None and other.all_but is not None:
            but = self.all_but & other.all_but
        elif self.all_but is None and other.all_but is None:
            return SensitiveColumns(self.names | other.names)
        else:
            whole, some = (self, other) if self.all_but is not None else (other, self)
            but = frozenset(c for c in whole.all_but or () if not some.covers(c))
        return SensitiveColumns(all_but=but - self.names - other.names)

    def without(self, names: Iterable[str]) -> SensitiveColumns:
        """Return the same without some columns."""
        cleared = frozenset(map(caseless, names))
        but = self.all_but | cleared if self.all_but is not None else None
        return SensitiveColumns(self.names - cleared, but)

    def covers(self, column: str) -> bool:
        """Whether values of a column are sensitive; of a field within one, `profile.mail`, whether the column's are."""
        name = caseless(column)
        if self.all_but is not None:
            return name not in self.all_but and not any(name.startswith(c + _WITHIN) for c in self.all_but)
        return name in self.names or any(name.startswith((c + _BESIDE, c + _WITHIN)) for c in self.names)

    def value(self, column: str, value: V) -> V | str:
        """Return a value, or the word that hides it; a null stays one."""
        return HIDDEN if value is not None and self.covers(column) else value

    def row(self, row: Mapping[str, V]) -> dict[str, V | str]:
        """Return a row with its sensitive values hidden."""
        return {column: self.value(column, value) for column, value in row.items()}

    def to_property(self) -> str:
        """Return the value of the table property; empty: there is none to set."""
        if self.all_but is not None:
            return json.dumps({"all_but": sorted(self.all_but)})
        return json.dumps(sorted(self.names)) if self.names else ""


NOTHING = SensitiveColumns()


def masked_error(error: Exception, tables: Iterable[object], rewrite: Callable[[Exception], Exception]) -> Exception:
    """Return an error in place of one whose text may quote sensitive values.

    What this package says of its own is kept; what it quotes of other programs' errors is replaced. An error of another
    program becomes one that names its class and its error condition. Tracebacks are kept, since they show code alone.

    Args:
        tables: the tables whose rows it may quote.
        rewrite: hides what an error of this package holds besides its text.

    Returns:
        An error without causes, whose attribute `unmasked` is the original one.
    """
    foreign = [e for e in _chain(error) if not isinstance(e, LakeError)]
    if isinstance(error, LakeError) and not error.quotes_values:
        masked = _without_quotes(error, foreign)
    else:
        masked = None
    if masked is None:
        listed = ", ".join(map(str, tables))
        what = ", by ".join(dict.fromkeys(map(_kind, [error, *foreign])))
        masked = HiddenValuesError(
            f"{what}: its text is hidden, because it may quote values of sensitive columns of {listed}. `lake-assets "
            "run PIPELINE --show-sensitive` prints it",
            permanent=not isinstance(error, LakeError) or error.permanent,
        )
    masked = rewrite(masked)
    masked.__traceback__, masked.__cause__, masked.__context__ = error.__traceback__, None, None
    vars(masked)["unmasked"] = error
    return masked


def _without_quotes(error: LakeError, foreign: Iterable[BaseException]) -> LakeError | None:
    """Return an error whose text does not quote others; None: it has causes, and nothing tells what it quotes."""
    text, others = str(error), list(foreign)
    for part in sorted(error.quoted, key=len, reverse=True):
        text = text.replace(part, HIDDEN) if part else text
    for other in others:
        for piece in sorted(_pieces(other), key=len, reverse=True):
            text = text.replace(piece, f"{_kind(other)} ({HIDDEN})")
    if others and text == str(error) and error.permanent and not error.is_of_metadata:
        return None
    copy = error.__class__.__new__(error.__class__)
    Exception.__init__(copy, text)
    vars(copy).update(vars(error))
    return copy


def _pieces(error: BaseException) -> set[str]:
    """Return the parts of an error's text that another error's text may quote."""
    found = set[str]()
    for text in (str(error), *(a for a in error.args if isinstance(a, str))):
        found.add(text.strip())
        for line in map(str.strip, text.splitlines()):
            found |= {line, *(line[m.end() :].strip(" :") for m in _PART.finditer(line))}
    found |= {piece[:n] for piece in found for n in _CUT if len(piece) > n}
    return {piece for piece in found if len(piece) > 1}


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and its causes."""
    found: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in found:
        found.append(at)
        at = at.__cause__ or at.__context__
    return found


def _kind(error: BaseException) -> str:
    """Return what kind of error it is: its class, and Spark's error condition."""
    condition = _CONDITION.search(str(error)) if type(error).__module__.startswith(("py4j", "pyspark")) else None
    return f"{type(error).__name__} [{condition[1]}]" if condition else type(error).__name__


def shown(error: Any) -> Any:
    """Return the error that another one hides; itself if it hides none."""
    return getattr(error, "unmasked", error)
