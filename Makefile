# Every target prepares .venv by itself; it is made again only when what it is made from changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SCENARIO ?= latency

.PHONY: help demo test check bench clean generate
.DEFAULT_GOAL := help

help:  ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml schemas/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "jobstream needs Python 3.11 or newer; $(PYTHON) is older (set PYTHON=...)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ./schemas -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## Start everything with three agents, run a real workload, stop everything
	$(BIN)/python -m jobstream.cli demo

test: check  ## Lint, types, import rules, then every test against a real Kafka and PostgreSQL
	$(BIN)/python -m pytest -n 2 --dist loadfile  # they wait more than they compute; a file may start a stack of its own

check: $(STAMP)  ## Lint, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## Measure: SCENARIO=latency|throughput; the last line is one JSON object
	$(BIN)/python -m tests.bench $(SCENARIO)

generate: $(STAMP)  ## Write JSON Schemas, the AsyncAPI document and the README's topic table anew
	$(BIN)/python -m jobstream.cli topics document
	$(BIN)/ruff format .

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
