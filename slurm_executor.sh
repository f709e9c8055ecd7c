#!/usr/bin/env bash
# bash slurm_executor.sh [HEADER] JOB_SCRIPT [flags of train_model.py] [--slurm NAME=VALUE] [--after RUN] [--dry_run]
# Checks the script and its flags, keeps it with a snapshot of the code in logs/runs/, and submits it with what
# job_scripts/headers/HEADER.slurm asks Slurm for; without HEADER it runs in the foreground. The work is in launch/submit.py.
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/job_scripts/environment.sh"
exec "${python:?}" -m launch execute "$@"
