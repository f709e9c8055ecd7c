#!/usr/bin/env bash
# The paper's System 1: two long steps down the energy, each judged.
# On a CPU: bash job_scripts/nlp/pretrain/ebt_s1.sh --model_size 4xs --context_length 64 --max_steps 100 --no_wandb
set -euo pipefail
cd "$(dirname "$0")/../../.."
python=python
if [[ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" && -x .venv/bin/python ]]; then
    python=.venv/bin/python
fi
exec "$python" train_model.py --run_name ebt_s1 --model_name ebt --recipe s1 --model_size xxs "$@"
