# `make` lists the targets. Everything runs from .venv, which `make setup` makes and keeps up to date.
SHELL := /bin/bash
BIN := .venv/bin
PORT ?= 3000
DOCS_PORT ?= 8000
# Tests run in so many processes; WORKERS=0: in pytest's own, for a debugger.
WORKERS ?= 2
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal
# Folders whose modules and functions have a length limit.
SIZED := lake_assets benchmarks scripts
# Options for pytest, e.g. make test-fast ARGS="-k watermark -x"
ARGS ?=

# A port, an interpreter: what a user may set on the command line reaches the scripts as environment.
export PYTHON
# Dagster's commands upload nothing, also where they run without our dagster.yaml.
export DAGSTER_DISABLE_TELEMETRY := yes
# pyright is pinned by requirements.lock: no hint about a newer one, no look-up.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help setup install demo demo-picture ui spark-server test test-fast test-ui test-servers test-long test-versions lint _types _sizes format map reference docs docs-serve bench package lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Install everything: .venv, Java where it is missing, the Spark jars
	@scripts/setup.sh

install: ## Install the Python packages only (enough for lint and format)
	@scripts/setup.sh install

demo: setup ## Run the shipped pipelines end to end on a small data set
	$(BIN)/lake-assets demo

demo-picture: setup ## Run the demo, and write the README's animated picture of it: docs/images/demo.svg
	$(BIN)/python scripts/demo_picture.py

ui: setup ## Start Dagster at http://127.0.0.1:3000 (other port: make ui PORT=3001)
	@$(BIN)/python scripts/check_port.py "$(PORT)" "end what listens there, or choose another port: make ui PORT=3001"
	@chmod go= dagster_home  # runs, logs and what they print are nobody else's
	DAGSTER_HOME="$(CURDIR)/dagster_home" $(BIN)/dagster dev -h 127.0.0.1 -p $(PORT) -w workspace.yaml

spark-server: setup ## Start a Spark Connect server that stays warm between runs
	$(BIN)/lake-assets spark-server

test: setup ## Run all tests but the long ones and those that need servers of their own
	$(PYTEST) -m "not long and not servers" --durations=30 --durations-min=15 $(ARGS)

test-fast: setup ## Run the tests that start neither Spark nor another program
	$(PYTEST) -m "not spark and not system and not long" $(ARGS)

# Playwright drives Debian's chromium, and is no dependency of anything else.
test-ui: setup ## Run the test of Dagster's UI in a browser (needs chromium); pictures go into build/ui
	@test -d build/playwright/playwright || $(BIN)/uv pip install -q --target build/playwright playwright==1.65.2
	PYTHONPATH=build/playwright $(PYTEST) -n 0 -m "ui" -o faulthandler_timeout=7200 $(ARGS)

test-servers: setup ## Run the tests against Kafka, a schema registry, MariaDB, Postgres with TLS and a Spark cluster
	VARIANTS=$(VARIANTS) $(PYTEST) -m "servers and not ui" -o faulthandler_timeout=7200 $(ARGS)

# One in so many variants and histories of each test is run, every day others; VARIANTS=1: all of them.
VARIANTS ?= 16
test-long: setup ## Run the long tests: big random histories, further cases, soak runs
	VARIANTS=$(VARIANTS) $(PYTEST) -m "long" -o faulthandler_timeout=7200 $(ARGS)

test-versions: setup ## Try the wheel with the oldest and newest versions allowed, in environments outside: PYTHON=3.13
	@scripts/test_versions.sh $(ARGS)

lint: install ## Check style, sizes, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(MAKE) -j 2 --no-print-directory _types _sizes
	$(BIN)/lint-imports

_types:
	$(BIN)/pyright

_sizes:
	$(BIN)/flake8 --isolated --select CFQ001 --max-function-length 60 $(SIZED)
	$(BIN)/pylint --disable all --enable too-many-lines --max-module-lines 400 --score n $(SIZED)

format: install ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

map: ## Print every folder and module of the package with what it is for: make map FOLDER=models
	@python3 scripts/print_map.py $(FOLDER)

reference: install ## Write the reference pages of the documentation from the code
	PYTHONPATH=scripts $(BIN)/python scripts/write_reference.py

docs: install ## Build the documentation as a site in build/site; a broken link or anchor is an error
	PYTHONPATH=scripts $(BIN)/zensical build --clean --strict

docs-serve: install ## Show the documentation at http://127.0.0.1:8000, and follow changes (other port: DOCS_PORT=8001)
	PYTHONPATH=scripts $(BIN)/zensical serve --dev-addr 127.0.0.1:$(DOCS_PORT)

bench: setup ## Run every benchmark
	@scripts/bench.sh

bench-%: setup ## Run one benchmark: make bench-NAME runs benchmarks/bench_NAME.py with ARGS
	@ARGS="$(ARGS)" scripts/bench.sh benchmarks/bench_$*.py

# twine is no dependency of anything else.
package: install ## Build the sdist and the wheel into dist, and check them as PyPI does
	rm -rf dist
	$(BIN)/uv build -q
	$(BIN)/uv tool run -q twine==7.0.0 check --strict dist/*

lock: install ## Pin the dependencies of pyproject.toml again in requirements.lock
	$(BIN)/uv pip compile -q --generate-hashes --no-emit-index-url --no-annotate --universal --python-version 3.11 \
		--group dev --group docs pyproject.toml -o requirements.lock

clean: ## Remove .venv, caches and build results; tables in .lake and Dagster's history stay
	rm -rf .venv .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info \
		spark-warehouse metastore_db derby.log
	find . \( -name .git -o -name .lake \) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
