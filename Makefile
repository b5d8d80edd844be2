# Two commands do all set-up on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

.PHONY: run test test-all lint bench clean

run: $(VENV)/.installed
	$(BIN)/discreet compare --data digits --epsilon 3 --delta 1e-5 --steps 120 --truth results/truth-table.json \
		--out runs/compare

test: $(VENV)/.installed-test lint
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.installed-test lint
	$(PYTEST)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check src tests research
	$(BIN)/ruff format --check src tests research
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.step

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
