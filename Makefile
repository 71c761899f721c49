# make demo | check | quick | test | test-docs | test-searched | test-whole | test-tools | test-tpu | test-gpu | test-torch | test-browser | test-newest
#      test-native | mutants | bench | coverage-models | paper-table | accuracy | models | architecture | pictures | site | first-page | page-library
# each sets up the environment first
#
#   PYTHON=python3.12     the interpreter that creates the environment (3.11 or newer)
#   VENV=path             where the environment is
#   COMPILERS=path        where that with the compilers for accelerators is
#   TORCH=path            where that with PyTorch is
#   TORCH_VERSION=2.13.0  which PyTorch that is; its build for CPUs by default
#   TORCH_TESTS=tests     which tests test-torch runs; all that need PyTorch
#   PYTEST_ARGS="-k spmd" further arguments for pytest
#   NEWEST=tests          which tests test-newest runs; all of them
#   ACCURACY_ARGS="gpt --topology h100:8"  models and options for accuracy; --help lists them
#   PAPER_ARGS="--small"  models and options for paper-table; --help lists them
#   MUTANTS_ARGS="spmd"   parts of names of files and options for mutants; --help lists them
#   MODELS="gpt-tiny"     which presets `make models` measures; all of them
#   COVERAGE_ARGS="mlp --schedule fsdp"  models and options for coverage-models; --help lists them

PYTHON ?= python3
VENV ?= .venv
COMPILERS ?= .venv-compilers
TORCH ?= .venv-torch
TORCH_VERSION ?= 2.13.0+cpu
TORCH_TESTS ?= tests/torch_frontend tests/docs/test_docs.py -k 'torch'
PYTEST_ARGS ?=
COVERAGE_ARGS ?=
ACCURACY_ARGS ?=
NEWEST ?= tests/program tests/test_operations.py tests/test_versions.py tests/test_constrain.py \
  tests/plan/test_manual.py tests/plan/test_export.py
PAPER_ARGS ?=
MUTANTS_ARGS ?=

# What has a target of its own. Where libtpu has been loaded, JAX's profiler crashes its process.
SUITES := tests/browser tests/docs tests/tools tests/torch_frontend tests/whole \
  tests/verify/test_libtpu.py
SEARCHED := tests/whole/test_searched.py

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := demo
.PHONY: venv demo quick test test-searched test-docs test-whole test-tools test-tpu test-gpu test-torch test-browser test-newest test-native mutants check bench coverage-models paper-table accuracy models architecture pictures site first-page page-library clean

venv: $(STAMP)

