"""What to know of a backfill in sentences: how it stands, what publishing did, what can be done now."""

from __future__ import annotations

from collections.abc import Sequence

from lake_assets.backfill.backfill_record import BackfillRecord
from lake_assets.lake.counts import plural
from lake_assets.report.amounts import moment
from lake_assets.report.table_differences import TableDifferences

_SECONDS_A_DAY = 86_400


def outcome_text(record: BackfillRecord) -> str:
    """Say how a backfill has ended, or what it waits for."""
    if record.state == "ready":
        return (
            f"backfill {record.id} is ready: `lake-assets compare {record.id}` shows what changes, then `lake-assets "
            f"publish {record.id}` or `lake-assets discard {record.id}`"
        )
    if record.undoes:
        return (
            f"backfill {record.undoes} is undone: its tables hold what they would hold without it. That is the "
            f"backfill {record.id}, which can be undone as well"
        )
    if record.changed_nothing:
        return f"backfill {record.id}: no row differs, so nothing was published"
    tables = plural(len(record.tables), "table")
    return f"backfill {record.id} published {tables} in one transaction of the catalog's database; {record.undo_text}"


def verdict(record: BackfillRecord, tables: Sequence[TableDifferences]) -> str:
    """Say in one or two sentences how a backfill stands, and how much it changes."""
    unequal = [t for t in tables if not t.is_equal]
    rows = plural(sum(t.differing for t in unequal), "row")
    of = f"{rows} in {len(unequal)} of {plural(len(tables), 'table')}"
    if record.state == "published":
        if not unequal:
            return "Published: no row differs from before it."
        return f"Published. It has changed {of}."
    now = "It waits for a decision" if record.state == "ready" else f"It is {record.state}"
    would = f"it would change {of}" if unequal else "no row would differ"
    return f"{now}: {would}. Readers see nothing of it so far."


def publication(record: BackfillRecord) -> list[str]:
    """Say what publishing did, or would do."""
    if record.state != "published":
        sentences = [
            "Publishing absorbs what has arrived meanwhile, with the audits of its rows, and moves all tables at once. "
            "Numbers on this page may grow by what is absorbed."
        ]
        if record.error:
            sentences.append(f"It has failed: {record.error}")
        return sentences
    if record.changed_nothing:
        return ["No row differs, so the tables have no new snapshot, and tables downstream read nothing again."]
    sentences = [f"All tables were published {record.way} at {moment(record.published)} UTC."]
    if record.way == "one table after the other":
        sentences[0] = f"The tables were published one after the other, the last at {moment(record.published)} UTC."
    if record.has_news:
        sentences.append("It also published changes that were pending, or came while it was built.")
    if changed := record.redefined:
        sentences.append(f"The declaration of {changed} came into effect with it.")
    if record.error:
        sentences.append(f"A table could not be published with the others: {record.error}")
    return sentences


def next_steps(record: BackfillRecord) -> list[str]:
    """Say what can be done with a backfill now."""
    if record.state == "ready":
        return [
            f"`lake-assets publish {record.id}` publishes all of its tables at once.",
            f"`lake-assets discard {record.id}` drops it, and deletes its files.",
            f"`lake-assets compare {record.id}` compares again, with what has been absorbed since.",
        ]
    if record.is_open:
        return [f"{record.ways_to_end[:1].upper()}{record.ways_to_end[1:]}."]
    if record.changed_nothing:
        return ["Nothing is to be done: there is nothing to undo."]
    if changed := record.redefined:
        return [
            f"It cannot be undone, because the declaration of {changed} changed with it. To go back, restore the "
            "former declaration, and begin a backfill by that."
        ]
    until = moment(record.published + record.keep_days * _SECONDS_A_DAY)
    return [
        f"`lake-assets undo {record.id}` publishes the rows from before it, with everything absorbed since. That is "
        f"possible until {until} UTC."
    ]
