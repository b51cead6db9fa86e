"""What to do about each error: the sections of docs/reference/errors.md that messages say with names and places."""

from __future__ import annotations

ADVICE = {
    "LakeError": "Catch it to catch every error of this package; `permanent` of an error says whether trying again can "
    "help. `lake-assets doctor` raises it itself, for what it finds on this machine: an installation that does not "
    "fit, or too little memory for Spark.",
    "HiddenValuesError": "The error quotes values of [sensitive columns](../sensitive-columns.md), so its text is "
    "hidden in Dagster, logs and the journal. Where you may see them, `lake-assets run PIPELINE --show-sensitive` "
    "prints the whole text. Then go on as for the class that the message names.",
    "TransientError": "Run again: nothing was published. By then, the step has tried three times. In Dagster, the "
    "sensor tries [later, with growing pauses](../dagster.md#after-failures); with cron, the next run does. If it "
    "stays, look at the class of the error, below.",
    # The lake and its surroundings.
    "ConfigError": "Correct the setting that the message names: in `lake.yaml`, in the environment (`LAKE_...` "
    "overrides the file), or in the call. [All settings](lake-settings.md) are listed with their values. Then let "
    "`lake-assets doctor` read them.",
    "JavaNotFoundError": "Install Java 17 or 21, for example with `apt install openjdk-17-jre-headless`, or set "
    "`JAVA_HOME` to one. Newer and older versions do not run Spark. `lake-assets doctor` shows which Java is found.",
    "JarsError": "Run `lake-assets setup`, which downloads the jars and checks them. Without a network, copy the "
    "folder of jars from another machine, and set `LAKE_JARS` to it. If the jars of that folder have changed, delete "
    "it, and run `lake-assets setup` again.",
    "MissingPackageError": "Install the extra that the message names into the environment that runs the pipeline: "
    "`pip install 'lake-assets[NAME]'`. In Dagster, that is the environment of the code location. Restart the code "
    "location afterwards.",
    "CatalogUnavailableError": "Look at the catalog's server and its address (`catalog.uri`); of an SQLite catalog, at "
    "its folder, and at processes that hold its lock. `lake-assets doctor` tries to open it. Ticks and runs go on by "
    "themselves once it answers: commits are kept, and nothing is half-published.",
    "StorageFullError": "Free space on the disk of the warehouse, or of Spark's temporary files (`spark.local.dir`, "
    "else `/tmp`): `lake-assets doctor` says which disk has how much left. Then run again. If the tables themselves "
    "have grown, `lake-assets upkeep` removes [files that nobody needs](../upkeep.md#what-it-does).",
    "StorageUnavailableError": "Look at the network, and at the credentials (`storage` in `lake.yaml`, or the "
    "environment): they have to allow listing, reading and writing. Of local files, look at the rights of the user "
    "who runs the step. `lake-assets doctor` tries it; then run again.",
    "WebhookError": "Look at the receiver of `signals.alerts`: its address, and what it answers. Tables are not "
    "affected, and what could not be sent is sent with the next look ([alerts](../signals.md#alerts)).",
    "LakeNotFoundError": "Run the command in the project's folder, or name the lake with `LAKE_HOME`, or its "
    "`lake.yaml` with `LAKE_CONFIG`. If there is no lake yet, a first `lake-assets run PIPELINE` creates it.",
    "MovedLakeError": "If the lake was moved, use it under its former path: move it back, mount it there, or link to "
    "it. If it is a copy, use the original. To have a second lake, run the pipeline in an empty `LAKE_HOME`; see "
    "[moving a lake](../how-to/backup.md#move).",
    "SparkUnavailableError": "Look at `logs/spark.log` in the lake's home: it has the JVM's own error, often about "
    "memory (`spark.driver_memory`). With `spark.remote`, look at the Spark Connect server and its port. "
    "`lake-assets doctor` compares the heap with the machine's memory.",
    "TableNotFoundError": "Correct the name: the message lists the tables of its namespace, and names a similar one. "
    "If the name is right, look whether this is the right lake (`LAKE_HOME`), and whether the pipeline was run: "
    "`lake-assets status`. A table of another program has to exist before a pipeline that reads it runs.",
    "ColumnNotFoundError": "Correct the name: the message lists the columns of the table. If a source has renamed the "
    "column, declare [`rename`](../schema-changes.md#renames).",
    "InvalidNameError": "Write a table as `namespace.table`, such as `final.users`. A name with unusual characters is "
    "possible; an empty one, or one with a NUL character, is not: rename the table or column (`name`, `rename`).",
    # History.
    "HistoryError": "As itself, it means that nobody knows any more what a raw table has landed: its records from "
    "before a time were deleted (`keep_records`), and the table that lists their files or keeps the last dump's rows "
    "was lost, too. Restore the table that the message names [from a backup](../how-to/backup.md#restore). The "
    "other errors about history are in the sections below.",
    "SnapshotNotFoundError": "Name a snapshot, tag, branch or time that the table has: the message lists its tags and "
    "branches, and `SELECT * FROM final.users.snapshots` in Spark its snapshots. A time has to be after the first "
    "snapshot. After a rollback of the table during the read, run again.",
    "SnapshotExpiredError": "Compute the table from what its sources hold now: `lake-assets rebuild TABLE`. To have "
    "this done for you, declare `on_gap: rebuild` ([lost history](../rebuilding.md#lost-history-and-rebuilds); raw "
    "tables that read a table: `append`). Look who expires the source's snapshots: those that a pipeline still needs "
    "are tagged, and upkeep keeps them.",
    "TableReplacedError": "Look whether the new table has all rows: a rebuild deletes what its sources lack. Then run "
    "`lake-assets rebuild TABLE`, or declare `on_replaced: rebuild` (raw tables that read a table: `append`); see "
    "[lost history](../rebuilding.md#lost-history-and-rebuilds). To replace rows without this, use `INSERT OVERWRITE` "
    "or `CREATE OR REPLACE TABLE` instead of dropping the table.",
    "LostEventsError": "Staging was rolled back, and the final table was not. Roll the final table back to the same "
    "time, and run again; or rebuild it: `lake-assets rebuild TABLE`. With `on_gap: rebuild`, the next run does that.",
    "NotAnAncestorError": "The table was rolled back or moved to a branch between the two snapshots. Ask for the net "
    'change (`granularity="net"`), which needs no path of snapshots; see [windows](../capture.md#windows). Steps of '
    "pipelines do so by themselves.",
    "WindowError": "Swap start and end. If the table was rolled back to its start, name snapshots of the present "
    "history ([windows](../capture.md#windows)).",
    "MissingDataFileError": "After a restored catalog, run `lake-assets repair` first. Otherwise, restore the file "
    "from a backup; or roll its table back to a snapshot without it, and run again; or `lake-assets rebuild TABLE`. "
    "Then rebuild downstream tables that need the same file ([a lost file](../rebuilding.md#restoring)). Find out "
    "what deletes files in the warehouse: nothing but Iceberg should.",
    "CorruptMetadataError": "Do as for a [missing file](#missingdatafileerror): restore it, roll the table back, or "
    "rebuild it. `lake-assets repair --dry-run` shows whether an earlier metadata file of the table can be read. If "
    "reading is not permitted, correct the rights. A note of a job that is damaged is dropped by hand, as the message "
    "says.",
    "RepairError": "If the message lists several metadata files, choose one: `lake-assets repair TABLE --to FILE`. If "
    "none can be read, restore them from a backup, or let the pipeline build the table anew (`lake-assets repair TABLE "
    "--forget`). If the table changed meanwhile, stop all runs, and repeat the command.",
    "RowHistoryError": "Name the columns of the table's key, each with a value of its type: `lake-assets history "
    "final.users --key id=17`. Records in raw have no key: ask the final or staging table, with `--raw` to see the "
    "records ([row history](../row-history.md)).",
    "UnsupportedCaptureError": "Do what the message asks: rename columns whose names are reserved for changes, or "
    "copy the other columns to a table of their own, and capture that. Encrypted files, and types that Spark cannot "
    "read, cannot be captured at all ([what captures need](../explanation/limits.md#what-captures-need)).",
    "ConsumerNotFoundError": "Correct the name: the message lists the consumers of the table "
    "([consumers](../capture.md#consumers)). One that has read nothing yet does not exist.",
    "CaptureWriteError": "Allow writing to the folder `icdc` in the source's location, and creating tables in the "
    "namespace that the message names. A capture is read through a small table of metadata there; data files are not "
    "written ([ICDC tables](../capture.md#icdc-tables)).",
    # Input.
    "InputError": "As itself, only the example `lake-assets flights` raises it: its data are in an extra, `pip install "
    "'lake-assets[flights]'`. All other errors about input have a class of their own, in the sections below; catch "
    "this class to catch them all.",
    "LandingFolderError": "Create the folder or bucket that the message names, or correct `landing`. If it is there, "
    "let the user who runs the pipeline list and read it. Replace links by the files themselves: links in landing "
    "folders are not followed.",
    "UnstableFileError": "Nothing: the next run lists the folder again. If it happens often, files are written where "
    "they are read: write them under a name with a leading `_` or `.`, and rename them when they are finished "
    "([landing folders](../streams.md#a-landing-folder)).",
    "InputTooLargeError": "Deliver smaller files, or raise the limit that the message names (`max_file`, "
    "`max_record`). Files before this one are landed; later ones wait for it, so that they do not overtake it.",
    "TruncatedInputError": "Deliver the file again, whole, under the same name. Nothing of it has landed, and later "
    "files wait for it. If the producer was only slow, let it write under a name with a leading `_`, and rename the "
    "finished file.",
    "MalformedRecordError": "Single bad records are rejected, and stop nothing: see `lake-assets rejected`, and "
    "`lake-assets rejected explain RAW POSITION` for one in full. The error stops a stream only if a file as a whole "
    "cannot be read as its `format`: correct `format`, or deliver the file again.",
    "UnsupportedEventError": "Declare what the message names: `rename` for two columns with one name, "
    "`order_by` or `key` for events without a known order or row, `on_change: ignore` for updates in a table of "
    "inserts (`mode: append`). Or let the producer write what is missing. Nothing was written, and the next run reads "
    "the events again.",
    "OrderUnknownError": "Declare `order_by` with columns that tell the order of changes, or `order_by: _position` if "
    "events always arrive in the order in which they happened ([order](../formats.md#order)). If the log began again "
    "because the source is another server now, declare the `start_position` that the message names.",
    "RejectedLimitError": "`lake-assets rejected` shows why records are rejected, as far as earlier batches had such; "
    "the message quotes the first of this batch. Correct the producer or the declaration, and run again. To let the "
    "batch pass, raise `max_rejected`, and read the rejects later: `lake-assets rejected replay`.",
    "ChangedInputError": "Put the content that has landed back, or delete the file: raw has its records. Deliver new "
    "records in a file of their own. A dump that was absorbed is delivered again under a newer name "
    "([landing folders](../streams.md#a-landing-folder)).",
    "DumpHeldBackError": "Compare the dump with its source. If it is incomplete, deliver the table again, in its place "
    "or under a newer name. If it is right, raise the limit that the message names (`max_deleted`, `max_changed`), and "
    "run again ([dumps](../formats.md#dumps-that-are-not-absorbed)).",
    "DuplicateKeyError": "Deliver the dump without the duplicates, or declare a `key` that identifies each row; `key: "
    "'*'` if rows have none. The message names some of the keys. Nothing of the dump has landed.",
    # Live sources.
    "SourceError": "Run `lake-assets doctor PIPELINE`: it names the setting or the statement that the server still "
    "needs ([Postgres](../live-sources.md), [MariaDB and MySQL](../mariadb.md), [Kafka](../kafka.md)). If another "
    "service reads the source already, end one of the two.",
    "SourceUnavailableError": "Look at the server, its address and its certificates; `lake-assets doctor PIPELINE` "
    "tries to connect. The service tries again by itself, and continues where it was.",
    "SourceGapError": "Changes are lost between the last landed one and the oldest that the server still has. Declare "
    "`on_gap: snapshot` in the stream's `source`, to read all rows again (Kafka: `continue`, to go on without the lost "
    "records). Let the server keep its log for longer than the longest pause of the service ("
    "[Postgres](../live-sources.md#what-is-guaranteed), [MariaDB](../mariadb.md#when-something-fails), "
    "[Kafka](../kafka.md#records-that-are-lost)).",
    # Pipelines and models.
    "PipelineError": "Correct the declaration at the file and line that the message names. `lake-assets check` lists "
    "all mistakes at once, without running anything; [settings](pipeline-settings.md) has all names and values.",
    "TableClaimedError": "Give one of the two tables another `name`, or leave it out with `exclude`. If the table has "
    "moved to another pipeline for good, drop it, and let the new pipeline create it.",
    "KeyMissingError": "Declare a `key` whose columns the events have: the message lists these. Without any key, "
    "`key: '*'` or `mode: append` keep a [table without one](../final-tables.md#tables-without-a-key).",
    "KeyChangedError": "Declare the `key` that is right for all events. If the source table was created again with "
    "another key, declare as `start_position` the first record after that ([keys](../streams.md#keys)).",
    "RecordsGoneError": "The table would have to be read again from records that were deleted (`keep_records`). Undo "
    "the change of `key`, `types`, `order_by` or `start_position` that requires it, or restore the records from a "
    "backup of the raw table. If raw was rolled back, run the pipeline first: it lands what is still in the folder.",
    "SchemaConflictError": "Declare one type for all values of the column, as the message proposes (`types: {n: "
    "string}`): records in staging are read again with it. Or choose `on_conflict: new-column`, which keeps the new "
    "values in a column of their own, or `on_conflict: reject` "
    "([changed columns](../schema-changes.md)). Nothing was written.",
    "ModelError": "Correct the SQL at the line that the message names; `lake-assets check` lists all mistakes of all "
    "models. From `lake-assets verify`, it means that the model cannot be compared, for example because its values "
    "depend on the order of rows ([why](../models.md#values-that-depend-on-the-order-of-rows)).",
    "NotRunError": "Run the pipeline first: `lake-assets run PIPELINE`. If the table should have rows, look in "
    "`lake-assets status` for what it waits for.",
    "DefinitionChangedError": "`lake-assets plan` shows what the changed declaration means for the table. Then run "
    "`lake-assets rebuild TABLE`, or undo the change; with `on_query_change: rebuild` (the default of models that can "
    "be computed again), the next run rebuilds it ([previews](../previews.md)).",
    "RebuildError": "The message says which source lacks what: run the pipeline that fills it, or restore it. For a "
    "[table whose rows cannot be computed again](../own_code.md#rows-that-cannot-be-computed-again), choose "
    "`lake-assets rebuild TABLE --keep-rows` or `--discard-rows`. The table is unchanged.",
    "BackfillError": "`lake-assets backfills` lists all with their state. Then `lake-assets resume ID` continues one "
    "that was interrupted, `lake-assets publish ID` publishes one that is ready, `lake-assets discard ID` drops it. "
    "Some tables are not redone aside (raw, staging, jobs): `lake-assets rebuild TABLE` "
    "([limits](../backfills.md#limits)).",
    "BackfillNotFoundError": "Take the id from `lake-assets backfills`. Records are in the lake's home: if another "
    "machine began the backfill, use that home. If its record is lost, `lake-assets discard ID --lost` removes what is "
    "left of it.",
    "StaleBackfillError": "Drop it (`lake-assets discard ID`), and begin again. Publish backfills within days: main "
    "may change meanwhile, but not its columns, its partitioning or its place.",
    "ErasureError": "Remove what the message lists ([what is in its way](../erasing.md#what-is-in-its-way)), and "
    "repeat the same command: it goes on where it was. Look at the plan first with `lake-assets erase --dry-run`.",
    "AuditFailedError": "The message names the audits, and up to 5 rows of each. Look at the batch: `SELECT * FROM "
    "TABLE.branch_failed_audit`. Then correct the rows at the source, or the audit; the next attempt absorbs the "
    "batch. To publish it as it is, declare `severity: warn` for a time ([audits](../audits.md#what-happens)).",
    "JobError": "Correct the job: its own error, and the end of its output, are part of the message. Nothing of the "
    "watermark has moved, so the next step gives it the same changes. If another step may have written the same "
    "changes, compare the table with its sources, and rebuild it if they differ: `lake-assets rebuild TABLE`.",
    "JobNotStartedError": "Correct the command, module or notebook that the message names, or install the program in "
    "the environment of the run (`pip install papermill ipykernel`, `pip install dbt-core`). Nothing has run.",
    "StepRunningError": "Wait for the other process, and run again: `lake-assets step TABLE` shows it. If it was "
    "killed on another machine, its note ends by itself after the declared `lifetime`, or say at once whether it wrote "
    "its rows (`--done` or `--rerun`; [jobs](../own_code_jobs.md#who-moves-the-watermark)).",
    "StepUnknownError": "Look whether the job wrote its rows: `lake-assets step TABLE` shows which changes it was "
    "given. Then `lake-assets step TABLE --done` if it did, or `--rerun` if not. A job that overwrites the rows it "
    "computes can declare `on_unknown: rerun`, and never asks ([jobs](../own_code_jobs.md#who-moves-the-watermark)).",
    "ConcurrentWriteError": "Nothing: the step begins again from the newest commit. If it happens in every step, "
    "another program writes the same table: end it, or let it write to a table of its own. Of a job, look at the table "
    "first, as the message says.",
}
