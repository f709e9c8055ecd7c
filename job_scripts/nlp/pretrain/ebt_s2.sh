#!/usr/bin/env bash
# The paper's System 2: short noisy steps of random length and number, the last one judged.
# On a CPU: bash job_scripts/nlp/pretrain/ebt_s2.sh --model_size 4xs --context_length 64 --max_steps 100 --no_wandb
set -euo pipefail
cd "$(dirname "$0")/../../.."
python=python
if [[ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" && -x .venv/bin/python ]]; then
    python=.venv/bin/python
fi
exec "$python" train_model.py --run_name ebt_s2 --model_name ebt --recipe s2 --model_size xxs "$@"
