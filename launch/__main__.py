"""`python -m launch COMMAND`: submit, monitor and control runs."""

from __future__ import annotations

import sys

from core.commands import dispatch

COMMANDS = {
    "submit": ("launch.submit:submit", "[JOB_SCRIPT] [flags]", "submit a run through submitit: Slurm, or this machine"),
    "sweep": ("launch.sweep:sweep", "FILE", "submit many runs from a YAML or CSV file; again submits what is left"),
    "queue": ("launch.queue:queue", "FILE", "run a list of jobs one after another on this machine"),
    "status": ("launch.status:status", "[RUN…]", "the state and progress of every run"),
    "why": ("launch.why:why", "RUN", "what happened to a run, in words"),
    "logs": ("launch.logs:logs", "RUN [-f]", "a run's log across its attempts"),
    "cancel": ("launch.control:cancel", "RUN…", "end runs; they are not queued again"),
    "requeue": ("launch.control:requeue", "RUN…", "put runs back into the queue; they resume from their last state"),
    "resubmit": (
        "launch.control:resubmit",
        "RUN [--set flag=value]",
        "the same run once more, or with changes",
    ),
    "doctor": ("launch.doctor:doctor", "", "find out in a minute what this cluster does to jobs"),
    "drill": ("launch.drill:drill", "[flags]", "interrupt a small run in every way and compare it bit for bit"),
    "execute": ("launch.submit:execute", "", ""),
    "prepare": ("launch.job:prepare_command", "", ""),
    "ended": ("launch.job:ended_command", "", ""),
    "begin": ("launch.job:begin_command", "", ""),
    "refused": ("launch.job:refused_command", "", ""),
}


def main(argv: list[str]) -> int:
    return dispatch("python -m launch", COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
