"""How an energy-based model predicts: start somewhere and walk down the energy.

y <- start
for each step:
    y <- y + noise                          Langevin dynamics, optional
    z <- embed(y)                           what the energy sees of y
    E <- energy(z)                          one number per prediction
    y <- move(y, step_size * dE/dz)         down the energy, as the space of y has it

`walk` does this for any space of predictions. Training, evaluation, calibration and inference all use it: it is a
generator, so that its user takes all steps, looks at each, or stops early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from models.noise import parallel_normal


@dataclass(frozen=True)
class Step:
    """One step of the walk. size: a number, or one for each prediction; noise: standard deviation of what is added.

    create_graph: whether the energy's gradient is differentiated. Otherwise it is a constant, and only what y was
    before, the size and the noise have a gradient.
    """

    landscape: int
    size: Tensor
    noise: Tensor | float = 0.0
    create_graph: bool = True


class Walked(NamedTuple):
    """After a step: y, the energy before the step (with its graph, where there is one), the norm of its gradient."""

    y: Tensor
    energy: Tensor
    gradient_norm: Tensor


class Space:
    """Where a prediction y lives, and how the energy sees it.

    This class itself is for plain vectors, which the energy sees unchanged.

    event_dims: trailing dimensions of y that are one prediction, with one energy.
    natural_step: the step size that fits every energy of this space; None: it is fitted to the energy.
    noise_in_embedding: Langevin noise is added to the embedding z instead of y.
    """

    event_dims: int = 1
    natural_step: float | None = None
    noise_in_embedding: bool = False

    def embed(self, y: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
        """From where the step is taken, and z, which the energy sees. create_graph: z is differentiated."""
        return y, y

    def move(self, base: Tensor, size: Tensor, gradient: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
        """y after a step of this size against the gradient dE/dz, and the length of the gradient's part of it."""
        step = size * gradient
        return base - step, step.detach().flatten(-self.event_dims).norm(dim=-1)

    def own_energy(self, y: Tensor) -> Tensor | None:
        """An energy term that the space adds; `move` knows its gradient. None: there is none."""
        return None

    def target_embedding(self, target: Tensor) -> Tensor:
        """z of the true prediction."""
        return target

    def distance(self, start: Tensor, target: Tensor) -> float:
        """How far the first step should move y: the standard deviation that calibration aims at."""
        return float((target - start).std())


EnergyFn = Callable[[Tensor, int, bool], tuple[Tensor, Tensor]]  # z, landscape, create_graph -> E, dE/dz
NoiseFn = Callable[[int, Tensor], Tensor]  # number of the step, from 1, and a tensor -> standard normal noise like it


def walk(
    energy: EnergyFn,
    space: Space,
    y: Tensor,
    steps: Iterable[Step],
    *,
    differentiable: bool,
    detach: bool = False,
    noise: NoiseFn | None = None,
) -> Iterator[Walked]:
    """Walk down an energy from y, step by step.

    The energy sees y only through its embedding z. It is differentiated there, and `Space.move` carries the gradient
    back to y.
    differentiable: keep what a loss on the predictions needs to reach the energy's parameters.
    detach: no gradient from one step into the one before. noise: None draws from torch's generator.
    """
    for number, step in enumerate(steps, 1):
        if detach or not differentiable:
            y = y.detach()
        create_graph = differentiable and step.create_graph
        if not space.noise_in_embedding:
            y = add_noise(y, step, number, noise)
        with torch.set_grad_enabled(differentiable):  # ends before the yield: the user's grad mode is the user's
            base, z = space.embed(y, create_graph)
            if space.noise_in_embedding:
                z = add_noise(z, step, number, noise)
            energy_before, gradient = energy(z, step.landscape, create_graph)
            own = space.own_energy(y)
            energy_before = energy_before if own is None else energy_before + own
            y, length = space.move(base, step.size, gradient, create_graph)
        yield Walked(y, energy_before, (length / per_prediction(step.size.detach().abs(), length)).mean())


def add_noise(x: Tensor, step: Step, number: int, noise: NoiseFn | None) -> Tensor:
    if not isinstance(step.noise, Tensor) and not step.noise > 0:
        return x
    if noise is not None:
        return x + step.noise * noise(number, x)
    if isinstance(step.noise, Tensor):
        return x + step.noise * parallel_normal(x.shape, x)
    return parallel_normal(x.shape, x, step.noise).add_(x)


def per_prediction(size: Tensor, length: Tensor) -> Tensor:
    """Step sizes without the dimensions that broadcast over a prediction, e.g. [B, S, 1] -> [B, S]."""
    while size.dim() > length.dim():
        size = size[..., 0]
    return size
