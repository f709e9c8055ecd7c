"""toylab.mixture whose pictures fail after they were begun."""

from __future__ import annotations

from tasks import Showing
from toylab.mixture import MixtureTask


class FailingTask(MixtureTask):
    name = "toylab.failing"

    def show_step(self, showing: Showing) -> None:
        super().show_step(showing)
        raise OSError(28, "No space left\non device")


TASK = FailingTask()
