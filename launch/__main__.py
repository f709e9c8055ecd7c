"""`python -m launch COMMAND`: what job scripts and people need around a run."""

from __future__ import annotations

import sys
from pathlib import Path

from config.errors import UserError
from launch.execute import begin, execute
from launch.prepare import check_progress, prepare

HELP = """\
python -m launch prepare [flags of train_model.py]   make a job's run folder, or find it again
python -m launch check_progress RUN_FOLDER           whether a job that was interrupted is worth queueing again
python -m launch execute [HEADER] JOB_SCRIPT [flags] what slurm_executor.sh does
python -m launch begin RUN_FOLDER                    note the job that takes up a run which is prepared already"""


def main(argv: list[str]) -> int:
    try:
        match argv:
            case ["-h" | "--help"]:
                print(HELP)
            case ["prepare", *flags]:
                print(prepare(flags))
            case ["check_progress", folder]:
                check_progress(Path(folder))
            case ["execute", *words]:
                return execute(words)
            case ["begin", folder]:
                begin(Path(folder))
            case _:
                print(HELP, file=sys.stderr)
                return 2
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
