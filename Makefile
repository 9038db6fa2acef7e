# Requirements: Python 3.11 to 3.13 with venv, and make.
#
#   make setup   install into .venv; the other targets do this when needed
#   make demo    run the demo on the tiny base, in the folder demo/
#   make test    run the fast tests: under five minutes on two cores
#   make long    run only the long tests
#   make fuzz    run a fuzz campaign with thousands of damaged files
#   make lint    check format, lint and types
#   make check   lint, test, long and fuzz; must pass before a release
#   make interop load and run exports with the real Chatterbox package (needs `voxgraft companion chatterbox`)
#   make docs    generate docs/cli.md and docs/errors.md
#   make clean   remove .venv, the demo and all caches
#
# Another Python:  make test PYTHON=python3.13
# Flags for pip, for example another index for a CPU-only torch:  make test PIP_FLAGS=...

PYTHON ?= python3
PIP_FLAGS ?=
PYTEST_FLAGS ?=
PYTEST = $(BIN)/pytest -n 2 --dist worksteal
FUZZ ?= 0.5
INTEROP ?= small
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help setup demo test long fuzz lint check interop docs clean

help:
	@sed -n '/^#   make/s/^#   //p' Makefile

setup: $(INSTALLED)
	@echo "voxgraft is in .venv. In each new terminal: source .venv/bin/activate"

demo: $(INSTALLED)
	$(BIN)/voxgraft demo

# Some environments tell Python to write no bytecode. The tests start some three hundred processes, and pytest rewrites
# every test module: without bytecode each process would do this again.
test long fuzz: export PYTHONDONTWRITEBYTECODE :=

test: $(INSTALLED)
	$(BIN)/python -m compileall -q voxgraft tests
	$(PYTEST) $(PYTEST_FLAGS)

long: $(INSTALLED)
	$(BIN)/python -m compileall -q voxgraft tests
	$(PYTEST) --long $(PYTEST_FLAGS)

fuzz: $(INSTALLED)
	$(PYTEST) --all --fuzz $(FUZZ) tests/fuzz tests/test_checkpoints_fuzz.py tests/test_diagnose_fuzz.py $(PYTEST_FLAGS)

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint
	$(MAKE) test
	$(MAKE) long
	$(MAKE) fuzz

interop: $(INSTALLED)
	$(BIN)/python -m tests.interop.interop --size $(INTEROP)
	$(BIN)/python -m tests.interop.xtts_export --size $(INTEROP)

docs: $(INSTALLED)
	$(BIN)/python tools/generate_docs.py

clean:
	rm -rf .venv demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so that an installation that broke off is made again.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) > /dev/null \
	    || { echo "$(PYTHON) not found. On Debian or Ubuntu: sudo apt install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	    || { echo "voxgraft is tested with Python 3.11, 3.12 and 3.13, but $(PYTHON) is $$($(PYTHON) --version)." \
	              "Use another one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null \
	    || { echo "$(PYTHON) cannot create virtual environments." \
	              "On Debian or Ubuntu: sudo apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true  # on all cores, which pip does on one; some hold samples of bad code
	@touch $@
