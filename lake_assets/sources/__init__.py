"""Live sources: servers whose changes are read as they happen, and landed in raw tables."""
