"""From records to typed change events: landing (raw tables), rejects, parsing (staging tables)."""
