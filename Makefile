# make demo | test | check | bench | coverage-models | paper-table    each sets up the environment first
#
#   PYTHON=python3.12     the interpreter that creates the environment (3.11 or newer)
#   VENV=path             where the environment is
#   PYTEST_ARGS="-k spmd" further arguments for pytest
#   PAPER_ARGS="--small"  models and options for paper-table; --help lists them
#   COVERAGE_ARGS="mlp --schedule fsdp"  models and options for coverage-models; --help lists them

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
COVERAGE_ARGS ?=
PAPER_ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := demo
.PHONY: venv demo test check bench coverage-models paper-table clean

venv: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: partita needs Python 3.11 or newer, but PYTHON=$(PYTHON) is" \
	    "'$$($(PYTHON) --version 2>&1)'; try: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.11" >&2; \
	  exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: venv
	$(BIN)/python -m partita.demo

test: venv
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

check: venv
	$(BIN)/ruff format --check src tests examples
	$(BIN)/ruff check src tests examples
	$(BIN)/mypy

bench: venv
	$(BIN)/python -m partita.bench

# Every built-in model under every kind of schedule, run on 8 host devices and compared.
coverage-models: venv
	$(BIN)/python -m partita.coverage $(COVERAGE_ARGS)

# The schedules of the PartIR paper: collectives by arithmetic, predicted and compiled.
paper-table: venv
	$(BIN)/python -m partita.paper $(PAPER_ARGS)

# Removes what builds and checks leave behind; the environment stays.
clean:
	rm -rf build dist src/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
