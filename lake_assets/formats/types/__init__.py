"""Spark types of the values in a stream, by the system that defines them: Kafka Connect, Postgres, text, JSON."""
