"""`python -m runs COMMAND`: find runs, understand them, compare them, repeat them."""

from __future__ import annotations

import sys

from core.commands import dispatch

COMMANDS = {
    "list": ("runs.list:list_runs", "", "all runs as a table: --where, --sort, --columns"),
    "show": ("runs.summary:show", "RUN", "one run: settings that matter, state, best and last numbers, notes"),
    "diff": ("runs.diff:diff", "A B", "what differs: settings, code, environment, data"),
    "best": ("runs.list:best", "[METRIC]", "the run with the best value"),
    "note": ("runs.journal:note", 'RUN "…"', "write into the journal: TRY, RESULT, IDEA, TODO or UPDATE"),
    "journal": ("runs.journal:journal", "", "all notes as one diary"),
    "todo": ("runs.journal:todo", "", "what was left to do or to try"),
    "rerun": ("runs.rerun:rerun", "RUN [--set flag=value]", "the same settings again as a new run"),
    "tag": ("runs.manage:tag", "RUN TAG…", "mark a run"),
    "archive": ("runs.manage:archive", "RUN…", "hide runs from list and best"),
    "rm": ("runs.manage:remove", "RUN…", "delete runs; asks first"),
    "export": ("runs.metrics:export", "RUN", "metrics as CSV, a row an epoch or every row"),
    "page": ("runs.pages:page", "", "write logs/index.html, where runs are compared in a browser"),
    "serve": ("runs.pages:serve", "", "the same, live, on this machine only"),
    "sync": ("runs.wandb:sync", "[RUN…]", "upload the W&B files of runs that trained offline"),
}


def main(argv: list[str]) -> int:
    return dispatch("python -m runs", COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
