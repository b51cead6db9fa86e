"""What each key of Dagster's metadata means, and each tag of a run: for the reference, and for whoever plots them."""

from __future__ import annotations

from collections.abc import Mapping

# Of a step: each materialization of an asset.
STEP: Mapping[str, str] = {
    "status": "`absorbed` (committed), `nothing` (the sources have not changed, or not for this table), `waiting` "
    "(a source does not exist yet) or `failed`",
    "strategy": "how the change was applied, and why so",
    "windows": "for each source, the snapshot absorbed before, the one absorbed by this step, files and bytes "
    "between them",
    "ranges": "for each column of the captured files, the range outside of which no changed row lies",
    "files_captured": "data files that differ between the snapshots of the windows",
    "bytes_captured": "bytes of these files",
    "rows_inserted": "rows of the table that the step added",
    "rows_updated": "rows of the table that the step changed",
    "rows_deleted": "rows of the table that the step removed",
    "records_rejected": "records that could not be read or routed (raw and staging tables)",
    "seconds": "time that the step took",
    "core_seconds": "seconds of one core that the step used, in this process, its JVM and executors",
    "core_seconds_in_full": "estimate: core-seconds that computing everything would have used",
    "in_full_basis": "what this estimate is taken from: the step itself (`measured`), or other steps of the `table` or "
    "the `pipeline`",
    "lag_seconds": "when the step ended, how long ago the oldest change that it absorbed had arrived in the lake",
    "target_lag_seconds": "the declared `target_lag`, as a line beside the lag",
    "files_read": "captured files, and files of the table that the step replaced",
    "bytes_read": "bytes of these files",
    "files_written": "files that the step added to the table",
    "bytes_written": "bytes of these files",
    "not_exact": "why the table cannot equal its source, if something is known to be missing",
    "executed_by": "which command has executed the step, if it was no run of Dagster",
    "tables": "asset `new_tables`: the tables that it absorbed for the first time",
}

# Of a step, after `detail/`: what only some kinds of tables have.
DETAIL: Mapping[str, str] = {
    "skipped": "records that are no changes, such as heartbeats",
    "tables_not_declared": "source tables in the stream that no declaration covers, with the number of their records",
    "dumps": "the dumps that were absorbed, each with what differs from the one before",
    "skipped_dumps": "dumps that are never absorbed, each with the reason",
    "snapshots_left": "snapshots left for later runs, because batches are limited",
    "schema_changes": "columns that the step added, widened or renamed",
    "misfits": "events with values that did not fit their column's type and became null (`on_misfit: null`)",
    "ignored": "updates and deletes that an append-only table left out (`on_change: ignore`)",
    "deletes_without_row": "deletes whose row did not exist",
    "older_than_horizon": "events that are older than the declared `horizon`; absorbed all the same",
    "copies_or_repeats": "tables without a key: equal rows of one log position that arrived in several batches",
    "inserts_without_old_row": "inserts under a new key whose old row has not arrived: what they leave out is null",
    "estimate": "models: the estimated cost of absorbing the change, and of computing everything",
    "key": "models: the columns that identify a row, or why there are none",
    "warning": "models: values that may differ when computed again",
    "interrupted": "jobs: the step repeats an interrupted one",
    "watermark": "jobs: how the watermark was moved",
    "rows_before": "rebuilds: rows of the table before",
    "rows_after": "rebuilds: rows of the table after",
}

# Of a table: each materialization, and the asset itself.
TABLE: Mapping[str, str] = {
    "dagster/table_name": "catalog, layer and name, as in SQL",
    "dagster/uri": "location of the table",
    "dagster/row_count": "rows of the table",
    "dagster/column_schema": "columns with their types",
    "dagster/column_lineage": "for each column, the columns of the sources that it is computed from",
    "dagster/code_references": "file and line of the function, for models in Python",
    "snapshot": "current snapshot, which is also the asset's data version",
}

