#!/usr/bin/env bash
# Runs the named benchmarks one after the other (all of benchmarks/bench_*.py without arguments); fails if one fails.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -eq 0 ]; then set -- benchmarks/bench_*.py; fi
failed=""
for script in "$@"; do
  [ -f "$script" ] || { echo "bench: there is no $script" >&2; exit 1; }
  echo "== $script"
  .venv/bin/python "$script" || failed="$failed $script"
done
if [ -n "$failed" ]; then echo "bench: failed:$failed" >&2; exit 1; fi
