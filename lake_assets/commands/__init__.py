"""The commands of `lake-assets`, one module each; `lake_assets.cli` combines them.

These modules only format output; the values come from the other packages. With `--json`, stdout holds nothing but JSON.
"""
