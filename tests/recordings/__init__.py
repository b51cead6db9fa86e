"""A stream with what is rare: recorded from a real Postgres by Debezium and wal2json, and the script that records it."""
