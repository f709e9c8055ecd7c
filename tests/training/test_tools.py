"""--plan, --find_lr and --find_batch_size tell the truth and leave no run behind."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from config import parse_command_line
from core.text import format_amount
from data.language.build import language_data
from tasks.language import TASK
from tests.conftest import TrainCommand
from tests.support.builders import build_model, meta_rows
from training import plan
from training.cost import step_cost
from training.find import (
    TRIAL_STEPS,
    Trial,
    find_lr,
    rows_left,
    suggest,
    take_step,
    training_batches,
)
from training.optimizers import optimizer_and_schedule
from training.plan import batches_of_validations

CONFIG = parse_command_line(["--model_name", "baseline_transformer", "--model_size", "4xs", "--context_length", "64"])


def test_plan_prints_what_the_run_will_cost(train_command: TrainCommand) -> None:
    output = train_command("--plan", "--max_steps", "100", "--accumulate_grad_batches", "2")
    lines = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in output.splitlines() if "  " in line)
    assert lines["parameters"].startswith("263,040")
    assert lines["tokens per step"] == "256" and lines["steps"] == "100"
    assert lines["tokens to be seen"].startswith("25,600")
    words = r"about \d+:\d\d  \(estimate: steps of [\d.e-]+ s timed just now on this CPU, and 0:\d\d of validations\)"
    assert re.fullmatch(words, lines["time"])
    assert not (train_command.logs / "runs").exists()


def test_a_run_that_does_not_fit_has_no_time(train_command: TrainCommand) -> None:
    little_memory = """
    import psutil
    plain = psutil.virtual_memory
    psutil.virtual_memory = lambda: plain()._replace(available=1_000_000)
    """
    assert "not known: a step with 4 rows needs more memory than is free" in train_command.with_fault(
        little_memory, "--plan"
    )


@pytest.mark.parametrize(
    ("flags", "batches"),
    [
        ("--max_steps 10 --val_check_interval 4", 8 + 8 * 3),
        ("--max_steps 10 --val_check_interval 5 --val_sanity 0", 8 * 2),
        ("--max_steps 10 --val_check_interval 10 --limit_val_batches 3 --val_sanity 1", 1 + 3),
        ("--max_steps 10 --val_check_interval 10 --limit_val_batches 0.5", 4 + 4),
        ("--max_steps 10 --limit_val_batches 0", 0),
    ],
)
def test_batches_of_all_validations_of_a_run(flags: str, batches: int) -> None:
    config = parse_command_line([*flags.split(), "--batch_size_per_device", "4"])
    data = SimpleNamespace(rows={"valid": range(30)}, sample=range(30), batches_per_epoch=lambda: 50)
    assert batches_of_validations(config, data, 10) == batches  # type: ignore[arg-type]
    if config.debugging.limit_val_batches is None:
        data.rows["valid"] = range(100)
        assert batches_of_validations(config, data, 10) == batches + 25, "and all of it at the end"  # type: ignore[arg-type]


def test_time_is_that_of_all_steps_and_validations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "try_batch_size", lambda *_, steps: Trial(16, seconds=0.1, mean_seconds=0.5))
    monkeypatch.setattr(plan, "validation_seconds", lambda *_: 0.25)
    data = SimpleNamespace(rows={"valid": range(160)}, sample=range(160), batches_per_epoch=lambda: 50)  # 10 batches
    config = parse_command_line(["--accumulate_grad_batches", "2", "--val_check_interval", "100", "--gpus", "none"])
    estimate = plan.wall_time(config, data, None, 100)  # type: ignore[arg-type]
    assert estimate == "about 1:48  (estimate: steps of 1 s timed just now on this CPU, and 0:08 of validations)"


def test_flops_are_those_of_the_formula() -> None:
    model = build_model(CONFIG, 258, 256, 257)
    L, D, S, V, B = 2, 128, 64, 258, 3
    matrices = L * (4 * D * D + 3 * D * D) + D * V
    attention = L * 2 * S * D  # scores and mixing, per token
    assert step_cost(model, meta_rows(B, S)).flops == 6 * B * S * (matrices + attention)


def test_activation_estimate_is_near_what_autograd_keeps() -> None:
    model = build_model(CONFIG, 258, 256, 257)
    saved = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.training_step({"input_ids": torch.randint(0, 256, (8, 65))}, 0)
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    real = sum(t.untyped_storage().nbytes() for pointer, t in saved.items() if pointer not in own)
    assert 0.8 * real < step_cost(model, meta_rows(8, 64)).activation_bytes < 1.5 * real


def test_counting_leaves_the_model_alone() -> None:
    model = build_model(CONFIG, 258, 256, 257)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    step_cost(model, meta_rows(2, 16))
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with FlopCounterMode(display=False) as counter:
        model.training_step({"input_ids": torch.zeros(1, 9, dtype=torch.int64)}, 0)
    assert counter.get_total_flops() > 0


def test_amounts_are_readable() -> None:
    assert format_amount(14_600_000, "FLOP") == "14.6 MFLOP"
    assert format_amount(999, "B", 1024) == "999 B"
    assert format_amount(3 * 2**30, "B", 1024) == "3 GB"


OFTEN = """
    import core.progress
    core.progress.LINE_EVERY_SECONDS = 0.01
