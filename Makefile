# `make run` and `make test` need Python 3.11+, make and git; everything else they install into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
NAME ?= whitepaper_batch
LIBRARIES = $(shell sed -n '/^dependencies = /,/^]/s/^ *"\([a-z0-9-]*\).*/\1/p' pyproject.toml)
# What runs on a GPU takes the environment that is there, so that it runs where nothing can be fetched.
GPU_PYTHON = $(firstword $(wildcard $(BIN)/python) $(PYTHON))
# Sources are compiled while others run. The plugins of that environment are left alone: their warnings are errors here.
GPU_PROCESSES = $(if $(shell $(GPU_PYTHON) -c 'import xdist' 2>/dev/null && echo yes),-p xdist.plugin -n 4)
CASE = $(firstword $(subst /, ,$(ARGS)))
PAGES = collectives overlap backup tracking input language simulator recommend
MEASURED = $(if $(filter $(PAGES),$(CASE)),$(shell echo $(CASE) | tr a-z A-Z),RESULTS)

.DEFAULT_GOAL := help
.PHONY: help run table test test-all chaos fuzz check docs bench bench-peers gpu gpu-bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/.installed  ## install and train the default configuration (ARGS="..." adds overrides)
	$(BIN)/runner $(ARGS)
	@echo 'Show the recorded runs in the browser: $(BIN)/runner ui'
	@echo 'All commands, options and keys: $(BIN)/runner --help'

table: $(VENV)/.installed  ## install and measure a table of a paper, into my_results (NAME=... chooses)
	$(BIN)/runner table run $(NAME) --results my_results $(ARGS)
	$(BIN)/runner table export $(NAME) --results my_results --format png --output my_results/$(NAME).png
	@echo 'The same table as a picture: my_results/$(NAME).png'

test: $(VENV)/.installed-dev  ## install and run the tests but the slow ones (ARGS="..." goes to pytest)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow" $(ARGS)

test-all: $(VENV)/.installed-dev  ## run all tests, and those of CPU kernels again without AVX-512, where the CPU has it
	$(BIN)/python -m pytest -n 2 --dist worksteal
	! grep -q avx512 /proc/cpuinfo || \
		$(BIN)/python -m pytest -n 2 --dist worksteal --avx2 tests/kernels tests/engine/graph/ops --ignore tests/kernels/gpu

chaos: $(VENV)/.installed-dev  ## kill processes of runs at random times, in an hour (ARGS="--help"); a second start goes on
	$(BIN)/python -m tests.chaos $(ARGS)

fuzz: $(VENV)/.installed-dev  ## read millions of mutated messages, files and command lines, in an hour (ARGS="--help")
	$(BIN)/python -m tests.fuzz $(ARGS)

check: $(VENV)/.installed-dev  ## lint, format check and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev  ## build the documentation into site/
	$(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.installed-dev  ## measure steps, or ARGS=collectives, overlap, backup, tracking, recommend and others, into benchmarks/
	$(BIN)/python -m benchmarks $(ARGS) --output benchmarks/$(MEASURED).md

bench-peers: $(VENV)/.installed-dev  ## install the frameworks to compare with (ARGS="jax" chooses)
	$(BIN)/python -m benchmarks peers $(ARGS)

gpu:  ## test kernels, strategies and training on a GPU (ARGS="..." goes to pytest)
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(GPU_PYTHON) -m pytest $(GPU_PROCESSES) -c tests/gpu/pytest.ini --rootdir . \
		--confcutdir tests/gpu tests/gpu --on=gpu $(ARGS)

gpu-bench:  ## measure training steps on a GPU against PyTorch, into benchmarks/results/, in 9 minutes
	$(GPU_PYTHON) -m benchmarks gpu $(ARGS)

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo 'Installing runner into $(VENV) with $(LIBRARIES)'
	@echo 'and the packages that they need: about 110 packages, 1.2 GB, one to two minutes with a fast connection.'
	$(BIN)/python -m pip install --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.installed
