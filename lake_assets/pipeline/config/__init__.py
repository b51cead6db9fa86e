"""What the YAML says: its shape, its types, errors with their line, and the specs of the tables it declares."""
