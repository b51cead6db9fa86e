"""A lake that an earlier version made, as an archive, and what it takes to make it again."""

from pathlib import Path

# The version that made it.
COMMIT = "30066a0"
ARCHIVE = Path(__file__).parent / "lake.tar.gz"
# Where it was made.
HOME = Path("/tmp/older-lake")
