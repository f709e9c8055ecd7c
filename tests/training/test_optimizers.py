"""Groups hold every parameter once, and keep the ratio of their rates at every step of every schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from config import parse_command_line
from tests.support.builders import build_model
from training.optimizers import build_optimizer, learning_rates, optimizer_and_schedule, parameter_groups, schedule

CONFIG = parse_command_line(["--model_name", "baseline_transformer", "--model_size", "4xs"])
SETTINGS = CONFIG.optimizer
SCHEDULES = ("cosine", "linear", "constant", "one_cycle")


def test_every_trainable_parameter_is_in_exactly_one_group() -> None:
    model = build_model(CONFIG, 258, 256, 257)
    model.get_parameter("network.blocks.0.feed_forward.output.weight").requires_grad = False
    groups = parameter_groups(model, 1e-3, 0.1, {"network.norm.scale": 5.0})
    placed = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(placed) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    by_name = {group["name"]: group for group in groups}
    assert by_name["network.norm.scale"]["lr"] == 5e-3 and by_name["network.norm.scale"]["weight_decay"] == 0
    assert all(p.ndim >= 2 for p in by_name["decay"]["params"])
    assert by_name["no_decay"]["weight_decay"] == 0 and all(p.ndim < 2 for p in by_name["no_decay"]["params"])


def test_a_factor_counts_for_all_parameters_of_a_module_and_the_longest_name_wins() -> None:
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), "encoder_2": nn.Linear(3, 3)})
    groups = parameter_groups(model, 1e-3, 0.1, {"encoder": 0.1, "encoder.1": 5.0})
    rates = {id(parameter): (group["lr"], group["weight_decay"]) for group in groups for parameter in group["params"]}
    placed = {name: rates[id(parameter)] for name, parameter in model.named_parameters()}
    assert placed == {
        "encoder.0.weight": (1e-4, 0.1),
        "encoder.0.bias": (1e-4, 0.0),
        "encoder.1.weight": (5e-3, 0.1),
        "encoder.1.bias": (5e-3, 0.0),
        "encoder_2.weight": (1e-3, 0.1),
        "encoder_2.bias": (1e-3, 0.0),
    }


@pytest.mark.parametrize("shape", SCHEDULES)
def test_groups_keep_their_ratio_at_every_step(shape: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    settings = replace(SETTINGS, lr_schedule=shape, warm_up_steps=5)
    both = optimizer_and_schedule(model, settings, 16, 40, {"0.weight": 1500.0})
    optimizer, scheduler = both["optimizer"], both["lr_scheduler"]["scheduler"]
    for _ in range(60):
        rates = learning_rates(optimizer)
        assert rates["learning_rate/0.weight"] == pytest.approx(1500 * rates["learning_rate"], rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_rates_have_names_that_do_not_change_with_a_run() -> None:
    model = nn.ParameterDict({"step_size": nn.Parameter(torch.ones(())), "w": nn.Parameter(torch.ones(2, 2))})
    optimizer = build_optimizer(model, SETTINGS, 16, {"step_size": 0.0778419})
    names = ["learning_rate", "learning_rate/step_size"]
    assert list(learning_rates(optimizer)) == names
    for old in ("x0.0778419", "x1e-05", "x5e+03"):  # as a checkpoint of an older run has it
        optimizer.param_groups[0]["name"] = old
        assert list(learning_rates(optimizer)) == names


@given(
    st.sampled_from(SCHEDULES),
    st.integers(0, 100),
    st.integers(1, 400),
    st.floats(1, 1000),
    st.floats(1, 1000),
)
def test_a_schedule_stays_between_its_ends(shape: str, warm: int, end: int, divider: float, scale: float) -> None:
    settings = replace(
        SETTINGS, lr_schedule=shape, warm_up_steps=warm, warm_up_base_lr_divider=divider, min_lr_scale=scale
    )
    factor = schedule(settings, warm + end)
    values = [factor(step) for step in range(warm + end + 10)]
    assert all(min(1 / divider, 1 / scale) - 1e-9 <= value <= 1 + 1e-9 for value in values)
    assert values[-1] == pytest.approx(1.0 if shape == "constant" else 1 / scale)
    assert max(values) == pytest.approx(1.0) or shape == "one_cycle"
    if warm > 1 and shape != "one_cycle":
        assert values[0] == pytest.approx(1 / divider) and values[:warm] == sorted(values[:warm])


def test_the_schedule_can_end_apart_from_the_run() -> None:
    factor = schedule(replace(SETTINGS, max_scheduling_steps=100, warm_up_steps=0), 1000)
    assert factor(100) == pytest.approx(0.1) and factor(999) == pytest.approx(0.1) and factor(50) == pytest.approx(0.55)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "sgd"])
def test_every_optimizer_learns(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = build_optimizer(model, replace(SETTINGS, optimizer=name, peak_learning_rate=0.01), 16)
    x = torch.randn(64, 4)
    target = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])

    def loss() -> torch.Tensor:
        return (model(x) - target).square().mean()

    first = loss().item()
    for _ in range(50):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < 0.9 * first


def test_lr_scaling_rule() -> None:
    model = nn.Linear(2, 2)
    scaled = build_optimizer(model, replace(SETTINGS, lr_scaling_rule=True, peak_learning_rate=0.1), 512)
    assert scaled.param_groups[0]["lr"] == pytest.approx(0.2)
