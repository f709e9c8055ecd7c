"""The report at the end of a run: results beside references and baseline, where its files are, the next commands."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch._dynamo.utils import compilation_time_metrics

from config import RunConfig
from config.record import to_yaml, values_of
from config.task import DEFAULT_TASK, Measure, derived, measure_of
from config.twin import baseline_config, twin_slug, twin_title
from core.environment import without_run
from core.errors import or_report
from core.files import read_rows, write_text
from core.text import format_amount
from data.module import DataModule
from runs import RunFolder, is_first_process
from runs.pages import write_after_run
from tasks import Showing, Task
from training.cost import batch_costs
from training.devices import device_of
from training.lightning import started_its_processes
from training.trainer import Training
from training.usage import stats_lines

FEWEST_STEPS = 50  # of training: there is little to see before, and showing must cost little beside it
FEW_STEPS = 8  # of a walk, whose losses are all printed; of more, those after 1, 2, 4 ...
NEAR_ZERO = 0.05  # share of the first loss that counts as memorised
TRAIN_SCRIPT = Path(__file__).resolve().parent.parent / "train_model.py"
NEARLY_EQUAL = 0.05  # FLOPs of a step that differ by less: one baseline serves for equal steps and equal FLOPs


def closing_report(task: Task, config: RunConfig, folder: RunFolder, data: DataModule, training: Training) -> int:
    """Print the result beside its references, where everything is, and the next commands; returns the exit status."""
    if not is_first_process():
        return 0
    status = 0
    recorder = training.recorder
    if config.debugging.overfit_batches:
        status = overfit_verdict(recorder.first_loss, recorder.last_loss)
    else:
        for split, result in recorder.results.items():
            if result["targets"]:
                print_results(task, config, data, split, result)
    if config.trainer.compile_model:
        graphs = compilation_time_metrics.get("_compile.compile_inner", [])
        print(f"--compile_model: {len(graphs)} graphs compiled in {sum(graphs):.0f} s")
    if config.debugging.profiler:
        print_profile(folder)
    if worth_showing(config, training):
        or_report("the model", lambda: show_model(task, config, folder, data, training))
    goal_status, sentence = training.early_stop.verdict()
    if sentence and not is_debug_run(config):
        print(f"\n{sentence}")
        status = status or goal_status
    if config.testing.compare_baseline and is_debug_run(config):
        print("--compare_baseline: no comparison: leave out --fast_dev_run, --debug_mode and --overfit_batches")
    elif config.testing.compare_baseline:
        compare_with_baseline(task, config, folder, data, training)
    print()
    for line in stats_lines(training.usage.summary):
        print(line)
    print(f"run folder  {folder.path}")
    if index := write_after_run(folder.path.parent.parent, folder.run_id):
        print(f"page        {index}")
    if not config.testing.only_test and not config.debugging.fast_dev_run:
        best = folder.checkpoints / "best.ckpt"
        checkpoint = best if best.exists() else folder.checkpoints / "last.ckpt"
        shared = {"--task": config.run.task} if config.run.task != DEFAULT_TASK else {}
        shared |= {"--logs_dir": config.logging.logs_dir} if config.logging.logs_dir != "logs" else {}
        run_name = {"--run_name": config.run.run_name} if config.run.run_name != "default" else {}
        no_wandb = {"--no_wandb": None} if config.logging.no_wandb else {}
        test = {"--only_test": None, "--only_test_model_ckpt": str(checkpoint)}
        resume = {"--resume_training_ckpt": "last", "--max_steps": str(2 * config.trainer.max_steps)}
        print(f"test it     {command_line({**shared, **test, **no_wandb})}")
        print(f"train on    {command_line({**shared, **run_name, **resume, **no_wandb})}")
    return status


def is_debug_run(config: RunConfig) -> bool:
    debugging = config.debugging
    return debugging.fast_dev_run or debugging.debug_mode or debugging.overfit_batches > 0


def worth_showing(config: RunConfig, training: Training) -> bool:
    """Whether a model was really trained."""
    trained = not is_debug_run(config) and not config.testing.only_test
    return trained and training.trainer.global_step >= FEWEST_STEPS


def show_model(task: Task, config: RunConfig, folder: RunFolder, data: DataModule, training: Training) -> None:
    """What the task shows of held-out data; it draws no random number that training would draw."""
    if not len(data.rows["valid"]):
        return
    model = training.model.to(device_of(config)).eval()
    with torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
        task.show(Showing(config, data, model, folder.path, training.trainer.global_step))


def command_line(flags: Mapping[str, str | None]) -> str:
    """The command with these flags, quoted as a shell needs it."""
    words = [word for flag, value in flags.items() for word in (flag, value) if word is not None]
    return shlex.join(["python", "train_model.py", *words])


def print_results(task: Task, config: RunConfig, data: DataModule, split: str, result: dict[str, float]) -> None:
    """The model's results beside the references, which are computed on the same units."""
    rows, targets, measures = data.rows[split], int(result["targets"]), task.measures(values_of(config))
    total = f"{rows.num_units:,} {task.unit}"
    part = total if targets == rows.num_units else f"the first {targets:,} of {total}"
    references = {
        name: derived(measures, values, data.facts.get(split, {}))
        for name, values in task.references(data, split, targets).items()
    }
    compared = compared_measures(measures, [*references.values(), result])
    table = Table(box=box.SIMPLE_HEAD, title=f"{split} split, {part}", title_justify="left")
    table.add_column("")
    for measure in compared:
        table.add_column(measure.heading, justify="right")
    for name, values in {**references, config.run.model_name: result}.items():
        style = "bold" if name == config.run.model_name else None
        table.add_row(name, *(measure.format(values[measure.name]) for measure in compared), style=style)
    Console().print(table)
    by_step = {
        name.removeprefix("loss_step_"): value for name, value in result.items() if name.startswith("loss_step_")
    }
    if by_step:
        if len(by_step) > FEW_STEPS:
            by_step = {number: value for number, value in by_step.items() if int(number).bit_count() <= 1}
        losses = ", ".join(f"{number}: {value:.4f}" for number, value in by_step.items())
        gain = measure_of(f"{split}_thinking_gain", measures)
        unit = f" {gain.unit}" if gain and gain.unit else ""
        print(f"loss after steps {losses}; thinking gains {result['thinking_gain']:.4f}{unit}")


