#!/usr/bin/env bash
# Looks through the data of a run: speed, faults, leaks. Takes the same flags as train_model.py and trains nothing.
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/../environment.sh"
exec "${python:?}" train_model.py --debug_dataloader --no_wandb "$@"
