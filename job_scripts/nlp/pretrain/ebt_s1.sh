#!/usr/bin/env bash
# The paper's System 1: two long steps down the energy, each judged.
# On a CPU: bash job_scripts/nlp/pretrain/ebt_s1.sh --model_size 4xs --context_length 64 --mcmc_step_size auto --no_wandb
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/../../environment.sh"
exec "${python:?}" train_model.py --run_name ebt_s1 --model_name ebt --recipe s1 --model_size xxs --context_length 256 "$@"
