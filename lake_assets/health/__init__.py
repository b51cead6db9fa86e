"""How the tables of a lake are: what is pending, failed, rejected, not exact, or due. Reads metadata, changes nothing.

Commands print it, and signals send it. What does not belong here: text for a terminal, and what acts on a finding.
"""
