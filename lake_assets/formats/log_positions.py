"""Positions of Debezium's events in the log of their source, as sortable text.

Each connector names a position in its own fields (`source.file`, `source.lsn`, ...). The text in `_sequence` is one of:

    <20 digits>/<20 digits>/<20 digits>       Postgres: place, LSN of the change, LSN of the commit before it
    b<file>/<position>/<log>                  MySQL, MariaDB: binary log
    c<commit LSN>/<change LSN>/<number>       SQL Server, Db2, Informix
    s<commit SCN>/<SCN>/<RS_ID>/<SSN>         Oracle

Postgres delivers transactions by commit, so the LSNs of changes alone go backwards between interleaved transactions.
Its events do not name their own commit, only the one before it. The place of an event is the greater one of that LSN
and its own: it increases from transaction to transaction, and lies before the event's own commit. So the place of a row
that a snapshot read, the LSN of the snapshot, comes after all transactions that the snapshot saw. (One transaction may
be out of order: the first one that commits after a snapshot, if it had changed the row before the snapshot. Its events
get a place before the snapshot.)

Source: Debezium's documentation of its connectors (the `source` block of data change events); recordings of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from lake_assets.formats.event_model import SEQUENCE
from lake_assets.formats.types.text_types import let, rare
from lake_assets.lake.names import literal

Values = Mapping[str, str]
"""SQL of the texts of an event's `source` fields, by name."""

_COUNTER = "'^[0-9]{1,20}$'"
_ZEROS = f"'{'0' * 20}'"
# Sorts after every other text in its place.
_LAST = "'~'"
_USUAL_SEQUENCE = literal(r'^\[(?:null|"[0-9]{1,20}"), ?"[0-9]{1,20}"\]$')


@dataclass(frozen=True)
class _Log:
    """The log of one kind of source.

    Attributes:
        needs: fields without which an event has no position in such a log; one of them is enough if `any_of`.
        sequence: given the fields and SQL of "is a row of a snapshot", returns SQL of the position; NULL if the values
            are not as documented.
    """

    needs: tuple[str, ...]
    fields: tuple[str, ...]
    sequence: Callable[[Values, str], str]
    any_of: bool = False

    def is_in(self, names: Collection[str]) -> bool:
        """Whether events with these fields may have a position in such a log."""
        return (any if self.any_of else all)(n in names for n in self.needs)

    def has_position(self, values: Values) -> str:
        """Return SQL of a boolean: the event has a value in the fields of this log."""
        return f"coalesce({', '.join(values[n] for n in self.needs if n in values)}) IS NOT NULL"


def _padded(t: str, size: int = 20) -> str:
    """Return SQL of a number's text with leading zeros; NULL for anything but up to 20 digits."""
    return f"CASE WHEN {t} RLIKE {_COUNTER} THEN lpad({t}, greatest({size}, length({t})), '0') END"


# --- Postgres -------------------------------------------------------------------------------------------------------


def _lsn(t: str) -> str:
    """Return SQL of an LSN, a number or Postgres's notation (16/B374D848), as 20 digits; NULL for anything else."""
    low = f"lpad(split_part({t}, '/', 2), 8, '0')"
    number = f"lpad(conv(concat(split_part({t}, '/', 1), {low}), 16, 10), 20, '0')"
    return (
        f"CASE WHEN {t} RLIKE {_COUNTER} THEN lpad({t}, 20, '0') "
        f"WHEN {t} RLIKE '^[0-9A-Fa-f]{{1,8}}/[0-9A-Fa-f]{{1,8}}$' THEN {number} END"
    )


