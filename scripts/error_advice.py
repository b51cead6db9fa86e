"""What to do about each error: the column of docs/reference/errors.md that messages say with names and places."""

from __future__ import annotations

ADVICE = {
    "LakeError": "Every error of this package is one of these: catch it to catch all.",
    "HiddenValuesError": "The error quotes values of [sensitive columns](../sensitive-columns.md): run the command "
    "with `--show-sensitive`, where you may see them.",
    "TransientError": "Run again. Steps have tried three times by then; in Dagster, the sensor tries again later.",
    # The lake and its surroundings.
    "ConfigError": "Correct the setting that the message names, in `lake.yaml` or the environment.",
    "JavaNotFoundError": "Install Java 17 or 21, or set `JAVA_HOME`; `lake-assets doctor` shows what is found.",
    "JarsError": "Run `lake-assets setup`. Without a network, copy the folder of jars and set `LAKE_JARS`.",
    "MissingPackageError": "Install the extra that the message names: `pip install 'lake-assets[NAME]'`.",
    "CatalogUnavailableError": "Look at the catalog's server and its address (`catalog.uri`). Ticks and runs go on by "
    "themselves once it answers.",
    "StorageFullError": "Free space on the disk of the warehouse, or of Spark's temporary files; then run again.",
    "StorageUnavailableError": "Look at the network and at the credentials (`storage`, the environment). They have to "
    "allow listing, reading and writing.",
    "WebhookError": "Look at the receiver of `signals.alerts`. What could not be sent is sent with the next look.",
    "LakeNotFoundError": "Name the right lake (`LAKE_HOME`, `LAKE_CONFIG`), or create it with a first `lake-assets "
    "run`.",
    "MovedLakeError": "Use the lake under its former path: move it back, mount it there, or link to it; see "
    "[moving and backing up a lake](../how-to/backup.md).",
    "SparkUnavailableError": "Look at `logs/spark.log` of the lake's home, or at the Spark Connect server of "
    "`spark.remote`.",
    "TableNotFoundError": "Correct the name. If the table is a source, it has to exist before the pipeline runs.",
    "ColumnNotFoundError": "Correct the name; the message lists what the table has.",
    "InvalidNameError": "Rename the table or column; the message says which characters are possible.",
    # History.
    "HistoryError": "See the errors below it.",
    "SnapshotNotFoundError": "Name a snapshot, tag, branch or time that the table has.",
    "SnapshotExpiredError": "Rebuild the table (`lake-assets rebuild`), or declare `on_gap: rebuild`. Let whoever "
    "expires the source's snapshots keep tagged ones.",
    "TableReplacedError": "Rebuild the table, or declare `on_replaced: rebuild`.",
    "LostEventsError": "Roll the final table back too, or rebuild it: the message names the command.",
    "NotAnAncestorError": 'Ask for the net change (`granularity="net"`), which needs no path of snapshots.',
    "WindowError": "Swap start and end.",
    "MissingDataFileError": "After a restored catalog, run `lake-assets repair` first. Restore the file; or roll "
    "the table back; or rebuild it. Then rebuild downstream tables that need the same file.",
    "CorruptMetadataError": "As for a missing file.",
    "RepairError": "Choose one of the metadata files that the message lists: `lake-assets repair TABLE --to FILE`. "
    "Or restore the files from a backup.",
    "RowHistoryError": "Name the columns of the table's key, each with a value of its type.",
    "UnsupportedCaptureError": "Do what the message asks (rename reserved columns, decrypt, ...), or compute the "
    "model in full from other tables.",
    "ConsumerNotFoundError": "Correct the name; the message lists the consumers.",
    "CaptureWriteError": "Allow writing to the folder `icdc/` in the source's location.",
    # Input.
    "InputError": "See the errors below it.",
    "LandingFolderError": "Create the folder or bucket, or let this process list it.",
    "UnstableFileError": "Nothing: the next run lists the folder again. Deliver files by renaming finished ones.",
    "InputTooLargeError": "Deliver smaller files, or raise `max_file`.",
    "TruncatedInputError": "Deliver the file again, whole, under the same name.",
    "MalformedRecordError": "Look at the record (`lake-assets rejected`), and correct the format or the producer.",
    "UnsupportedEventError": "Declare what the message names (`rename`, `key`, `on_change: ignore`, ...).",
    "OrderUnknownError": "Declare `order_by`, as the message says.",
    "RejectedLimitError": "Look at `lake-assets rejected`. Correct the declaration and replay, or raise "
    "`max_rejected`.",
    "ChangedInputError": "Put the landed content back or delete the file, and deliver new records in their own file.",
    "DumpHeldBackError": "If the dump is incomplete, deliver it again. If it is right, raise the limit that is named.",
    "DuplicateKeyError": "Deliver the dump without the duplicates, or declare a key that identifies its rows.",
    # Live sources.
    "SourceError": "Run `lake-assets doctor PIPELINE`: it names the statement that the server still needs.",
    "SourceUnavailableError": "Look at the server and its address. The service tries again by itself.",
    "SourceGapError": "Declare `on_gap: snapshot` (Kafka: `continue`), and let the server keep its log for longer.",
    # Pipelines and models.
    "PipelineError": "Correct the declaration at the line that the message names. `lake-assets check` lists all "
    "mistakes.",
    "TableClaimedError": "Give one of the two another `name`, or `exclude` it.",
    "KeyMissingError": "Declare a `key` whose columns the events have.",
    "KeyChangedError": "Declare the `key`, or a `start_position` after the change.",
    "RecordsGoneError": "Undo the change of the declaration, or restore the records (`keep_records` deleted them).",
    "SchemaConflictError": "Declare the column's type (`types`), or `on_conflict: new-column`.",
    "ModelError": "Correct the SQL at the line that the message names.",
    "NotRunError": "Run the pipeline first.",
    "DefinitionChangedError": "Rebuild the table by the present definition, or undo the change; see "
    "[previews](../previews.md).",
    "RebuildError": "The message says which source lacks what; for rows that cannot be computed again, choose "
    "`--keep-rows` or `--discard-rows`.",
    "BackfillError": "See `lake-assets backfills` for the state, then `resume`, `publish` or `discard`.",
    "BackfillNotFoundError": "Take the id from `lake-assets backfills`.",
    "StaleBackfillError": "`lake-assets discard ID`, and begin again.",
    "ErasureError": "Remove what is in its way ([erasing](../erasing.md#what-is-in-its-way)), and repeat the command.",
    "AuditFailedError": "Correct the rows at the source, or the audit. The batch can be queried until the next "
    "attempt.",
    "JobError": "Correct the job; its own error is part of the message.",
    "JobNotStartedError": "Correct the command or module that the message names.",
    "StepRunningError": "Wait for the other process. Of a killed one on another machine, the note ends by itself.",
    "StepUnknownError": "Look whether the job wrote its rows, then `lake-assets step TABLE --done` or `--rerun`.",
    "ConcurrentWriteError": "Nothing: the step begins again from the newest commit.",
}
