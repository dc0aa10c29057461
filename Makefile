# `make demo` and `make test` are all a newcomer needs; each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MLSERVER := .venv-mlserver/.ready

.PHONY: help setup system demo docs dist test test-long fuzz lint types check clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) $(MLSERVER)  ## everything into .venv; the server we compare with into .venv-mlserver

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "L2H needs Python 3.11 or newer; set PYTHON=python3.11"; exit 1; }
	@echo "Once: everything into $(VENV), some minutes and 2.5 GB"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# MLServer needs older versions of what we use, so it has a place of its own.
$(MLSERVER): Makefile
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check 'mlserver==1.7.1' onnxruntime
	@touch $@

system:  ## as root on Debian or Ubuntu: the programs of the system that some tests need
	apt-get update
	apt-get install --yes --no-install-recommends chromium nginx-light postgresql

demo: $(READY)  ## train and judge a small system on handwritten digits, in about half a minute
	$(BIN)/l2h demo --out runs/demo --force

docs: $(READY)  ## the site: open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

EXTRAS :=
dist: $(READY)  ## wheel and sdist into dist/, tried with each extra (or EXTRAS="serve train") in an empty environment
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python .ci/dist.py $(EXTRAS)

# One thread each; bytecode is kept, since many tests start processes.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist worksteal
test: $(READY) $(MLSERVER)  ## the suite without its longest tests
	$(PYTEST) -n 2 -m "not long"

test-long: $(READY) $(MLSERVER)  ## the longest: whole trainings, a storm of faults, overload, long kills; all examples of properties
	L2H_ALL_EXAMPLES=1 $(PYTEST) -n 3 -m "(long or examples) and not alone"
	$(PYTEST) -n 0 -m alone

SECONDS := 600
fuzz: $(READY)  ## the readers of what comes from outside, guided by coverage, for SECONDS=600 each
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.fuzz --seconds $(SECONDS)

lint: $(READY)  ## ruff
	$(BIN)/ruff check src tests benchmarks examples docs/site.py deploy .ci
	$(BIN)/ruff format --check src tests benchmarks examples docs/site.py deploy .ci

types: $(READY)  ## mypy, strict
	$(BIN)/mypy
	$(BIN)/mypy examples

check: lint types docs test test-long  ## what CI runs

clean:  ## remove .venv and caches, keep runs
	rm -rf $(VENV) .venv-mlserver .pytest_cache .mypy_cache .ruff_cache .hypothesis
