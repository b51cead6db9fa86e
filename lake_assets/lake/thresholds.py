"""Thresholds: numbers of rows, keys, files and bytes, and a few seconds, that decide how a step works.

Other modules read them as `thresholds.NAME`, never by `from … import NAME`: so a test replaces a number in one place.
Each is the largest size of the way that its comment describes, unless the comment says "from … on".

Brackets tell what set a number: a decision in `docs/decisions`, by its number, or a benchmark in `benchmarks`. "Not
measured" means that no figure compares the number with others. Spark's own thresholds are in `spark_session.DEFAULTS`.
"""

from __future__ import annotations

from collections.abc import Mapping

# --- Little data ------------------------------------------------------------------------------------------------------
# Queries over this much input are interpreted and stay in one partition: compiling and shuffling would take longer.
# [0005: 19 to 26 s instead of 72 s for 1,216 events; the limits are not measured]
SMALL_INPUT_BYTES = 32 << 20
SMALL_INPUT_ROWS = 50_000
# A capture may be this many times larger if most of its rows belong to other tables, since these are mostly skipped.
# [0005; not measured]
SHARED_INPUT_FACTOR = 10
# This many rows that a capture added, in this many files of this many bytes without compression, are read by this
# process, and handed to Spark as literal rows. [0055; not measured]
LOCAL_ROWS = 10_000
LOCAL_FILES = 50
LOCAL_BYTES = 64 << 20
# The same for events of staging, which are also grouped here: that takes less than shuffling them. Records are parsed
# meanwhile, for which two cores are better than one. [0055; bench_peers at 60,000 keys]
LOCAL_EVENTS = 100_000
# One task groups this many rows in the time that two cores need to shuffle them. [not measured]
ONE_TASK_ROWS = 100_000
# This many captured rows are grouped by row id and by value in one partition: one shuffle instead of two.
# [0023; not measured]
ONE_TASK_CAPTURED_ROWS = 1_000_000

# --- Joins and MERGE --------------------------------------------------------------------------------------------------
# This many keys are listed as literals, which skip files and row groups; rows from this many events are not cached.
# [0008, 0013, 0005; bench_merge]
LITERAL_KEYS = 1_000
# From this many rows of a target on, and this many for each changed key, its rows are tested against a bitmap of the
# keys' hashes: joining fewer rows takes no longer than building the bitmap. [0008; bench_merge at 20M rows]
HASHES_TARGET_ROWS = 150_000
HASHES_ROWS_A_KEY = 4
# A bitmap holds this many keys: it is a text in the statement. [bench_merge, up to 1,000,000 keys]
HASHES_KEYS = 2_000_000
# A target of this many rows is joined whole, without a query for the bounds of the changed keys.
# [0005, 0044; not measured]
SMALL_TARGET_ROWS = SMALL_INPUT_ROWS
# From this many rows on, new events are written uncompared: comparing reads all columns of each scanned row.
# [0008; not measured]
LARGE_TARGET_ROWS = 500_000
# A table of this many rows is joined whole: reading it takes no longer than planning a query that counts the change.
# [0043; not measured]
SMALL_SIDE_ROWS = 100_000
# This many rows are broadcast, which takes tens of megabytes. [not measured]
BROADCAST_ROWS = 500_000
# The ids of this many rows are broadcast as bitmaps, some dozens of bytes for 64 rows. [0010; not measured]
BROADCAST_ROW_IDS = 200_000_000
# `write: overwrite-partitions` overwrites this many: with more, planning the filter takes longer than running a MERGE.
# [0012; not measured]
OVERWRITE_PARTITIONS = 1_000

