"""An energy model that is not of language: points in the plane, drawn from a few modes, seen as they are."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from models.energy_model import Contexts, EnergyModel, WalkSettings, walk_curve
from models.model import Batch, Evaluation
from models.replay import ReplayBuffer
from models.walk import Space, Step, walk

MODES, SPREAD, LEVEL = 3, 0.05, 0.3
SETTINGS = WalkSettings(landscapes=2, step_size=0.2)


def points(count: int, seed: int) -> Batch:
    """Points around the modes, and what is observed of each: the point with noise."""
    generator = torch.Generator().manual_seed(seed)
    angle = torch.randint(MODES, (count,), generator=generator) * (6.2832 / MODES)
    point = torch.stack([angle.cos(), angle.sin()], -1) + SPREAD * torch.randn(count, 2, generator=generator)
    noisy = point + LEVEL * torch.randn(count, 2, generator=generator)
    return {"point": point.double(), "noisy": noisy.double(), "weight": (torch.arange(count) % 5 > 0)}


class SquaredDistance(Evaluation):
    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self.mean.update((prediction - target).square().sum(-1))

    def result(self) -> dict[str, float]:
        value = self.mean.compute().item()
        self.mean.reset()
        return {"loss": value}


class Points(EnergyModel):
    """The energy of a point, given the noisy one; walks start there."""

    network: nn.Sequential

    def __init__(self, settings: WalkSettings = SETTINGS, replay: ReplayBuffer | None = None) -> None:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 1, bias=False))
        super().__init__(network, SquaredDistance(), settings, replay)
        self.double()

    def observed(self, batch: Batch) -> Tensor:
        return batch["noisy"]

    def target(self, batch: Batch) -> Tensor:
        return batch["point"]

    def start(self, observed: Tensor, fixed: bool = False, contexts: Contexts | None = None) -> Tensor:
        noise = 0.0 if fixed else 0.1 * torch.randn_like(observed)
        return observed + noise

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        return (y - target).square().sum(-1).mean()

    def energy(self, z: Tensor, context: Tensor) -> Tensor:
        return self.network(torch.cat([z, context], -1)).squeeze(-1)


def slow_walk(model: Points, observed: Tensor, y: Tensor, sizes: Sequence[Tensor], detach: bool) -> list[Tensor]:
    """The walk as autograd does it, without a space, a context or saved gradients."""
    predictions = []
    for size in sizes:
        y = y.detach() if detach else y
        y = y if y.requires_grad else y.requires_grad_()
        (slope,) = torch.autograd.grad(model.energy(y, observed).sum(), y, create_graph=True)
        y = y - size * slope
        predictions.append(y)
    return predictions


def gradients(model: Points, loss: Tensor) -> dict[str, Tensor]:
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    return dict(zip(named, grads, strict=True))


CHANGES: list[dict[str, Any]] = [
    {},
    {"detach": True},
    {"last_step_only": True},
    {"step_size_scale": 2.0},
    {"contrastive_coefficient": 0.3, "reconstruction_coefficient": 0.5},
]


@pytest.mark.parametrize("changes", CHANGES, ids=[", ".join(change) or "plain" for change in CHANGES])
def test_loss_and_gradients_are_those_of_autograd_through_the_walk(changes: dict[str, Any]) -> None:
    settings, batch = replace(SETTINGS, **changes), points(6, 1)
    model = Points(settings)
    torch.manual_seed(3)
    loss = model.training_step(batch, 0)
    torch.manual_seed(3)
    steps = model.training_steps(6)
    assert {step.size.shape for step in steps} == {(6, 1) if settings.step_size_scale > 1 else ()}
    start = model.start(batch["noisy"])
    predictions = slow_walk(model, batch["noisy"], start, [step.size for step in steps], settings.detach)
    judged = predictions[-1:] if settings.last_step_only else predictions
    slow_loss = torch.stack([(y - batch["point"]).square().sum(-1).mean() for y in judged]).mean()
    if settings.contrastive_coefficient:
        before = predictions[-2].detach() if settings.detach else predictions[-2]
        gap = model.energy(batch["point"], batch["noisy"]) - model.energy(before, batch["noisy"])
        slow_loss = 0.5 * slow_loss + 0.3 * torch.log1p(gap.exp()).mean()
        assert torch.equal(torch.stack(list(model.terms.values())).sum(), loss)
    torch.testing.assert_close(loss, slow_loss)
    slow_gradients = gradients(model, slow_loss)
    for name, gradient in gradients(model, loss).items():
        torch.testing.assert_close(gradient, slow_gradients[name], msg=name)
        assert gradient.any(), name


@pytest.mark.parametrize("truncate", [False, True])
def test_it_learns_and_its_energies_fall_along_the_walk(truncate: bool) -> None:
    model = Points(replace(SETTINGS, step_size=None, truncate=truncate))
    size = model.calibrate(points(64, 9))["step_size"]
    assert size == model.step_size.item() and model.learning_rates() == {"step_size": size}
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(200):
        optimizer.zero_grad()
        model.training_step(points(64, 100 + step), step).backward()
        optimizer.step()
    assert all(model.measured[name] > 0 for name in model.positive)
    held_out = points(64, 2)
    curve = walk_curve(model, held_out, 4)
    assert curve.energies.shape == (5, 64) and curve.truth.shape == (64,)
    energies = curve.energies.mean(1)
    assert (energies[1:3] < energies[:2]).all()  # as many steps as it was trained with
    assert curve.losses[2] < 0.7 * curve.losses[0]
    for rows in (slice(0, 24), slice(24, 64)):
        model.validation_step({name: tensor[rows] for name, tensor in held_out.items()}, 0)
    model.on_validation_epoch_end()
    assert model.results["loss"] == pytest.approx(float(curve.losses[2]), rel=1e-5)
    assert model.results["loss_step_1"] == pytest.approx(float(curve.losses[1]), rel=1e-5)
    assert model.results["thinking_gain"] == pytest.approx(float(curve.losses[1] - curve.losses[2]), rel=1e-3)


def test_the_calibrated_first_step_moves_as_far_as_the_target_is_away() -> None:
    model, batch = Points(replace(SETTINGS, step_size=None)), points(64, 4)
    model.calibrate(batch)
    start = model.start(batch["noisy"], fixed=True)
    (walked,) = model.walk(batch["noisy"], start, model.evaluation_steps()[:1], differentiable=False)
    torch.testing.assert_close((walked.y - start).std(), (batch["point"] - start).std())
    assert Points().calibrate(batch) == {}


def test_replayed_rows_bring_all_of_their_batch() -> None:
    model = Points(replay=ReplayBuffer(4, 0.5))
    first, second = points(4, 1), points(4, 2)
    model.training_step(first, 0)
    checkpoint: dict[str, Any] = {}
    model.on_save_checkpoint(checkpoint)
    assert set(checkpoint["replay"][0]) == {*first, "predictions", "filled", "next"}
    other = Points(replay=ReplayBuffer(4, 0.5))
    other.on_load_checkpoint(copy.deepcopy(checkpoint))
    assert other.replay is not None
    torch.manual_seed(5)
    batch, start = other.replay.append_to(second)
    assert {len(tensor) for tensor in batch.values()} == {6} and start is not None and len(start) == 2
    row = first["noisy"].tolist().index(batch["noisy"][-1].tolist())
    assert torch.equal(batch["point"][-1], first["point"][row])
    torch.manual_seed(6)
    loss = model.training_step(second, 1)
    torch.manual_seed(6)
    assert torch.equal(other.training_step(second, 1), loss)


def test_a_walk_may_be_left_early_and_leaves_the_grad_mode_alone() -> None:
    model, batch = Points(), points(3, 1)
    steps = [Step(0, torch.tensor(0.1))] * 5
    for outer in (False, True):
        with torch.set_grad_enabled(outer):
            for differentiable in (False, True):
                for number, walked in enumerate(model.walk(batch["noisy"], batch["point"], steps, differentiable)):
                    assert torch.is_grad_enabled() == outer
                    assert walked.y.requires_grad == differentiable
                    if number == 1:
                        break
                assert torch.is_grad_enabled() == outer


def test_noise_is_added_where_the_space_has_it() -> None:
    class Seen(Space):
        noise_in_embedding = True

    def energy(z: Tensor, landscape: int, create_graph: bool) -> tuple[Tensor, Tensor]:
        return z.square().sum(-1) / 2, z

    y, size = torch.ones(3, 2), torch.tensor(0.5)
    for space, expected in ((Space(), (1 + 7) * 0.5), (Seen(), 1 - 0.5 * (1 + 7))):
        drawn: list[int] = []

        def noise(number: int, x: Tensor, drawn: list[int] = drawn) -> Tensor:
            drawn.append(number)
            return torch.full_like(x, 70.0)

        steps = [Step(0, size, 0.1), Step(0, size)]
        first, _ = walk(energy, space, y, steps, differentiable=False, noise=noise)
        torch.testing.assert_close(first.y, torch.full((3, 2), expected))
        torch.testing.assert_close(first.energy, torch.full((3,), 64.0))
        assert drawn == [1]


def test_step_sizes_fit_predictions_of_several_dimensions() -> None:
    """An energy for a whole picture: one size and one gradient norm for all of its patches."""

    class Pictures(Space):
        event_dims = 2

    y = torch.ones(3, 4, 2)
    step = Step(0, torch.tensor([0.1, 0.2, 0.3])[:, None, None])
    (walked,) = walk(lambda z, *_: (z.square().sum((-2, -1)) / 2, z), Pictures(), y, [step], differentiable=False)
    torch.testing.assert_close(walked.y[:, 0, 0], torch.tensor([0.9, 0.8, 0.7]))
    torch.testing.assert_close(walked.gradient_norm, torch.tensor(8.0).sqrt())
