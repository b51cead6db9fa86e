#!/usr/bin/env bash
# Runs the named benchmarks one after the other (without arguments all but bench_peers.py); fails if one fails.
set -euo pipefail
cd "$(dirname "$0")/.."

# ARGS go to a single one: make bench-merge ARGS="--changes 1000"
args=${ARGS:-}
if [ $# -ne 1 ]; then args=""; fi
# Other tools have environments of their own, of gigabytes: make bench-peers.
if [ $# -eq 0 ]; then
  for script in benchmarks/bench_*.py; do
    [ "$script" = benchmarks/bench_peers.py ] || set -- "$@" "$script"
  done
fi
failed=""
for script in "$@"; do
  [ -f "$script" ] || { echo "bench: there is no $script" >&2; exit 1; }
  echo "== $script"
  # shellcheck disable=SC2086 # several words
  .venv/bin/python "$script" $args || failed="$failed $script"
done
if [ -n "$failed" ]; then echo "bench: failed:$failed" >&2; exit 1; fi
