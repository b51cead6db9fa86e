"""The history of one row: its versions in the kept snapshots of a table, and what made each of them.

Snapshots are compared by metadata, and only data files that can hold the row are read, in this process. Printing is the
command's; what a step does with a window is `tables` and what is above.
"""