$(STAMP): pyproject.toml $(wildcard src/partita/native/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: partita needs Python 3.11 or newer, but PYTHON=$(PYTHON) is" \
	    "'$$($(PYTHON) --version 2>&1)'; try: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.11" >&2; \
	  exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: venv
	$(BIN)/python -m tools.demo

# Under a minute: the tests listed in tests/quick.txt, which find most of what `make mutants` plants.
quick: venv
	$(BIN)/python -m pytest -n 2 --dist loadgroup @tests/quick.txt $(PYTEST_ARGS)

test: venv
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(SUITES:%=--ignore %) $(PYTEST_ARGS)

# The test suite, in which every program that a test plans is also searched by the default search;
# and programs that are searched over more meshes, and run. Takes an hour; not in CI.
test-searched: venv
	$(BIN)/python -m pytest -n 2 --dist loadgroup --searched $(SUITES:%=--ignore %) $(PYTEST_ARGS)
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(SEARCHED) $(PYTEST_ARGS)

# Every page of the documentation and every example, run. UPDATE_DOCS=1 writes what is printed now.
test-docs: venv
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests/docs $(PYTEST_ARGS)

# Whole models and random programs: partitioned, compiled, run, and compared.
test-whole: venv
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests/whole --ignore $(SEARCHED) $(PYTEST_ARGS)

# The tests of the commands for maintainers, in tools/.
test-tools: venv
	$(BIN)/python -m pytest -n 2 tests/tools $(PYTEST_ARGS)

# One small plan compiled for TPUs, where the TPU compiler can be installed. Needs no TPU.
test-tpu: venv
	@if $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[tpu]'; then \
	  set -x; $(BIN)/python -m pytest tests/verify/test_libtpu.py -k predicted; \
	else \
	  echo "skipped: the TPU compiler cannot be installed on this machine"; \
	fi

# The same for GPUs, in an environment of its own: where JAX finds the plugin, it looks for GPUs
# whenever it starts. Needs no GPU.
test-gpu: $(COMPILERS)/bin/pip
	@if $(COMPILERS)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[gpu,tests]'; then \
	  set -x; $(COMPILERS)/bin/python -m pytest tests/verify/test_gpu.py $(PYTEST_ARGS); \
	else \
	  echo "skipped: the GPU compiler cannot be installed on this machine"; \
	fi

# The front end for PyTorch, in an environment of its own: torch is large, and starts threads of its
# own. The build for CPUs is at https://download.pytorch.org/whl/cpu, where no index at hand has it.
test-torch: $(TORCH)/bin/pip
	@if $(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check \
	    'torch==$(TORCH_VERSION)' -e '.[torch-examples,tests]'; then \
	  set -x; JAX_PLATFORMS=cpu $(TORCH)/bin/python -m pytest $(TORCH_TESTS) $(PYTEST_ARGS); \
	else \
	  echo "skipped: PyTorch cannot be installed on this machine"; \
	fi

$(TORCH)/bin/pip:
	$(PYTHON) -m venv $(TORCH)

$(COMPILERS)/bin/pip:
	$(PYTHON) -m venv $(COMPILERS)

# The report page in a browser without a window, where one can be installed. Leaves pictures of the
# pages in build/screenshots.
test-browser: venv
	@if tools/browser.sh && $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[browser]'; then \
	  set -x; $(BIN)/python -m pytest tests/browser $(PYTEST_ARGS); \
	else \
	  echo "skipped: no browser can be installed on this machine"; \
	fi

# The charts' library of the report page, from the npm package d3.
page-library: venv
	tools/page_library.sh

# What touches JAX most, with the newest Python and JAX that can be had here: import, rules, every
# operation, manual computations, constraints and export. NEWEST=tests runs all.
test-newest:
	tools/newest.sh $(NEWEST) $(PYTEST_ARGS)

# The inner loops in C, built so that a byte outside of an array ends the process.
test-native: venv
	tools/sanitized.sh $(BIN)/python tests/test_native.py tests/test_native_arrays.py $(PYTEST_ARGS)

# Faults planted in copies of the sources, one at a time, and which test of `make quick` finds each.
mutants: venv
	$(BIN)/python -m tools.mutants $(MUTANTS_ARGS)

check: venv
	$(BIN)/ruff format --check src tests examples tools
	$(BIN)/ruff check src tests examples tools
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: venv
	$(BIN)/python -m tools.bench

# Every built-in model under every kind of schedule, run on 8 host devices and compared.
coverage-models: venv
	$(BIN)/python -m tools.coverage $(COVERAGE_ARGS)

# Plans compiled for TPUs and GPUs, predicted beside compiled; goes on where it was stopped. Needs
# neither.
accuracy: $(COMPILERS)/bin/pip
	$(COMPILERS)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[tpu,gpu,models]'
	$(COMPILERS)/bin/python -m tools.accuracy $(ACCURACY_ARGS)

# The schedules of the PartIR paper: collectives by arithmetic, predicted and compiled.
paper-table: venv
	$(BIN)/python -m tools.paper $(PAPER_ARGS)

# How large the built-in models are, as `partita models` lists them.
models: venv
	$(BIN)/python -m tools.sizes $(MODELS)

# The pictures of the documentation, drawn from plans.
pictures: venv
	$(BIN)/python -m tools.pictures

# From a fresh environment to the first report page: how long installing and planning take.
first-page:
	PYTHON=$(PYTHON) tools/first_page.sh

# The documentation site, in build/site; fails on broken links and on pages that it has no place for.
site: venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# The layers of the package, drawn from the sources; docs/architecture.md shows them.
architecture: venv
	$(BIN)/python -m tools.architecture

# Removes what builds and checks leave behind; the environment stays.
clean:
	rm -rf build dist src/*.egg-info .hypothesis .jax_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
