"""How the rows of a change set tell what happened to them, and when, where that is declared (`flag`, `time`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lake_assets.formats.event_model import DELETE, INSERT, READ, UPDATE

# In place of a word: any value.
ANY = "*"
# What rows without a flag may be, by the word in the declaration. A load comes before all changes.
LOAD = "load"
OPS = {"insert": INSERT, "update": UPDATE, "delete": DELETE, LOAD: READ}


@dataclass(frozen=True)
class RowLayout:
    """Declared columns of a change set.

    Attributes:
        column: the flag: the column of the operation. Its name ignores case, as those of `time` do.
        words: values of the flag, in lower case (`*`: any other value), with what they mean: insert, update, delete.
        missing: what rows without a flag are: insert, update, delete or load; empty: they are rejected.
        time: columns with the time of the change; of several, the first with a value counts. Empty: the order of the
            stream counts.
        load_files: pattern of the names of files that land before all others; empty: none do.
    """

    column: str
    words: tuple[tuple[str, str], ...]
    missing: str = ""
    time: tuple[str, ...] = ()
    load_files: str = ""

    @property
    def read_as(self) -> list[Any]:
        """The parts of the declaration that decide what a record means, as JSON values."""
        return [
            self.column.lower(),
            [list(w) for w in sorted(self.words)],
            self.missing,
            [t.lower() for t in self.time],
        ]


def word_of(value: Any) -> str:
    """Return the value of a flag as text in lower case; empty if it is missing."""
    return "" if value is None else str(value).strip().lower()


def op_of_word(word: str, words: Mapping[str, str], missing: str) -> str | None:
    """Return the op of a flag's value; None: the declaration does not name it."""
    if not word:
        return OPS[missing] if missing else None
    return words.get(word, words.get(ANY))