# --- Commits by position ----------------------------------------------------------------------------------------------
# A MERGE is carried out by position for this many changed values (rows times columns) and bytes: the driver holds them.
# [0053; bench_merge at 60,000 rows]
POSITION_VALUES = 2_000_000
POSITION_BYTES = 128 << 20
# The driver reads key columns of this many bytes in all, as stored. [0053; not measured]
POSITION_KEY_BYTES = 256 << 20
# It reads manifests of this many bytes in all, some 10,000 files: each commit reads them. [0053; not measured]
POSITION_MANIFEST_BYTES = 4 << 20

# --- Models: absorb a change, or compute everything -------------------------------------------------------------------
# Up to this cost, in rows read (`Estimate.cost_in_full`), computing everything takes less than finding what changed.
# [0041; bench_costs]
FULL_UP_TO_COST = 1_000_000
# Recomputes that all took more seconds are not repeated: a query can be slow over few rows. [0041; not measured]
SLOW_FULL_SECONDS = 1.5
# Up to this many times FULL_UP_TO_COST, the measured seconds of the last recompute decide: rows alone do not tell.
# [0041; not measured]
MEASURED_COST_FACTOR = 30
# A table of this many rows that no other is computed from is overwritten uncompared; with more, every micro-batch would
# write megabytes. [0041: writing 200,000 rows takes 0.2 s, comparing and merging 0.3 to 1 s]
OVERWRITE_ROWS = 250_000
# With this many rows in the sources, neither the shares below nor past runs count. [not measured]
ESTIMATE_ROWS = 10_000
# Above this share of changed rows, by strategy, a recompute is assumed to be cheaper, unless past runs tell otherwise.
# [bench_models, for `retract` and `keys`]
FULL_ABOVE_SHARE: Mapping[str, float] = {"retract": 0.25, "keys": 0.1, "ranges": 0.3}
# From this many past runs on, they decide, and only about changes above this part of the share: a single slow run (the
# first of a process is slow) must not switch a model to full recomputes. [not measured]
PAST_RUNS = 3
PAST_RUNS_PART = 0.1
# This many separate ranges, found from this many changed values, are recomputed one by one; more are one range.
# [not measured]
SEPARATE_RANGES = 100
RANGE_VALUES = 100 * SEPARATE_RANGES
# A row is repeated for each of this many windows of time; with more, the query is computed in full. [not measured]
WINDOWS_A_ROW = 1_000
# This many rows of VALUES become branches of a union, each of which Spark plans; with more, the query is computed in
# full. [not measured]
CONSTANT_ROWS = 200

# --- Captures ---------------------------------------------------------------------------------------------------------
# This many data files are looked up in the indexes of manifests; for more, manifests are read completely.
# [0023; bench_capture for single files]
INDEX_LOOKUP_FILES = 10_000
# The indexes of a process take this many bytes: 28 for each of 4M data files. [0052; bench_capture]
INDEX_BYTES = 112_000_000
# An index of a few files, as micro-batches leave them, takes about this many bytes nevertheless. [not measured]
BYTES_OF_AN_INDEX = 1_000
# Consecutive blocks of fewer entries are one block of an index: PyIceberg writes a block for each entry.
# [0052; bench_capture]
COMBINED_ENTRIES = 64
# This many partitions with deletes are compared with the bounds of manifests; with more, all manifests are searched.
# [not measured]
DELETE_PARTITIONS = 1_000
# Larger manifests are first read without column statistics, which are most of their content, and again for the captured
# entries: a merged manifest of 100,000 files would take gigabytes of memory.
# [bench_capture: 177 MB to plan one file in a table of 1,000,000]
SMALL_MANIFEST_BYTES = 512 * 1024

