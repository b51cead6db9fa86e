"""The long-running service that reads live sources and lands their records."""
