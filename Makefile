# Everything a person or a CI machine does with this checkout, with nothing but Python ≥ 3.11, make and the
# package registry. Each environment holds exactly what its lock file pins, and is made anew when the lock or
# pyproject.toml changed or its making was interrupted: the stamp inside it is written last.
#
#   make demo                    an environment of its own, then `burnish demo` (DEMO_ARGS=--tiny for the quick one)
#   make test                    an environment of its own, then the tests (PYTEST_ARGS='tests/test_packaging.py -x')
#   make test PYTHON=python3.12  the same with another Python, in an environment beside the first

PYTHON ?= python3
DEMO_ARGS ?=
PYTEST_ARGS ?=
LOCK_ARGS ?= --upgrade

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
SUFFIX := $(if $(filter python3,$(PYTHON)),,-$(VERSION))
RUN_ENV := .venv$(SUFFIX)
DEV_ENV := .venv-dev$(SUFFIX)
ORACLE_ENV := .venv-oracle$(SUFFIX)
LOCK_ENV := .venv-lock
RUN_STAMP := $(RUN_ENV)/installed-on-$(VERSION)
DEV_STAMP := $(DEV_ENV)/installed-on-$(VERSION)
ORACLE_STAMP := $(ORACLE_ENV)/installed-on-$(VERSION)

# Bytecode is compiled for what is imported, when it is: compiling all of sympy and transformers would double the wait.
PIP_INSTALL = bin/python -m pip install --quiet --no-compile --disable-pip-version-check
THIS_PACKAGE = --no-deps --no-build-isolation --editable .

.PHONY: help demo test lint format types contracts docs lock oracle oracle-environment build clean check-python

help:
	@sed -n 's/^#   //p' Makefile
	@echo 'also: lint, format, types, contracts, docs, lock, oracle, build, clean (see CONTRIBUTING.md)'

demo: $(RUN_STAMP)
	$(RUN_ENV)/bin/burnish demo $(DEMO_ARGS)

test: $(DEV_STAMP)
	$(DEV_ENV)/bin/python -m pytest $(PYTEST_ARGS)

lint: $(DEV_STAMP)
	$(DEV_ENV)/bin/ruff check .
	$(DEV_ENV)/bin/ruff format --check .

format: $(DEV_STAMP)
	$(DEV_ENV)/bin/ruff check --fix .
	$(DEV_ENV)/bin/ruff format .

types: $(DEV_STAMP)
	$(DEV_ENV)/bin/mypy

contracts: $(DEV_STAMP)
	$(DEV_ENV)/bin/lint-imports --no-logo --cache-dir build/import-linter

# The pages of docs/ that are generated from the code (a test tells when they are out of date).
docs: $(DEV_STAMP)
	$(DEV_ENV)/bin/python -m burnish.config.reference > docs/configuration.md.new
	mv docs/configuration.md.new docs/configuration.md

# Compares with torch, which only this environment ever holds.
oracle-environment: $(ORACLE_STAMP)
oracle: $(ORACLE_STAMP)
	$(ORACLE_ENV)/bin/python -m pytest -m oracle $(PYTEST_ARGS)

build: $(DEV_STAMP)
	rm -rf dist
	$(DEV_ENV)/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist

# One universal resolution per purpose: JAX 0.10 for Python 3.11 and the newest JAX for 3.12+ stand in the same
# file, told apart by environment markers. `make lock LOCK_ARGS=` keeps every pin that still fits.
LOCK = $(LOCK_ENV)/bin/uv pip compile pyproject.toml --group build --universal --python-version 3.11 \
	--fork-strategy requires-python --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' \
	--quiet $(LOCK_ARGS)
lock: check-python
	test -x $(LOCK_ENV)/bin/uv || ($(PYTHON) -m venv --clear $(LOCK_ENV) && $(LOCK_ENV)/$(PIP_INSTALL) uv)
	$(LOCK) --extra dev --output-file requirements/dev.txt
	$(LOCK) --constraints requirements/dev.txt --output-file requirements/run.txt

clean:
	rm -rf .venv .venv-3.* .venv-dev* .venv-oracle* .venv-lock build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

check-python:
	@test -n "$(VERSION)" || { echo "'$(PYTHON)' does not run. Name one that does: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "burnish needs Python 3.11 or newer and '$(PYTHON)' is $(VERSION). Name a newer one: make PYTHON=python3.12" >&2; exit 2; }

$(RUN_STAMP): pyproject.toml requirements/run.txt | check-python
	@echo "Making $(RUN_ENV) with what requirements/run.txt pins (about 900 MB on disk) ..."
	@$(PYTHON) -m venv --clear $(RUN_ENV)
	@$(RUN_ENV)/$(PIP_INSTALL) --require-hashes --requirement requirements/run.txt
	@$(RUN_ENV)/$(PIP_INSTALL) $(THIS_PACKAGE)
	@touch $@

$(DEV_STAMP): pyproject.toml requirements/dev.txt | check-python
	@echo "Making $(DEV_ENV) with what requirements/dev.txt pins (about 1.2 GB on disk) ..."
	@$(PYTHON) -m venv --clear $(DEV_ENV)
	@$(DEV_ENV)/$(PIP_INSTALL) --require-hashes --requirement requirements/dev.txt
	@$(DEV_ENV)/$(PIP_INSTALL) $(THIS_PACKAGE)
	@touch $@

$(ORACLE_STAMP): pyproject.toml requirements/dev.txt | check-python
	@echo "Making $(ORACLE_ENV) with what requirements/dev.txt pins, and torch ..."
	@$(PYTHON) -m venv --clear $(ORACLE_ENV)
	@$(ORACLE_ENV)/$(PIP_INSTALL) --require-hashes --requirement requirements/dev.txt
	@$(ORACLE_ENV)/$(PIP_INSTALL) torch==2.13.0
	@$(ORACLE_ENV)/$(PIP_INSTALL) $(THIS_PACKAGE)
	@touch $@