# Of a partition that a step touched.
PARTITION: Mapping[str, str] = {
    "rows_written": "rows that the commit added to the partition; an update is one written and one removed",
    "rows_removed": "rows that the commit removed from the partition",
    "rows_inserted": "as far as it follows from the counts above",
    "rows_updated": "as far as it follows from the counts above",
    "rows_deleted": "as far as it follows from the counts above",
    "files": "files that hold or delete these rows, if no other partition has rows in them",
    "bytes": "bytes of these files",
    "snapshot": "snapshot up to which the partition is marked",
    "partitions_touched": "of the step: number of partitions with changed rows",
    "partitions": "of the step: their keys, up to 1,000 characters",
}

AUDIT: Mapping[str, str] = {
    "failing_rows": "rows that do not meet the audit",
    "checked": "which rows were checked: the batch, or the whole table",
    "rows": "up to five of the failing or differing rows",
    "error": "why the audit could not be evaluated",
    "severity": "`error` blocks the batch, `warn` reports it",
    "schedule": "`equals_query`: when it is compared",
    "rows_expected": "`equals_query`: rows of the recomputed query",
    "rows_found": "`equals_query`: rows of the table",
    "differing_rows": "`equals_query`: rows that only one of them has",
    "sample": "`equals_query`: share of the keys that was compared",
    "snapshot": "`equals_query`: compared snapshot of the table",
    "not_compared": "`equals_query`: columns whose values cannot be compared, with the reason",
    "doubt": "`equals_query`: why the difference may be none",
}

UPKEEP: Mapping[str, str] = {
    "data_files": "data files of the current snapshot",
    "small_files": "those that count as small",
    "bytes": "bytes of the data files",
    "deleted_rows": "rows that are still in data files, marked as deleted",
    "delete_files": "delete files and deletion vectors",
    "manifests": "manifests of the current snapshot",
    "snapshots": "kept snapshots",
    "metadata_bytes": "bytes of the metadata file",
    "seconds": "time that upkeep took",
    "actions": "what was done, and why",
    "consumers": "readers whose claims keep snapshots from expiring",
}

BACKFILL: Mapping[str, str] = {
    "request": "what was asked for",
    "plan": "for each table, what is redone, and its estimated cost",
    "estimated_seconds": "estimated time of the whole backfill",
    "backfill": "id, for `lake-assets compare`, `publish`, `discard`, `resume` and `undo`",
    "state": "state of the backfill",
    "inserted": "rows that the redone table has in addition",
    "updated": "rows that differ",
    "deleted": "rows that it no longer has",
    "partitions": "partitions with different rows, up to 1,000",
    "rows by partition": "of each partition with different rows: rows before and after, added, changed and removed",
    "columns": "columns that differ, and in how many rows",
    "sums of changed rows": "sums of numeric columns over the changed rows, before and after",
    "samples": "some of the changed rows",
}

# Of the asset check of a live source.
SOURCE: Mapping[str, str] = {
    "state": "what the service is doing",
    "records": "records landed since the service started",
    "commits": "commits since the service started",
    "records_a_second": "records landed in a second, over the last minute",
    "last_commit": "time of the last commit",
}

RUN_TAGS: Mapping[str, str] = {
    "lake_assets/pipeline": "pipeline whose sensor requested the run",
    ".dagster/lake_assets.plan": "hidden: the tables and windows of the request, as a fingerprint",
    "lake_assets/attempt": "2 or more, after failures",
    ".dagster/lake_assets.pending": "hidden: fingerprints of what was pending, by which retries are recognized",
    "lake_assets/tables": "tables that were behind",
    "lake_assets/windows": "for each, the snapshots to absorb",
    "lake_assets/captured": "files and bytes of these windows, and ranges of their columns",
    "lake_assets/backfill": "the run does the work of this backfill",
    "lake_assets/rebuild": "set by you in the launchpad: the run rebuilds the selected tables",
}
