"""The settings of a run: typed fields, the command line and file that fill them, and every check of them.

May import: core.
"""

from .flags import SettingsError
from .parser import parse_command_line
from .settings import RunConfig

__all__ = ["RunConfig", "SettingsError", "parse_command_line"]
