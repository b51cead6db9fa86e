"""The commands of `lake-assets`, a module each; `lake_assets.cli` puts them together.

What a command prints is made here; what it knows comes from the packages below. With `--json` nothing but JSON goes to
stdout.
"""