# --- Landing and staging ----------------------------------------------------------------------------------------------
# A landing commits this many files, which the commit lists in the table's metadata, or records that Python yields.
# [bench_events lands 100,000 files; not measured]
FILES_A_COMMIT = 1_000
ROWS_A_COMMIT = 1_000_000
# From this many records on, or bytes of records, a landing writes those that it holds in memory.
# [bench_events: 1.13 times the memory for 8 times the records]
ROWS_A_BATCH = 50_000
BYTES_A_BATCH = 64 << 20
# Parquet and CSV files are read in parts of this size, so that memory stays flat; `csv_long_rows` reads longer rows.
# [not measured]
PARQUET_ROWS_A_BATCH = 10_000
CSV_BYTES_A_BLOCK = 8 << 20
# Objects of a store up to this size are read with one request each, this many at once; larger ones in parts of the
# second size. [0062: bench_object_landing; the sizes are not measured]
OBJECT_BYTES_IN_MEMORY = 8 << 20
OBJECT_BYTES_A_READ = 16 << 20
OBJECTS_AT_ONCE = 16
# Names that do not only grow, although that is declared: a folder is listed as a whole again after this many seconds.
# [not measured]
WHOLE_LISTING_SECONDS = 3_600
# From this many data files on, a ledger is written anew as one: each landing adds a file, which slows every read.
# [not measured]
LEDGER_FILES = 64
# This many shapes of records are tried one by one if a batch cannot be read at once. [not measured]
RECORD_SHAPES = 1_000
# A delete's own tombstone is expected within this many records; if it comes later, staging finds the delete before it.
# [not measured]
TOMBSTONE_RECORDS = 1_000

# Two dumps of this many rows in all, of this many bytes as stored, are compared in this process, which holds them.
# [0063; bench_snapshots at 400,000 rows: 3.7 instead of 14.4 CPU seconds]
DUMP_LOCAL_ROWS = 500_000
DUMP_LOCAL_BYTES = 64 << 20
# Dumps are read in parts of this many rows, and compared by tasks that each read this many bytes of texts.
# [not measured]
DUMP_ROWS_A_BATCH = 50_000
DUMP_BYTES_A_SPLIT = 32 << 20

# --- Files and metadata of tables -------------------------------------------------------------------------------------
# Raw tables are split by rows: by bytes alone, one task would read a million similar records. [0007]
ROWS_A_GROUP = 20_000
BYTES_A_SPLIT = 4 << 20
# PyIceberg buffers a file of this many bytes, counted in memory and not on disk. [not measured]
BYTES_A_FILE = 128 << 20
# From this many manifests on, a commit merges them, into manifests of this size: every plan of a scan opens all of
# them, and a capture reads the merged ones again. [0033: 10.7 instead of 13.4 CPU seconds after fifty batches]
MERGED_MANIFESTS = 8
MERGED_MANIFEST_BYTES = 1 << 20
# Main keeps this many snapshots; upkeep between two steps makes one or two. [not measured]
SNAPSHOTS_KEPT = 20
# A process caches the metadata of this many snapshots, of all tables together: they are most of it.
# [0005; not measured]
CACHED_SNAPSHOTS = 10_000
# A table's metadata lists this many versions; a higher number would make each metadata file larger.
# [0031; not measured]
METADATA_VERSIONS = 50
# Old versions are deleted after the first 4 of every 40, since finding them takes a listing. [0031; not measured]
CLEANUP_EVERY_VERSIONS = 40
CLEANUP_VERSIONS = 4

