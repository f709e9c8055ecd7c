"""The language EBT: next-token prediction by walking down the energy, trained through the walk."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch.nn import functional as F
from torchmetrics import MeanMetric

from models.descent import Rule, Step, Walk, descend, neg_entropy
from models.energy_check import check_energy
from models.energy_transformer import Context, EnergyTransformer
from models.language_model import LanguageModel
from models.layers.vocabulary import cross_entropy, embed
from models.noise import keyed_normal, noise_key, normal
from models.replay import ReplayBuffer

SMALLEST_STEP = 1e-6
SHOWN = 128  # positions, by which the gain of thinking is told where no loss tells it


@dataclass(frozen=True)
class Thinking:
    """How predictions are found in training and evaluation; every field is a flag of the energy group."""

    landscapes: int  # in training each is repeated, the number of times drawn per batch from min_repeats to max_repeats
    min_repeats: int
    max_repeats: int  # in evaluation, the last landscape is repeated so often, the others are not
    repeat_final_only: bool
    step_size: float | None  # None: fitted to the energy, see `calibrate`
    learnable_step_size: bool
    step_size_lr_multiplier: float | None  # None: the step size itself
    step_size_scale: float  # steps of a walk are drawn from [size / scale, size * scale], once per walk and position
    start: str  # random_noise, zeros or prior
    noise_scale: float
    langevin_noise: float
    learnable_langevin: bool
    langevin_in_evaluation: bool
    rule: Rule
    last_step_only: bool  # the loss is that of the last step
    truncate: bool  # and only its gradient is differentiated
    contrastive_coefficient: float  # 0: no contrastive loss
    reconstruction_coefficient: float

    @property
    def steps(self) -> int:
        """How many an evaluation takes."""
        return self.landscapes + self.max_repeats - 1

    @property
    def evaluation_landscapes(self) -> list[int]:
        return [*range(self.landscapes), *[self.landscapes - 1] * (self.max_repeats - 1)]

    @property
    def step_counts(self) -> range:
        """How many steps a training batch may take."""
        repeated = 1 if self.repeat_final_only else self.landscapes
        once = self.landscapes - repeated
        return range(once + repeated * self.min_repeats, once + repeated * self.max_repeats + 1)


@dataclass
class Contexts:
    """The context of each landscape, computed when it is first asked for.

    differentiated: landscapes whose context gets a gradient, None for all (where grad mode is on).
    """

    make: Callable[[int], Context]
    differentiated: Collection[int] | None = None
    made: dict[int, Context] = field(default_factory=dict)

    def __call__(self, landscape: int) -> Context:
        if landscape not in self.made:
            graph = self.differentiated is None or landscape in self.differentiated
            with torch.set_grad_enabled(graph and torch.is_grad_enabled()):
                self.made[landscape] = self.make(landscape)
        return self.made[landscape]


class EnergyLanguageModel(LanguageModel):
    """An EnergyTransformer that learns to have its lowest energies at the next token."""

    network: EnergyTransformer

    def __init__(
        self, network: EnergyTransformer, vocab_size: int, pad_id: int, thinking: Thinking, replay: ReplayBuffer | None
    ) -> None:
        super().__init__(network, vocab_size, pad_id)
        self.thinking = thinking
        self.replay = replay
        size = torch.tensor(thinking.step_size if thinking.step_size is not None else 1.0)
        self.step_size = nn.Parameter(size, requires_grad=thinking.learnable_step_size)
        noise = torch.tensor(thinking.langevin_noise)
        self.langevin_noise = nn.Parameter(noise, requires_grad=thinking.learnable_langevin)
        losses = thinking.steps + (thinking.start == "prior")
        self.step_losses = nn.ModuleList(MeanMetric().set_dtype(torch.float64) for _ in range(losses))

    def learning_rate_multipliers(self) -> dict[str, float]:
        multipliers = {}
        if self.thinking.learnable_step_size:
            chosen = self.thinking.step_size_lr_multiplier
            multipliers["step_size"] = chosen if chosen is not None else float(self.step_size.detach())
        return multipliers

    def check(self) -> None:
        check_energy(self.network)

    def calibrate(self, batch: dict[str, Tensor]) -> float | None:
        """Fit the step size to the energy; returns it, or None when a number was given.

        An energy's scale is arbitrary, and a step that is too long explodes while one that is too short does not learn:
        this is the one knob that has to fit the model. The first step is made to move a prediction by a standard
        deviation of 1. An energy with an entropy term has a scale of its own: its step is 1.
        """
        if self.thinking.step_size is not None:
            return None
        if self.thinking.rule.entropy:
            with torch.no_grad():
                return float(self.step_size.fill_(1.0))
        tokens_BS = batch["input_ids"][:, :-1]
        start_BSV = self.start(tokens_BS, fixed=True)
        with torch.no_grad():
            unit = Step(0, torch.ones(()))
            walk = self.walk(tokens_BS, start_BSV, [unit], differentiable=False)
            rule = self.thinking.rule
            before = start_BSV.softmax(-1) if rule.from_probabilities and rule.normalize else start_BSV
            self.step_size.fill_(1 / float((walk.predictions[0] - before).std()))
        return float(self.step_size.detach())

    def contexts(self, tokens_BS: Tensor, steps: list[Step] | None = None) -> Contexts:
        """The contexts of whole rows. steps: those of the walk, of which only some may be differentiated."""
        differentiated = None if steps is None else {step.landscape for step in steps if step.create_graph}
        return Contexts(lambda landscape: self.network.context(tokens_BS, landscape), differentiated)

    def start(self, tokens_BS: Tensor, fixed: bool = False, contexts: Contexts | None = None) -> Tensor:
        """Where the walk begins, [B, S, V]; fixed: the same for every row and every time, for evaluation."""
        vocabulary, (rows, length) = self.network.shape.vocab_size, tokens_BS.shape
        options: dict[str, Any] = {"device": tokens_BS.device, "dtype": self.network.head.weight.dtype}
        scale = self.thinking.noise_scale
        if self.thinking.start == "zeros" or (scale == 0 and self.thinking.start != "prior"):
            return torch.zeros(rows, length, vocabulary, **options)
        noise_BSV = None
        if scale and not fixed:
            noise_BSV = normal((rows, length, vocabulary), self.network.head.weight, scale)
        elif scale:
            noise_SV = keyed_normal(noise_key(torch.arange(length)), vocabulary).to(**options)
            noise_BSV = (scale * noise_SV).expand(rows, -1, -1)
        if self.thinking.start == "random_noise":
            assert noise_BSV is not None
            return noise_BSV
        prior_BSD = (contexts or self.contexts(tokens_BS))(0).prior
        assert prior_BSD is not None
        prior_BSV = self.network.spread(prior_BSD)
        return prior_BSV if noise_BSV is None else prior_BSV + noise_BSV

    def walk(
        self,
        tokens_BS: Tensor,
        start_BSV: Tensor,
        steps: list[Step],
        differentiable: bool,
        contexts: Contexts | None = None,
    ) -> Walk:
        """Walk down the energy; the observed stream runs once for each landscape that the steps need."""
        given, contexts = contexts, contexts or self.contexts(tokens_BS, steps)

        def energy(z_BSD: Tensor, landscape: int, create_graph: bool) -> tuple[Tensor, Tensor]:
            context = contexts(landscape)
            return self.network.energy_and_gradient(z_BSD, context, create_graph, compiled=differentiable)

        embedding_VD = self.network.prediction_embedding
        try:
            return descend(energy, embedding_VD, start_BSV, steps, self.thinking.rule, differentiable)
        except TorchDynamoException as error:  # it did not compile; what fails while it runs is not hidden
            if self.network.compiled is None:
                raise
            self.network.compiled = None
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(f"--compile_model: going on uncompiled: {reason}", stacklevel=2)
        return self.walk(tokens_BS, start_BSV, steps, differentiable, given)

    def training_steps(self, rows: int, length: int) -> list[Step]:
        """The steps of one training batch: their number drawn for each landscape, their size once for each position."""
        thinking = self.thinking
        landscapes: list[int] = []
        for landscape in range(thinking.landscapes):
            repeats = 1
            if not thinking.repeat_final_only or landscape == thinking.landscapes - 1:
                repeats = thinking.max_repeats
                if thinking.min_repeats < repeats:
                    repeats = int(torch.randint(thinking.min_repeats, repeats + 1, ()))
            landscapes += [landscape] * repeats
        size: Tensor = self.step_size
        scale = thinking.step_size_scale
        if scale > 1:
            drawn = torch.rand((rows, length, 1), device=size.device, dtype=size.dtype)
            size = size * (1 / scale + (scale - 1 / scale) * drawn)
        last = len(landscapes) - 1
        return [
            Step(self.landscape_of(landscape), size, self.noise(True), not thinking.truncate or t == last)
            for t, landscape in enumerate(landscapes)
        ]

    def evaluation_steps(self) -> list[Step]:
        size = self.step_size.detach().clamp(min=SMALLEST_STEP)
        noise = self.noise(self.thinking.langevin_in_evaluation)
        return [Step(self.landscape_of(k), size, noise) for k in self.thinking.evaluation_landscapes]

    def landscape_of(self, landscape: int) -> int:
        """Which context belongs to a landscape: an unconditioned energy has one."""
        return landscape if self.network.tells_landscapes else 0

    @property
    def last_landscape(self) -> int:
        return self.landscape_of(self.thinking.landscapes - 1)

    def noise(self, wanted: bool) -> Tensor | float:
        if not wanted or self.thinking.langevin_noise == 0:
            return 0.0
        return self.langevin_noise if self.thinking.learnable_langevin else float(self.thinking.langevin_noise)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """The prediction after the last step, as logits [B, S, V]."""
        contexts = self.contexts(tokens_BS)
        start_BSV = self.start(tokens_BS, fixed=True, contexts=contexts)
        return self.walk(tokens_BS, start_BSV, self.evaluation_steps(), False, contexts).predictions[-1]

    def on_train_batch_start(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        with torch.no_grad():  # kept positive itself: a clamp in front of it would leave it no gradient to come back by
            self.step_size.clamp_(min=SMALLEST_STEP)

    def compile_blocks(self) -> None:
        self.network.compile_blocks()

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        rows_BS = batch["input_ids"]
        fresh = len(rows_BS)
        if self.replay is not None:
            rows_BS, replayed_RSV = self.replay.append_to(rows_BS)
        tokens_BS, targets_BS = rows_BS[:, :-1], rows_BS[:, 1:]
        steps = self.training_steps(*tokens_BS.shape)
        contexts = self.contexts(tokens_BS, steps)
        start_BSV = self.start(tokens_BS, contexts=contexts)
        if self.replay is not None and replayed_RSV is not None:
            start_BSV = torch.cat([start_BSV[:fresh], replayed_RSV.to(start_BSV)])
        walk = self.walk(tokens_BS, start_BSV, steps, differentiable=True, contexts=contexts)
        last_only = self.thinking.last_step_only or self.thinking.truncate
        wanted = walk.predictions[-1:] if last_only else walk.predictions
        losses = [self.cross_entropy(y_BSV, targets_BS) for y_BSV in wanted]
        loss = torch.stack(losses).mean()
        self.measures = self.measured(start_BSV, walk, losses, targets_BS)
        if self.replay is not None:
            self.replay.add(rows_BS[:fresh], walk.predictions[-1][:fresh].detach())
        if self.thinking.contrastive_coefficient:
            contrast = self.contrast(contexts, targets_BS, walk)
            self.measures["contrastive_loss"] = contrast.detach()
            loss = self.thinking.reconstruction_coefficient * loss + self.thinking.contrastive_coefficient * contrast
        return loss

    def embed(self, y_BSV: Tensor) -> Tensor:
        """What the energy sees of a prediction. [B, S, V] -> [B, S, D]"""
        embedding_VD = self.network.prediction_embedding
        return embed(y_BSV, embedding_VD) if self.thinking.rule.normalize else y_BSV @ embedding_VD

    def energy(self, y_BSV: Tensor, context: Context) -> Tensor:
        """The energy of a prediction, with its entropy term where there is one. [B, S, V] -> [B, S]"""
        energy_BS = self.network.energy(self.embed(y_BSV), context)
        return energy_BS + neg_entropy(y_BSV) if self.thinking.rule.entropy else energy_BS

    def cross_entropy(self, logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
        return cross_entropy(logits_BSV, targets_BS, self.pad_id)

    def contrast(self, contexts: Contexts, targets_BS: Tensor, walk: Walk) -> Tensor:
        """How much the energy prefers the prediction before the last step to the true token: softplus(E(true) - E(y)),
        averaged."""
        context = contexts(self.last_landscape)
        truth_BS = self.network.energy(self.network.prediction_embedding[targets_BS], context)
        assert walk.last_energy is not None
        return F.softplus(truth_BS - walk.last_energy)[targets_BS != self.pad_id].mean()

    @torch.no_grad()
    def measured(self, start_BSV: Tensor, walk: Walk, losses: list[Tensor], targets_BS: Tensor) -> dict[str, Tensor]:
        """What shows whether the walk is sound: losses by step, energies, their gradient and the step size."""
        energies = [energy.mean() for energy in walk.energies]
        first, last = losses[0], losses[-1]
        prior = self.thinking.start == "prior"  # where a walk begins is a prediction already
        if len(losses) == 1 or prior:  # some positions show as much as a loss, and cost little
            some = slice(0, 1), slice(0, SHOWN)
            ends = (start_BSV if prior else walk.predictions[0], walk.predictions[-1])
            first, last = (self.cross_entropy(y_BSV[some].detach(), targets_BS[some]) for y_BSV in ends)
        finite = torch.stack(walk.gradient_norms).isfinite().float()
        return {
            **{f"train_loss_step_{t + 1}": loss.detach() for t, loss in enumerate(losses) if len(losses) > 1},
            "steps": torch.tensor(float(len(walk.predictions))),
            "energy_first": energies[0],
            "energy_last": energies[-1],
            "energy_gap": energies[0] - energies[-1],
            "energy_gradient_norm": torch.stack(walk.gradient_norms).mean(),
            "step_size": self.step_size.detach(),
            "nonfinite_steps": 1 - finite.mean(),
            "thinking_gain": (first - last).detach(),
        }

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        tokens_BS, targets_BS = batch["input_ids"][:, :-1], batch["input_ids"][:, 1:]
        contexts = self.contexts(tokens_BS)
        start_BSV = self.start(tokens_BS, fixed=True, contexts=contexts)
        walk = self.walk(tokens_BS, start_BSV, self.evaluation_steps(), differentiable=False, contexts=contexts)
        count = (targets_BS != self.pad_id).sum()
        if count:
            predictions = [start_BSV] * (self.thinking.start == "prior") + walk.predictions
            for metric, y_BSV in zip(self.step_losses, predictions, strict=True):
                metric(self.cross_entropy(y_BSV, targets_BS).double(), count)
        self.evaluation.update(walk.predictions[-1], targets_BS)

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        by_step = []
        for metric in self.step_losses:
            by_step.append(metric.compute().item())  # type: ignore[operator]
            metric.reset()  # type: ignore[operator]
        first = 0 if self.thinking.start == "prior" else 1
        self.results |= {f"loss_step_{t}": loss for t, loss in enumerate(by_step, first)}
        self.results["thinking_gain"] = by_step[0] - by_step[-1]

    def on_test_epoch_end(self) -> None:
        self.on_validation_epoch_end()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.replay is not None:  # each process has rows of its own
            states = [self.replay.state()]
            if torch.distributed.is_initialized():
                states = [{}] * torch.distributed.get_world_size()
                torch.distributed.all_gather_object(states, self.replay.state())
            checkpoint["replay"] = states

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.replay is not None and "replay" in checkpoint:
            rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
            self.replay.load(checkpoint["replay"][rank])
