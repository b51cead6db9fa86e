"""The shipped pipelines (declared in `defs/`), their recorded input (`data/`), and how a demo feeds it to them."""
