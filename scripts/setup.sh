#!/usr/bin/env bash
# Makes everything the project needs, and nothing twice.
#
#   scripts/setup.sh install    the virtual environment: what requirements.lock pins, and the project itself
#   scripts/setup.sh            the same, then Java and the Spark jars
#
# Runs on Linux and macOS (bash 3.2). Where packages come from is pip's business: its settings (environment, pip.conf)
# are handed on to uv, which installs them.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "setup: $*" >&2; }
die() { printf '%s\n' "setup: error: $*" >&2; exit 1; }

VENV=.venv
STAMP=$VENV/.setup-stamp        # what was installed, written last
UNFINISHED=$VENV/.setup-running # there while packages are being written

# --- Python ----------------------------------------------------------------------------------------------------------

supported() { "$1" -c 'import sys; sys.exit(not (3, 11, 1) <= sys.version_info[:3] < (3, 14))' >/dev/null 2>&1; }

find_python() {
  local name
  for name in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3; do
    # A name on PATH can be a shim of a version manager that starts nothing: only running it tells.
    if supported "$name"; then printf '%s\n' "$name"; return; fi
  done
  die "no Python 3.11 (from 3.11.1), 3.12 or 3.13 found as python3.11, python3.12, python3.13 or python3 on PATH." \
    "Install one, or name it: make setup PYTHON=/path/to/python3"
}

# Runs a command as root: as we are, or through sudo where that asks nothing.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo -n "$@"
  else return 1
  fi
}

# Installs the first of the named Debian packages that can be had; refreshes the package lists if none can.
apt_install() {
  command -v apt-get >/dev/null 2>&1 && as_root true || return 1
  local round package
  for round in 1 2; do
    for package in "$@"; do
      say "installing $package with apt-get"
      as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$package" >&2 && return
    done
    if [ "$round" = 1 ]; then as_root apt-get update -qq >&2 || true; fi
  done
  return 1
}

make_venv() {
  local python=$1 version
  "$python" -m venv "$VENV" >/dev/null 2>&1 && return
  # Debian keeps the module's bundled pip in a package of its own.
  version=$("$python" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')
  rm -rf "$VENV"
  apt_install "$version" || die "'$python -m venv' does not work. On Debian: apt-get install $version"
  "$python" -m venv "$VENV"
}

# --- packages --------------------------------------------------------------------------------------------------------

fingerprint() {
  "$VENV/bin/python" - "$PWD" requirements.lock pyproject.toml scripts/setup.sh <<'PY'
import hashlib, pathlib, sys
digest = hashlib.sha256(f"{sys.argv[1]} {sys.version}".encode())
for name in sys.argv[2:]:
    digest.update(pathlib.Path(name).read_bytes())
print(digest.hexdigest())
PY
}

# One of pip's settings, an environment variable before a file; empty if there is none.
pip_setting() {
  printf '%s\n' "$PIP_SETTINGS" | sed -n -E "s/^(:env:|global|user|site|install)\.$1='(.*)'\$/\2/p" | head -n 1
}

pip_settings_for_uv() {
  local value
  PIP_SETTINGS=$("$VENV/bin/python" -m pip config list 2>/dev/null || true)
  value=$(pip_setting index-url)
  if [ -n "$value" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX="$value"; fi
  value=$(pip_setting extra-index-url)
  if [ -n "$value" ] && [ -z "${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}" ]; then export UV_INDEX="${value//\\n/ }"; fi
  value=$(pip_setting find-links)
  if [ -d "$value" ] && [ -z "${UV_FIND_LINKS:-}" ]; then export UV_FIND_LINKS="$value"; fi
  value=$(pip_setting cert)
  if [ -f "$value" ] && [ -z "${SSL_CERT_FILE:-}" ]; then export SSL_CERT_FILE="$value"; fi
  value=${PIP_DEFAULT_TIMEOUT:-}
  if [ -n "$value" ] && [ -z "${UV_HTTP_TIMEOUT:-}" ]; then export UV_HTTP_TIMEOUT="$value"; fi
  # Without a home to write to, uv keeps its downloads here.
  if [ -z "${UV_CACHE_DIR:-}" ] && [ ! -w "${HOME:-/nonexistent}" ]; then export UV_CACHE_DIR="$PWD/.cache/uv"; fi
}

install() {
  local python start=$SECONDS
  if [ -e "$UNFINISHED" ]; then
    say "an earlier setup was interrupted: starting $VENV anew"
    rm -rf "$VENV"
  elif [ -e "$STAMP" ] && supported "$VENV/bin/python" && [ "$(cat "$STAMP")" = "$(fingerprint)" ]; then
    return
  fi

  if ! { supported "$VENV/bin/python" && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; }; then
    rm -rf "$VENV"
    python=$(find_python)
    say "creating $VENV with $("$python" --version)"
    make_venv "$python"
  fi
  touch "$UNFINISHED"
  rm -f "$STAMP"

  say "installing what requirements.lock pins"
  # pip installs the pinned uv and no more: with --require-hashes it rejects extras that a locked package asks for.
  awk '/^uv==/ { on = 1 } on { print } on && !/\\$/ { exit }' requirements.lock >"$VENV/uv.lock"
  "$VENV/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r "$VENV/uv.lock"
  pip_settings_for_uv
  # Build constraints: pyspark is only published as source, and the tool that builds it is pinned as well. Compiled here:
  # where Python may not write beside its modules, every run of Dagster would compile them again.
  "$VENV/bin/uv" pip sync -q --require-hashes --compile-bytecode --build-constraints requirements.lock \
    --python "$VENV/bin/python" requirements.lock
  "$VENV/bin/uv" pip install -q --no-deps --no-build-isolation --python "$VENV/bin/python" -e .

  fingerprint >"$STAMP.new"
  mv "$STAMP.new" "$STAMP"
  rm -f "$UNFINISHED"
  say "$VENV is ready ($((SECONDS - start)) s)"
}

# --- Java and jars ---------------------------------------------------------------------------------------------------

# Looks where the package itself looks: JAVA_HOME, PATH, the usual places; Java 17 or 21.
has_java() { "$VENV/bin/python" -c 'from lake_assets.runtime.java import find_java; find_java()' 2>/dev/null; }

java() {
  has_java && return
  case $(uname -s) in
    Darwin)
      if command -v brew >/dev/null 2>&1; then
        say "installing openjdk@17 with brew"
        brew install -q openjdk@17 >&2 || true
      fi ;;
    *) apt_install openjdk-17-jre-headless openjdk-21-jre-headless || true ;;
  esac
  # Asked once more, with the error shown: it names what was looked at and what to do.
  has_java || "$VENV/bin/python" -c '
import sys
from lake_assets.errors import LakeError
from lake_assets.runtime.java import find_java
try:
    find_java()
except LakeError as error:
    sys.exit(f"setup: error: {error}")
'
}

case ${1:-all} in
  install) install ;;
  all) install; java; "$VENV/bin/lake-assets" setup ;;
  *) die "unknown step '$1': expected nothing or 'install'" ;;
esac