def _postgres(values: Values, is_read: str) -> str:
    sequence, lsn = (values.get(n, "CAST(NULL AS STRING)") for n in ("sequence", "lsn"))
    # The form in which the connector writes sequences: the LSN of the last commit, if any, and that of the change.
    commit, own = (f"lpad(split_part({sequence}, '\"', {i}), 20, '0')" for i in (-4, -2))
    usual = f"{sequence} RLIKE {_USUAL_SEQUENCE}"
    if "sequence" not in values:
        usual, commit, own = f"{lsn} RLIKE {_COUNTER}", _ZEROS, f"lpad({lsn}, 20, '0')"
    text = f"CASE WHEN get(p_, 0) IS NULL THEN {_ZEROS} ELSE {_lsn('get(p_, 0)')} END"
    texts = f"from_json({sequence}, 'ARRAY<STRING>')"
    parts = let(
        f"CASE WHEN {sequence} IS NULL THEN array(CAST(NULL AS STRING)) ELSE {texts} END",
        "p_",
        f"CASE WHEN size(p_) IN (1, 2) THEN named_struct('p', {text}, 'l', "
        f"{let(f'coalesce(get(p_, 1), {lsn})', 'l_', _lsn('l_'))}) END",
    )
    other = let(parts, "s_", f"CASE WHEN s_.l IS NOT NULL THEN {_place('s_.p', 's_.l', is_read)} END")
    return f"CASE WHEN {usual} THEN {_place(commit, own, is_read)} ELSE {rare(other)} END"


def _place(commit: str, own: str, is_read: str) -> str:
    rest = f"CASE WHEN {is_read} THEN '{'0' * 20}/{'0' * 20}' ELSE concat({own}, '/', {commit}) END"
    return f"concat(greatest({commit}, {own}), '/', {rest})"


_IS_POSTGRES = f"(length({SEQUENCE}) = 62 AND left({SEQUENCE}, 20) <> {_ZEROS})"
# Earlier versions stored `<commit>/<LSN of the change>`.
_COMMIT, _OWN = f"left({SEQUENCE}, 20)", f"right({SEQUENCE}, 20)"
STORED = (
    f"CASE WHEN length({SEQUENCE}) = 41 "
    f"THEN concat(greatest({_COMMIT}, {_OWN}), '/', {_OWN}, '/', {_COMMIT}) ELSE {SEQUENCE} END"
)
"""SQL that converts `_sequence` in staging tables, possibly from earlier versions, to today's form."""


def upgraded(sequence: str) -> str:
    """Return what `STORED` returns for a sequence."""
    if len(sequence) != 41:
        return sequence
    commit, own = sequence[:20], sequence[-20:]
    return f"{max(commit, own)}/{own}/{commit}"


# --- other sources --------------------------------------------------------------------------------------------------


def _binary_log(values: Values, is_read: str) -> str:
    # Not `row`: it begins anew with each event of rows, and MariaDB writes no positions of events within a transaction.
    file = values["file"]
    number = f"regexp_extract({file}, '[.]([0-9]{{1,10}})$', 1)"
    log = f"regexp_extract({file}, '^(.*)[.][0-9]+$', 1)"
    number = f"CASE WHEN {number} <> '' THEN lpad({number}, 10, '0') END"
    return f"concat('b', {number}, '/', {_padded(values['pos'])}, '/', {log})"


def _commit_lsn(values: Values, is_read: str) -> str:
    def text(t: str) -> str:
        groups = f"array_join(transform(split({t}, ':'), g_ -> lpad(lower(g_), 32, '0')), ':')"
        return (
            f"CASE WHEN {t} RLIKE '^[0-9A-Fa-f]{{1,32}}(:[0-9A-Fa-f]{{1,32}})+$' THEN {groups} "
            f"WHEN {t} RLIKE {_COUNTER} THEN lpad({t}, 20, '0') END"
        )

    change, number = values.get("change_lsn", "CAST(NULL AS STRING)"), values.get("event_serial_no")
    number = _padded(f"coalesce({number}, '0')", 10) if number else "'0000000000'"
    # A snapshot has the last commit that it saw, and is newer than all changes of it.
    of_read = f"CASE WHEN {change} RLIKE '[0-9]' THEN concat({text(change)}, '/', {_LAST}) ELSE {_LAST} END"
    of_change = f"concat({text(change)}, '/', {number})"
    return f"concat('c', {text(values['commit_lsn'])}, '/', CASE WHEN {is_read} THEN {of_read} ELSE {of_change} END)"


