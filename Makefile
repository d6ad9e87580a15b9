# Everything runs in .venv, which make builds. The versions are those of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
THREADS := $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test matrix check docs fuzz bench clean

help:  ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: .venv/dev  ## build .venv with everything that tests and docs need

demo: .venv/core  ## the models in the box: blanks, fine-tuning, an answer, an attention head; two minutes
	$(BIN)/python examples/demo.py

quick: .venv/dev  ## the tests that take under a minute
	$(BIN)/python -m pytest -n auto -m "not slow"

test: .venv/dev  ## all tests
	$(BIN)/python -m pytest -n auto

matrix: .venv/dev  ## every family, head, variant and kind of file against transformers; a quarter of an hour on two cores
	cd tests && ../$(BIN)/python -m matrix --workers $(THREADS)

check: .venv/dev  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/dev  ## the documentation as a site, in site/
	$(BIN)/mkdocs build --strict --quiet --site-dir site

fuzz: .venv/dev  ## random and damaged inputs, each in a process with limits; ten minutes
	$(BIN)/python tests/fuzz.py --minutes 10

bench: .venv/dev  ## ratios against transformers on this machine; see benchmarks/ for the GPU
	$(BIN)/python benchmarks/encoder.py

clean:  ## remove what make built
	rm -rf .venv site build src/*.egg-info

.venv/pip: 
	$(PYTHON) -m venv .venv
	@touch $@

.venv/core: .venv/pip pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

.venv/dev: .venv/pip pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	@touch $@ .venv/core
