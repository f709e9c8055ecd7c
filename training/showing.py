"""Pictures during training: `Task.show_step` after about a dozen validations, without a trace in the training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytorch_lightning as pl
import torch

from config import RunConfig
from core.errors import or_report
from data.module import DataModule
from models.model import Model
from runs.pictures import pictures_by_step
from runs.process import signals
from tasks import Showing, Task
from training.checkpoints import rng_state, set_rng_state
from training.lightning import batches_begun
from training.wandb import WandbLogger

MOST_SHOWN = 12  # validations of a run that are shown, besides the one before its first step
MOST_SHARE = 0.1  # of an attempt's time that may be spent on it
FREE_SECONDS = 30.0  # that may be spent on it in any case


class StepShowing(pl.Callback):
    """Calls `Task.show_step` on the first process; which validations depends on their place in the run alone, so a
    resumed run draws the same pictures."""

    def __init__(
        self,
        task: Task,
        config: RunConfig,
        folder: Path,
        data: DataModule,
        total_batches: int,
        logger: WandbLogger | None,
        print_line: Callable[[str], None],
    ) -> None:
        self.task, self.config, self.folder, self.data = task, config, folder, data
        self.total_batches = total_batches
        self.logger = logger
        self.print_line = print_line
        self.began = time.monotonic()
        self.seconds = 0.0  # spent on it
        self.is_slow = False  # and so not all are drawn
        self.reported: set[str] = set()  # errors, each printed once

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero or signals.received is not None or trainer.state.fn != "fit":
            return
        if not trainer.should_stop and not self.is_due(trainer):
            return
        began, step = time.monotonic(), trainer.global_step
        if not trainer.should_stop and self.seconds > FREE_SECONDS + MOST_SHARE * (began - self.began):
            if not self.is_slow:
                self.print_line(f"pictures during training took {self.seconds:.0f} s so far: some are left out.")
            self.is_slow = True
            return
        assert isinstance(pl_module, Model)
        showing = Showing(self.config, self.data, pl_module, self.folder, step, self.print_line)
        with undisturbed(pl_module):
            or_report("the model during training", partial(self.task.show_step, showing), self.reported)
        if self.logger is not None:
            files = {name: files[step] for name, files in pictures_by_step(self.folder).items() if step in files}
            self.logger.log_pictures(files, step)
        self.seconds += time.monotonic() - began

    def is_due(self, trainer: pl.Trainer) -> bool:
        """Whether this validation is the first of its twelfth of the run."""
        if trainer.sanity_checking:
            return True
        batches, interval = batches_begun(trainer), int(trainer.val_check_interval)
        return batches * MOST_SHOWN // self.total_batches > (batches - interval) * MOST_SHOWN // self.total_batches


@contextmanager
def undisturbed(model: Model) -> Iterator[None]:
    """The model in eval mode, without gradients. Afterwards random generators, modes, gradients and what the model
    measured are as before."""
    generators, measured = rng_state(), dict(model.measured)
    modes = {module: module.training for module in model.modules()}
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    for parameter in gradients:
        parameter.grad = None
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            model.eval()
            yield
    finally:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        for module, is_training in modes.items():
            module.training = is_training
        model.measured = measured
        set_rng_state(generators)
