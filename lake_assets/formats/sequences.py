"""The order of changes as sortable text: numbers sort by value, moments by instant.

Final tables order events by the text in `_sequence`. It is one of these, which sort in this order:

    ''                                      the record has no order
    ' '                                     a row of a first load
    -!<length><digits>~  -<20 digits>~      negative numbers, each digit as its complement to 9
    <20 digits>  <20 digits>.<fraction>     numbers
    :<length><digits>                       numbers of more than 20 digits
    yyyy-MM-dd HH:mm:ss.SSSSSS<more>        moments in UTC, with all fractional digits of the second
    <20 digits>/0  <20 digits>/1            versions of a change feed: deletes first
    <20 digits>/0/<id>                      ordinals of a changelog, with the snapshot

A column must hold either numbers or moments, since the two cannot be compared.
"""

from __future__ import annotations

from lake_assets.formats.event_model import SEQUENCE
from lake_assets.formats.types.text_types import MOMENT, MOMENT_IN_RANGE, let, rare
from lake_assets.lake.names import literal

# The place of rows of a first load, whenever they arrive.
FIRST = " "
_COUNTER = "^[0-9]{1,20}$"
# As many digits as the length prefix can express, including those that an exponent adds.
_NUMBER = r"^[+-]?(?:[0-9]{1,1000}(?:\.[0-9]{0,1000})?|\.[0-9]{1,1000})(?:[eE][+-]?0{0,9}[0-9]{1,3})?$"
_DIGITS, _COMPLEMENTS = "0123456789:", "9876543210!"
_CANONICAL = (
    r"^(?:| |[0-9]{20}(?:/[01](?:/-?[0-9]+)?|\.[0-9]+)?|-.*~|:[0-9.]+"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6,})$"
)

KIND = (
    f"CASE WHEN {SEQUENCE} RLIKE '^[0-9]{{4}}-' THEN 'moments' WHEN {SEQUENCE} LIKE '%/%' THEN 'versions' "
    f"WHEN {SEQUENCE} NOT IN ('', '{FIRST}') THEN 'numbers' END"
)
"""SQL over `_sequence` of its kind; NULL if the record has no order, or belongs to a first load."""

ORDINALS = "ordinals from snapshot "
KIND_OF_FEED = (
    f"CASE WHEN {SEQUENCE} LIKE '{'0' * 20}/_/%' THEN concat('{ORDINALS}', split_part({SEQUENCE}, '/', 3)) "
    f"WHEN {SEQUENCE} NOT LIKE '%/_/%' THEN {KIND} END"
)
"""The same for change feeds. Ordinals begin with 0 in each query of a changelog, so the snapshot at 0 identifies it."""


def placed(t: str) -> str:
    """Return SQL of the sequence of a number or moment in `t` (SQL of text); empty for null, NULL for any other text.

    A moment without a time zone is in UTC.
    """
    number = rare(_number("t_"))
    others = f"CASE WHEN t_ = '' THEN '' WHEN t_ RLIKE '^[0-9]{{4}}-' THEN {_moment('t_')} ELSE {number} END"
    return (
        f"CASE WHEN {t} IS NULL THEN '' WHEN {t} RLIKE '{_COUNTER}' THEN lpad({t}, 20, '0') "
        f"ELSE {let(f'trim({t})', 't_', others)} END"
    )


def version(t: str) -> str:
    """Return SQL of the sequence of a whole number of up to 20 digits in `t`; NULL for anything else."""
    of_others = "CASE WHEN v_ RLIKE '^[0-9]{20}$' THEN v_ END"
    return (
        f"CASE WHEN {t} RLIKE '{_COUNTER}' THEN lpad({t}, 20, '0') "
        f"ELSE {rare(let(_number(f'trim({t})'), 'v_', of_others))} END"
    )


def not_placed(what: str, t: str) -> str:
    """Return SQL of the reason for rejecting an event whose `placed` is NULL.

    Args:
        what: the record's name for the value.
    """
    return (
        f"concat({literal(f'{what} is ')}, left({t}, 100), "
        f"{literal(': neither a number nor a moment, so its place in the order of changes is unknown')})"
    )


def _number(t: str) -> str:
    """Return SQL of the sequence of a number, exact for any number of digits, unlike Spark's types."""
    exponent = f"coalesce(CAST(nullif(regexp_extract({t}, '[eE]([+-]?[0-9]+)$', 1), '') AS INT), 0)"
    whole, fraction = f"regexp_extract({t}, '^[+-]?([0-9]*)', 1)", rf"regexp_extract({t}, '[.]([0-9]*)', 1)"
    parts = f"named_struct('digits', concat({whole}, {fraction}), 'point', length({whole}) + {exponent})"
    whole_digits = "CASE WHEN n_.point > 0 THEN ltrim('0', rpad(left(n_.digits, n_.point), n_.point, '0')) ELSE '' END"
    fraction_digits = (
        "rtrim('0', CASE WHEN n_.point < 0 THEN concat(repeat('0', -n_.point), n_.digits) "
        "ELSE substr(n_.digits, n_.point + 1) END)"
    )
    split = f"named_struct('whole', {whole_digits}, 'fraction', {fraction_digits})"
    size = (
        "CASE WHEN length(p_.whole) > 20 THEN concat(':', lpad(CAST(length(p_.whole) AS STRING), 4, '0'), p_.whole) "
        "ELSE lpad(p_.whole, 20, '0') END"
    )
    body = f"concat({size}, CASE WHEN p_.fraction <> '' THEN concat('.', p_.fraction) ELSE '' END)"
    # The tilde sorts after every digit, so -1.5 is less than -1.
    below = f"concat('-', translate(b_, '{_DIGITS}', '{_COMPLEMENTS}'), '~')"
    signed = f"CASE WHEN {t} LIKE '-%' AND b_ RLIKE '[1-9]' THEN {below} ELSE b_ END"
    sequence = let(parts, "n_", let(split, "p_", let(body, "b_", signed)))
    return f"CASE WHEN {t} RLIKE {literal(_NUMBER)} THEN {sequence} END"


def _moment(t: str) -> str:
    micros = "timestampadd(MICROSECOND, unix_micros(m_), TIMESTAMP_NTZ'1970-01-01 00:00:00')"
    # Spark's timestamps have microseconds: append finer digits as text.
    finer = f"rtrim('0', regexp_extract({t}, '[.][0-9]{{6}}([0-9]*)', 1))"
    finer = f"CASE WHEN length({t}) > 20 AND {t} LIKE '%._______%' THEN {finer} ELSE '' END"
    text = f"concat(date_format({micros}, 'yyyy-MM-dd HH:mm:ss.SSSSSS'), {finer})"
    in_range = MOMENT_IN_RANGE.replace("{t}", "m_").replace("THEN m_", f"THEN {text}")
    return let(MOMENT.replace("{t}", t), "m_", in_range)


# Earlier versions stored the order in staging as received. Such texts are parsed now; texts that are neither numbers
# nor moments sort first.
STORED = (
    f"CASE WHEN {SEQUENCE} IS NULL OR {SEQUENCE} RLIKE {literal(_CANONICAL)} THEN {SEQUENCE} "
    f"ELSE coalesce({placed(SEQUENCE)}, '') END"
)
"""SQL that converts `_sequence` in staging tables to today's form."""
