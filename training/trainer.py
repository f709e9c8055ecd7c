"""Settings to a Lightning Trainer with our callbacks; nothing here knows which model it trains."""

from __future__ import annotations

import ctypes
import logging
import math
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytorch_lightning as pl
import torch
from pytorch_lightning.profilers import AdvancedProfiler, Profiler, PyTorchProfiler, SimpleProfiler

from config import RunConfig, SettingsError
from config.record import to_dict
from data import DataModule
from data.baselines import unigram_baseline
from models import LanguageModel
from runs import RunFolder, is_first_process
from runs.attempts import Attempt
from runs.signals import GOES_ON
from training.alarms import Facts
from training.checkpoints import AtomicCheckpointIO, Checkpoints, newest_checkpoint
from training.company import Company
from training.cost import Cost, batch_costs
from training.divergence import Divergence, DivergenceGuard, roll_back
from training.ending import Ending
from training.guards import Anomaly, GarbageCollection, UnusedParameters
from training.health import Health
from training.heartbeat import Heartbeat
from training.interruption import Interruption
from training.model_record import record_model
from training.optimizers import optimizer_and_schedule
from training.placement import check_world, environments, on_gpu, placement
from training.progress import Progress
from training.recorder import MetricsFile, Recorder
from training.rehearsal import rehearsal
from training.schedules import warm_up_steps
from training.usage import Usage
from training.waiting import limit_threads, watch_neighbours
from training.wandb_run import Histograms, wandb_run
from training.watch import Watch

CALIBRATION_ROWS = 8
VALIDATIONS = 10  # of a run, where nobody says how often
PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def prepare_process(config: RunConfig) -> None:
    """What has to be set before any tensor is made."""
    keep_freed_memory()
    torch.set_flush_denormal(True)  # softmax tails are denormal: worth 2x on a CPU
    torch.set_float32_matmul_precision(config.trainer.set_matmul_precision)
    pl.seed_everything(config.trainer.seed, workers=True, verbose=False)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")  # --debug_dataloader measures that
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")  # the last step is always logged
    warnings.filterwarnings("ignore", message=".*srun. command is available.*")  # a run without srun is no mistake
    for package in ("pytorch_lightning", "lightning_fabric"):  # which devices there are, what to buy: no news to a run
        logging.getLogger(f"{package}.utilities.rank_zero").setLevel(logging.WARNING)
    limit_threads()
    watch_neighbours(partial(print, file=sys.stderr))


