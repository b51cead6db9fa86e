"""OpenLineage: events of steps, with what they read, wrote and checked. Needs the extra `openlineage`."""
