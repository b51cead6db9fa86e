"""Other tools beside lake_assets: environments, inputs, and a driver process for each.

`bench_peers.py` is the entry. `drivers/` holds the programs that run in the peers' own environments; they
import nothing of this repository (but lake_assets' own). `requirements/` pins what each environment holds.
"""
