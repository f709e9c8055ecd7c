#!/usr/bin/env bash
# Transformer++, what the EBTs of this folder are compared with: the same size, data and number of steps.
# On a CPU: bash job_scripts/nlp/pretrain/baseline_transformer.sh --model_size 4xs --context_length 64 --no_wandb
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/../../environment.sh"
exec "${python:?}" train_model.py --run_name baseline_transformer --model_name baseline_transformer --model_size xxs --context_length 256 "$@"
