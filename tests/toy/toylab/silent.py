"""toylab.mixture without pictures during training."""

from __future__ import annotations

from tasks import Task
from toylab.mixture import MixtureTask


class SilentTask(MixtureTask):
    name = "toylab.silent"
    show_step = Task.show_step


TASK = SilentTask()
