"""What is to be known of SQL texts wherever they come from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

# sqlglot reads these as what other engines have, and writes something else: `to_char` as a cast, without its format;
# `to_date` without the format 'yyyy-MM-dd', which refuses what Spark reads without one.
_AS_THEY_ARE = {
    "COLLATE", "JSON_PARSE", "LISTAGG", "PARSE_JSON", "PERCENTILE_CONT", "PERCENTILE_DISC", "SPACE", "STRING_AGG",
    "TO_CHAR", "TO_DATE",
}  # fmt: skip


class LakeSpark(Spark):
    """Spark's SQL, of which nothing is written otherwise than it was read, as far as that is known."""

    class Parser(Spark.Parser):
        """See there."""

        FUNCTIONS: ClassVar = {n: f for n, f in Spark.Parser.FUNCTIONS.items() if n not in _AS_THEY_ARE}
        FUNCTION_PARSERS: ClassVar = {n: f for n, f in Spark.Parser.FUNCTION_PARSERS.items() if n not in _AS_THEY_ARE}

        def _parse_group(self, skip_group_by_token: bool = False) -> exp.Group | None:
            # sqlglot takes the call in `GROUP BY window(at, '1 hour')` for a WINDOW clause, which begins with a name.
            at = self._index + (0 if skip_group_by_token else 1)
            following = self._tokens[at : at + 2]
            if [t.token_type for t in following] == [TokenType.WINDOW, TokenType.L_PAREN]:
                following[0].token_type = TokenType.VAR
            return super()._parse_group(skip_group_by_token)

    class Generator(Spark.Generator):
        """See there."""

        TYPE_MAPPING: ClassVar = {**Spark.Generator.TYPE_MAPPING, exp.DataType.Type.TIME: "TIME"}


DIALECT = "lakespark"

# Of Spark 4.1's functions those whose value is not told by their arguments alone.
# Source: https://spark.apache.org/docs/latest/api/sql/
_NOT_REPEATABLE = {
    "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle",
    "now", "current_timestamp", "localtimestamp", "current_date", "curdate", "current_time",
    "current_user", "user", "session_user", "current_catalog", "current_database", "current_schema", "current_timezone",
    "version", "monotonically_increasing_id", "spark_partition_id", "input_file_name", "input_file_block_start",
    "input_file_block_length", "reflect", "java_method", "try_reflect",
}  # fmt: skip


def not_repeatable(tree: exp.Expr) -> str | None:
    """The first part of an expression that gives another value each time; None: there is none."""
    for node in tree.walk():
        called: set[str] = set()
        if isinstance(node, exp.Func):
            called = {node.name.lower()} if isinstance(node, exp.Anonymous) else {n.lower() for n in node.sql_names()}
        if "aes_encrypt" in called and len(node.expressions) < 5:
            return node.sql(DIALECT)  # without a vector to begin with it takes any
        if called & _NOT_REPEATABLE or isinstance(node, exp.TableSample) or _is_of_today(node):
            return node.sql(DIALECT)
    return None


def _is_of_today(node: exp.Expr) -> bool:
    """`DATE 'today'`: Spark takes the day of the run."""
    said = node.this if isinstance(node, exp.Cast) else None
    return isinstance(said, exp.Literal) and said.name.strip().lower() in ("now", "today", "yesterday", "tomorrow")


def changed_calls(tree: exp.Expr) -> str:
    """The first call that sqlglot would write otherwise than it read it; empty: there is none.

    Parts of a query reach Spark as sqlglot writes them.
    """
    for node in tree.find_all(exp.Func, exp.WithinGroup, exp.DataType):
        if isinstance(node, exp.DataType):
            if node.this == exp.DataType.Type.TIME:
                return "TIME"  # its literals become casts, which Spark does not have
            continue
        if node.find_ancestor(exp.Func, exp.WithinGroup):
            continue  # compared with what it is in
        written = node.sql(DIALECT, comments=False)
        try:
            again = sqlglot.parse_one(written, dialect=DIALECT)
        except SqlglotError:
            return written
        if _normal(again) != _normal(node):
            return written
    return ""


def misread(sql: str) -> str:
    """What sqlglot reads of a text that it can parse as something else than Spark does, and what to write; or empty."""
    words = " ".join(t.text.upper() for t in sqlglot.tokenize(sql, dialect=DIALECT) if t.token_type != TokenType.STRING)
    return "TIMESTAMP WITHOUT TIME ZONE: write TIMESTAMP_NTZ" if " WITHOUT TIME ZONE" in words else ""


def _normal(node: exp.Expr) -> exp.Expr:
    """With one form of what has several that are written alike: `int(x)`, `CAST(x AS INT)`; `r'a'`, `'a'`."""
    copy = node.copy()
    for raw in list(copy.find_all(exp.RawString)):
        raw.replace(exp.Literal.string(raw.name))
    for cast in reversed(list(copy.find_all(exp.Cast))):
        name = "try_cast" if cast.sql(DIALECT).startswith("TRY_CAST") else "cast"
        new = exp.Anonymous(this=name, expressions=[cast.this, exp.Literal.string(cast.to.sql(DIALECT))])
        if cast is copy:
            return new
        cast.replace(new)
    return copy


