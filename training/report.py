"""What a run came to, and what to type next."""

from __future__ import annotations

import math
import shlex

from rich import box
from rich.console import Console
from rich.table import Table
from torch._dynamo.utils import compilation_time_metrics

from config import RunConfig
from data import DataModule
from data.baselines import ngram_baselines
from runs import RunFolder, is_first_process
from runs.pages import write_after_run
from training.comparison import compare_with_baseline
from training.showing import attempt, is_rehearsal, show_model, worth_showing
from training.trainer import Training
from training.verdicts import stats_lines

NEAR_ZERO = 0.05  # share of the first loss that counts as learnt by heart


def closing_report(config: RunConfig, folder: RunFolder, data: DataModule, training: Training) -> int:
    """Print the result beside the baselines, where everything is, and the next commands; returns the exit status."""
    if not is_first_process():
        return 0
    status = 0
    recorder = training.recorder
    if config.debugging.overfit_batches:
        status = overfit_verdict(recorder.first_loss, recorder.last_loss)
    else:
        for split, result in recorder.results.items():
            if result["targets"]:
                print_results(config, data, split, result, training.recorder.tokens_per_byte[split])
    if config.trainer.compile_model:
        graphs = compilation_time_metrics.get("_compile.compile_inner", [])
        print(f"--compile_model: {len(graphs)} graphs compiled in {sum(graphs):.0f} s")
    if config.debugging.profiler:
        print_profile(folder)
    if worth_showing(config, training):
        attempt("the model", lambda: show_model(config, folder, data, training.model, training.trainer.global_step))
    goal, words = training.ending.verdict()
    if words and not is_rehearsal(config):
        print(f"\n{words}")
        status = status or goal
    if config.testing.compare_baseline and is_rehearsal(config):
        print("--compare_baseline: not after a rehearsal")
    elif config.testing.compare_baseline:
        compare_with_baseline(config, folder, data, training)
    print()
    for line in stats_lines(training.usage.summary):
        print(line)
    print(f"run folder  {folder.path}")
    if index := write_after_run(folder.path.parent.parent, folder.run_id):
        print(f"page        {index}")
    if not config.testing.only_test and not config.debugging.fast_dev_run:
        best = folder.checkpoints / "best.ckpt"
        newest = best if best.exists() else folder.checkpoints / "last.ckpt"
        shared = {"--logs_dir": config.logging.logs_dir} if config.logging.logs_dir != "logs" else {}
        named = {"--run_name": config.run.run_name} if config.run.run_name != "default" else {}
        quiet = " --no_wandb" if config.logging.no_wandb else ""
        again = {"--resume_training_ckpt": "last", "--max_steps": str(2 * config.trainer.max_steps)}
        print(f"test it     {typed({**shared, '--only_test': None, '--only_test_model_ckpt': str(newest)})}{quiet}")
        print(f"train on    {typed({**shared, **named, **again})}{quiet}")
    return status


def typed(flags: dict[str, str | None]) -> str:
    """The command with these flags, quoted as a shell needs it."""
    words = [word for flag, value in flags.items() for word in (flag, value) if word is not None]
    return shlex.join(["python", "train_model.py", *words])


def print_results(
    config: RunConfig, data: DataModule, split: str, result: dict[str, float], tokens_per_byte: float
) -> None:
    """The model's loss beside what counting gives on the very same tokens."""
    rows, targets = data.rows[split], int(result["targets"])
    part = (
        f"{targets:,} tokens"
        if targets == rows.num_targets
        else f"the first {targets:,} of {rows.num_targets:,} tokens"
    )
    table = Table(box=box.SIMPLE_HEAD, title=f"{split} split, {part}", title_justify="left")
    for heading in ("", "nats per token", "bits per byte"):
        table.add_column(heading, justify="left" if not heading else "right")
    counted = ngram_baselines(data.rows["train"].tokens, rows.tokens[: targets + 1], data.tokenizer.vocab_size)
    lines = {f"{name} counts": value for name, value in counted.items()}
    for name, value in {**lines, config.run.model_name: result["loss"]}.items():
        style = "bold" if name == config.run.model_name else None
        table.add_row(name, f"{value:.4f}", f"{value * tokens_per_byte / math.log(2):.4f}", style=style)
    Console().print(table)
    by_step = {
        name.removeprefix("loss_step_"): value for name, value in result.items() if name.startswith("loss_step_")
    }
    if by_step:
        losses = ", ".join(f"{number}: {value:.4f}" for number, value in by_step.items())
        print(f"loss after steps {losses}; thinking gains {result['thinking_gain']:.4f} nats per token")


def overfit_verdict(first: float, last: float) -> int:
    """Say whether the fixed batches were learnt by heart."""
    went = f"--overfit_batches: the loss went from {first:.4f} to {last:.4f}"
    if last <= NEAR_ZERO * first:
        print(f"{went}: the model learns these batches by heart, as it should.")
        return 0
    if last <= 0.5 * first:
        print(f"{went}: falling, but not near zero yet; give it more --max_steps.")
    else:
        print(f"{went}: it does not learn even these few batches; look at the loss, the learning rate and the labels.")
    return 1


def print_profile(folder: RunFolder) -> None:
    files = sorted(folder.path.glob("*profile*"))
    for file in files:
        if file.suffix == ".txt":
            print(f"\n{file}")
            print("\n".join(file.read_text().splitlines()[:25]))
