# `make run` and `make test` need Python 3.11+, make and git; everything else they install into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
CASE = $(firstword $(ARGS))
MEASURED = $(strip $(if $(filter collectives%,$(CASE)),COLLECTIVES,$(if $(filter overlap%,$(CASE)),OVERLAP,\
	$(if $(filter backup,$(CASE)),BACKUP,$(if $(filter tracking,$(CASE)),TRACKING,RESULTS)))))

.DEFAULT_GOAL := help
.PHONY: help run test check docs bench bench-peers clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/.installed  ## install and train the default configuration (ARGS="..." adds overrides)
	$(BIN)/runner $(ARGS)

test: $(VENV)/.installed-dev  ## install and run the tests (ARGS="..." goes to pytest)
	$(BIN)/python -m pytest -n 2 $(ARGS)

check: $(VENV)/.installed-dev  ## lint, format check and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev  ## build the documentation into site/
	$(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.installed-dev  ## measure training steps, or ARGS=collectives, overlap, backup or tracking, into benchmarks/
	$(BIN)/python -m benchmarks $(ARGS) --output benchmarks/$(MEASURED).md

bench-peers: $(VENV)/.installed-dev  ## install the frameworks to compare with (ARGS="jax" chooses)
	$(BIN)/python -m benchmarks peers $(ARGS)

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.installed