"""


def check_progress(output: str, title: str) -> None:
    """A long search shows how far it is."""
    lines = [line for line in output.splitlines() if line.startswith(title)]
    assert len(lines) > 3 and all(re.search(r"/s(, \d+:\d\d left)?$", line) for line in lines)
    assert lines[-1].endswith(" left")


def test_find_lr_suggests_a_rate_and_draws_it(train_command: TrainCommand) -> None:
    output = train_command.with_fault(OFTEN, "--find_lr")
    check_progress(output, "Learning rate range")
    rate = float(re.search(r"try --peak_learning_rate (\S+)", output).group(1))  # type: ignore[union-attr]
    assert 1e-4 < rate < 1e-2
    assert (train_command.logs / "find_lr.png").stat().st_size > 5000
    assert not (train_command.logs / "runs").exists()


# The default Transformer++ as measured, every third step: it falls steepest at 6e-5, and trains well with 1.8e-3.
MEASURED = (
    *(5.985, 5.954, 5.882, 5.870, 5.761, 5.671, 5.540, 5.331, 5.077, 4.849, 4.504, 4.234, 3.949, 3.723, 3.542, 3.403),
    *(3.221, 3.130, 3.065, 3.007, 2.977, 2.978, 2.969, 2.972, 3.044, 3.171, 3.292, 3.516, 3.709, 3.801, 4.027, 5.541),
)


def test_suggestion_fits_the_measured_curve() -> None:
    rates = [1e-6 * 10 ** (6 * 3 * number / 99) for number in range(len(MEASURED))]
    rising, suggestion = suggest(rates, list(MEASURED))
    assert 1e-2 < rising < 3e-2
    assert 1.8e-3 / 2 < suggestion < 1.8e-3 * 2


def test_suggestion_is_below_where_the_loss_rises_whatever_its_steepest_place() -> None:
    rates = [10 ** (-6 + 6 * number / 99) for number in range(100)]
    for steepest in (1e-5, 1e-4, 1e-3):
        smooth = [3 + 3 / (1 + (rate / steepest) ** 1.5) + (rate / 0.2) ** 2 for rate in rates]
        rising, suggestion = suggest(rates, smooth)
        assert 5e-3 < rising < 1e-1 and suggestion == rising / 10
    assert suggest(rates, [5.0 + rate for rate in rates])[0] == rates[0]  # never falls


def test_the_suggested_rate_beats_a_tenth_and_ten_times_of_it(corpus: Path, tmp_path: Path) -> None:
    size = "--model_name baseline_transformer --model_size 4xs --context_length 32 --batch_size_per_device 8"
    config = parse_command_line([*size.split(), "--dataset_name", "text", "--dataset_dir", str(corpus)])
    data = language_data(config)
    torch.manual_seed(0)
    model = build_model(config, data.processor.vocab_size, data.processor.separator_id, data.processor.pad_id)
    suggestion = find_lr(TASK, config, data, model, tmp_path / "find_lr.png")
    ends = []
    for rate in (suggestion, suggestion / 10, suggestion * 10):
        trained = copy.deepcopy(model)
        settings = replace(config.optimizer, peak_learning_rate=rate)
        optimizer = optimizer_and_schedule(trained, settings, 8, 150)
        losses = []
        for batch in training_batches(data, 8, 150):
            losses.append(take_step(config, trained, optimizer["optimizer"], batch))
            optimizer["lr_scheduler"]["scheduler"].step()
        ends.append(sum(losses[-30:]) / 30)
    assert ends[0] < min(ends[1:]) - 0.1


def test_the_rows_that_will_be_tried_are_bounded_by_time_and_memory() -> None:
    trial = Trial(4, seconds=1.0, memory=100)
    assert rows_left(trial, longest=2.0, memory=1e9) == TRIAL_STEPS * (8 + 16), "16 rows take 4 s, and are the last"
    assert rows_left(trial, longest=2.0, memory=250) == TRIAL_STEPS * 8
    assert rows_left(trial, longest=0.5, memory=1e9) == 0


def test_find_batch_size_tries_sizes_until_one_does_not_fit(train_command: TrainCommand) -> None:
    little_memory = """
    import psutil
    plain = psutil.virtual_memory
    psutil.virtual_memory = lambda: plain()._replace(available=10_000_000)
    """
    output = train_command.with_fault(OFTEN + little_memory, "--find_batch_size")
    check_progress(output, "Trying batch")
    assert "needs more memory than is free" in output
    assert re.search(r"largest that fits: \d+\. Smallest within 10% of the best speed: \d+\.", output)
    assert "The learning rate goes with it" in output and "square root" in output
