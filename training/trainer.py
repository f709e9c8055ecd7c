"""Settings to a Lightning Trainer with our callbacks; nothing here knows which model it trains."""

from __future__ import annotations

import ctypes
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.profilers import AdvancedProfiler, Profiler, PyTorchProfiler, SimpleProfiler

from config import RunConfig
from config.record import to_dict, values_of
from config.task import Measure, loss_of
from data.module import DataModule
from models.model import Model
from runs import RunFolder, is_first_process
from runs.attempts import Attempt
from runs.checkpoints import newest_checkpoint
from runs.process import EXIT_RESUMABLE
from runs.threads import limit_threads, watch_shared_cores
from tasks import Task
from training.checkpoints import AtomicCheckpointIO, Checkpoints
from training.cost import Cost, costs_if_counted
from training.debugging import Anomaly, GarbageCollection, UnusedParameters
from training.devices import check_world, environments, on_gpu, trainer_devices
from training.divergence import DivergenceGuard, RollbackRequested, restore_before
from training.fault_injection import fault_injector
from training.hang_watch import HangWatch
from training.health import AlarmContext, Alarms
from training.interruption import InterruptionCallback
from training.lightning import add_callbacks, add_logger, batches_done, wait_for_all_processes
from training.optimizers import optimizer_and_schedule, warm_up_steps
from training.peers import Peers
from training.progress import Heartbeat, Progress
from training.recorder import MetricsFile, Recorder, record_model
from training.showing import StepShowing
from training.stopping import EarlyStop, StopAtEnd
from training.usage import Usage
from training.wandb import Histograms, WandbLogger, wandb_logger

CALIBRATION_ROWS = 8
VALIDATIONS = 10  # of a run, where --val_check_interval is not given
PRECISIONS: dict[str, Any] = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def prepare_process(config: RunConfig) -> None:
    """What has to be set before any tensor is made."""
    configure_malloc()
    torch.set_flush_denormal(True)  # softmax tails are denormal: worth 2x on a CPU
    torch.set_float32_matmul_precision(config.trainer.set_matmul_precision)
    pl.seed_everything(config.trainer.seed, workers=True, verbose=False)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")  # --debug_dataloader measures that
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")  # the last step is always logged
    warnings.filterwarnings("ignore", message=".*srun. command is available.*")  # a run without srun is no mistake
    for package in ("pytorch_lightning", "lightning_fabric"):  # lists of devices, advertisements
        logging.getLogger(f"{package}.utilities.rank_zero").setLevel(logging.WARNING)
    limit_threads()
    watch_shared_cores(partial(print, file=sys.stderr))


def configure_malloc() -> None:
    """Let glibc keep memory that a step frees: asking the kernel for it again costs a tenth of a step or more."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # malloc.h
        for option, size in ((mmap_threshold, 2**30), (trim_threshold, 2**31 - 1), (top_pad, 2**26)):
            mallopt(option, size)


def profiler(config: RunConfig, folder: Path) -> Profiler | None:
    """--profiler; its report is a file in the run folder."""
    kind = config.debugging.profiler
    if kind is None:
        return None
    if kind == "simple":
        return SimpleProfiler(dirpath=folder, filename="profile")
    if kind == "advanced":
        return AdvancedProfiler(dirpath=folder, filename="profile", line_count_restriction=40)
    schedule = torch.profiler.schedule(wait=2, warmup=1, active=3)
    return PyTorchProfiler(
        dirpath=folder, filename="profile", schedule=schedule, row_limit=30, sort_by_key="cpu_time_total"
    )


def batch_limit(value: float | None) -> int | float | None:
    """Lightning's form of a limit: None is all, below 1 a share, above a number of batches."""
    if value is None or value == 1:
        return None
    return int(value) if value > 1 or value == 0 else float(value)


