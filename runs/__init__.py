"""The run folder, logs/runs/RUN: everything about one run, written while it trains and read by every command later.

Writing: folder (makes, locks and resumes it), attempts (who worked on it and why it ended), process and ranks (this
process among those of the run), metrics (what its columns mean), wandb and notify.
Reading: run (one folder and its state), index (all folders, cached), query (--where), compare (which numbers may be
compared), and the commands of `python -m runs`: list, summary (show), diff, journal, rerun, manage, metrics (export),
pages/ and wandb (sync).
May import: core, config.
"""

from runs.folder import RunError, RunFolder
from runs.process import copy_output
from runs.ranks import is_first_process

__all__ = ["RunError", "RunFolder", "copy_output", "is_first_process"]
