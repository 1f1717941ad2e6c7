# Everything a newcomer needs: `make help`. Only Python 3.11 or newer, make and git must be there already.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two workers for each core: tests wait on processes and on the database more than they compute.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(8, 2 * (os.cpu_count() or 1)))')
ROUNDS ?= 200
TESTS ?= tests

.DEFAULT_GOAL := help
.PHONY: help install demo up test check bench faults unified lock docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Make the virtual environment (the other targets do it when needed)

$(STAMP): requirements.lock pyproject.toml hatch_build.py src/headway/agent/starter.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headway needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## Run a small tree of real programs on a throw-away Headway
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(BIN)/headway run --data-dir "$$folder/data" examples/photos.yaml --param folder="$$folder/photos"

up: $(STAMP) ## Start Headway on this machine: database, server, agent
	$(BIN)/headway up

test: $(STAMP) ## Run all tests; TESTS=tests/unit for some
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(TESTS)

check: $(STAMP) ## Lint, types, directions of imports
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports

bench: $(STAMP) ## Measure this machine (about a minute; `headway bench` alone is the full run)
	$(BIN)/headway bench --quick

faults: $(STAMP) ## Kill everything at random, ROUNDS=200 times
	HEADWAY_FAULT_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest -q -s tests/faults

unified: $(STAMP) ## Test limits and agents in a Linux that has only cgroups version 2
	HEADWAY_UNIFIED=1 $(BIN)/python -m pytest -q -s tests/e2e/test_unified_groups.py

docs: $(STAMP) ## Write the generated pages of docs/ again
	for page in docs/settings.py docs/generate.py; do $(BIN)/python $$page; done

lock: $(STAMP) ## Choose and pin the newest versions of all dependencies
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --strip-extras --allow-unsafe --extra dev \
		--build-deps-for editable --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		--output-file requirements.lock pyproject.toml

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
