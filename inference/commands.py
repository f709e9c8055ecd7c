"""The commands of `python -m inference`: those for every task, and those of the task of the run that is named.

Nothing here imports torch, so that help and wrong flags are answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pkgutil import resolve_name
from typing import Any

from config import RunConfig, SettingsError
from config.flags import flag
from config.help import help_topic
from config.parser import TASK_NAMES, parse_command, typed_value
from config.settings import Inference
from config.task import DEFAULT_TASK, Command, TaskFacts, all_tasks, find_task
from config.task_flags import all_flags
from core.errors import UserError
from core.text import join_words
from inference.loading import ModelFlags, task_name
from runs.checkpoints import weights_path

# Flags of train_model.py that --execution_mode inference accepts; the checkpoint determines the others.
ACCEPTED_FLAGS = (
    *("execution_mode", "config", "only_test", "only_test_model_ckpt", "run_name", "logs_dir", "no_wandb", "seed"),
    *("gpus", "limit_test_batches", "batch_size_per_device", *TASK_NAMES),
)
# Flags of commands that generate text, or that draw a landscape: the general commands do without them.
GENERATION_FLAGS = (
    *("infer_max_gen_len", "infer_temp", "infer_topp", "infer_topk", "infer_logprobs", "infer_echo"),
    *("infer_debug_sample_distances", "infer_plot_energy_landscape"),
)


@dataclass(frozen=True)
class EvaluateFlags:
    """what to evaluate on"""

    split: str | None = flag(None, "which split; default: valid", choices=("train", "valid", "test"))
    limit: int = flag(0, "rows at most; 0 is all", low=0)
    batch_size: int = flag(16, "rows at a time", low=1)


@dataclass(frozen=True)
class ThinkCurveFlags:
    """what to draw"""

    steps: int = flag(8, "steps, 1 to this", low=1)
    seeds: int = flag(3, "seeds of noise, for the confidence intervals", low=1)
    split: str = flag("valid", "which split", choices=("train", "valid", "test"))
    rows: int = flag(256, "rows of each distribution, spread evenly over it", low=2)
    baseline: str | None = flag(None, "run to compare with; default: the twin of --compare_baseline", metavar="RUN")
    batch_size: int = flag(16, "rows at a time", low=1)


GENERAL = {
    "evaluate": Command(
        "inference.evaluate:main", EvaluateFlags, "the measures of a model on a split", without=GENERATION_FLAGS
    ),
    "think-curve": Command(
        "inference.think_curve:main",
        ThinkCurveFlags,
        "the loss against the steps of the walk",
        without=(
            *(*GENERATION_FLAGS, "infer_generated_samples", "infer_energy_sampling_technique"),
            *("infer_ebt_num_steps", "infer_ebt_stop_change"),
            "infer_steps_final_landscape",  # always set, so that one walk gives every number of steps
        ),
    ),
}


def commands_of(task: TaskFacts) -> dict[str, Command]:
    return {**GENERAL, **task.commands}


def all_commands(argv: Sequence[str]) -> dict[str, Command]:
    """Every command: general ones, those of the tasks in tasks/ and of the run that the command line names."""
    commands: dict[str, Command] = {}
    for task in all_tasks().values():
        commands |= task.commands
    if argv and argv[0] not in commands and (name := task_of(argv)):
        commands |= find_task(name).commands
    return commands | GENERAL


def task_of(argv: Sequence[str]) -> str | None:
    """The task of the run that a command line names, or of the newest run.

    None where there is no run, and for help without a run.
    """
    run, ckpt, logs = (typed_value(argv, name) for name in ("run", "ckpt", "logs_dir"))
    if help_topic(argv) is not None and run is None and ckpt is None:
        return None
    return task_name(ModelFlags(run=run, ckpt=ckpt, logs_dir=logs or ModelFlags().logs_dir))


def find_command(name: str, argv: Sequence[str]) -> Command:
    """The command of the task of the run that a command line uses; of the default task, where there is no run."""
    task = task_of(argv)
    if task is None:
        return {**all_commands(argv), **find_task(DEFAULT_TASK).commands}[name]
    commands = commands_of(find_task(task))
    if name not in commands:
        flags = (f"--{key} {value}" for key in ("run", "ckpt") if (value := typed_value(argv, key)) is not None)
        subject = next(flags, "The newest run")
        choices = join_words(sorted(commands), "or")
        raise UserError(f"{subject} is a {task} run, which has no {name}: choose {choices}, or another run.")
    return commands[name]


def parse(name: str, command: Command, argv: Sequence[str]) -> dict[str, Any]:
    """{"model": ModelFlags, "command": the command's flags, "inference": Inference} of a command line."""
    sections = {"model": ModelFlags, "command": command.flags, "inference": command.inference or Inference}
    usage = f"python -m inference {name} {command.usage}    {command.purpose}"
    return parse_command(argv, sections, usage, command.without)


def run(name: str, argv: Sequence[str]) -> int:
    """Parse the flags of a command, then import and call it."""
    command = find_command(name, argv)
    flags = parse(name, command, argv)
    return int(resolve_name(command.target)(**flags))


def evaluate_from_training_flags(config: RunConfig) -> int:
    """`evaluate` from `python train_model.py --only_test --execution_mode inference`, on the test split."""
    path = weights_path(config, "only_test_model_ckpt", str(config.testing.only_test_model_ckpt))
    device = "cpu" if config.trainer.gpus == "none" else "auto"
    model = ModelFlags(ckpt=str(path), logs_dir=config.logging.logs_dir, device=device, seed=config.trainer.seed)
    command = commands_of(find_task(task_name(model) or config.run.task))["evaluate"]
    data_flags = [field.name for field in fields(command.flags) if hasattr(config.data, field.name)]
    typed_flags = {name for name, source in config.sources.items() if source == "command line"}
    inference_flags = {name for name, flag in all_flags().items() if flag.group == "inference"} - {*command.without}
    problems = [
        f"--{name} has no effect with --execution_mode inference: remove it; the checkpoint's run determines it."
        for name in sorted(typed_flags - inference_flags - {*ACCEPTED_FLAGS, *data_flags})
    ]
    if problems:
        raise SettingsError(problems)
    limit, rows = config.debugging.limit_test_batches, config.trainer.batch_size_per_device
    if limit == 0:
        raise UserError("--limit_test_batches is 0: there is nothing to evaluate; give a number of batches or a share.")
    dataset = {name: getattr(config.data, name) for name in data_flags if is_set(config, name)}
    flags = command.flags(limit=int(limit) * rows if limit > 1 else 0, batch_size=rows, **dataset)
    inference = {name: value for name, value in asdict(config[Inference]).items() if is_set(config, name)}
    if not path.is_file():
        raise UserError(f"--only_test_model_ckpt is {str(path)!r}: there is no such file; give a .ckpt file, or last.")
    settings = (command.inference or Inference)(**inference)
    evaluate = resolve_name(command.target)
    return int(evaluate(model, flags, settings, default_split="test", share=min(limit, 1.0)))


def is_set(config: RunConfig, name: str) -> bool:
    return config.sources[name] in ("command line", "file")
