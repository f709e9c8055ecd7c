# shellcheck shell=bash disable=SC2034
# Sourced by the job scripts: goes to the repo's root and names its Python, unless an environment is active already.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
python=python
if [[ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" && -x .venv/bin/python ]]; then
    python=.venv/bin/python
fi
