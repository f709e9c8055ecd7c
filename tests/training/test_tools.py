"""--plan, --find_lr and --find_batch_size tell the truth and leave no run behind."""

from __future__ import annotations

import re

import torch
from torch.utils.flop_counter import FlopCounterMode

from config import parse_command_line
from models import build_model
from tests.conftest import Door
from training.cost import step_cost
from training.find import suggest
from training.plan import amount

CONFIG = parse_command_line(["--model_name", "baseline_transformer", "--model_size", "4xs", "--context_length", "64"])


def test_plan_prints_what_the_run_will_cost(door: Door) -> None:
    output = door("--plan", "--max_steps", "100", "--accumulate_grad_batches", "2")
    lines = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in output.splitlines() if "  " in line)
    assert lines["parameters"].startswith("263,040")
    assert lines["tokens per step"] == "256" and lines["steps"] == "100"
    assert lines["tokens to be seen"].startswith("25,600")
    assert not (door.logs / "runs").exists()


def test_flops_are_those_of_the_formula() -> None:
    model = build_model(CONFIG, 258, 256, 257)
    L, D, S, V, B = 2, 128, 64, 258, 3
    matrices = L * (4 * D * D + 3 * D * D) + D * V
    attention = L * 2 * S * D  # scores and mixing, per token
    assert step_cost(model, B, S).flops == 6 * B * S * (matrices + attention)


def test_activation_estimate_is_near_what_autograd_keeps() -> None:
    model = build_model(CONFIG, 258, 256, 257)
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.training_step({"input_ids": torch.randint(0, 256, (8, 65))}, 0)
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    real = sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own)
    assert 0.8 * real < step_cost(model, 8, 64).activation_bytes < 1.5 * real


def test_counting_leaves_the_model_alone() -> None:
    model = build_model(CONFIG, 258, 256, 257)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    step_cost(model, 2, 16)
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with FlopCounterMode(display=False) as counter:
        model.training_step({"input_ids": torch.zeros(1, 9, dtype=torch.int64)}, 0)
    assert counter.get_total_flops() > 0


def test_amounts_are_readable() -> None:
    assert amount(14_600_000, "FLOP") == "14.6 MFLOP"
    assert amount(999, "B", 1024) == "999 B"
    assert amount(3 * 2**30, "B", 1024) == "3 GB"


def test_find_lr_suggests_a_rate_and_draws_it(door: Door) -> None:
    output = door("--find_lr")
    rate = float(re.search(r"try --peak_learning_rate (\S+)", output).group(1))  # type: ignore[union-attr]
    assert 1e-5 < rate < 0.5
    assert (door.logs / "find_lr.png").stat().st_size > 5000
    assert not (door.logs / "runs").exists()


def test_suggestion_is_before_the_lowest_point() -> None:
    rates = [10.0**exponent for exponent in range(-6, 1)]
    assert suggest(rates, [5.0, 5.0, 4.9, 3.0, 2.5, 6.0, 9.0]) == 1e-3


def test_find_batch_size_tries_sizes_until_one_does_not_fit(door: Door) -> None:
    little_memory = """
    import psutil
    plain = psutil.virtual_memory
    psutil.virtual_memory = lambda: plain()._replace(available=4_000_000)
    """
    output = door.with_fault(little_memory, "--find_batch_size")
    assert "needs more memory than is free" in output
    assert re.search(r"largest that fits: \d+\. Smallest within 10% of the best speed: \d+\.", output)
    assert "The learning rate goes with it" in output and "square root" in output
