"""The columns of a final table, declared as the list of a SELECT."""

from __future__ import annotations

import pytest

from lake_assets.errors import PipelineError
from lake_assets.final.column_selection import Item, normalized, read_columns, select

SOURCE = ["id", "name", "Email", "place", "odd `name"]


def chosen(*texts: str) -> dict[str, str]:
    items = select("final.t", read_columns(texts), SOURCE)
    return {name: item.sql(lambda c: f"of {c}") for name, item in items.items()}


def plain(*names: str) -> dict[str, str]:
    return {n: f"`of {n.replace('`', '``')}`" for n in names}


def test_all_columns_where_none_is_declared() -> None:
    assert chosen() == chosen("*") == plain(*SOURCE)


def test_a_star_leaves_out_what_it_says_and_makes_room_for_what_is_named_beside_it() -> None:
    assert list(chosen("* EXCEPT (ID, place)")) == ["name", "Email", "odd `name"]
    assert chosen("lower(EMAIL) AS email, *", "1 AS one") == {
        "email": "LOWER(`of Email`)", **plain("id", "name", "place", "odd `name"), "one": "1",
    }  # fmt: skip
    assert list(chosen("*", "lower(email) AS email")) == ["id", "name", "email", "place", "odd `name"]


def test_values_name_the_source_whatever_they_are_called_themselves() -> None:
    assert chosen("to_char(id, '999') AS n, parse_json(name) AS v") == {
        "n": "TO_CHAR(`of id`, '999')",
        "v": "PARSE_JSON(`of name`)",
    }
    assert chosen("id AS name", "name AS id") == {"name": "`of id`", "id": "`of name`"}
    assert chosen("place.city.zip AS zip") == {"zip": "`of place`.city.zip"}
    items = select("t", read_columns(["transform(place, id -> id + length(name)) AS x", "`odd ``name` AS y"]), SOURCE)
    assert items["x"].sources == ("place", "name")
    assert [_source_of(i) for i in items.values()] == [None, "odd `name"]


def _source_of(item: Item) -> str | None:
    return item.sources[0] if item.is_plain else None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("count(*) AS n", "does not depend on one row alone"),
        ("sum(id) OVER () AS n", "does not depend on one row alone"),
        ("(SELECT 1) AS n", "does not depend on one row alone"),
        ("explode(place) AS n", "does not depend on one row alone"),
        ("listagg(name) AS n", "does not depend on one row alone"),
        ("bool_or(id > 1) AS n", "does not depend on one row alone"),
        ("posexplode(place) AS (n, m)", "does not depend on one row alone"),
        ("json_tuple(name, 'a') AS n", "does not depend on one row alone"),
        ("uuid() AS n", "is not deterministic"),
        ("now() AS n", "is not deterministic"),
        ("CAST(id AS TIMESTAMP WITHOUT TIME ZONE) AS n", "write TIMESTAMP_NTZ"),
        ("date_trunc(name, id) AS n", "would reach Spark in a different form"),
        ("id + 1", "needs a name"),
        ("id FROM t", "more than a list of columns"),
        ("DISTINCT id", "more than a list of columns"),
        ("id; DROP TABLE t", "more than a list of columns"),
        ("id id id", "is not valid SQL"),
        ("id, (", "is not valid SQL"),
        ("t.*", "write * for all columns"),
        ("*, *", "more than one star"),
        ("id AS a, name AS A", "a twice"),
    ],
)
def test_what_is_no_column_of_one_row_is_refused(text: str, why: str) -> None:
    with pytest.raises(PipelineError, match=why.replace("*", r"\*")):
        read_columns([text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "lower(mail) AS mail",
            "final.t: `columns` computes mail from mail, and the source has id, name, Email, place",
        ),
        ("* EXCEPT (mail)", "final.t: `columns` leaves out mail, and the source has id, name"),
    ],
)
def test_names_that_the_source_does_not_have_are_said(text: str, message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        select("final.t", read_columns([text]), SOURCE)
    assert str(caught.value).startswith(message)


def test_layout_makes_no_other_declaration() -> None:
    one, two = read_columns(["*  EXCEPT(b,a)", "lower( x )  as y"]), read_columns(["* except (a, b), LOWER(x) AS y"])
    assert normalized(one) == normalized(two)
    assert normalized(one) != normalized(read_columns(["* except (a), lower(x) AS y"]))
