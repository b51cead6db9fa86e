"""What the steps of all tables did, needed and found, in a table of the lake."""
