#!/usr/bin/env bash
# The paper's System 2: short noisy steps of random length and number, the last one judged.
# On a CPU: bash job_scripts/nlp/pretrain/ebt_s2.sh --model_size 4xs --context_length 64 --mcmc_step_size auto --no_wandb
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/../../environment.sh"
exec "${python:?}" train_model.py --run_name ebt_s2 --model_name ebt --recipe s2 --model_size xxs --context_length 256 "$@"
