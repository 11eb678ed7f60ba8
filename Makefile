# Outlast. Needs: Linux, Python 3.11 with venv, make. Nothing else, and nothing outside this folder.

# Debian calls it python3.11; elsewhere python3 may be it. tools/setup_venv.py refuses any other version.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
BIN := .venv/bin
# -P: the tests see the installed package, as a user does, not this checkout.
PYTEST := TEST_INSTALLED=1 $(BIN)/python -P -m pytest
# Everything: in two processes, each with its lanes (tests/lanes.py).
SIDE_BY_SIDE := --numprocesses 2 --dist loadscope

# Arguments: ARGS for serve, claude and bench, T for test, N and SEED for simulate, FAULTS, RUNS, NODES and SEED for chaos.
ARGS ?=
T ?=
N ?= 1000
SEED ?= 0
FAULTS ?= 100
RUNS ?= 8
NODES ?= 1
UV ?= uv

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev run test test-long check fmt claude bench simulate chaos wheel pin clean

help: ## Show what there is.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: # Make .venv with what `outlast` needs, and install it there.
	@$(PYTHON) tools/setup_venv.py run

setup-dev: # The same with what the tests need.
	@$(PYTHON) tools/setup_venv.py dev

run: setup ## Start an instance in the foreground (ARGS='--port 8001').
	@exec $(BIN)/outlast serve $(ARGS)

test: setup-dev ## Run the tests (T='tests/unit -k offset').
	@$(PYTEST) $(if $(T),$(T),$(SIDE_BY_SIDE))

test-long: setup-dev ## Run the tests, the long ones too.
	@$(PYTEST) --long $(if $(T),$(T),$(SIDE_BY_SIDE))

check: setup-dev ## Lint, format, types, layers.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

fmt: setup-dev ## Format, and fix what the linter can.
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

claude: setup-dev ## Run the real Claude Code in a container, on a stub of its model (ARGS=--kill: and kill its driver).
	@$(BIN)/python tools/claude_in_docker.py $(ARGS)

bench: setup-dev ## Measure; writes build/bench.json.
	@mkdir -p build
	@$(BIN)/python bench $(ARGS)

simulate: setup-dev ## Run N simulated histories from SEED on; a failure prints how to repeat it.
	@$(BIN)/python -P -m runtime.testing.simulate --runs $(N) --seed $(SEED) --jobs 0

chaos: setup-dev ## Break FAULTS things on NODES hosts (1 or 3) under RUNS runs; writes build/chaos.json.
	@$(BIN)/python chaos/chaos.py --faults $(FAULTS) --runs $(RUNS) --nodes $(NODES) --seed $(SEED)

wheel: setup-dev ## Build build/dist/outlast-*.whl.
	@$(BIN)/python tools/build_wheel.py build/dist

pin: ## Maintainers: pin the requirements anew (needs uv).
	$(UV) pip compile $(PIN) -o requirements/run.txt pyproject.toml requirements/build.in
	$(UV) pip compile $(PIN) -o requirements/dev.txt --extra dev -c requirements/run.txt pyproject.toml requirements/build.in

# One set of versions for all of Linux; no index and no path of the machine that pinned.
PIN := --quiet --upgrade --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate

clean: ## Remove what was built and cached (.venv and .outlast stay).
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find runtime actors serve_app tests tools bench chaos -name __pycache__ -type d -prune -exec rm -rf {} +
