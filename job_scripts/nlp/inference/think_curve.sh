#!/usr/bin/env bash
# What longer thinking gains: the loss of a trained EBT by its number of steps down the energy.
# bash job_scripts/nlp/inference/think_curve.sh --run ebt_s2
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/../../environment.sh"
exec "${python:?}" -m inference think-curve "$@"