def validation_interval(config: RunConfig, batches_per_epoch: int, total_batches: int) -> int:
    """Batches between validations, counted over the whole run."""
    settings = config.trainer
    if settings.check_val_every_n_epoch is not None:
        return settings.check_val_every_n_epoch * batches_per_epoch
    if settings.val_check_interval is None:
        return max(1, -(-total_batches // VALIDATIONS))
    if settings.val_check_interval > 1:
        return int(settings.val_check_interval)
    return max(1, round(settings.val_check_interval * batches_per_epoch))


def build_trainer(config: RunConfig, folder: RunFolder) -> pl.Trainer:
    """The Trainer with its devices and limits; callbacks join when it knows its processes."""
    debugging = config.debugging
    return pl.Trainer(
        **trainer_devices(config),
        precision=PRECISIONS[config.trainer.float_precision],
        max_epochs=1,  # the loader crosses the data's epochs itself
        max_steps=config.trainer.max_steps,
        accumulate_grad_batches=config.trainer.accumulate_grad_batches,
        gradient_clip_val=config.trainer.gradient_clip_val or None,
        limit_val_batches=1 if debugging.fast_dev_run else batch_limit(debugging.limit_val_batches),
        limit_test_batches=1 if debugging.fast_dev_run else batch_limit(debugging.limit_test_batches),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=config.trainer.val_sanity,
        log_every_n_steps=config.logging.log_every_n_steps,
        deterministic=config.trainer.deterministic or None,
        profiler=profiler(config, folder.path),
        plugins=[AtomicCheckpointIO(), *environments()],
        logger=MetricsFile(folder.metrics),
        enable_progress_bar=False,
        enable_model_summary=config.logging.log_model_archi,
        enable_checkpointing=False,
        inference_mode=False,  # energy models differentiate while they evaluate
        use_distributed_sampler=False,
        default_root_dir=folder.path,
    )


@dataclass(frozen=True)
class RunLength:
    """Batches of an epoch and of the run, over all processes, and optimizer steps of the run."""

    batches_per_epoch: int
    batches: int
    steps: int

    @classmethod
    def of(cls, config: RunConfig, data: DataModule) -> RunLength:
        if config.testing.only_test:
            return cls(1, 0, 0)
        batches = data.total_batches()
        return cls(data.batches_per_epoch(), batches, -(-batches // config.trainer.accumulate_grad_batches))


def expected_targets(config: RunConfig, data: DataModule, split: str) -> int | None:
    """Targets that an evaluation must have read at its end; None where a flag cuts it short."""
    debugging, rows = config.debugging, data.rows[split]
    if debugging.fast_dev_run:
        return None
    if split == "test":
        return rows.num_units if debugging.limit_test_batches == 1 else None
    cut = debugging.limit_val_batches not in (None, 1) or debugging.overfit_batches
    if cut or config.trainer.val_sanity not in (-1, 0):
        return None
    return rows.units_of(data.validation_rows)


def build_recorder(
    task: Task, config: RunConfig, data: DataModule, length: RunLength, costs: dict[int, Cost], attempt: int
) -> Recorder:
    return Recorder(
        config.logging.log_every_n_steps,
        attempt,
        task.unit,
        task.measures(values_of(config)),
        data,
        length.batches_per_epoch,
        length.steps,
        partial(expected_targets, config, data),
        config.logging.log_gradients,
        {steps: cost.flops for steps, cost in costs.items()},
        deferred=on_gpu(config),
    )


def alarm_context(
    task: Task, config: RunConfig, data: DataModule, length: RunLength, measures: Sequence[Measure]
) -> AlarmContext:
    """What the alarms need to know of the run, its loss floor among them."""
    floor = None
    if len(data.rows["valid"]) and not config.testing.only_test and is_first_process():
        floor = task.floor(data)
    overfit = config.debugging.overfit_batches > 0
    return AlarmContext(
        warm_up_steps(config.optimizer, length.steps),
        config.trainer.gradient_clip_val,
        floor,
        in_order=data.order_seed is None and not overfit,
        scale=loss_of(measures).scale,
        unit=loss_of(measures).unit,
        higher=next((one for one in measures if one.split and one.better == "higher" and not one.is_pattern), None),
        alarms=task.alarms,
    )


def build_usage(config: RunConfig, folder: RunFolder, recorder: Recorder, costs: dict[int, Cost]) -> Usage:
    largest = max((cost.activation_bytes for cost in costs.values()), default=0)
    return Usage(folder.path, config, recorder, largest / config.trainer.batch_size_per_device)


def debugging_callbacks(config: RunConfig, logger: WandbLogger | None) -> list[pl.Callback]:
    """Callbacks of flags for debugging."""
    debugging = config.debugging
    callbacks: list[pl.Callback] = []
    if debugging.debug_unused_parameters:
        callbacks.append(UnusedParameters())
    if logger is not None and config.logging.wandb_watch:
        callbacks.append(Histograms(logger, config.logging.wandb_watch_log_freq))
    if debugging.manual_gc_collect_every_n_steps:
        callbacks.append(GarbageCollection(debugging.manual_gc_collect_every_n_steps))
    return callbacks


def saving_callbacks(config: RunConfig, folder: RunFolder, data: DataModule, recorder: Recorder) -> list[pl.Callback]:
    """Callbacks that save a run and stop it after a signal; none for a --fast_dev_run, which leaves no checkpoint."""
    if config.debugging.fast_dev_run:
        return []
    record = {"run_id": folder.run_id, "config": to_dict(config), "spec": data.spec.to_dict()}
    checkpoints = Checkpoints(folder.checkpoints, config.checkpoint, record, recorder)
    interruption = InterruptionCallback(checkpoints, folder, recorder.attempt)
    return [*fault_injector(folder.path, recorder.attempt), checkpoints, interruption]


class Training:
    """One run's Trainer and what it measures: `fit`, then read `recorder`."""

    def __init__(
        self,
        task: Task,
        config: RunConfig,
        folder: RunFolder,
        data: DataModule,
        model: Model,
        attempt: Attempt,
        peers: Peers,
        calibrate: bool,
    ) -> None:
        """calibrate: fit what the model fits to the data, such as the step size; a checkpoint would bring it."""
        task.check(config, data)
        self.task, self.config, self.folder, self.data, self.model = task, config, folder, data, model
        self.trainer = build_trainer(config, folder)
        check_world(self.trainer)
        record_model(folder.path, model, self.trainer)
        self.wandb_logger = wandb_logger(config, folder)
        if self.wandb_logger is not None:
            add_logger(self.trainer, self.wandb_logger)
        data.trainer = self.trainer  # from here on the data counts in batches of all processes
        data.count_batches = partial(batches_done, self.trainer)
        length = RunLength.of(config, data)
        self.trainer.val_check_interval = validation_interval(config, length.batches_per_epoch, length.batches)
        only_test, rows = config.testing.only_test, config.trainer.batch_size_per_device
        costs = {} if only_test else costs_if_counted(model, data.example(rows))
        self.recorder = build_recorder(task, config, data, length, costs, attempt.number)
        progress = Progress(self.recorder, length.steps)
        measures = self.recorder.measures
        guard = DivergenceGuard(
            folder.path, config, model.positive, measures, progress.print_line, deferred=on_gpu(config)
        )
        self.recorder.before_flush.append(guard.judge_pending)
        self.early_stop = EarlyStop(config, self.recorder, progress.print_line)
        context = alarm_context(task, config, data, length, measures)
        alarms = Alarms(folder.path, self.recorder, context, guard, progress.print_line)
        self.usage = build_usage(config, folder, self.recorder, costs)
        hang_watch = HangWatch(config.trainer.hang_minutes, peers, partial(attempt.end, None))
        peers.stuck = hang_watch.stuck
        # Lightning calls them in this order: the recorder measures before any other reads it, the guard judges a batch
        # before a checkpoint contains it, and StopAtEnd is last.
        callbacks = [
            self.recorder,
            *([Anomaly(folder.path)] if config.debugging.detect_anomaly else []),
            *(guard, self.early_stop, alarms, self.usage),
            *debugging_callbacks(config, self.wandb_logger),
            *saving_callbacks(config, folder, data, self.recorder),
            *self.showing_callbacks(length, progress.print_line),
            Heartbeat(folder.path / "heartbeat.json", self.recorder, length.steps),
            *(progress, hang_watch, StopAtEnd(length.steps)),
        ]
        add_callbacks(self.trainer, callbacks)
        self.prepare_model(length, calibrate)

    def showing_callbacks(self, length: RunLength, print_line: Callable[[str], None]) -> list[pl.Callback]:
        """What draws pictures during training, where the task does; not in a run for debugging."""
        debugging = self.config.debugging
        is_debug_run = debugging.fast_dev_run or debugging.debug_mode or debugging.overfit_batches > 0
        if type(self.task).show_step is Task.show_step or is_debug_run or not length.batches:
            return []
        parts = (self.task, self.config, self.folder.path, self.data, length.batches)
        return [StepShowing(*parts, self.wandb_logger, print_line)]

    def prepare_model(self, length: RunLength, calibrate: bool) -> None:
        """Check it, fit it to the data, and give it its optimizer."""
        config, model = self.config, self.model
        if not config.testing.only_test:
            model.check()
            if calibrate:
                self.calibrate()
        rows_per_step = (
            config.trainer.batch_size_per_device * self.trainer.world_size * config.trainer.accumulate_grad_batches
        )
        model.optimizer_factory = partial(
            optimizer_and_schedule,
            settings=config.optimizer,
            rows_per_step=rows_per_step,
            total_steps=length.steps,
            multipliers=model.learning_rates(),
        )
        if config.trainer.compile_model:
            model.compile_blocks()

    def summary_line(self) -> str:
        """Model, size and data in one line."""
        run = self.config.run
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        data = self.task.describe_data(self.config, self.data)
        return f"{run.model_name} {run.model_size}, {parameters:,} parameters, {data}"

    def calibrate(self) -> None:
        """Fit the model to the run's first rows: the same on every process, without drawing random numbers."""
        rows = self.data.rows["train"]
        fitted = self.model.calibrate(rows.__getitems__(range(min(CALIBRATION_ROWS, len(rows)))))
        automatic = [flag for flag, value in values_of(self.config).items() if value == "auto"]
        for name, value in fitted.items():
            flag = next((f"--{flag} auto" for flag in automatic if flag.endswith(name)), f"{name}, fitted to the data")
            print(f"{flag}: {value:.4g}")

    def fit(self, checkpoint: Path | None) -> None:
        """Train to the end, rolling back whenever --divergence_guard rollback asks for it."""
        while True:
            try:
                self.trainer.fit(self.model, datamodule=self.data, ckpt_path=checkpoint, weights_only=True)
                if len(self.data.sample) < len(self.data.rows["valid"]):
                    self.trainer.validate(self.model, datamodule=self.data, verbose=False)
                return
            except SystemExit as end:
                if end.code == EXIT_RESUMABLE:
                    raise
                raise KeyboardInterrupt from end  # what Lightning makes of a Ctrl-C
            except RollbackRequested as caught:
                request = caught.with_traceback(None)  # its frames would keep the abandoned step in memory
            checkpoint = self.roll_back(request)

    def roll_back(self, request: RollbackRequested) -> Path:
        """The checkpoint to resume from, the same on every process."""
        if is_first_process():
            restore_before(self.folder, request, self.config.checkpoint)
        self.model.zero_grad()  # of the batches of an unfinished step
        self.model.gradient_norm = None
        wait_for_all_processes(self.trainer)
        newest = newest_checkpoint(self.folder.checkpoints)
        assert newest is not None
        return newest[0]

    def test(self) -> None:
        self.trainer.test(self.model, datamodule=self.data, verbose=False)

    def close(self, status: int) -> None:
        """Close W&B. status: exit status of the run."""
        if self.wandb_logger is not None:
            self.wandb_logger.close(status)
