"""Files of records: bytes within limits, and their records, by the kind of file.

What a record means is the business of a format, in the folder above.
"""
