"""Reports on a lake for people: a page of HTML, and sentences about what steps cost; nothing here changes a table."""
