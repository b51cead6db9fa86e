"""What nobody should send: each of it is a named reject or a named error, and nothing else is harmed."""
