"""Language models: Transformer++, looped or not, and the energy-based transformer, trained on the next token."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch.nn import functional as F
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy

from models.energy_check import check_energy
from models.energy_model import Contexts, EnergyModel, WalkSettings
from models.energy_transformer import Context, EnergyTransformer
from models.layers.vocabulary import cross_entropy
from models.model import Batch, Evaluation, Model, RandomLoops
from models.noise import keyed_normal, noise_key, parallel_normal
from models.replay import ReplayBuffer
from models.spaces import UpdateRule, Vocabulary
from models.transformer import LoopedTransformer

SPREAD_POSITIONS = 256  # of each batch, on which the spread of predictions is measured
GAIN_POSITIONS = 128  # of the first row, on which the gain of walking is measured
Result = TypeVar("Result")


class TextEvaluation(Evaluation):
    """Loss, accuracy and top-5 accuracy of a whole split, weighted by targets and reduced once over all processes.

    spread: standard deviation of the predicted distribution over positions; 0 where all predictions are the same.
    """

    def __init__(self, vocab_size: int, pad_id: int) -> None:
        super().__init__()
        options: dict[str, Any] = {"num_classes": vocab_size, "average": "micro", "ignore_index": pad_id}
        self.pad_id = pad_id
        self.loss = MeanMetric().set_dtype(torch.float64)
        self.targets = SumMetric().set_dtype(torch.float64)
        self.accuracy = MulticlassAccuracy(**options)
        self.top5 = MulticlassAccuracy(top_k=min(5, vocab_size), **options)
        self.spread = MeanMetric().set_dtype(torch.float64)

    def update(self, logits_BSV: Tensor, targets_BS: Tensor) -> None:
        logits, targets = logits_BSV.flatten(0, 1).float(), targets_BS.flatten()
        losses = F.cross_entropy(logits, targets, ignore_index=self.pad_id, reduction="none")
        counted = (targets != self.pad_id).double()
        self.loss.update(losses.double(), counted)
        self.targets.update(counted.sum())
        self.accuracy.update(logits, targets)
        self.top5.update(logits, targets)
        shares = logits[:SPREAD_POSITIONS][targets[:SPREAD_POSITIONS] != self.pad_id].softmax(-1)
        several = len(shares) > 1
        spread = shares.var(0, correction=0).sum().sqrt() if several else logits.new_zeros(())
        self.spread.update(spread.double(), int(several))

    def result(self) -> dict[str, float]:
        """The measures since the last result; perplexity is exp of the mean loss, never a mean of exps."""
        loss = self.loss.compute()
        result = {
            "loss": loss.item(),
            "perplexity": loss.exp().item(),
            "accuracy": self.accuracy.compute().item(),
            "top5": self.top5.compute().item(),
            "spread": self.spread.compute().item(),
            "targets": self.targets.compute().item(),
        }
        for metric in (self.loss, self.targets, self.accuracy, self.top5, self.spread):
            metric.reset()
        return result


class TransformerLM(Model):
    """A network from tokens [B, S] to logits [B, S, V], trained on the next token."""

    def __init__(self, network: nn.Module, vocab_size: int, pad_id: int) -> None:
        super().__init__(network, TextEvaluation(vocab_size, pad_id))
        self.pad_id = pad_id

    def forward(self, tokens_BS: Tensor) -> Tensor:
        return self.network(tokens_BS)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits_BSV, targets_BS = self(batch["input_ids"][:, :-1]), batch["input_ids"][:, 1:]
        return F.cross_entropy(logits_BSV.flatten(0, 1).float(), targets_BS.flatten(), ignore_index=self.pad_id)

    def evaluate(self, batch: Batch) -> None:
        self.evaluation.update(self(batch["input_ids"][:, :-1]), batch["input_ids"][:, 1:])


class LoopedLM(RandomLoops, TransformerLM):
    """A looped transformer, whose number of loops is drawn per batch in training; the loss is that of the last loop."""

    network: LoopedTransformer

    def __init__(self, network: LoopedTransformer, vocab_size: int, pad_id: int, loops: range) -> None:
        super().__init__(network, vocab_size, pad_id)
        self.loops = loops

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        targets_N, loops = batch["input_ids"][:, 1:].flatten(), self.draw_loops()
        *_, s_BSD = self.network.states_by_loop(batch["input_ids"][:, :-1], loops)
        logits_BSV = self.network.head(self.network.norm(s_BSD))
        return F.cross_entropy(logits_BSV.flatten(0, 1).float(), targets_N, ignore_index=self.pad_id)


class EnergyLM(EnergyModel):
    """An EnergyTransformer that learns to have its lowest energies at the next token. y: logits [B, S, V]."""

    network: EnergyTransformer

    def __init__(
        self,
        network: EnergyTransformer,
        vocab_size: int,
        pad_id: int,
        settings: WalkSettings,
        rule: UpdateRule,
        replay: ReplayBuffer | None,
    ) -> None:
        super().__init__(network, TextEvaluation(vocab_size, pad_id), settings, replay)
        self.rule = rule
        self.pad_id = pad_id
        self.has_landscapes = network.has_landscapes

    @property
    def space(self) -> Vocabulary:
        return Vocabulary(self.network, self.rule)

    def observed(self, batch: Batch) -> Tensor:
        return batch["input_ids"][:, :-1]

    def target(self, batch: Batch) -> Tensor:
        return batch["input_ids"][:, 1:]

    def counted(self, target: Tensor) -> Tensor:
        return target != self.pad_id

    def gain_sample(self, x: Tensor) -> Tensor:
        return x[:1, :GAIN_POSITIONS]

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(y, target, self.pad_id)

    def start(self, observed: Tensor, fixed: bool = False, contexts: Contexts | None = None) -> Tensor:
        """[B, S] -> [B, S, V]. Fixed noise is a function of the position."""
        vocabulary, (rows, length) = self.network.shape.vocab_size, observed.shape
        options: dict[str, Any] = {"device": observed.device, "dtype": self.network.head.weight.dtype}
        start, scale = self.walk_settings.start, self.walk_settings.noise_scale
        if start == "zeros" or (scale == 0 and start != "prior"):
            return torch.zeros(rows, length, vocabulary, **options)
        noise_BSV = None
        if scale and not fixed:
            noise_BSV = parallel_normal((rows, length, vocabulary), self.network.head.weight, scale)
        elif scale:
            noise_SV = keyed_normal(noise_key(torch.arange(length)), vocabulary).to(**options)
            noise_BSV = (scale * noise_SV).expand(rows, -1, -1)
        if start == "random_noise":
            assert noise_BSV is not None
            return noise_BSV
        prior_BSD = (contexts or self.contexts(observed))(0).prior
        assert prior_BSD is not None
        prior_BSV = self.network.to_vocabulary(prior_BSD)
        return prior_BSV if noise_BSV is None else prior_BSV + noise_BSV

    def context(self, observed: Tensor, landscape: int) -> Context:
        return self.or_uncompiled(lambda: self.network.context(observed, landscape))

    def energy(self, z: Tensor, context: Context) -> Tensor:
        """[B, S, D] -> [B, S]"""
        return self.network.energy(z, context)

    def energy_and_gradient(self, z: Tensor, context: Context, create_graph: bool) -> tuple[Tensor, Tensor]:
        return self.or_uncompiled(lambda: self.network.energy_and_gradient(z, context, create_graph))

    def or_uncompiled(self, compute: Callable[[], Result]) -> Result:
        """What `compute` returns; if it does not compile, that of the network without compilation."""
        try:
            return compute()
        except TorchDynamoException as error:  # what fails while it runs is not hidden
            if self.network.compiled is None:
                raise
            self.network.compiled = None
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(f"--compile_model: continuing uncompiled: {reason}", stacklevel=2)
        return compute()

    def compile_blocks(self) -> None:
        self.network.compile_blocks()

    def check(self) -> None:
        check_energy(self.network)


LanguageModel = TransformerLM | EnergyLM


@torch.no_grad()
def token_energies(model: EnergyLM, tokens_BS: Tensor, candidates_BS: Tensor) -> Tensor:
    """The energy of one candidate for the next token at each position, where the walk ends. [B, S] -> [B, S]"""
    return model.target_energy(candidates_BS, model.context(tokens_BS, model.last_landscape))


def ranking(model: EnergyLM, rows_BS: Tensor, others_BS: Tensor) -> tuple[float, int]:
    """The share of positions whose next token has less energy than the other token there, and how many were compared.

    rows: [B, S+1]. others: [B, S]; positions without a target, or whose other token is the true one, are skipped.
    """
    tokens_BS, targets_BS = rows_BS[:, :-1], rows_BS[:, 1:]
    compared_BS = (targets_BS != model.pad_id) & (targets_BS != others_BS)
    below_BS = token_energies(model, tokens_BS, targets_BS) < token_energies(model, tokens_BS, others_BS)
    return below_BS[compared_BS].float().mean().item(), int(compared_BS.sum())


@torch.no_grad()
def sample(
    model: Model,
    prompt_S: Tensor,
    count: int,
    window: int,
    never: Collection[int] = (),
    temperature: float = 0.8,
    seconds: float = 5.0,
    seed: int = 0,
) -> Tensor:
    """Up to `count` tokens that continue the prompt [S], drawn from what `model(tokens)` predicts.

    It draws from its own generator. window: how many tokens back the model sees. never: tokens that are not drawn.
    seconds: when to stop at the latest.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens_S, until = prompt_S, time.perf_counter() + seconds
    for _ in range(count):
        logits_V = model(tokens_S[None, -window:])[0, -1].float().cpu() / temperature
        logits_V[list(never)] = float("-inf")
        drawn = torch.multinomial(logits_V.softmax(-1), 1, generator=generator)
        tokens_S = torch.cat([tokens_S, drawn.to(tokens_S)])
        if time.perf_counter() > until:
            break
    return tokens_S[len(prompt_S) :]
