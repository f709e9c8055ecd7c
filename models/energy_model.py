"""Models that predict by walking down an energy, trained through the walk; for predictions in any space.

`EnergyModel` has the training step, the evaluation, the calibration of the step size and the replay buffer. A subclass
says what a batch shows (`observed`), what is to be predicted (`target`), where a walk starts and what its loss is, and
defines the energy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric

from models.layers.analytic import autograd_gradient
from models.model import Batch, Evaluation, Model
from models.replay import ReplayBuffer
from models.walk import Space, Step, Walked, walk

SMALLEST_STEP = 1e-6
GAIN_ROWS = 128  # rows on which the thinking gain is measured where the losses of the steps do not show it


@dataclass(frozen=True)
class WalkSettings:
    """How a walk goes in training and in evaluation; every field is a flag of the energy group."""

    landscapes: int  # in training each is repeated, the number of times drawn per batch from min_repeats to max_repeats
    min_repeats: int = 1
    max_repeats: int = 1  # an evaluation repeats the last landscape this many times, and the others not
    repeat_final_only: bool = False
    step_size: float | None = None  # None: fitted to the energy, see `calibrate`
    learnable_step_size: bool = True
    step_size_lr_multiplier: float | None = None  # None: the step size itself
    step_size_scale: float = 1.0  # sizes are drawn from [size / scale, size * scale], once per walk and prediction
    start: str = "random_noise"  # random_noise, zeros, or prior: a prediction of the model without its energy
    noise_scale: float = 1.0
    langevin_noise: float = 0.0
    learnable_langevin: bool = False
    langevin_in_evaluation: bool = True
    detach: bool = False  # no gradient from one step into the one before
    last_step_only: bool = False  # the loss is that of the last step
    truncate: bool = False  # last_step_only, and only the gradient of the last step is differentiated
    contrastive_coefficient: float = 0.0  # 0: no contrastive loss
    reconstruction_coefficient: float = 1.0
    evaluation_steps: int | None = None  # None: every landscape once, the last one max_repeats times

    @property
    def steps(self) -> int:
        """The number of steps of an evaluation."""
        return self.evaluation_steps or self.landscapes + self.max_repeats - 1

    @property
    def evaluation_landscapes(self) -> list[int]:
        """The landscape of each step: every one once, then the last again; the first ones where steps are few."""
        return [min(step, self.landscapes - 1) for step in range(self.steps)]

    @property
    def step_counts(self) -> range:
        """How many steps a training batch may take."""
        repeated = 1 if self.repeat_final_only else self.landscapes
        once = self.landscapes - repeated
        return range(once + repeated * self.min_repeats, once + repeated * self.max_repeats + 1)


@dataclass
class Contexts:
    """The context of each landscape, computed lazily and once.

    differentiated: landscapes whose context gets a gradient, None for all (where grad mode is on).
    """

    make: Callable[[int], Any]
    differentiated: Collection[int] | None = None
    computed: dict[int, Any] = field(default_factory=dict)

    def __call__(self, landscape: int) -> Any:
        if landscape not in self.computed:
            graph = self.differentiated is None or landscape in self.differentiated
            with torch.set_grad_enabled(graph and torch.is_grad_enabled()):
                self.computed[landscape] = self.make(landscape)
        return self.computed[landscape]


class EnergyModel(Model):
    """Predicts y by walking down an energy E(z, context), where z is what the energy sees of y."""

    positive: ClassVar[tuple[str, ...]] = ("energy_gap",)
    has_landscapes: bool = False  # whether the energy depends on the landscape, so that each has its own context

    def __init__(
        self,
        network: nn.Module,
        evaluation: Evaluation,
        settings: WalkSettings,
        replay: ReplayBuffer | None = None,
    ) -> None:
        super().__init__(network, evaluation)
        self.walk_settings = settings
        self.replay = replay
        size = torch.tensor(settings.step_size if settings.step_size is not None else 1.0)
        self.step_size = nn.Parameter(size, requires_grad=settings.learnable_step_size)
        noise = torch.tensor(settings.langevin_noise)
        self.langevin_noise = nn.Parameter(noise, requires_grad=settings.learnable_langevin)
        losses = settings.steps + self.starts_with_a_prediction
        self.step_losses = nn.ModuleList(MeanMetric().set_dtype(torch.float64) for _ in range(losses))

    # What a subclass defines.

    @property
    def space(self) -> Space:
        """Where predictions live; made for each walk, with the weights as they are."""
        return Space()

    def space_of(self, observed: Any) -> Space:
        """The space of predictions for these rows: of a model whose rows differ in what they may predict."""
        return self.space

    @abstractmethod
    def observed(self, batch: Batch) -> Any:
        """What the model is shown of a batch."""

    @abstractmethod
    def target(self, batch: Batch) -> Tensor:
        """What it is to predict."""

    @abstractmethod
    def start(self, observed: Any, fixed: bool = False, contexts: Contexts | None = None) -> Tensor:
        """Where the walk begins; fixed: the same for every row and every time, for evaluation."""

    @abstractmethod
    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """The mean loss of predictions over the targets that count."""

    @abstractmethod
    def energy(self, z: Tensor, context: Any) -> Tensor:
        """The energy of each prediction, given what was observed."""

    def context(self, observed: Any, landscape: int) -> Any:
        """What the energy reads of the observed; computed once for each landscape."""
        return observed

    def counted(self, target: Tensor) -> Tensor:
        """Which targets count: a mask of the energies' shape."""
        return torch.ones(target.shape[: target.dim() - self.space.event_dims], dtype=torch.bool, device=target.device)

    def gain_sample(self, x: Tensor) -> Tensor:
        """Some predictions, or their targets, that show as much as all and cost little."""
        return x[:GAIN_ROWS]

    def energy_and_gradient(self, z: Tensor, context: Any, create_graph: bool) -> tuple[Tensor, Tensor]:
        """The energy and dE/dz, by autograd. An override must compute the gradient of `energy`; `check` verifies it."""
        return autograd_gradient(self.energy, z, context, create_graph)

    # The walk.

    @property
    def starts_with_a_prediction(self) -> bool:
        """Whether the start of a walk is a prediction already, with a loss worth measuring."""
        return self.walk_settings.start == "prior"

    def contexts(self, observed: Any, steps: list[Step] | None = None) -> Contexts:
        """The contexts of whole rows. steps: those of the walk, of which only some may be differentiated."""
        differentiated = None if steps is None else {step.landscape for step in steps if step.create_graph}
        return Contexts(lambda landscape: self.context(observed, landscape), differentiated)

    def walk(
        self, observed: Any, start: Tensor, steps: list[Step], differentiable: bool, contexts: Contexts | None = None
    ) -> Iterator[Walked]:
        """Walk down the energy; the context of each landscape that the steps need is computed once."""
        contexts = contexts or self.contexts(observed, steps)

        def energy(z: Tensor, landscape: int, create_graph: bool) -> tuple[Tensor, Tensor]:
            return self.energy_and_gradient(z, contexts(landscape), create_graph)

        detach = self.walk_settings.detach
        space = self.space_of(observed)
        return walk(energy, space, start, steps, differentiable=differentiable, detach=detach)

    def landscape_of(self, landscape: int) -> int:
        """Which context belongs to a landscape: an unconditioned energy has one."""
        return landscape if self.has_landscapes else 0

    @property
    def last_landscape(self) -> int:
        return self.landscape_of(self.walk_settings.landscapes - 1)

    def langevin(self, enabled: bool) -> Tensor | float:
        """The standard deviation of Langevin noise."""
        settings = self.walk_settings
        if not enabled or settings.langevin_noise == 0:
            return 0.0
        return self.langevin_noise if settings.learnable_langevin else float(settings.langevin_noise)

    def training_steps(self, *shape: int) -> list[Step]:
        """The steps of one training batch: their number drawn for each landscape, their size once per prediction.

        shape: that of the energies.
        """
        settings = self.walk_settings
        landscapes: list[int] = []
        for landscape in range(settings.landscapes):
            repeats = 1
            if not settings.repeat_final_only or landscape == settings.landscapes - 1:
                repeats = settings.max_repeats
                if settings.min_repeats < repeats:
                    repeats = int(torch.randint(settings.min_repeats, repeats + 1, ()))
            landscapes += [landscape] * repeats
        size: Tensor = self.step_size
        scale = settings.step_size_scale
        if scale > 1:
            drawn = torch.rand((*shape, *[1] * self.space.event_dims), device=size.device, dtype=size.dtype)
            size = size * (1 / scale + (scale - 1 / scale) * drawn)
        last = len(landscapes) - 1
        return [
            Step(self.landscape_of(landscape), size, self.langevin(True), not settings.truncate or t == last)
            for t, landscape in enumerate(landscapes)
        ]

    def evaluation_steps(self) -> list[Step]:
        size = self.step_size.detach().clamp(min=SMALLEST_STEP)
        noise = self.langevin(self.walk_settings.langevin_in_evaluation)
        return [Step(self.landscape_of(k), size, noise) for k in self.walk_settings.evaluation_landscapes]

    def forward(self, observed: Any) -> Tensor:
        """The prediction after the last step."""
        contexts = self.contexts(observed)
        y = self.start(observed, fixed=True, contexts=contexts)
        for walked in self.walk(observed, y, self.evaluation_steps(), False, contexts):
            y = walked.y
        return y

    def embed(self, y: Tensor) -> Tensor:
        """What the energy sees of a prediction."""
        return self.space.embed(y, torch.is_grad_enabled())[1]

    def prediction_energy(self, y: Tensor, context: Any) -> Tensor:
        """The energy of a prediction, with the term that its space adds."""
        energy, own = self.energy(self.embed(y), context), self.space.own_energy(y)
        return energy if own is None else energy + own

    def target_energy(self, target: Tensor, context: Any) -> Tensor:
        """The energy of the truth."""
        return self.energy(self.space.target_embedding(target), context)

    # Training.

    def step_counts(self) -> tuple[int, ...]:
        return tuple(self.walk_settings.step_counts)

    @contextmanager
    def with_steps(self, count: int) -> Iterator[None]:
        settings = self.walk_settings
        repeats = settings.min_repeats if count == settings.step_counts[0] else settings.max_repeats
        self.walk_settings = replace(settings, min_repeats=repeats, max_repeats=repeats)
        try:
            yield
        finally:
            self.walk_settings = settings

    def meta_copy(self, batch: Batch) -> Self:
        replay, self.replay = self.replay, None
        try:
            meta = super().meta_copy(batch)
        finally:
            self.replay = replay
        if replay is not None:
            meta.replay = ReplayBuffer(replay.rows, replay.share)
            with torch.random.fork_rng(devices=[]):
                meta.training_step(batch, 0)  # fills the buffer, so that the next batch has replayed rows
        return meta

    def learning_rates(self) -> dict[str, float]:
        if not self.walk_settings.learnable_step_size:
            return {}
        factor = self.walk_settings.step_size_lr_multiplier
        return {"step_size": factor if factor is not None else float(self.step_size.detach())}

    @torch.no_grad()
    def calibrate(self, batch: Batch) -> dict[str, float]:
        """Fit the step size to the energy, where no number was given.

        The scale of an energy is arbitrary. A step that is too long explodes, one that is too short does not learn:
        this is the one setting that has to fit the model. The first step is made to move a prediction by the distance
        that its space names. In a space with a natural step that is the size.
        """
        if self.walk_settings.step_size is not None:
            return {}
        size = self.space.natural_step
        if size is None:
            observed = self.observed(batch)
            start = self.start(observed, fixed=True)
            size = self.space.distance(start, self.target(batch)) / self.unit_move(observed, start)
        self.step_size.fill_(size)
        return {"step_size": float(self.step_size)}

    def unit_move(self, observed: Any, start: Tensor) -> float:
        """How far a first step of size 1 moves a prediction: a standard deviation."""
        (walked,) = self.walk(observed, start, [Step(0, torch.ones(()))], differentiable=False)
        base, _ = self.space.embed(start, create_graph=False)
        return float((walked.y - base).std())

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        with torch.no_grad():  # the parameter itself is clamped: a clamp in front of it would stop its gradient
            self.step_size.clamp_(min=SMALLEST_STEP)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        settings, replayed = self.walk_settings, None
        fresh, fresh_rows = batch, len(next(iter(batch.values())))
        if self.replay is not None:
            batch, replayed = self.replay.append_to(batch)
        observed, target = self.observed(batch), self.target(batch)
        counted = self.counted(target)
        steps = self.training_steps(*counted.shape)
        contexts = self.contexts(observed, steps)
        start = self.start(observed, contexts=contexts)
        if replayed is not None:
            start = torch.cat([start[:fresh_rows], replayed.to(start)])
        walked = list(self.walk(observed, start, steps, differentiable=True, contexts=contexts))
        with_loss = walked[-1:] if settings.last_step_only or settings.truncate else walked
        losses = [self.loss(step.y, target) for step in with_loss]
        loss = torch.stack(losses).mean()
        self.measured = self.measure_walk(start, walked, losses, target)
        if self.replay is not None:
            self.replay.add(fresh, walked[-1].y[:fresh_rows].detach())
        if settings.contrastive_coefficient:
            contrast = self.contrastive_loss(contexts, target, walked[-1].energy, counted)
            self.measured["contrastive_loss"] = contrast.detach()
            reconstruction, contrast = (
                settings.reconstruction_coefficient * loss,
                settings.contrastive_coefficient * contrast,
            )
            self.terms = {"reconstruction": reconstruction, "contrastive": contrast}
            loss = reconstruction + contrast
        return loss

    def contrastive_loss(self, contexts: Contexts, target: Tensor, energy: Tensor, counted: Tensor) -> Tensor:
        """The mean of softplus(E(truth) - E(y)): how much the energy prefers y, before the last step, to the truth."""
        truth = self.target_energy(target, contexts(self.last_landscape))
        return F.softplus(truth - energy)[counted].mean()

    @torch.no_grad()
    def measure_walk(
        self, start: Tensor, walked: list[Walked], losses: list[Tensor], target: Tensor
    ) -> dict[str, Tensor]:
        """What shows whether the walk is sound: losses by step, energies, their gradient and the step size."""
        energies = [step.energy.detach().mean() for step in walked]
        first, last = losses[0], losses[-1]
        if len(losses) == 1 or self.starts_with_a_prediction:
            ends = (start if self.starts_with_a_prediction else walked[0].y, walked[-1].y)
            some = self.gain_sample(target)
            first, last = (self.loss(self.gain_sample(y).detach(), some) for y in ends)
        norms = torch.stack([step.gradient_norm for step in walked])
        return {
            **{f"train_loss_step_{t + 1}": loss.detach() for t, loss in enumerate(losses) if len(losses) > 1},
            "steps": torch.tensor(float(len(walked))),
            "energy_first": energies[0],
            "energy_last": energies[-1],
            "energy_gap": energies[0] - energies[-1],
            "energy_gradient_norm": norms.mean(),
            "step_size": self.step_size.detach(),
            "nonfinite_steps": 1 - norms.isfinite().float().mean(),
            "thinking_gain": (first - last).detach(),
        }

    # Evaluation.

    def evaluate(self, batch: Batch) -> None:
        """Add a batch to the metrics: the loss after every step, and all of the last prediction."""
        observed, target = self.observed(batch), self.target(batch)
        contexts = self.contexts(observed)
        y = self.start(observed, fixed=True, contexts=contexts)
        count = self.counted(target).sum()

        def predictions() -> Iterator[Tensor]:
            if self.starts_with_a_prediction:
                yield y
            for walked in self.walk(observed, y, self.evaluation_steps(), differentiable=False, contexts=contexts):
                yield walked.y

        for metric, prediction in zip(self.step_losses, predictions(), strict=True):
            if count:
                metric(self.loss(prediction, target).double(), count)
        self.evaluation.update(prediction, target)

    def compute_results(self) -> dict[str, float]:
        results, by_step = super().compute_results(), []
        for metric in self.step_losses:
            by_step.append(metric.compute().item())  # type: ignore[operator]
            metric.reset()  # type: ignore[operator]
        first = 0 if self.starts_with_a_prediction else 1
        results |= {f"loss_step_{t}": loss for t, loss in enumerate(by_step, first)}
        results["thinking_gain"] = by_step[0] - by_step[-1]
        return results

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.replay is not None:  # each process has its own rows
            states = [self.replay.state()]
            if torch.distributed.is_initialized():
                states = [{}] * torch.distributed.get_world_size()
                torch.distributed.all_gather_object(states, self.replay.state())
            checkpoint["replay"] = states

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.replay is not None and "replay" in checkpoint:
            rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
            self.replay.load(checkpoint["replay"][rank])


