"""The language EBT: next-token prediction by walking down the energy, trained through the walk."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch.nn import functional as F
from torchmetrics import MeanMetric

from models.descent import Rule, Step, Walk, descend
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

    steps: int
    step_size: float | None  # None: calibrated on the first batch
    learnable_step_size: bool
    step_size_lr_multiplier: float | None  # None: the step size itself
    step_size_scale: float  # a step is drawn from [size / scale, size * scale] per position
    extra_steps: int  # the number of steps is drawn from [min_steps, steps + extra_steps] per batch
    min_steps: int
    extra_on_final_landscape: bool
    start: str  # random_noise or zeros
    noise_scale: float
    langevin_noise: float
    learnable_langevin: bool
    langevin_in_evaluation: bool
    rule: Rule
    last_step_only: bool
    contrastive_coefficient: float  # 0: no contrastive loss
    reconstruction_coefficient: float


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
        self.step_losses = nn.ModuleList(MeanMetric().set_dtype(torch.float64) for _ in range(thinking.steps))

    def learning_rate_multipliers(self) -> dict[str, float]:
        multipliers = {}
        if self.thinking.learnable_step_size:
            chosen = self.thinking.step_size_lr_multiplier
            multipliers["step_size"] = chosen if chosen is not None else float(self.step_size.detach())
        return multipliers

    def calibrate(self, batch: dict[str, Tensor]) -> float | None:
        """Set the step size so that the first step moves a prediction by a standard deviation of 1; returns it.

        The energy's scale is arbitrary, and a step that is too long explodes while one that is too short does not
        learn: this is the one knob that has to fit the model. None when a number was given.
        """
        if self.thinking.step_size is not None:
            return None
        tokens_BS = batch["input_ids"][:, :-1]
        start_BSV = self.start(tokens_BS, fixed=True)
        with torch.no_grad():
            unit = Step(0, torch.ones(()))
            walk = self.walk(tokens_BS, start_BSV, [unit], differentiable=False)
            before = start_BSV.softmax(-1) if self.thinking.rule.from_probabilities else start_BSV
            self.step_size.fill_(1 / float((walk.predictions[0] - before).std()))
        return float(self.step_size.detach())

    def start(self, tokens_BS: Tensor, fixed: bool = False) -> Tensor:
        """Where the walk begins, [B, S, V]; fixed: the same for every row and every time, for evaluation."""
        vocabulary, (rows, length) = self.network.shape.vocab_size, tokens_BS.shape
        options: dict[str, Any] = {"device": tokens_BS.device, "dtype": self.network.head.weight.dtype}
        if self.thinking.start == "zeros":
            return torch.zeros(rows, length, vocabulary, **options)
        if not fixed:
            return normal((rows, length, vocabulary), self.network.head.weight, self.thinking.noise_scale)
        noise_SV = keyed_normal(noise_key(torch.arange(length)), vocabulary).to(**options)
        return (self.thinking.noise_scale * noise_SV).expand(rows, -1, -1)

    def walk(self, tokens_BS: Tensor, start_BSV: Tensor, steps: list[Step], differentiable: bool) -> Walk:
        """Walk down the energy; the observed stream runs once for each landscape that the steps need."""
        contexts: dict[int, Context] = {}

        def slope(z_BSD: Tensor, landscape: int) -> tuple[Tensor, Tensor]:
            if landscape not in contexts:
                contexts[landscape] = self.network.context(tokens_BS, landscape)
            return self.network.slope(z_BSD, contexts[landscape], differentiable)

        embedding_VD = self.network.prediction_embedding
        try:
            return descend(slope, embedding_VD, start_BSV, steps, self.thinking.rule, differentiable)
        except TorchDynamoException as error:  # it did not compile; what fails while it runs is not hidden
            if self.network.compiled is None:
                raise
            self.network.compiled = None
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(f"--compile_model: going on uncompiled: {reason}", stacklevel=2)
        return self.walk(tokens_BS, start_BSV, steps, differentiable)

    def training_steps(self, rows: int, length: int) -> list[Step]:
        """The steps of one training batch: their number drawn once, their sizes for every position."""
        thinking = self.thinking
        count = thinking.steps
        if thinking.extra_steps:
            count = int(torch.randint(thinking.min_steps, thinking.steps + thinking.extra_steps + 1, ()))
        size, scale = self.step_size, thinking.step_size_scale
        sizes = [size] * count
        if scale > 1:
            shape = (count, rows, length, 1)
            factors = 1 / scale + (scale - 1 / scale) * torch.rand(shape, device=size.device, dtype=size.dtype)
            sizes = list(size * factors)
        final = thinking.extra_on_final_landscape
        return [Step(self.landscape_of(t, count, final), sizes[t], self.noise(True)) for t in range(count)]

    def evaluation_steps(self) -> list[Step]:
        size = self.step_size.detach().clamp(min=SMALLEST_STEP)
        noise = self.noise(self.thinking.langevin_in_evaluation)
        count = self.thinking.steps
        return [Step(self.landscape_of(t, count), size, noise) for t in range(count)]

    def landscape_of(self, step: int, count: int, final: bool = True) -> int:
        """Where step 0..count-1 is taken; an unconditioned energy has one landscape.

        final: steps beyond those of an evaluation are all taken on the last, else they are spread over all.
        """
        if not self.network.tells_landscapes:
            return 0
        last = self.thinking.steps - 1
        return min(step, last) if final else min(step * (last + 1) // count, last)

    @property
    def last_landscape(self) -> int:
        return self.landscape_of(self.thinking.steps - 1, self.thinking.steps)

    def noise(self, wanted: bool) -> Tensor | float:
        if not wanted or self.thinking.langevin_noise == 0:
            return 0.0
        return self.langevin_noise if self.thinking.learnable_langevin else float(self.thinking.langevin_noise)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """The prediction after the last step, as logits [B, S, V]."""
        start_BSV = self.start(tokens_BS, fixed=True)
        return self.walk(tokens_BS, start_BSV, self.evaluation_steps(), differentiable=False).predictions[-1]

    def on_train_batch_start(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        with torch.no_grad():  # kept positive itself: a clamp in front of it would leave it no gradient to come back by
            self.step_size.clamp_(min=SMALLEST_STEP)

    def compile_blocks(self) -> None:
        self.network.compile_blocks()

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        rows_BS = batch["input_ids"]
        start_BSV = self.start(rows_BS[:, :-1])
        if self.replay is not None:
            rows_BS, start_BSV = self.replay.mix(rows_BS, start_BSV)
        tokens_BS, targets_BS = rows_BS[:, :-1], rows_BS[:, 1:]
        steps = self.training_steps(*tokens_BS.shape)
        walk = self.walk(tokens_BS, start_BSV, steps, differentiable=True)
        wanted = walk.predictions[-1:] if self.thinking.last_step_only else walk.predictions
        losses = [self.cross_entropy(y_BSV, targets_BS) for y_BSV in wanted]
        loss = torch.stack(losses).mean()
        self.measures = self.measured(walk, losses, targets_BS)
        if self.replay is not None:
            self.replay.keep(rows_BS, walk.predictions[-1].detach())
        if self.thinking.contrastive_coefficient:
            contrast = self.contrast(tokens_BS, targets_BS, walk)
            self.measures["contrastive_loss"] = contrast.detach()
            loss = self.thinking.reconstruction_coefficient * loss + self.thinking.contrastive_coefficient * contrast
        return loss

    def cross_entropy(self, logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
        return cross_entropy(logits_BSV, targets_BS, self.pad_id)

    def contrast(self, tokens_BS: Tensor, targets_BS: Tensor, walk: Walk) -> Tensor:
        """How much the energy prefers the walk's end to the true token: softplus(E(true) - E(found)), averaged."""
        context = self.network.context(tokens_BS, self.last_landscape)
        embedding_VD = self.network.prediction_embedding
        truth_BS = self.network.energy(embedding_VD[targets_BS], context)
        found_BS = self.network.energy(embed(walk.predictions[-1].detach(), embedding_VD), context)
        return F.softplus(truth_BS - found_BS)[targets_BS != self.pad_id].mean()

    @torch.no_grad()
    def measured(self, walk: Walk, losses: list[Tensor], targets_BS: Tensor) -> dict[str, Tensor]:
        """What shows whether the walk is sound: losses by step, energies, slope and step size."""
        energies = [energy.mean() for energy in walk.energies]
        first, last = losses[0], losses[-1]
        if len(losses) == 1:  # the first step has no loss of its own: some positions show as much, and cost little
            some = slice(0, 1), slice(0, SHOWN)
            first, last = (self.cross_entropy(walk.predictions[t][some], targets_BS[some]) for t in (0, -1))
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
        start_BSV = self.start(tokens_BS, fixed=True)
        walk = self.walk(tokens_BS, start_BSV, self.evaluation_steps(), differentiable=False)
        count = (targets_BS != self.pad_id).sum()
        if count:
            for metric, y_BSV in zip(self.step_losses, walk.predictions, strict=True):
                metric(self.cross_entropy(y_BSV, targets_BS).double(), count)
        self.evaluation.update(walk.predictions[-1], targets_BS)

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        by_step = []
        for metric in self.step_losses:
            by_step.append(metric.compute().item())  # type: ignore[operator]
            metric.reset()  # type: ignore[operator]
        self.results |= {f"loss_step_{t + 1}": loss for t, loss in enumerate(by_step)}
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