# --- Upkeep -----------------------------------------------------------------------------------------------------------
# Upkeep rewrites this many bytes, or files, of a table at a time: a step that waits for the table gets its turn within
# seconds. [0058; bench_upkeep]
UPKEEP_PIECE_BYTES = 512 << 20
UPKEEP_PIECE_FILES = 1_000
# Files are combined if there are this many, Iceberg's own number. [not measured]
UPKEEP_INPUT_FILES = 5
# Skipping this many deleted rows costs a reader about as much as opening a file. [not measured]
UPKEEP_ROWS_A_FILE = 10_000
# A table without anything due is looked at again after this many seconds, or a fifth of the commits that make small
# files due: reading the manifests of many files takes seconds. [not measured]
UPKEEP_LOOK_SECONDS = 3_600.0
# A step waits this many seconds for upkeep of its table, and goes on nevertheless: who commits later starts again.
# [not measured]
UPKEEP_WAIT_SECONDS = 60.0
# Manifests are rewritten from this many on, if they are small. [not measured]
UPKEEP_MANIFESTS = 100
# Snapshots expire once there are this many that nothing needs: each run plans and starts jobs in Spark. [0058]
UPKEEP_EXPIRED_SNAPSHOTS = 50
# Files without a snapshot are searched this many seconds after the last search: it lists the whole table.
# [not measured]
ORPHAN_SEARCH_SECONDS = 7 * 86_400
# A consumer loses its claim to a snapshot this many seconds after people were first told, at the soonest: it is told
# once a day, and a week has working days. [not measured]
CLAIM_NOTICE_SECONDS = 7 * 86_400
# The consumers of a table are looked at again after this many seconds. [not measured]
CLAIM_LOOK_SECONDS = 86_400
# `status` shows how long another program keeps the history of its table if that is less. [not measured]
HISTORY_LEFT_SECONDS = 86_400
# Younger files may belong to a step that has not committed yet. [not measured]
YOUNGEST_ORPHAN_SECONDS = 86_400

# --- The machine ------------------------------------------------------------------------------------------------------
# `doctor` calls a difference of clocks of more seconds one: below, it is how file systems round. [not measured]
CLOCK_SECONDS = 5.0