def compared_measures(measures: Sequence[Measure], results: Sequence[Mapping[str, float]]) -> list[Measure]:
    """The headline and up to two more measures that all of these have."""
    judged = [measure for measure in measures if measure.split and measure.better]
    return [measure for measure in judged if all(measure.name in values for values in results)][:3]


def overfit_verdict(first: float, last: float) -> int:
    """Print whether the fixed batches were memorised; returns the exit status."""
    change = f"--overfit_batches: the loss went from {first:.4f} to {last:.4f}"
    if last <= NEAR_ZERO * first:
        print(f"{change}: the model memorises these batches, as it should.")
        return 0
    if last <= 0.5 * first:
        print(f"{change}: falling, but not near zero yet; give it more --max_steps.")
    else:
        print(
            f"{change}: it does not learn even these few batches; look at the loss, the learning rate and the labels."
        )
    return 1


def print_profile(folder: RunFolder) -> None:
    files = sorted(folder.path.glob("*profile*"))
    for file in files:
        if file.suffix == ".txt":
            print(f"\n{file}")
            print("\n".join(file.read_text().splitlines()[:25]))


def compare_with_baseline(
    task: Task, config: RunConfig, folder: RunFolder, data: DataModule, training: Training
) -> None:
    """--compare_baseline: train the twins in their own processes and print a table; an error there fails nothing."""
    if not task.twin:
        print(f"--compare_baseline: --task {task.name} has no model to compare with")
        return
    try:
        twin = baseline_config(config)
        (_, own_flops), (_, twin_flops) = (size_and_flops(task, each, data) for each in (config, twin))
        ratio = own_flops / twin_flops
        twins = {f"{twin_title(task)}, equal steps": (twin, twin_slug(task))}
        if abs(ratio - 1) > NEARLY_EQUAL:
            twins[f"{twin_title(task)}, equal FLOPs"] = baseline_config(config, ratio), twin_slug(task, ratio)
        runs = {config.run.model_name: (config, folder)}
        for name, (each, slug) in twins.items():
            other = train_twin(name, each, folder.path / f"{slug}.yaml", training)
            if other is None:
                return
            runs[name] = (each, other)
        print_comparison(task, runs, data, training, ratio)
    except KeyboardInterrupt:
        print("--compare_baseline: stopped by hand; the run before it is finished and kept", file=sys.stderr)
    except Exception as error:
        print(f"--compare_baseline: no comparison: {type(error).__name__}: {error}", file=sys.stderr)


