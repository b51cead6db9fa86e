"""A pipeline's YAML: its settings and their types, errors with line numbers, and the specs of the declared tables."""