def keep_freed_memory() -> None:
    """Ask glibc to keep what a step frees for the next step: asking for it anew costs a tenth or more of a step."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # malloc.h
        for what, size in ((mmap_threshold, 2**30), (trim_threshold, 2**31 - 1), (top_pad, 2**26)):
            mallopt(what, size)


def check_replay(config: RunConfig, vocab_size: int) -> None:
    """Refuse a replay buffer that memory cannot hold, before a night is spent on filling it."""
    energy, length = config.energy, config.architecture.context_length
    if not energy.mcmc_replay_buffer:
        return
    row = 4 * length * vocab_size
    free = torch.cuda.mem_get_info()[0] if on_gpu(config) else psutil.virtual_memory().available
    if energy.mcmc_replay_buffer_size * row > free:
        raise SettingsError(
            [
                f"--mcmc_replay_buffer_size is {energy.mcmc_replay_buffer_size}: a row has {length:,} x {vocab_size:,} "
                f"numbers, so that takes {energy.mcmc_replay_buffer_size * row / 1e9:,.1f} GB, and "
                f"{free / 1e9:,.1f} GB are free; choose at most {int(free // (2 * row))}."
            ]
        )


def profiler(config: RunConfig, folder: Path) -> Profiler | None:
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


def limit(value: float | None) -> int | float | None:
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


def costs_of(model: LanguageModel, config: RunConfig) -> dict[int, Cost]:
    """What a batch costs by the number of its steps; a model that cannot be counted goes uncounted."""
    try:
        return batch_costs(model, config.trainer.batch_size_per_device, config.architecture.context_length)
    except Exception as error:  # counting is for the record alone
        print(f"FLOPs are not counted: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return {}


class StopAtEnd(pl.Callback):
    """Asks Lightning to stop at the last step, which makes it validate there."""

    def __init__(self, total_steps: int) -> None:
        self.total_steps = total_steps

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step >= self.total_steps:
            trainer.should_stop = True


class Training:
    """One run's Trainer and what it measures: `fit`, then read `recorder`."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        data: DataModule,
        model: LanguageModel,
        attempt: Attempt,
        company: Company,
        calibrate: bool,
    ) -> None:
        """calibrate: fit the step size to the data, as no checkpoint brings one."""
        check_replay(config, data.tokenizer.vocab_size)
        self.config, self.folder, self.data, self.model = config, folder, data, model
        debugging = config.debugging
        accumulate = config.trainer.accumulate_grad_batches
        self.trainer = pl.Trainer(
            **placement(config),
            precision=PRECISIONS[config.trainer.float_precision],  # type: ignore[arg-type]
            max_epochs=1,  # the loader crosses the data's epochs itself
            max_steps=config.trainer.max_steps,
            accumulate_grad_batches=accumulate,
            gradient_clip_val=config.trainer.gradient_clip_val or None,
            limit_val_batches=1 if debugging.fast_dev_run else limit(debugging.limit_val_batches),
            limit_test_batches=1 if debugging.fast_dev_run else limit(debugging.limit_test_batches),
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
        check_world(self.trainer)
        record_model(folder.path, model, self.trainer)
        self.page = wandb_run(config, folder)
        if self.page is not None:
            self.trainer.loggers = [*self.trainer.loggers, self.page]
        data.trainer = self.trainer  # from here on the data counts in batches of all processes
        per_epoch = 1 if config.testing.only_test else data.batches_per_epoch()
        total_batches = 0 if config.testing.only_test else data.total_batches()
        self.total_steps = -(-total_batches // accumulate)
        self.trainer.val_check_interval = validation_interval(config, per_epoch, total_batches)
        self.costs = {} if config.testing.only_test else costs_of(model, config)
        self.recorder = Recorder(
            config.logging.log_every_n_steps,
            attempt.number,
            {split: rows.num_targets / max(1, rows.num_bytes) for split, rows in data.rows.items()},
            per_epoch,
            self.total_steps,
            self.expected_targets,
            config.logging.log_gradients,
            {steps: cost.flops for steps, cost in self.costs.items()},
        )
        self.watch = Watch(config.trainer.hang_minutes, company, partial(attempt.end, None))
        company.stuck = self.watch.stuck
        self.trainer.callbacks += self.callbacks(folder)  # type: ignore[attr-defined]
        if not config.testing.only_test:
            model.check()
            if calibrate:
                self.calibrate()
        rows_per_step = config.trainer.batch_size_per_device * self.trainer.world_size * accumulate
        model.optimizers_of = partial(
            optimizer_and_schedule,
            settings=config.optimizer,
            rows_per_step=rows_per_step,
            total_steps=self.total_steps,
            multipliers=model.learning_rate_multipliers(),
        )
        if config.trainer.compile_model:
            model.compile_blocks()

    def expected_targets(self, split: str) -> int | None:
        """Of an evaluation that no flag cuts short; None of another."""
        debugging, rows = self.config.debugging, self.data.rows[split]
        if debugging.fast_dev_run:
            return None
        if split == "test":
            return rows.num_targets if debugging.limit_test_batches == 1 else None
        cut = debugging.limit_val_batches not in (None, 1) or debugging.overfit_batches
        if cut or self.config.trainer.val_sanity not in (-1, 0):
            return None
        return rows.targets_of(self.data.validated)

    def callbacks(self, folder: RunFolder) -> list[pl.Callback]:
        debugging = self.config.debugging
        chosen: list[pl.Callback] = [self.recorder]
        if debugging.detect_anomaly:
            chosen.append(Anomaly(folder.path))
        progress = Progress(self.recorder, self.total_steps)
        guard = DivergenceGuard(folder.path, self.config, progress.say)
        self.ending = Ending(self.config, self.recorder, progress.say)
        self.health = Health(folder.path, self.recorder, self.facts(), guard, progress.say, **self.order())
        largest = max((cost.activation_bytes for cost in self.costs.values()), default=0)
        row_bytes = largest / self.config.trainer.batch_size_per_device
        self.usage = Usage(folder.path, self.config, self.recorder, row_bytes)
        chosen += [guard, self.ending, self.health, self.usage]
        if debugging.debug_unused_parameters:
            chosen.append(UnusedParameters())
        if self.page is not None and self.config.logging.wandb_watch:
            chosen.append(Histograms(self.page, self.config.logging.wandb_watch_log_freq))
        if debugging.manual_gc_collect_every_n_steps:
            chosen.append(GarbageCollection(debugging.manual_gc_collect_every_n_steps))
        if not debugging.fast_dev_run:
            run = {"run_id": folder.run_id, "config": to_dict(self.config)}
            checkpoints = Checkpoints(folder.checkpoints, self.config.checkpoint, run, self.recorder)
            attempt = self.recorder.attempt
            chosen += [*rehearsal(folder.path, attempt), checkpoints, Interruption(checkpoints, folder, attempt)]
        heartbeat = Heartbeat(folder.path / "heartbeat.json", self.recorder, self.total_steps)
        return [*chosen, heartbeat, progress, self.watch, StopAtEnd(self.total_steps)]

    def facts(self) -> Facts:
        """What the run's health is judged by."""
        rows, vocabulary = self.data.rows, self.data.tokenizer.vocab_size
        unigram = math.nan
        if len(rows["valid"]) and not self.config.testing.only_test and is_first_process():
            unigram = unigram_baseline(rows["train"].tokens, rows["valid"].tokens, vocabulary)
        warm_up = warm_up_steps(self.config.optimizer, self.total_steps)
        return Facts(warm_up, self.config.trainer.gradient_clip_val, unigram)

    def order(self) -> dict[str, bool]:
        """Whether the training rows are shuffled, and whether they are meant to be."""
        overfit = self.config.debugging.overfit_batches > 0
        return {"in_order": self.data.order_seed is None and not overfit, "look_at_order": not overfit}

    def opening_line(self) -> str:
        """What is about to happen, in a line or two."""
        rows = self.data.rows["train"]
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return (
            f"{self.config.run.model_name} {self.config.run.model_size}, {parameters:,} parameters, "
            f"{self.config.data.dataset_name}: {rows.num_bytes / 1e6:.1f} MB, {rows.num_targets:,} tokens to learn from"
        )

    def calibrate(self) -> None:
        """Fit the step size to the run's first rows: the same on every process, and drawing from no generator."""
        rows = self.data.rows["train"]
        first = {"input_ids": rows.__getitems__(range(min(CALIBRATION_ROWS, len(rows))))}
        size = self.model.calibrate(first)
        if size is not None:
            print(f"--mcmc_step_size auto: {size:.4g}")

    def fit(self, checkpoint: Path | None) -> None:
        """Train to the end, going back whenever --divergence_guard rollback asks for it."""
        while True:
            try:
                self.trainer.fit(self.model, datamodule=self.data, ckpt_path=checkpoint, weights_only=True)
                if len(self.data.sample) < len(self.data.rows["valid"]):
                    self.trainer.validate(self.model, datamodule=self.data, verbose=False)
                return
            except SystemExit as end:
                if end.code == GOES_ON:
                    raise
                raise KeyboardInterrupt from end  # what Lightning makes of a Ctrl-C
            except Divergence as caught:
                divergence = caught.with_traceback(None)  # its frames would keep the abandoned step alive
            checkpoint = self.go_back(divergence)

    def go_back(self, divergence: Divergence) -> Path:
        """The checkpoint to go on from, the same on every process."""
        if is_first_process():
            roll_back(self.folder, divergence, self.config.checkpoint)
        self.model.zero_grad()  # of the batches of an unfinished step
        self.model.gradient_norm = None
        self.trainer.strategy.barrier()
        found = newest_checkpoint(self.folder.checkpoints)
        assert found is not None
        return found[0]

    def test(self) -> None:
        self.trainer.test(self.model, datamodule=self.data, verbose=False)

    def close(self, status: int) -> None:
        """The run ends with this exit status, and nothing more comes."""
        if self.page is not None:
            self.page.close(status)
