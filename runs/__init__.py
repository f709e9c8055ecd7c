"""The run folder: where everything about one run is written down."""

from runs.console import copy_output
from runs.folder import RunError, RunFolder
from runs.processes import is_first_process

__all__ = ["RunError", "RunFolder", "copy_output", "is_first_process"]