@dataclass(frozen=True)
class WalkCurve:
    """A walk by the number of steps taken, 0..T, over N predictions.

    energies: [T+1, N]. losses: [T+1], means. truth: [N], the energy of the target.
    """

    energies: Tensor
    losses: Tensor
    truth: Tensor


def walk_steps(model: EnergyModel, count: int) -> list[Step]:
    """The steps of an evaluation without its noise, and more of the last landscape's up to `count`."""
    steps = [replace(step, noise=0.0) for step in model.evaluation_steps()]
    return (steps + [steps[-1]] * count)[:count]


@torch.no_grad()
def walk_curve(model: EnergyModel, batch: Batch, count: int) -> WalkCurve:
    """Walk `count` steps down the energy; targets that do not count are skipped. Draws from no generator."""
    observed, target = model.observed(batch), model.target(batch)
    contexts = model.contexts(observed)
    y = model.start(observed, fixed=True, contexts=contexts)
    counted, energies, losses = model.counted(target), [], []
    # The energy is that before a step: of the last step, only this is used.
    for walked in model.walk(observed, y, walk_steps(model, count + 1), differentiable=False, contexts=contexts):
        losses.append(model.loss(y, target))
        energies.append(walked.energy[counted])
        y = walked.y
    truth = model.target_energy(target, contexts(model.last_landscape))[counted]
    return WalkCurve(torch.stack(energies).float(), torch.stack(losses).float(), truth.float())
