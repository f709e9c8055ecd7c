"""What all language models share: the loss of a batch, the measures of an evaluation, the gradient's norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import MulticlassAccuracy

SPREAD_POSITIONS = 256  # of each batch, from which the spread of predictions is told


class Evaluation(nn.Module):
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


class LanguageModel(pl.LightningModule):
    """A network from tokens [B, S] to logits [B, S, V], trained on the next token."""

    def __init__(self, network: nn.Module, vocab_size: int, pad_id: int) -> None:
        super().__init__()
        self.network = network
        self.pad_id = pad_id
        self.evaluation = Evaluation(vocab_size, pad_id)
        self.measures: dict[str, Tensor] = {}  # of the training step taken last, besides its loss
        self.results: dict[str, float] = {}  # of the evaluation that ended last
        self.gradient_norm: Tensor | None = None  # of the step taken last, before clipping
        self.optimizers_of: Callable[[nn.Module], Any] | None = None  # set by who trains it

    def forward(self, tokens_BS: Tensor) -> Tensor:
        return self.network(tokens_BS)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        logits_BSV, targets_BS = self(batch["input_ids"][:, :-1]), batch["input_ids"][:, 1:]
        return F.cross_entropy(logits_BSV.flatten(0, 1).float(), targets_BS.flatten(), ignore_index=self.pad_id)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.evaluation.update(self(batch["input_ids"][:, :-1]), batch["input_ids"][:, 1:])

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self.results = self.evaluation.result()

    def on_test_epoch_end(self) -> None:
        self.results = self.evaluation.result()

    def configure_optimizers(self) -> Any:
        assert self.optimizers_of is not None
        return self.optimizers_of(self)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        limit = gradient_clip_val or float("inf")
        self.gradient_norm = nn.utils.clip_grad_norm_(self.parameters(), limit).detach()

    def learning_rate_multipliers(self) -> dict[str, float]:
        """Parameters, by name, that learn at a multiple of the learning rate."""
        return {}

    def check(self) -> None:
        """Raise an error where parts of the model that must agree do not."""

    def calibrate(self, batch: dict[str, Tensor]) -> float | None:
        """Fit what has to fit the first batch; returns the step size where there is one."""
        return None

    def compile_blocks(self) -> None:
        """Compile each block rather than the whole: identical blocks share one compilation."""
        torch._dynamo.config.suppress_errors = True  # what does not compile runs as it is, with a warning
        for block in self.network.blocks:  # type: ignore[union-attr]
            block.compile()
