# shellcheck shell=bash
# Sourced after environment.sh: `under_slurm COMMAND…` runs COMMAND as the processes of this job, and queues the job again
# when it was interrupted. Outside of a job, and inside of its processes, it only runs COMMAND.

flags=("$@") # of the script that sources this
# Its number alone would stand for all tasks of an array.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-${SLURM_JOB_ID:-}}

in_batch_script() { # of a job, and not in one of its processes; EBT_STEP_OF may be that of a job which submitted this one
    [[ -n $job && ${EBT_STEP_OF:-} != "$job" ]]
}

may_requeue() { # whether Slurm would queue the job again: it runs, or it was preempted; not if somebody cancelled it
    local answer
    for _ in 1 2 3 4 5; do # the controller may be too busy to answer
        answer=$(scontrol show job "$job" --oneliner) && break
        sleep 2
    done
    [[ $answer =~ \ JobState=RUNNING\  ]] && return
    # PreemptMode=CANCEL: the job is ending, and Slurm would not queue it again by itself. Times compare as texts do.
    [[ $answer =~ \ JobState=COMPLETING\  && $answer =~ \ StartTime=([0-9T:-]+) ]] || return
    local start=${BASH_REMATCH[1]}
    [[ $answer =~ \ PreemptTime=([0-9T:-]+) && ! ${BASH_REMATCH[1]} < $start ]]
}

leave() { # with the status $1; a job that was interrupted is queued again
    local resumable=1 # an exit status: 0 if the job should be queued again
    if [[ -n ${EBT_JOB_RUN_DIR:-} ]]; then
        (($1 == 0)) ||
            "${python:?}" -m launch ended "$EBT_JOB_RUN_DIR" "$(readlink "/proc/$$/fd/2")" "$1" "${flags[@]}" && resumable=0
    elif [[ $1 =~ ^(75|138|143)$ ]]; then # a signal came before there was a folder
        resumable=0
    fi
    if (($1 && resumable == 0)) && may_requeue; then
        echo "job $job was interrupted and is queued again"
        if scontrol requeue "$job"; then
            sleep 600 # Slurm takes the job away in between
            exit "$1"
        fi
        echo "job $job could not be queued again: submit it once more with --resume_training_ckpt last"
    fi
    exit "$1"
}

under_slurm() {
    if ! in_batch_script; then
        if [[ -z $job${EBT_STEP_OF:-} ]] && type sbatch &>/dev/null; then
            echo "this is not a job of Slurm: it runs on this machine" >&2
            export EBT_STEP_OF=none # printed once, though a script may call another
        fi
        exec "$@"
    fi
    local step status
    echo "run folder  $EBT_JOB_RUN_DIR"
    if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
        export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # srun no longer takes it over by itself
    fi
    # Variables of an allocation in which sbatch was called; without them srun gives a step all that its job has.
    unset SLURM_CPU_BIND SLURM_EXPORT_ENV "${!SLURM_GPUS@}" "${!SLURM_TRES_PER_@}" SLURM_GRES SLURM_HINT \
        SLURM_THREADS_PER_CORE SLURM_DISTRIBUTION SLURM_OVERCOMMIT SLURM_MEM_BIND
    local memory=("${!SLURM_MEM_PER_@}")
    if ((${#memory[@]} > 1)); then # srun accepts one at most; without any, the step has the memory of its job
        unset "${memory[@]}"
    fi
    export EBT_STEP_OF=$job
    export EBT_RANDOM_SEED=${EBT_RANDOM_SEED:-$((RANDOM * 32768 + RANDOM))} # for --is_random_seed, one for all processes
    # The processes end together by themselves (training/peers.py); srun ends what is left of them a while later.
    export SLURM_WAIT=${SLURM_WAIT:-60}
    # shellcheck disable=SC2086 # several words
    srun --kill-on-bad-exit=0 ${EBT_SRUN:-} "$@" &
    step=$!
    until # a signal ends the waiting, not the step
        wait "$step"
        ! kill -0 "$step" 2>/dev/null
    do :; done
    wait "$step"
    status=$?
    echo "train_model.py ended with status $status"
    leave "$status"
}

# The script of a preempted job may get the signal too: it has to outlive its step, or the job counts as done.
if in_batch_script; then
    trap : TERM USR1
fi
