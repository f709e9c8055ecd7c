# What a developer does, one word each; .ci/run does the same.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup train test lint bench slurm-up slurm-down clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/installed  ## make .venv and install what is pinned in setup.cfg; instant when nothing changed

# torch comes first and alone: what depends on it must find the pinned build, not choose one.
.venv/installed: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11: call make with PYTHON=python3.11 or newer."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

train: setup  ## train an EBT, then its Transformer++, on text that Python carries; flags in ARGS="--max_steps 100"
	$(BIN)/python train_model.py --no_wandb --compare_baseline $(ARGS)

test: setup  ## run all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .

bench: setup  ## measure speed and memory, as one table
	$(BIN)/python -m benchmarks $(ARGS)

slurm-up: setup  ## start a real Slurm of two nodes on this machine, to try jobs on; as root, with slurm-wlm and munge
	$(BIN)/python -m tests.slurm.cluster up

slurm-down: setup  ## stop it; nothing of it stays
	$(BIN)/python -m tests.slurm.cluster down

clean:  ## remove .venv and caches; runs in logs/ stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