# --- Live sources -----------------------------------------------------------------------------------------------------
# A commit of a live source holds this many records; about four times as many wait in memory, in this many bytes.
# [not measured]
LIVE_ROWS_A_COMMIT = 10_000
LIVE_QUEUE_BYTES = 128 << 20
# Seconds from one commit to the next, unless this share of the queue is full: each commit costs some 50 ms, and a step
# downstream. [not measured]
LIVE_COMMIT_SECONDS = 1.0
LIVE_QUEUE_SHARE = 0.25
# A database without changes says this often that it is there; at least every so many seconds, this is committed, so
# that the server can drop its log. [not measured]
LIVE_HEARTBEAT_SECONDS = 10.0
LIVE_QUIET_COMMIT_SECONDS = 300.0
# A source that failed is started again after this many seconds, twice as many each time, up to the second number.
# [not measured]
LIVE_RETRY_SECONDS = 1.0
LIVE_RETRY_MOST_SECONDS = 60.0
# Its state is written this often; a state that is this old belongs to a service that hangs or was killed.
# [not measured]
LIVE_STATE_SECONDS = 2.0
LIVE_STATE_OLD_SECONDS = 30.0
# Records of steps are written to their table together, once the oldest has waited for this many seconds, and deleted
# after so many days. [not measured]
JOURNAL_SECONDS = 60.0
JOURNAL_DAYS = 90
# A table joins a run of tables that share a source with it if less than this share of its target lag is left.
# A greater share needs fewer runs and more steps. [0070]
TARGET_LAG_SHARE = 0.2
# How long the next step of a table takes is told by so many of its newest ones. [not measured]
STEPS_OF_A_FORECAST = 12
# A source is known from this many arrivals on, and from this many seconds between the first and the last of them: a
# bulk load of an hour says nothing of the hour after. Before a day is over, it is silent after as long a time as it is
# known. [0072; not measured]
RHYTHM_ARRIVALS = 30
RHYTHM_SECONDS = 6 * 3_600.0
# It is silent, and a table is no longer absorbed, after so many times the longest usual gap, and this many seconds at
# least: a gap of a night or a weekend belongs to the usual ones. [0072; not measured]
SILENCE_FACTOR = 3.0
SILENCE_LEAST_SECONDS = 900.0
# A gap is usual if there is one as long in each of so many days: a single outage makes no later one usual.
# [0072; not measured]
RHYTHM_WEEK_DAYS = 7
# So many days of the journal are read for this once; each day's digest holds so many of its gaps (more than there are
# weeks in the journal), and so many steps of a table. A larger journal is read day by day. [0072; not measured]
RHYTHM_DAYS = 28
GAPS_REMEMBERED = 16
STEPS_REMEMBERED = 24
JOURNAL_ROWS_AT_ONCE = 100_000
# A step is slower than before if it took so many times what three of four steps of at least a share of its size took,
# so many times the longest of them, and this many seconds more: the first step of a process waits for a JVM. So many
# steps have to be known. A step at work is overlong after thrice the longest, and this long. [0072; not measured]
SLOWER_FACTOR = 3.0
SLOWER_THAN_LONGEST = 1.5
SLOWER_SECONDS = 10.0
SLOWER_SIZE = 0.5
SLOWER_STEPS = 3
OVERLONG_SECONDS = 300.0
# Dagster looks this often for steps that it has not executed, reports the newest so many of a look, and expects no step
# to take longer than the last number. [not measured]
OUTSIDE_STEPS_SECONDS = 30
OUTSIDE_STEPS_A_TICK = 200
OUTSIDE_STEP_SECONDS = 6 * 3600.0
# A commit has at most so many records, and the text of an error so many characters. [not measured]
JOURNAL_RECORDS = 500
JOURNAL_ERROR_CHARACTERS = 2_000
# So many records wait at most, 1 kB each, if the table cannot be written. [not measured]
JOURNAL_WAITING = 10_000
# A process remembers the arrival of changes of so many snapshots, 100 bytes each, before it reads the steps of so many
# days again. [0069; not measured]
JOURNAL_ARRIVALS = 20_000
JOURNAL_EARLIER_DAYS = 2
# Events of lineage that wait for their receiver, or alerts that are over; further ones are dropped. A process waits for
# so many seconds at its end until its events are sent. [not measured]
SIGNAL_EVENTS = 1_000
SIGNAL_EXIT_SECONDS = 5.0
# The event of a step's start is sent after this time, so that steps with nothing to do send none. [not measured]
SIGNAL_START_SECONDS = 2.0
# So many characters of an error leave the lake. [not measured]
SIGNAL_ERROR_CHARACTERS = 500
# The sessions of a Spark Connect server get this long to end with their process. [not measured]
CONNECT_END_SECONDS = 10.0
# A disk has little room if fewer bytes are free, and less than this share of it: a step may write a working copy of a
# table, a backfill holds two, and Spark sorts on disk. [not measured]
DISK_FREE_BYTES = 2 << 30
DISK_FREE_SHARE = 0.05
# Alerts are evaluated at most this often by sensors, and sent for so many seconds in one evaluation. [not measured]
ALERT_SECONDS = 15.0
ALERT_SENDING_SECONDS = 20.0
# Metrics are computed at most this often, whoever asks for them. [not measured]
METRICS_SECONDS = 10.0
# What a full computation would have cost is scaled up to this many times the size of the sources of a measured one:
# beyond that, fixed costs of a small one would be multiplied. [0069; not measured]
COSTS_SCALED = 10.0
# A table is worth a sentence if it used this share of its pipeline's core time, in this many steps.
# [0069; not measured]
COSTS_SHARE = 0.25
COSTS_STEPS = 5
# Absorbing changes counts as dearer than computing everything from this factor on: estimates are not better.
# [0069; not measured]
COSTS_DEARER = 1.5
# A report calls a table late if changes have waited for so many seconds, unless it has a target. [not measured]
REPORT_LATE_SECONDS = 3_600.0
# A report names so many tables in a sentence, draws so many points of a table's lag, so many tables, and so many days:
# a page of 200 tables stays below a few megabytes. [not measured]
REPORT_NAMES = 3
REPORT_POINTS = 120
REPORT_LAG_CHARTS = 60
REPORT_DAYS = 31
# It shows so many failures. [not measured]
REPORT_FAILURES = 30
# The rows that a partition had before a backfill are counted if no more partitions than these differ: the condition
# that chooses them is a text. [not measured]
COMPARED_PARTITIONS = 2_000
# The page of a backfill shows so many partitions of a table, about a year of days, and so many characters of a value,
# as does the page of `verify`. [not measured]
PAGE_PARTITIONS = 400
PAGE_CHARACTERS = 300
# A snapshot that Debezium was asked for begins within this time, or it is asked again by another engine. [not measured]
LIVE_SNAPSHOT_SECONDS = 180.0
# What a server says of its log is asked for this often. [not measured]
LIVE_MEASURE_SECONDS = 30.0
# A reader of a binary log is started again if its connection is gone for so long, or if it hears nothing for the second
# number and two heartbeats. [not measured]
LIVE_LOST_SECONDS = 5.0
LIVE_SILENT_SECONDS = 120.0
# The first rows of Postgres's tables are read by this many connections, in ranges of this many blocks (32 MiB), and are
# handed over in batches of this many bytes of JSON. [not measured]
LOAD_READERS = 4
LOAD_BLOCKS = 4096
LOAD_BYTES = 8 << 20
# Debezium gets this long to end. [not measured]
LIVE_CLOSE_SECONDS = 30.0
# Postgres gets this long to make a slot, for which it waits until older transactions have ended: less than the 40 s
# after which Debezium leaves the task alone that waits. [not measured]
LIVE_SLOT_SECONDS = 30
# A broker or a schema registry has this long to answer. [not measured]
KAFKA_ANSWER_SECONDS = 10.0
# A schema that is unknown is asked for again for this long, since a new one may not have reached each server of the
# registry, and from then on as often as the second number says. [not measured]
KAFKA_SCHEMA_SECONDS = 3.0
KAFKA_SCHEMA_AGAIN_SECONDS = 60.0
# New partitions and topics are looked for, and lag is told, this often. [not measured]
KAFKA_REFRESH_SECONDS = 5.0
# A commit holds this many bytes of records, unless one record alone has more; as many records are fetched at once, so
# that the loop looks around in between. [not measured]
KAFKA_BYTES_A_COMMIT = 32 << 20
KAFKA_ROWS_A_POLL = 2_000

