#!/usr/bin/env bash
# Looks through the data of a run: speed, faults, leaks. Takes the same flags as train_model.py and trains nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=python
if [[ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" && -x .venv/bin/python ]]; then
    python=.venv/bin/python
fi
exec "$python" train_model.py --debug_dataloader --no_wandb "$@"
