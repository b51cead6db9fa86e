"""Alerts: one message to a webhook when something begins to be wrong, and one when it ends."""