# --- Backfills and jobs -----------------------------------------------------------------------------------------------
# A backfill computes this many rows, roughly, or keys at a time, so that a year fits into memory.
# [bench_backfill: 365 days in chunks; the limits are not measured]
ROWS_A_CHUNK = 5_000_000
KEYS_A_CHUNK = 10_000
# A backfill redoes this many keys; more are a large part of the table anyway. [not measured]
BACKFILL_KEYS = 1_000_000
# A job is handed this many changed keys; with more, it has to read the changes itself. [not measured]
JOB_KEYS = 100_000

# --- What people see --------------------------------------------------------------------------------------------------
# The metadata of a step shows the ranges of this many columns of a source, the most telling ones first: more fill the
# page of an asset, and `lake-assets capture` prints all. [0077; not measured]
SHOWN_RANGES = 5
# A preview of written rows has this many rows, columns, and characters in a cell: it is stored with every step, and a
# page is as wide. [0077; not measured]
SHOWN_ROWS = 10
SHOWN_COLUMNS = 12
SHOWN_CHARACTERS = 100

# --- Histories of rows ------------------------------------------------------------------------------------------------
# This many values are compared with the bounds of each file; with more, every file may hold one. [0071; not measured]
HISTORY_COMPARED_VALUES = 1_000
# This many stored versions of rows are read for one history: each is some kilobytes of Python's objects.
# [0071; not measured]
HISTORY_ROWS = 100_000
# Source rows of a model's row are read up to this many values of a join's column; with more, they are not traced.
# [0071; not measured]
HISTORY_JOINED_VALUES = 10_000
# Older versions of a table's metadata are read by this many threads: each is a request to an object store.
# [0071; not measured]
HISTORY_THREADS = 16