def _oracle(values: Values, is_read: str) -> str:
    scn, null = values["scn"], "CAST(NULL AS STRING)"
    commit = f"coalesce({values.get('commit_scn', null)}, {scn})"
    record = f"lower(trim(coalesce({values.get('rs_id', null)}, '')))"
    number = _padded(f"coalesce({values.get('ssn', null)}, '0')")
    change = f"concat({let(commit, 'c_', _padded('c_'))}, '/', {_padded(scn)}, '/', {record}, '/', {number})"
    return f"concat('s', CASE WHEN {is_read} THEN concat({_padded(scn)}, '/', {_LAST}) ELSE {change} END)"


_LOGS = (
    _Log(("lsn", "sequence"), ("lsn", "sequence"), _postgres, any_of=True),
    _Log(("file", "pos"), ("file", "pos"), _binary_log),
    _Log(("commit_lsn",), ("commit_lsn", "change_lsn", "event_serial_no"), _commit_lsn),
    _Log(("scn",), ("scn", "commit_scn", "rs_id", "ssn"), _oracle),
)
FIELDS = ("connector", *dict.fromkeys(f for log in _LOGS for f in log.fields))
"""The fields of a `source` that positions are read from."""

# Positions of several nodes or shards, which nothing orders, though some have the names of fields above.
_WITHOUT_ORDER = ("cassandra", "vitess", "spanner", "tidb")


def position(values: Values, is_read: str) -> str | None:
    """Return SQL of an event's position; NULL if its fields are not as documented. None: no known field exists.

    Args:
        values: the fields that events may have.
        is_read: SQL of a boolean: the event is a row that a snapshot read.
    """
    logs = [log for log in _LOGS if log.is_in(values)]
    if not logs:
        return None
    cases = [f"WHEN {log.has_position(values)} THEN {log.sequence(values, is_read)}" for log in logs]
    if "connector" in values and "file" in values:
        names = ", ".join(map(literal, _WITHOUT_ORDER))
        cases.insert(0, f"WHEN {values['connector']} IN ({names}) THEN NULL")
    return f"CASE {' '.join(cases)} END"


# Times in different units cannot be compared. Those of the years 1974 to 5138 have so many digits.
_UNIT = (
    f"CASE WHEN {SEQUENCE} >= '{10**17:020}' THEN 'times in nanoseconds' "
    f"WHEN {SEQUENCE} >= '{10**14:020}' THEN 'times in microseconds' ELSE 'times in milliseconds' END"
)
LOG = (
    f"CASE WHEN {SEQUENCE} LIKE 'b%' THEN concat('the binary log ', split_part({SEQUENCE}, '/', 3)) "
    f"WHEN {SEQUENCE} LIKE 'c%' THEN 'commit LSNs' WHEN {SEQUENCE} LIKE 's%' THEN 'SCNs' "
    f"WHEN {_IS_POSTGRES} THEN 'the write-ahead log' WHEN length({SEQUENCE}) = 20 THEN {_UNIT} END"
)
"""SQL over `_sequence` of the log that it is a position in; NULL if it is none."""

NUMBERED = f"({_IS_POSTGRES} OR {SEQUENCE} RLIKE '^[bcs]')"
"""SQL over `_sequence`: whether it is a position in a log."""

TRANSACTION = (
    f"CASE WHEN {_IS_POSTGRES} AND {_OWN} <> {_ZEROS} THEN {_OWN} "
    f"WHEN {SEQUENCE} RLIKE '^[cs]' THEN split_part({SEQUENCE}, '/', 1) END"
)
"""SQL over `_sequence` of the part that all changes of a transaction share; NULL if it has none.

MySQL and MariaDB check keys row by row, so nothing depends on their transactions.
"""
