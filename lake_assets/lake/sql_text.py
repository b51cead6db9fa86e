"""Properties of SQL texts: which calls are not repeatable, and what sqlglot changes when it writes a query."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

# sqlglot translates these functions as if they came from other engines: `to_char` becomes a cast, without its format;
# `to_date` loses the format 'yyyy-MM-dd', and Spark accepts other texts without one.
_UNTRANSLATED = {
    "COLLATE", "JSON_PARSE", "LISTAGG", "PARSE_JSON", "PERCENTILE_CONT", "PERCENTILE_DISC", "SPACE", "STRING_AGG",
    "TO_CHAR", "TO_DATE",
}  # fmt: skip


class LakeSpark(Spark):
    """Spark's dialect, without the known cases in which sqlglot writes another query than it read."""

    class Parser(Spark.Parser):
        """See `LakeSpark`."""

        FUNCTIONS: ClassVar = {n: f for n, f in Spark.Parser.FUNCTIONS.items() if n not in _UNTRANSLATED}
        FUNCTION_PARSERS: ClassVar = {n: f for n, f in Spark.Parser.FUNCTION_PARSERS.items() if n not in _UNTRANSLATED}

        def _parse_group(self, skip_group_by_token: bool = False) -> exp.Group | None:
            # sqlglot mistakes the call in `GROUP BY window(at, '1 hour')` for the start of a WINDOW clause.
            at = self._index + (0 if skip_group_by_token else 1)
            following = self._tokens[at : at + 2]
            if [t.token_type for t in following] == [TokenType.WINDOW, TokenType.L_PAREN]:
                following[0].token_type = TokenType.VAR
            return super()._parse_group(skip_group_by_token)

    class Generator(Spark.Generator):
        """See `LakeSpark`."""

        TYPE_MAPPING: ClassVar = {**Spark.Generator.TYPE_MAPPING, exp.DataType.Type.TIME: "TIME"}


DIALECT = "lakespark"

# Functions of Spark 4.1 whose value does not depend on their arguments alone.
# Source: https://spark.apache.org/docs/latest/api/sql/
_NOT_REPEATABLE = {
    "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle",
    "now", "current_timestamp", "localtimestamp", "current_date", "curdate", "current_time",
    "current_user", "user", "session_user", "current_catalog", "current_database", "current_schema", "current_timezone",
    "version", "monotonically_increasing_id", "spark_partition_id", "input_file_name", "input_file_block_start",
    "input_file_block_length", "reflect", "java_method", "try_reflect",
}  # fmt: skip


def not_repeatable(tree: exp.Expr) -> str | None:
    """Return the first part of an expression whose value differs between runs; None if every part is repeatable."""
    for node in tree.walk():
        called: set[str] = set()
        if isinstance(node, exp.Func):
            called = {node.name.lower()} if isinstance(node, exp.Anonymous) else {n.lower() for n in node.sql_names()}
        if "aes_encrypt" in called and len(node.expressions) < 5:
            return node.sql(DIALECT)  # without an initialization vector it takes a random one
        if called & _NOT_REPEATABLE or isinstance(node, exp.TableSample) or _is_relative_date(node):
            return node.sql(DIALECT)
    return None


def _is_relative_date(node: exp.Expr) -> bool:
    """Whether the node is a literal such as `DATE 'today'`: Spark uses the day of the run."""
    value = node.this if isinstance(node, exp.Cast) else None
    return isinstance(value, exp.Literal) and value.name.strip().lower() in ("now", "today", "yesterday", "tomorrow")


def changed_calls(tree: exp.Expr) -> str:
    """Return the first call that changes when sqlglot writes and reads it again; empty if there is no such call.

    Spark gets parts of a query as sqlglot writes them.
    """
    for node in tree.find_all(exp.Func, exp.WithinGroup, exp.DataType):
        if isinstance(node, exp.DataType):
            if node.this == exp.DataType.Type.TIME:
                return "TIME"  # sqlglot turns its literals into casts that Spark does not support
            continue
        if node.find_ancestor(exp.Func, exp.WithinGroup):
            continue  # compared as part of the outer call
        output = node.sql(DIALECT, comments=False)
        try:
            reparsed = sqlglot.parse_one(output, dialect=DIALECT)
        except SqlglotError:
            return output
        if _normal(reparsed) != _normal(node):
            return output
    return ""


def misread(sql: str) -> str:
    """Return the part of a text that sqlglot parses but understands differently than Spark, and its replacement."""
    words = " ".join(t.text.upper() for t in sqlglot.tokenize(sql, dialect=DIALECT) if t.token_type != TokenType.STRING)
    return "TIMESTAMP WITHOUT TIME ZONE: write TIMESTAMP_NTZ" if " WITHOUT TIME ZONE" in words else ""


def _normal(node: exp.Expr) -> exp.Expr:
    """Return a copy in which equivalent forms are equal: `int(x)` and `CAST(x AS INT)`; `r'a'` and `'a'`."""
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


