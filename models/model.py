"""What every model has, whatever its task: one step of training, an evaluation, and what the trainer needs besides."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]


class Evaluation(nn.Module):
    """The metrics of a split: `update` adds a batch, `result` computes them over all processes and starts again."""

    def update(self, prediction: Tensor, target: Tensor) -> None:
        raise NotImplementedError

    def result(self) -> dict[str, float]:
        raise NotImplementedError


class Model(pl.LightningModule):
    """A network and its evaluation. A subclass writes `training_step(batch, batch_idx) -> loss` and `evaluate(batch)`.

    positive: measures of a training step that must not stay negative; the divergence guard watches them.
    """

    positive: ClassVar[tuple[str, ...]] = ()

    def __init__(self, network: nn.Module, evaluation: Evaluation) -> None:
        super().__init__()
        self.network = network
        self.evaluation = evaluation
        self.measured: dict[str, Tensor] = {}  # of the last training step, besides its loss; detached
        self.terms: dict[str, Tensor] = {}  # of the last loss, where it has several: weighted, with their graph
        self.results: dict[str, float] = {}  # of the last evaluation
        self.gradient_norm: Tensor | None = None  # of the last step, before clipping
        self.optimizer_factory: Callable[[nn.Module], Any] | None = None  # set by the trainer

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        raise NotImplementedError

    def evaluate(self, batch: Batch) -> None:
        """Add a batch to the metrics."""
        raise NotImplementedError

    def compute_results(self) -> dict[str, float]:
        """The metrics since the last call, over all processes."""
        return self.evaluation.result()

    def step_counts(self) -> tuple[int, ...]:
        """How many steps of a walk a training batch may take; (0,) without a walk."""
        return (0,)

    @contextmanager
    def with_steps(self, count: int) -> Iterator[None]:
        """Every training batch takes this many steps, the fewest or the most of `step_counts`."""
        yield

    def meta_copy(self, batch: Batch) -> Self:
        """A copy of shapes without memory, to count on it what a batch like this one costs."""
        # It gets weights without memory at once: there may be no room for a second copy of a large model.
        empty: dict[int, Any] = {
            id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)
            for weight in self.parameters()
        }
        return copy.deepcopy(self, empty).to("meta")

    def learning_rates(self) -> dict[str, float]:
        """Factors of the learning rate by parameter name or prefix; the longest match counts."""
        return {}

    def check(self) -> None:
        """Raise an error where parts of the model that must agree do not."""

    def calibrate(self, batch: Batch) -> dict[str, float]:
        """Fit what depends on the data to the first batch; returns what was fitted."""
        return {}

    def compile_blocks(self) -> None:
        """Compile each block rather than the whole: identical blocks share one compilation."""
        torch._dynamo.config.suppress_errors = True  # what does not compile runs as it is, with a warning
        for block in self.network.blocks:  # type: ignore[union-attr]
            block.compile()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        self.load_state_dict(weights)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.evaluate(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.evaluate(batch)

    def on_validation_epoch_end(self) -> None:
        self.results = self.compute_results()

    def on_test_epoch_end(self) -> None:
        self.results = self.compute_results()

    def on_after_backward(self) -> None:
        self.terms = {}

    def configure_optimizers(self) -> Any:
        assert self.optimizer_factory is not None
        return self.optimizer_factory(self)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        limit = gradient_clip_val or float("inf")
        self.gradient_norm = nn.utils.clip_grad_norm_(self.parameters(), limit).detach()


class RandomLoops(Model):
    """A model whose blocks are repeated, in training a number of times that is drawn per batch from `loops`."""

    loops: range

    def step_counts(self) -> tuple[int, ...]:
        return tuple(self.loops)

    @contextmanager
    def with_steps(self, count: int) -> Iterator[None]:
        loops, self.loops = self.loops, range(count, count + 1)
        try:
            yield
        finally:
            self.loops = loops

    def draw_loops(self) -> int:
        """The loops of a training batch, which are measured: uniform, without a draw where there is one count."""
        first, last = self.loops[0], self.loops[-1]
        drawn = first if first == last else int(torch.randint(first, last + 1, ()))
        self.measured = {"steps": torch.tensor(float(drawn))}
        return drawn
