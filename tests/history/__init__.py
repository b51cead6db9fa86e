"""Histories of rows."""
