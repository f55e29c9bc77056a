# Every target sets up .venv by itself: make demo · make test · make lint · make bench
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# processes for the tests; each has torch in memory
JOBS ?= 2
# seconds for one test: one that hangs is to fail, and to show where it hangs
PATIENCE ?= 300

.PHONY: test lint bench demo clean

test: lint
	$(BIN)/pytest -n $(JOBS) --timeout $(PATIENCE)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/cpu.py

demo: $(READY)
	$(BIN)/python examples/demo.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis demo
