# make run                     the simulator's main experiment
# make test                    what CI runs: lint, format, types, import rules, tests
# Both install into .venv on the first call, and again when pyproject.toml changes.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= executor,executor-tests,fast
# The version that CI runs; a bare range would fetch several GB of CUDA libraries where a CPU build is at hand.
TORCH ?= torch==2.13.0

comma := ,
DEV := dev$(if $(EXTRAS),$(comma)$(EXTRAS))
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check

.PHONY: run test clean

run: $(VENV)/fast
	@if command -v $(CC) > /dev/null; then $(BIN)/python -m sim compile || true; fi
	$(BIN)/python -m sim run +experiment=c1

test: $(VENV)/$(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --project pyproject.toml --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2

clean:
	rm -rf $(VENV) .compiled

# Empty files that say what is installed.
$(VENV)/core: pyproject.toml | $(BIN)/python
	$(INSTALL) --editable .
	touch $@

# Runs are as right without, and take two to three times as long.
$(VENV)/fast: $(VENV)/core
	if command -v $(CC) > /dev/null; then $(INSTALL) --editable ".[fast]" || true; fi
	touch $@

$(VENV)/$(DEV): $(VENV)/core
	$(if $(findstring executor,$(EXTRAS)),$(INSTALL) "$(TORCH)")
	$(INSTALL) --editable ".[$(DEV)]"
	touch $@

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hbmlab needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