def train_twin(name: str, twin: RunConfig, settings: Path, training: Training) -> RunFolder | None:
    """The folder of the twin's run; None where it was not trained, with a line that says why."""
    write_text(settings, to_yaml(twin))
    if not started_its_processes(training.trainer):
        print(f"--compare_baseline: train it as a job of its own: python train_model.py --config {settings}")
        return None
    print(f"\n--compare_baseline: {name}, {twin.trainer.max_steps:,} steps: {twin.run.run_name}\n")
    sys.stdout.flush()
    torch.cuda.empty_cache()
    command = [sys.executable, str(TRAIN_SCRIPT), "--config", str(settings)]
    status = subprocess.run(command, env=without_run()).returncode
    other = RunFolder.newest(twin.logging.logs_dir, twin.run.run_name, may_begin=True)
    if status or other is None:
        print(f"--compare_baseline: {name}, ended with status {status}: no comparison", file=sys.stderr)
        return None
    return other


def print_comparison(
    task: Task, runs: dict[str, tuple[RunConfig, RunFolder]], data: DataModule, training: Training, ratio: float
) -> None:
    """A table of the runs: size, data and compute of each, and its results."""
    rows = {name: final_row(folder) for name, (_, folder) in runs.items()}
    results = [{column.removeprefix("valid_"): value for column, value in row.items()} for row in rows.values()]
    (own, _), *_ = runs.values()
    measures = task.measures(values_of(own))
    derivable = {measures[0].name, *(measure.name for measure in measures if measure.derive)}
    compared = [measure for measure in compared_measures(measures, results) if measure.name in derivable]
    title = f"valid split, {' and '.join(measure.heading for measure in compared)}"
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title=title, title_justify="left")
    words = [measure.heading.split()[0].rstrip(",") for measure in compared]
    for heading in ("", "parameters", "steps", task.unit, "FLOP", "seconds", *words):
        # on 80 columns a name wraps, and a number is never cut
        table.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))
    for name, (config, _) in runs.items():
        parameters, per_step = size_and_flops(task, config, data)
        flops = per_step * config.trainer.accumulate_grad_batches * training.trainer.world_size
        row = rows[name]
        table.add_row(
            *(
                name,
                f"{parameters:,}",
                f"{row['step']:,}",
                f"{row[task.unit]:,}",
                format_amount(row["step"] * flops, ""),
            ),
            *(f"{row['seconds']:,.0f}", *(measure.format(row[f"valid_{measure.name}"]) for measure in compared)),
        )
    twin = twin_title(task)
    print()
    Console().print(table)
    print(
        f"A step of the {task.models[own.run.model_name]} takes {ratio:.1f} times the FLOPs of one of the {twin}, on "
        "the same data. With equal"
    )
    print(f"FLOPs the {twin} takes so many more steps. Seconds are of training, without validation.")


def final_row(folder: RunFolder) -> dict[str, Any]:
    """The newest value of every column of a run."""
    merged: dict[str, Any] = {}
    for row in read_rows(folder.metrics):
        merged |= row
    return merged


def size_and_flops(task: Task, config: RunConfig, data: DataModule) -> tuple[int, float]:
    """Parameters of the model, and FLOPs of a batch: their mean where the number of its steps is drawn."""
    model = task.model(config, data.spec)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    costs = batch_costs(model, data.example(config.trainer.batch_size_per_device))
    return parameters, mean(cost.flops for cost in costs.values())
