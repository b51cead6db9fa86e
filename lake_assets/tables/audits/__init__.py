"""Audits: declared, evaluated, and the gate that publishes only what passes the blocking ones."""
