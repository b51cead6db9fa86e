"""Read the records of files, by the kind of file, within limits of size.

What a record means is defined by its format, in the parent folder.
"""
