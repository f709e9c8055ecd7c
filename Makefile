# What a developer does, one word each; .ci/run does the same.
PYTHON ?= python3
BIN := .venv/bin
OWN := it is left as it is. For one of this folder's own: make clean setup

.DEFAULT_GOAL := help
.PHONY: help setup train train-reasoning test golden lint bench slurm-up slurm-down clean own

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/installed  ## make .venv and install what is pinned in setup.cfg; instant when nothing changed

# torch comes first and alone: what depends on it must find the pinned build, not choose one.
.venv/installed: setup.cfg pyproject.toml | own
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11: call make with PYTHON=python3.11 or newer."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[test]'
	@touch $@

# Installing into another checkout's environment would wire that checkout to this folder.
own:
	@test ! -L .venv || { echo ".venv is a link to $$(readlink .venv), which is another folder's: $(OWN)"; exit 1; }
	@test ! -x $(BIN)/python || { grep -qsF "$(CURDIR)/$(BIN)/python" $(BIN)/pip && \
		test "$$($(BIN)/python -c 'import sys; print(sys.prefix)')" = "$(CURDIR)/.venv"; } || \
		{ echo ".venv belongs to another folder, or was made in one: $(OWN)"; exit 1; }

train: setup  ## train an EBT, then its Transformer++, on text that Python carries; flags in ARGS="--max_steps 100"
	$(BIN)/python train_model.py --no_wandb --compare_baseline $(ARGS)

train-reasoning: setup  ## train four models of puzzles with equal FLOPs, compare them, and watch one being solved
	$(BIN)/python -m launch sweep job_scripts/reasoning/reasoning.yaml --cluster local $(ARGS)
	$(BIN)/python -m inference solve --run reasoning-EBT-confirm --candidates 1

test: setup  ## run all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

golden: setup  ## compare short runs with what is recorded in tests/golden, bit for bit; flags in ARGS="residual s1"
	$(BIN)/python -m tests.golden.record --check $(ARGS)

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .

bench: setup  ## measure speed and memory, as one table
	$(BIN)/python -m benchmarks $(ARGS)

slurm-up:  ## start a real Slurm of two nodes on this machine, to try jobs on; as root, with slurm-wlm and munge
	$(PYTHON) -m tests.slurm.cluster up

slurm-down:  ## stop it; nothing of it stays
	$(PYTHON) -m tests.slurm.cluster down

clean:  ## remove .venv and caches; runs in logs/ stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
