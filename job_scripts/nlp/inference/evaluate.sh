#!/usr/bin/env bash
# Loss and perplexity of a trained model on its validation split; the newest run unless --run or --ckpt names another.
# bash job_scripts/nlp/inference/evaluate.sh --run ebt_s1 --split test
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/../../environment.sh"
exec "${python:?}" -m inference evaluate "$@"
