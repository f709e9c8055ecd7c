# shellcheck shell=bash disable=SC2034,SC2317
# Sourced by the job scripts: goes to the repo's root, sets $python, and defines functions for the commands of a header.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
python=$PWD/job_scripts/python

find_module() { # `module` is often a function of login shells alone; without any, the usual `module purge` does nothing
    local file
    for file in "${MODULESHOME:-}/init/bash" /etc/profile.d/{modules,lmod,z00_lmod}.sh; do
        # shellcheck source=/dev/null
        if ! type module &>/dev/null && [[ -r $file ]]; then source "$file"; fi
    done
    type module &>/dev/null || module() {
        [[ " $* " == *" purge "* ]] || { echo "there is no \`module\` on $(uname -n)" >&2 && return 127; }
    }
}

header_failed() { # NAME STATUS LINE: ends a job whose header has a command that failed, and records it in the run
    if [[ " ${FUNCNAME[*]} " == *" source "* ]]; then return; fi # a file that the header reads decides for itself
    local message
    message="$1: \`$(sed -n "$3p" "$0")\` ended with status $2; correct that line, or add || true where it may fail"
    if [[ -n ${SLURM_JOB_ID:-} && -n ${EBT_JOB_RUN_DIR:-} ]]; then
        "$python" -m launch refused "$EBT_JOB_RUN_DIR" "$message."
    fi
    echo "$message" >&2
    exit 1
}
