# `make demo` and `make test` need nothing but Python 3.11 with pip, a C++ compiler and make: they build .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
LAB := $(VENV)/.lab
READY := $(VENV)/.ready

.PHONY: demo docs test quick lint types unit wheel clean

demo: $(LAB)
	$(BIN)/sparseopt demo

# Everything.
test: lint types unit

# What a change can be tried with while it is made: without the type checker, and without the tests that need minutes.
quick: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow"

unit: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/basedpyright

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: $(READY)
	$(BIN)/python -m build --wheel

# What the commands need. Modules are compiled when they are imported: of 12,000 files the demo imports 1,700.
$(LAB): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e '.[lab]'
	touch $@

# What tests, documentation and releases need besides; there, many processes import, and some may not write.
$(READY): $(LAB)
	$(INSTALL) -e '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # some packages bring files for other Pythons
	touch $@

clean:
	rm -rf $(VENV) .venv-second .venv-oldest build dist site .pytest_cache .ruff_cache .hypothesis
