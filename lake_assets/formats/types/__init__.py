"""Spark types of the values in a stream, by the system that describes them: Kafka Connect, Postgres, text, JSON."""
