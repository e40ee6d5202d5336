# Every target installs what it lacks into .venv; nothing outside the clone but a package registry is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
export PIPEWAVE_DATA ?= ../shared/data
# Compiled once: without it every process of the tests compiles what it imports, 14 s for the tests alone.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: accuracy demo setup test test-all test-alone test-lowest test-pythons test-train test-triton test-web bench lint types train mutate docs test-docs docs-update e2e comparison chaos manifest moe-loop pictures web clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(PIP) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) -e '.[dev]'
	touch $@

# The CPU build of torch is all that training and tests need; an index without it falls back to the default one.
$(VENV)/.train: $(VENV)/.dev
	$(PIP) 'torch==2.13.0' || $(PIP) torch
	$(PIP) -e '.[train]'
	touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) -e '.[docs]'
	touch $@

$(VENV)/.triton: $(VENV)/.train
	$(PIP) triton
	touch $@

$(VENV)/.web: $(VENV)/.dev
	$(PIP) -e '.[web-test]'
	sh tests/web/browser/chromium.sh
	touch $@

# Everything that any stage of .ci/run installs or builds, so that stages may run beside one another.
setup: $(VENV)/.dev $(VENV)/.train $(VENV)/.triton $(VENV)/.docs $(VENV)/.web build/packages/.built

build/packages/.built: pyproject.toml $(shell git ls-files src) | $(VENV)/.dev
	rm -rf build/packages
	$(PIP) build
	$(BIN)/python -m build --outdir build/packages .
	touch $@

demo: $(VENV)/.core
	$(BIN)/python -m bench.demo

# What needs torch, a browser, the documentation's tools or an installed wheel has a target of its own.
ELSEWHERE := training with_triton web docs notebooks packaging
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) -p no:schemathesis
WORKERS ?= 2

# Three minutes on two cores, for every change. For landing: every test of these folders, slow ones too, and each law
# with all of its examples.
test: $(VENV)/.dev
	$(PYTEST) tests -m "not slow" --hypothesis-profile quick $(ELSEWHERE:%=--ignore tests/%)

test-all: $(VENV)/.dev
	$(PYTEST) tests $(ELSEWHERE:%=--ignore tests/%)

# `make test` as who clones the repository runs it: beside nothing that other targets have installed.
ALONE := .venv-alone
test-alone:
	$(MAKE) VENV=$(ALONE) test

test-train: $(VENV)/.train
	$(PYTEST) tests/training

test-triton: $(VENV)/.triton
	TRITON_INTERPRET=1 $(PYTEST) tests/with_triton

