# Two commands do all set-up on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
FLOWER := .venv.flower
COMPILED := $(wildcard src/discreet/core/generators/*.[ch] src/discreet/engine/model/*.c src/discreet/engine/factors/*.c src/discreet/engine/proof/calls/*.c)
# Stealing work leaves the tests of a file, and what they share, with one worker.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: run test test-all test-flower lint docs build reproduce bench clean

run: $(VENV)/.installed
	$(BIN)/discreet compare --data digits --epsilon 3 --delta 1e-5 --steps 60 --truth results/truth-table.json \
		--out runs/compare

test: $(VENV)/.installed-test lint
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.installed-test lint
	$(PYTEST)

# Flower needs older versions of some packages, so it has an environment of its own.
test-flower: $(FLOWER)/.installed
	OMP_NUM_THREADS=1 FLWR_TELEMETRY_ENABLED=0 $(FLOWER)/bin/python -m pytest -p no:cacheprovider \
		tests/training/test_rounds.py tests/integrations/test_flower.py

lint: $(VENV)/.installed-test
	$(BIN)/ruff check src tests research docs/site
	$(BIN)/ruff format --check src tests research docs/site
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The documentation site in build/site; warnings are errors.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# A wheel and a source archive in dist/.
build: $(VENV)/.installed-docs
	$(BIN)/python -m build --outdir dist

# make reproduce NAME=d2p2-table-2 [QUICK=1] [SEEDS=0,1] [OUT=folder]; without NAME it lists the experiments
reproduce: $(VENV)/.installed-research
	$(BIN)/python -m research.reproductions $(or $(NAME),--list) $(if $(filter-out 0,$(QUICK)),--quick) \
		$(if $(SEEDS),--seeds $(SEEDS)) $(if $(OUT),--out $(OUT))

# make bench [MODELS=mlp,cnn-d2p2] [MEMORY=1] [OUT=results/step-time.json]
bench: $(VENV)/.installed-bench
	$(BIN)/python -m research.benchmarks $(if $(MODELS),--models $(MODELS)) \
		$(if $(filter-out 0,$(MEMORY)),--memory) $(if $(OUT),--out $(OUT))

$(VENV)/.installed: pyproject.toml constraints.txt setup.py $(COMPILED)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt setup.py $(COMPILED)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@ $(VENV)/.installed

$(VENV)/.installed-research: pyproject.toml constraints.txt setup.py $(COMPILED)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[research]"
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints.txt setup.py $(COMPILED)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml constraints.txt setup.py $(COMPILED)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	touch $@ $(VENV)/.installed

$(FLOWER)/.installed: pyproject.toml constraints-flower.txt setup.py $(COMPILED)
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/pip install --quiet --disable-pip-version-check --no-deps -r constraints-flower.txt
	$(FLOWER)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

clean:
	rm -rf $(VENV) $(FLOWER) build dist .pytest_cache .mypy_cache .ruff_cache