# Words that sqlglot drops or adds without changing the meaning, and different words for the same thing.
_OPTIONAL_WORDS = {
    "as", "inner", "outer", "(", ")", ",", ".", ";", "cast", "try_cast", "::", "asc", "desc", "nulls", "first", "last",
    "and", "between", "current", "row", "with", "having", "qualify", "cross", "join",
}  # fmt: skip
_CANONICAL = {
    "==": "=", "!=": "<>", "!": "not", "minus": "except", "regexp": "rlike", "long": "bigint", "integer": "int",
    "short": "smallint", "byte": "tinyint", "real": "float", "dec": "decimal", "numeric": "decimal",
    "substr": "substring", "nvl": "coalesce", "ifnull": "coalesce", "ucase": "upper", "lcase": "lower", "pow": "power",
    "ceiling": "ceil", "char_length": "length", "character_length": "length", "len": "length", "mean": "avg",
    "array_agg": "collect_list", "days": "day", "hours": "hour", "minutes": "minute", "seconds": "second",
    "months": "month", "years": "year", "weeks": "week", "std": "stddev", "sign": "signum", "var_samp": "variance",
    "stddev_samp": "stddev", "cardinality": "size", "now": "current_timestamp", "position": "locate",
    "y": "tinyint", "s": "smallint", "l": "bigint", "d": "double", "f": "float",
}  # fmt: skip
_OPERATOR_CALLS = {"like", "ilike", "rlike", "regexp", "regexp_like"}


# Equivalent spellings, each as the set of words in which they differ.
_SYNONYMS = (
    {"*", "-", "1", "date_add", "date_sub"}, {"%", "mod"}, {"ln", "log"}, {"2", "log", "log2"}, {"10", "log", "log10"},
    {"char", "chr"}, {"instr", "locate"}, {"date_add", "dateadd"}, {"date_add", "timestampadd"}, {"-", "-1", "1"},
    {"named_struct", "struct"}, {"date_diff", "datediff"}, {"timestamp", "to_timestamp"}, {"aggregate", "reduce"},
    {"approx_percentile", "percentile_approx"}, {"sha", "sha1"}, {"ignore", "true"},
)  # fmt: skip


_UNITS = {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"}
# Words that sqlglot drops or adds next to some nodes without changing the meaning.
_EXTRA_WORDS: Mapping[type[exp.Expr], set[str]] = {
    exp.AtTimeZone: {"timestamp"}, exp.FromTimeZone: {"timestamp"}, exp.StrPosition: {"in"},
    exp.Substring: {"from", "for"}, exp.StrToMap: {"':", "',"},
}  # fmt: skip


def changed(sql: str, tree: exp.Expr) -> str:
    """Return the tokens that change when sqlglot writes a query that it has read; empty if none do.

    A dropped argument, a column that became a literal, an operator with another precedence than in Spark: each shows as
    a word that occurs more or less often in sqlglot's output than in the text.

    Args:
        tree: the text as parsed by sqlglot.
    """
    if call := changed_calls(tree):
        return call
    copy = tree.copy()
    for select in copy.find_all(exp.Select):
        # sqlglot would rewrite QUALIFY when it writes for Spark.
        if qualify := select.args.get("qualify"):
            having = select.args.get("having")
            select.set("qualify", None)
            select.set("having", exp.Having(this=exp.and_(having.this, qualify.this) if having else qualify.this))
    before, after = _words(sql), _words(copy.sql(DIALECT, comments=False))
    # `t PIVOT (...) AS p` is written as `(SELECT * FROM t PIVOT (...)) AS p`.
    named_pivots = sum(bool(p.alias) for p in copy.find_all(exp.Pivot))
    after.subtract(dict.fromkeys(("select", "*", "from"), named_pivots))
    differ = {*(before - after), *(after - before)}
    # Spark derives the names of a struct's fields from its columns; sqlglot writes them out.
    for struct in copy.find_all(exp.Struct):
        for field in (f for f in struct.expressions if isinstance(f, exp.PropertyEQ)):
            differ -= {field.this.name.lower(), f"'{field.this.name}"}
    if copy.find(exp.DateTrunc, exp.TimestampTrunc):
        for unit in _UNITS:
            small = {w for w in differ if w.startswith("'") and w[1:].upper() == unit}
            differ -= small if len(small) > 1 else set()
    for synonyms in _SYNONYMS:
        if synonyms <= differ:
            differ -= synonyms
    # The first group is the default: sqlglot leaves its number out.
    if 0 < before["1"] - after["1"] <= len(list(copy.find_all(exp.RegexpExtract))):
        differ -= {"1"}
    for kind, words in _EXTRA_WORDS.items():
        if copy.find(kind):
            differ -= words
    return ", ".join(sorted(differ))


def _words(sql: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    tokens = sqlglot.tokenize(sql, dialect=DIALECT)
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        word = token.text.lower()
        if token.token_type in (TokenType.STRING, TokenType.RAW_STRING):
            # INTERVAL 1 DAY is written with a quoted number. Any other quoted text must stay distinct from a column.
            word = token.text if re.fullmatch(r"-?[0-9.]+", token.text) else f"'{token.text}"
        if word in _OPERATOR_CALLS and after is not None and after.token_type == TokenType.L_PAREN:
            word += "()"
        word = _CANONICAL.get(word, word)
        if word == "<=>":
            counts.update(("is", "not", "distinct", "from"))
        elif word not in _OPTIONAL_WORDS:
            counts[word] += 1
    return counts