# Words that sqlglot leaves out or puts in where they say nothing, and other names of the same.
_SILENT = {
    "as", "inner", "outer", "(", ")", ",", ".", ";", "cast", "try_cast", "::", "asc", "desc", "nulls", "first", "last",
    "and", "between", "current", "row", "with", "having", "qualify", "cross", "join",
}  # fmt: skip
_SAME = {
    "==": "=", "!=": "<>", "!": "not", "minus": "except", "regexp": "rlike", "long": "bigint", "integer": "int",
    "short": "smallint", "byte": "tinyint", "real": "float", "dec": "decimal", "numeric": "decimal",
    "substr": "substring", "nvl": "coalesce", "ifnull": "coalesce", "ucase": "upper", "lcase": "lower", "pow": "power",
    "ceiling": "ceil", "char_length": "length", "character_length": "length", "len": "length", "mean": "avg",
    "array_agg": "collect_list", "days": "day", "hours": "hour", "minutes": "minute", "seconds": "second",
    "months": "month", "years": "year", "weeks": "week", "std": "stddev", "sign": "signum", "var_samp": "variance",
    "stddev_samp": "stddev", "cardinality": "size", "now": "current_timestamp", "position": "locate",
    "y": "tinyint", "s": "smallint", "l": "bigint", "d": "double", "f": "float",
}  # fmt: skip
_CALLED = {"like", "ilike", "rlike", "regexp", "regexp_like"}


# Other ways to write the same, each with all the words in which they differ.
_ALIKE = (
    {"*", "-", "1", "date_add", "date_sub"}, {"%", "mod"}, {"ln", "log"}, {"2", "log", "log2"}, {"10", "log", "log10"},
    {"char", "chr"}, {"instr", "locate"}, {"date_add", "dateadd"}, {"date_add", "timestampadd"}, {"-", "-1", "1"},
    {"named_struct", "struct"}, {"date_diff", "datediff"}, {"timestamp", "to_timestamp"}, {"aggregate", "reduce"},
    {"approx_percentile", "percentile_approx"}, {"sha", "sha1"},
)  # fmt: skip


_UNITS = {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"}
# What is written otherwise beside some calls, and means the same.
_BESIDE: Mapping[type[exp.Expr], set[str]] = {
    exp.AtTimeZone: {"timestamp"}, exp.FromTimeZone: {"timestamp"}, exp.StrPosition: {"in"},
    exp.Substring: {"from", "for"}, exp.StrToMap: {"':", "',"},
}  # fmt: skip


def changed(sql: str, tree: exp.Expr) -> str:
    """What sqlglot would write otherwise than it stands in a text; empty: nothing.

    A call without one of its arguments, a column that has become a literal, an operator that binds otherwise than in
    Spark: it shows in the words that are there more often, or less, once sqlglot has written what it read.

    Args:
        sql: the text.
        tree: what sqlglot has read.
    """
    if found := changed_calls(tree):
        return found
    copy = tree.copy()
    for select in copy.find_all(exp.Select):
        # To be written for Spark it would be rewritten.
        if qualify := select.args.get("qualify"):
            having = select.args.get("having")
            select.set("qualify", None)
            select.set("having", exp.Having(this=exp.and_(having.this, qualify.this) if having else qualify.this))
    before, after = _words(sql), _words(copy.sql(DIALECT, comments=False))
    differ = {*(before - after), *(after - before)}
    # Spark names fields by their columns, and sqlglot writes that down.
    for struct in copy.find_all(exp.Struct):
        for field in (f for f in struct.expressions if isinstance(f, exp.PropertyEQ)):
            differ -= {field.this.name.lower(), f"'{field.this.name}"}
    if copy.find(exp.DateTrunc, exp.TimestampTrunc):
        for unit in _UNITS:
            small = {w for w in differ if w.startswith("'") and w[1:].upper() == unit}
            differ -= small if len(small) > 1 else set()
    for alike in _ALIKE:
        if alike <= differ:
            differ -= alike
    for kind, words in _BESIDE.items():
        if copy.find(kind):
            differ -= words
    return ", ".join(sorted(differ))


def _words(sql: str) -> Counter[str]:
    found: Counter[str] = Counter()
    tokens = sqlglot.tokenize(sql, dialect=DIALECT)
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        word = token.text.lower()
        if token.token_type in (TokenType.STRING, TokenType.RAW_STRING):
            # INTERVAL 1 DAY is written with a text. No column is mistaken for one otherwise.
            word = token.text if re.fullmatch(r"-?[0-9.]+", token.text) else f"'{token.text}"
        if word in _CALLED and after is not None and after.token_type == TokenType.L_PAREN:
            word += "()"
        word = _SAME.get(word, word)
        if word == "<=>":
            found.update(("is", "not", "distinct", "from"))
        elif word not in _SILENT:
            found[word] += 1
    return found