# The wheel as built from the sdist, beside the oldest dependencies that pyproject.toml admits.
LOWEST := .venv-lowest
test-lowest: build/packages/.built
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(BIN)/python tests/packaging/lowest.py pyproject.toml > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check -c $(LOWEST)/lowest.txt build/packages/*.whl
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check pytest hypothesis -c $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pytest tests/packaging tests/calls tests/gpus tests/files tests/prediction/test_cases.py

# The wheel, and the sdist on its own, beside today's dependencies on every Python that is here, of those that
# pyproject.toml admits; the last line says which they were.
PYTHONS ?= 3.11 3.12 3.13 3.14
test-pythons: build/packages/.built
	set -e; ran=; for version in $(PYTHONS); do \
	  python=$$($(BIN)/python tests/packaging/pythons.py $$version); \
	  if [ -z "$$python" ]; then echo "Python $$version is not here: not tested"; continue; fi; \
	  for package in build/packages/*.whl build/packages/*.tar.gz; do \
	    rm -rf .venv-$$version; "$$python" -m venv .venv-$$version; \
	    .venv-$$version/bin/pip install --quiet --disable-pip-version-check $$package pytest hypothesis; \
	    .venv-$$version/bin/python -m pytest -q tests/packaging; \
	  done; \
	  .venv-$$version/bin/python -m pytest -q tests/calls tests/gpus tests/files tests/prediction/test_cases.py; \
	  ran="$$ran $$version"; \
	done; echo "tested on Python$$ran"; test -n "$$ran"

# A browser paints when it likes: what fails there counts once it fails three times; repeats are listed.
test-web: export PIPEWAVE_FUZZ ?= 60
test-web: $(VENV)/.web
	$(BIN)/python -m pytest tests/web --ignore tests/web/browser
	$(BIN)/python -m pytest tests/web/browser -rsR --reruns 2

# The page is committed as built, so that nobody who installs or tests pipewave needs node; after a change of web/: make web
web:
	cd web && npm ci && npm run build
	$(BIN)/python -m pipewave.files.manifest --write

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test-docs: $(VENV)/.docs
	$(PYTEST) tests/docs tests/notebooks

# After weights or messages change: what the pages show, their figures and the notebooks, made again. Read the diff.
docs-update: $(VENV)/.docs
	$(BIN)/python -m docs.tools
	$(BIN)/python -m docs.tools.figures
	$(BIN)/python -m docs.tools.notebooks

# After the page or the weights change: what README and docs show of it, taken anew. Needs Chromium.
pictures: $(VENV)/.dev
	$(PIP) -e '.[web-test]'
	$(BIN)/python -m docs.tools.pictures

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# Nets that are trained on until more work takes no less time.
IN_ORDER := gemm gemm_fp8 gemm_block gemm_fp4 attention_prefill mla_generation rmsnorm silu_and_mul elementwise
train: $(VENV)/.train
	$(BIN)/python -m train all
	$(BIN)/python -m pipewave.files.manifest --write
	$(BIN)/python -m train refresh $(addprefix --net ,$(IN_ORDER))
	$(BIN)/python -m pipewave.files.manifest --write
	$(BIN)/python -m train.cold
	$(BIN)/python -m pipewave.files.manifest --write
	$(BIN)/python -m train.another_day --write
	$(BIN)/python -m pipewave.files.manifest --write
	$(BIN)/python -m train.amd
	$(BIN)/python -m docs.tools.training_tables

# Do the tests notice a changed law? A sample of mutants of physics/, step/ and prediction/, and those that have names.
mutate: $(VENV)/.dev
	$(PIP) -e '.[mutate]'
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m qa.mutate --json qa/results/mutants.json
	$(BIN)/python -m qa.mutate --named --json qa/results/mutants.json

bench: $(VENV)/.core
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m bench

# After weights change: engine constants refitted, then the tables of whole steps and whole runs.
e2e: $(VENV)/.core
	$(BIN)/python -m train.step_fit --write
	$(BIN)/python -m studies.e2e_vllm --baseline studies/results/e2e_aiconfigurator.json --json studies/results/e2e_vllm.json
	$(BIN)/python -m studies.e2e_pipeweave --json studies/results/e2e_pipeweave.json
	$(BIN)/python -m studies.e2e_kernels --json studies/results/e2e_kernels.json --markdown docs/generated/traces.md

# An hour of what breaks it: 40,000 wrong inputs, 5,000 flipped bytes, 20,000 pairs in order, 300 kills, 200 users, a long run, every substitution.
chaos: $(VENV)/.dev
	$(BIN)/python -m qa.chaos --json qa/results/chaos.json

# After any packaged file that is not code was changed: its checksum. Reading refuses what the manifest does not know.
manifest: $(VENV)/.core
	$(BIN)/python -m pipewave.files.manifest --write

# How far every implementation of the public corpus stands above the shipped ceilings.
comparison: $(VENV)/.train
	$(PIP) -e '.[plot]'
	$(BIN)/python -m studies.stack_comparison --json studies/results/stack_comparison.json --page docs/stack-comparison.md

# After weights change: which fused MoE layers lie above their ceilings, and docs/moe-loop.md's tables and figure.
moe-loop: $(VENV)/.dev
	$(PIP) -e '.[plot]'
	$(BIN)/python -m studies.moe_loop.report --write

# After weights or tables change: what `pipewave accuracy` publishes, and docs/accuracy.md with its figures.
accuracy: $(VENV)/.train
	$(PIP) -e '.[plot]'
	$(BIN)/python -m docs.tools.accuracy_page --data $(PIPEWAVE_DATA) --write

clean:
	rm -rf $(VENV) $(LOWEST) $(ALONE) .venv-3.* build dist site .pytest_cache .mypy_cache .ruff_cache
