# Everything runs in .venv, which make builds. The versions are those of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
ORT_WEB := 1.30.0
RUNTIME := src/bothways/page/static/runtime
THREADS := $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test matrix kills fuzz page-test page-vendor newest check audit sbom hashes locked docs bench clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: .venv/dev  ## build .venv with everything that tests and docs need

demo: .venv/core  ## the models in the box: blanks, fine-tuning, a search, an answer, an attention head; two minutes
	$(BIN)/python examples/demo.py

quick: .venv/dev  ## the tests that take under a minute
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test: .venv/dev  ## all tests
	$(BIN)/python -m pytest -n auto --dist worksteal

matrix: .venv/dev  ## every family, head, variant and kind of file against transformers; a quarter of an hour on two cores
	cd tests && ../$(BIN)/python -m matrix --workers $(THREADS)

kills: .venv/dev  ## every command that writes, killed at 50 moments of its work; an hour on two cores
	MOMENTS=50 $(BIN)/python -m pytest -n auto tests/test_kills.py

newest:  ## all tests with the newest versions that pyproject.toml allows, in .venv-newest
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager --editable '.[dev]'
	.venv-newest/bin/python -m pip freeze --exclude-editable
	.venv-newest/bin/python -m pytest -n auto

page-test: .venv/dev build/page-test  ## the page of `bothways page` in Chromium, with screenshots in build/page-test/; needs node and chromium
	$(BIN)/python tests/browser/page.py --out build/page-test

build/page-test: tests/browser/drive.mjs
	npm install --no-save --no-audit --no-fund --silent --prefix $@ playwright-core@1.65.1
	@touch $@

page-vendor: .venv/dev  ## take the page's ONNX Runtime from npm, at the version of the Makefile
	rm -rf build/ort && mkdir -p build/ort $(RUNTIME)
	cd build/ort && npm pack --silent onnxruntime-web@$(ORT_WEB) && tar xzf *.tgz
	sed '/^\/\/# sourceMappingURL/d' build/ort/package/dist/ort.wasm.bundle.min.mjs > $(RUNTIME)/ort.js
	gzip -9 -n -c build/ort/package/dist/ort-wasm-simd-threaded.wasm > $(RUNTIME)/ort.wasm.gz
	$(BIN)/python -c "import onnxruntime, pathlib, shutil, sys; home = pathlib.Path(onnxruntime.__file__).parent; \
		[shutil.copyfile(home / name, pathlib.Path(sys.argv[1], name)) for name in ('LICENSE', 'ThirdPartyNotices.txt')]" $(RUNTIME)

check: .venv/dev audit  ## lint, format, types, known vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit: .venv/dev  ## known vulnerabilities of the installed packages, where a database can be reached
	$(BIN)/python tools/audit.py

sbom: .venv/core  ## the software bill of materials of .venv, as CycloneDX
	$(BIN)/python tools/sbom.py --extras torch --out build/bothways.cdx.json

hashes: .venv/dev  ## hashes/ anew from constraints.txt: make hashes INDEX=address of a package index
	$(BIN)/python tools/hashes.py --index $(INDEX)

locked: .venv/pip  ## .venv as constraints.txt says, each file but torch's compared with its hash
	$(PIP) --require-hashes --no-deps --requirement hashes/dev.txt
	$(PIP) --no-deps torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch .venv/core .venv/dev

docs: .venv/dev  ## the documentation as a site, in site/
	$(BIN)/mkdocs build --strict --quiet --site-dir site

fuzz: .venv/dev  ## random and damaged inputs, each in a fork with limits; ten minutes
	$(BIN)/python tests/fuzz.py --minutes 10

bench: .venv/dev  ## ratios against transformers on this machine; see benchmarks/ for the GPU
	$(BIN)/python benchmarks/encoder.py

clean:  ## remove what make built
	rm -rf .venv .venv-newest site build src/*.egg-info

.venv/pip: 
	$(PYTHON) -m venv .venv
	@touch $@

.venv/core: .venv/pip pyproject.toml constraints.txt
	$(PIP) --editable '.[torch]'
	@touch $@

.venv/dev: .venv/pip pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	@touch $@ .venv/core
