# Two targets do everything: `make quickstart` and `make test`. Each installs into .venv first if that is not done yet.
PYTHON ?= python3
VENV ?= .venv
SEED ?= 1
PIP_ARGS ?=
MUTANTS ?=
BIN := $(VENV)/bin

.PHONY: help install bench-install quickstart test test-quick mutants check format lint types doctest constraints clean

help:
	@echo "make quickstart [SEED=2]   cold start, then GSPO, on a tiny model: about a minute on a CPU"
	@echo "make test                  the whole test suite"
	@echo "make test-quick            without the tests marked slow"
	@echo "make mutants               break the mathematics in every place and see that the tests notice (docs/mutants.md)"
	@echo "make bench-install         what comparisons with other frameworks need (TRL)"
	@echo "make check                 ruff, mypy --strict, doctests, pre-commit's configuration"
	@echo "make format                let ruff format and fix"
	@echo "make constraints           write the installed versions to constraints.txt"

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Python 3.11 or newer is needed; give one with: make PYTHON=python3.12 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev,data]'
	@touch $@

bench-install: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[bench]'

quickstart: install
	$(BIN)/gspo fit --config configs/quickstart.yaml --seed_everything $(SEED)

test: install
	$(BIN)/python -m pytest

test-quick: install
	$(BIN)/python -m pytest -m "not slow"

mutants: install
	$(BIN)/python tools/mutants.py $(MUTANTS)

check: install lint types doctest
	$(BIN)/pre-commit validate-config .pre-commit-config.yaml

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

doctest: install
	$(BIN)/python -m pytest gspo_lightning --durations=0

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: install
	{ echo "# Tested versions: pip install -c constraints.txt -e '.[dev,data]'. Regenerate with: make constraints"; \
	  $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.txt

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
