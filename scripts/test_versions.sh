#!/usr/bin/env bash
# Tries the wheel with the oldest and the newest versions that pyproject.toml allows, each in an environment of its own
# outside this folder: a new project of `lake-assets init` runs, is verified and loads in Dagster, and the private APIs
# that the package uses are where it expects them.
#
#   scripts/test_versions.sh                  both, with the Python of .venv
#   scripts/test_versions.sh lowest highest   one or both of them
#   PYTHON=3.13 scripts/test_versions.sh      another Python, which must be installed
#   RUN= scripts/test_versions.sh             without Spark: install, load, private APIs
set -euo pipefail
cd "$(dirname "$0")/.."

ROOT=$PWD
UV=$ROOT/.venv/bin/uv
WORK=$(mktemp -d "${TMPDIR:-/tmp}/lake-assets-versions.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
PYTHON=${PYTHON:-$ROOT/.venv/bin/python}
RUN=${RUN-yes}

say() { printf '%s\n' "versions: $*" >&2; }

# The tests of the `_compat` modules, which hold all private APIs, and of frames of packages that are no dependency, with
# what they import of `tests`.
contracts() {
  local env=$1 folder=$2/contracts
  mkdir -p "$folder"
  cp -R "$ROOT/tests" "$ROOT/pyproject.toml" "$folder"
  # Started elsewhere, so that the wheel is imported and not this folder's package.
  (cd "$folder" && "$env/bin/python" -m pytest -q -p no:cacheprovider -m "not spark and not system" \
    tests/lake/test_compat.py tests/orchestration/test_dagster_compat.py tests/runtime/test_runtime_compat.py \
    tests/orchestration/test_lake_io_manager.py)
}

project() {
  local env=$1 folder=$2
  cd "$folder"
  "$env/bin/lake-assets" init tried
  cd tried
  "$env/bin/lake-assets" check
  "$env/bin/dg" check defs
  [ -n "$RUN" ] || return 0
  "$env/bin/lake-assets" run
  cp sample/2_changes.jsonl .lake/landing/shop/
  "$env/bin/lake-assets" run
  "$env/bin/lake-assets" verify agg.revenue
}

try() {
  local resolution=$1 env=$WORK/$1/env
  mkdir -p "$WORK/$resolution"
  say "$resolution: installing"
  "$UV" venv -q --python "$PYTHON" "$env"
  # The lowest versions of what pyproject.toml names; what these need is as new as they allow.
  local how=highest
  if [ "$resolution" = lowest ]; then how=lowest-direct; fi
  "$UV" pip compile -q --python "$env/bin/python" --resolution "$how" --no-header --no-annotate \
    "$ROOT/pyproject.toml" -o "$env/requirements.txt"
  "$UV" pip install -q --python "$env/bin/python" -r "$env/requirements.txt" "pytest>=8.3" "hypothesis>=6.120" \
    "setuptools>=75" duckdb pandas polars
  "$UV" pip install -q --python "$env/bin/python" --no-deps "$WHEEL"
  "$UV" pip list -q --python "$env/bin/python" --format=freeze | grep -iE '^(dagster|dagster-pyspark|pyspark|pyiceberg|pyarrow|sqlglot|typer)==' >&2
  # The environment's own programs come first: jobs and Dagster start others by name.
  export PATH="$env/bin:$PATH"
  unset PYTHONPATH DAGSTER_HOME LAKE_HOME LAKE_CONFIG LAKE_PIPELINES
  contracts "$env" "$WORK/$resolution"
  (project "$env" "$WORK/$resolution")
  say "$resolution: passed"
}

say "building the wheel"
"$UV" build -q --wheel -o "$WORK/dist" "$ROOT"
WHEEL=$(ls "$WORK"/dist/*.whl)
for resolution in "${@:-lowest highest}"; do
  for one in $resolution; do (try "$one"); done
done
