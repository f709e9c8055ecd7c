"""Models of puzzles, all on one bidirectional backbone: an energy-based, a feed-forward and a looped transformer.

A batch has inputs [B, N, F], given [B, N] (a symbol, or -1 for a cell that is to be predicted), answer [B, N]
(-1 where there is none), real [B, N] (False: padding) and kind [B] (0: as in training, 1: shifted, 2: several answers,
-1: not a puzzle, counts nothing).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanMetric, Metric, SumMetric

from core.errors import UserError
from models.energy_check import check_energy
from models.energy_model import Contexts, EnergyModel, WalkSettings
from models.layers.norm import NORMS
from models.model import Batch, Evaluation, Model, RandomLoops
from models.noise import keyed_normal, noise_key, parallel_normal
from models.puzzle_transformer import Clues, PuzzleContext, PuzzleShape, PuzzleTransformer, clues_of
from models.replay import ReplayBuffer
from models.spaces import Cells
from models.walk import Step

__all__ = [
    "EnergyPuzzleModel",
    "FeedForwardPuzzleModel",
    "LoopedPuzzleModel",
    "PuzzleEvaluation",
    "PuzzleShape",
    "PuzzleTransformer",
    "Thought",
    "answer_of",
]

IGNORED = -1  # the answer of a cell that is given, padding or without an answer
CLUE_LOGIT = 1e3  # of the given symbol, where the others have 0: its probability is 1 to the last bit
KINDS = {0: "solved", 1: "solved_shifted", 2: "solved_several"}
STEP_KINDS = {0: "solved_step_{}", 1: "solved_shifted_step_{}"}
STEPS = (1, 2, 4, 8, 16, 32)  # after which an evaluation measures how many puzzles are solved
ENTROPY_SHARE = 0.1  # of y that a step of the usual size forgets, at the start of training

Rules = Callable[[Batch, Tensor], Tensor]  # a batch and answers [B, N] -> whether each is solved, bool [B]


class Thought(NamedTuple):
    """A prediction after some steps. logits: [B, N, V], in given cells those of the clue. energy: [B], or None."""

    steps: int
    logits: Tensor
    energy: Tensor | None


def blanks_answer(batch: Batch) -> Tensor:
    """The answers of blank cells, IGNORED in all others. [B, N]"""
    return batch["answer"].masked_fill((batch["given"] >= 0) | ~batch["real"], IGNORED)


def trained_answer(batch: Batch) -> Tensor:
    """The same for puzzles of the kind that training has, IGNORED in all cells of others. [B, N]"""
    return blanks_answer(batch).masked_fill(batch["kind"][:, None] != 0, IGNORED)


def blanks_loss(logits_BNV: Tensor, answer_BN: Tensor) -> Tensor:
    """The mean cross-entropy over cells with an answer; 0 where there is none."""
    logits, answer = logits_BNV.flatten(0, 1), answer_BN.flatten()
    total = F.cross_entropy(logits, answer, ignore_index=IGNORED, reduction="sum")
    return total / (answer != IGNORED).sum().clamp(min=1)


def with_clues(logits_BNV: Tensor, batch: Batch) -> Tensor:
    """The logits with those of the clues in given cells."""
    symbols = torch.arange(logits_BNV.shape[-1], device=logits_BNV.device)
    given_BN1 = batch["given"][..., None]
    return torch.where(given_BN1 >= 0, CLUE_LOGIT * (given_BN1 == symbols).to(logits_BNV), logits_BNV)


def answer_of(logits_BNV: Tensor, batch: Batch) -> Tensor:
    """The most probable symbol of each cell, the clue where there is one. -> [B, N]"""
    return torch.where(batch["given"] >= 0, batch["given"], logits_BNV.argmax(-1))


def answer_log_probability(logits_BNV: Tensor, batch: Batch, answer_BN: Tensor) -> Tensor:
    """The sum over blank cells of log p(answer). -> [B]"""
    blank_BN = (batch["given"] < 0) & batch["real"]
    log_p_BN = logits_BNV.log_softmax(-1).gather(-1, answer_BN.clamp(min=0)[..., None]).squeeze(-1)
    return (log_p_BN * blank_BN).sum(-1)


def mean_metric() -> Metric:
    return MeanMetric().set_dtype(torch.float64)


class PuzzleEvaluation(Evaluation):
    """Loss and accuracy of blank cells, and the share of puzzles that are solved by their rules, by kind.

    Loss and accuracy are of the kind that training has; the loss is that after as many steps as training takes at most:
    later the wrong cells only get surer. targets are the puzzles of all kinds. A measure without a puzzle is left out
    of the result. steps: how many an evaluation takes; after 1, 2, 4 ... of them the share is measured as well.
    trained_steps: the most of training. energies: predictions have them.
    """

    def __init__(self, rules: Rules, steps: int = 0, trained_steps: int = 1, energies: bool = False) -> None:
        super().__init__()
        self.rules, self.loss_step = rules, min(steps, trained_steps) or 1
        self.step_counts = tuple(step for step in STEPS if step <= steps)
        self.targets = SumMetric().set_dtype(torch.float64)
        names = ["loss", "accuracy", *KINDS.values(), *(["energy_solved", "energy_unsolved"] if energies else [])]
        names += [name.format(step) for step in self.step_counts for name in STEP_KINDS.values()]
        self.means = torch.nn.ModuleDict({name: mean_metric() for name in names})

    def add(self, name: str, values: Tensor, counted: Tensor) -> None:
        # chosen and not weighted: with nan_strategy="disable" a MeanMetric forgets its weights
        self.means[name].update(values.double()[counted])  # type: ignore[operator]

    def solved(self, batch: Batch, logits_BNV: Tensor) -> Tensor:
        """Whether the answer of each row obeys the rules. -> [B]"""
        return self.rules(batch, answer_of(logits_BNV, batch)).to(logits_BNV.device)

    def update(self, batch: Batch, logits_BNV: Tensor, energy_B: Tensor | None = None) -> None:  # type: ignore[override]
        """Add the last predictions of a batch, and their energies where there are some."""
        kind_B, solved_B, answer_BN = batch["kind"], self.solved(batch, logits_BNV), trained_answer(batch)
        self.add("accuracy", logits_BNV.argmax(-1) == answer_BN, answer_BN != IGNORED)
        self.targets.update((kind_B >= 0).sum())
        for kind, name in KINDS.items():
            self.add(name, solved_B, kind_B == kind)
        if energy_B is not None:
            self.add("energy_solved", energy_B, solved_B & (kind_B >= 0))
            self.add("energy_unsolved", energy_B, ~solved_B & (kind_B >= 0))

    def update_step(self, step: int, batch: Batch, logits_BNV: Tensor) -> None:
        """Add predictions after so many steps."""
        if step == self.loss_step:
            answer = trained_answer(batch).flatten()
            logits = logits_BNV.flatten(0, 1).float()
            losses = F.cross_entropy(logits, answer, ignore_index=IGNORED, reduction="none")
            self.add("loss", losses, answer != IGNORED)
        if step not in self.step_counts:
            return
        solved_B = self.solved(batch, logits_BNV)
        for kind, name in STEP_KINDS.items():
            self.add(name.format(step), solved_B, batch["kind"] == kind)

    def result(self) -> dict[str, float]:
        result = {name: metric.compute().item() for name, metric in self.means.items()}  # type: ignore[operator]
        # Without a puzzle a mean is nan; a loss that is nan says that the model diverged.
        result = {name: value for name, value in result.items() if name == "loss" or not math.isnan(value)}
        result["targets"] = self.targets.compute().item()
        for metric in (*self.means.values(), self.targets):
            metric.reset()  # type: ignore[operator]
        return result


class PuzzlePredictions:
    """What all models of puzzles have, behind `think`."""

    def think(self, batch: Batch, steps: int, seed: int | None = None) -> Iterator[Thought]:
        raise NotImplementedError

    def answer_of(self, logits_BNV: Tensor, batch: Batch) -> Tensor:
        return answer_of(logits_BNV, batch)


class FeedForwardPuzzleModel(PuzzlePredictions, Model):
    """One pass through the blocks."""

    network: PuzzleTransformer
    evaluation: PuzzleEvaluation

    def __init__(self, network: PuzzleTransformer, rules: Rules) -> None:
        super().__init__(network, PuzzleEvaluation(rules))

    def forward(self, batch: Batch) -> Tensor:
        """Logits, [B, N, V]."""
        return self.network(batch["inputs"], batch["real"])

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return blanks_loss(self(batch), blanks_answer(batch))

    def evaluate(self, batch: Batch) -> None:
        logits_BNV = self(batch)
        self.evaluation.update_step(1, batch, logits_BNV)
        self.evaluation.update(batch, logits_BNV)

    @torch.no_grad()
    def think(self, batch: Batch, steps: int = 1, seed: int | None = None) -> Iterator[Thought]:
        """One thought, after the one pass."""
        yield Thought(1, with_clues(self(batch), batch), None)

    @torch.no_grad()
    def answer_scores(self, batch: Batch, answer_BN: Tensor) -> Tensor:
        """The log probability of answers: the sum over blank cells. -> [B]"""
        return answer_log_probability(self(batch), batch, answer_BN)


class LoopedPuzzleModel(PuzzlePredictions, RandomLoops):
    """The blocks again and again, with the same weights: s <- blocks(norm(s) + x), from s = 0.

    x: the embedded puzzle, which is added at each loop. Without the norm s grows from loop to loop, and more loops than
    training took do harm. In training the number of loops is drawn per batch; the loss is that of the last.
    """

    network: PuzzleTransformer
    evaluation: PuzzleEvaluation

    def __init__(
        self,
        network: PuzzleTransformer,
        rules: Rules,
        loops_min: int,
        loops_max: int,
        evaluation_loops: int,
    ) -> None:
        super().__init__(network, PuzzleEvaluation(rules, evaluation_loops, loops_max))
        self.state_norm = NORMS[network.shape.norm](network.shape.width)
        self.loops = range(loops_min, loops_max + 1)
        self.evaluation_loops = evaluation_loops

    def states(self, batch: Batch, loops: int) -> Iterator[Tensor]:
        """s after each loop, [B, N, D]."""
        x_BND, bias = self.network.embed(batch["inputs"]), self.network.bias(batch["real"])
        s_BND = self.network.through_blocks(x_BND, bias)
        yield s_BND
        for _ in range(loops - 1):
            s_BND = self.network.through_blocks(self.state_norm(s_BND) + x_BND, bias)
            yield s_BND

    def forward(self, batch: Batch) -> Tensor:
        """Logits after the loops of an evaluation, [B, N, V]."""
        *_, s_BND = self.states(batch, self.evaluation_loops)
        return self.network.readout(s_BND)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        *_, s_BND = self.states(batch, self.draw_loops())
        return blanks_loss(self.network.readout(s_BND), blanks_answer(batch))

    def evaluate(self, batch: Batch) -> None:
        with torch.no_grad():
            for thought in self.think(batch, self.evaluation_loops):
                self.evaluation.update_step(thought.steps, batch, thought.logits)
            self.evaluation.update(batch, thought.logits)

    def think(self, batch: Batch, steps: int, seed: int | None = None) -> Iterator[Thought]:
        """A thought after each of so many loops."""
        states = self.states(batch, steps)
        for loop in range(1, steps + 1):
            with torch.no_grad():  # not around the yield: the user's grad mode is the user's
                logits_BNV = with_clues(self.network.readout(next(states)), batch)
            yield Thought(loop, logits_BNV, None)

    @torch.no_grad()
    def answer_scores(self, batch: Batch, answer_BN: Tensor) -> Tensor:
        """The log probability of answers after the loops of an evaluation: the sum over blank cells. -> [B]"""
        return answer_log_probability(self(batch), batch, answer_BN)


class EnergyPuzzleModel(PuzzlePredictions, EnergyModel):
    """A PuzzleTransformer that learns to have its lowest energies at the answer. y: logits [B, N, V].

    With the head "dot" the energy has an entropy term of weight tau, and a step is

        y <- (1 - size tau) y - size dE/dp

    What is learned is the share l in (0, 1) of y that a step of the usual size forgets, l = step_size tau, as
    sigmoid(entropy_logit): it keeps its meaning when calibration or training changes the step size, and a rate of
    learning fits it that fits other parameters. tau = l / step_size follows from it.
    """

    network: PuzzleTransformer
    evaluation: PuzzleEvaluation

    def __init__(
        self, network: PuzzleTransformer, rules: Rules, settings: WalkSettings, replay: ReplayBuffer | None = None
    ) -> None:
        if settings.start not in ("random_noise", "zeros"):
            raise UserError(
                f"--denoising_initial_condition is {settings.start!r}: a puzzle has no other prediction to start "
                "from; choose random_noise or zeros."
            )
        evaluation = PuzzleEvaluation(rules, settings.steps, settings.step_counts[-1], energies=True)
        super().__init__(network, evaluation, settings, replay)
        self.entropy_logit: torch.nn.Parameter | None = None
        if network.energy_head == "dot":
            self.entropy_logit = torch.nn.Parameter(torch.tensor(math.log(ENTROPY_SHARE / (1 - ENTROPY_SHARE))))

    # Energy and space.

    @property
    def tau(self) -> Tensor | None:
        """The weight of the entropy term."""
        return None if self.entropy_logit is None else self.entropy_logit.sigmoid() / self.step_size

    @property
    def space(self) -> Cells:
        return Cells(tau=self.tau)

    def space_of(self, observed: Clues) -> Cells:
        return Cells(observed.blank, self.tau)

    def observed(self, batch: Batch) -> Clues:
        return clues_of(batch, self.network.shape.symbols, self.step_size.dtype)

    def target(self, batch: Batch) -> Tensor:
        return blanks_answer(batch)

    def counted(self, target: Tensor) -> Tensor:
        return (target != IGNORED).any(-1)

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        return blanks_loss(y, target)

    def start(self, observed: Clues, fixed: bool = False, contexts: Contexts | None = None, seed: int = 0) -> Tensor:
        """Noise in blank cells, [B, N, V]. Fixed noise is a function of cell and seed, the same in every row."""
        one_hot_BNV, (rows, cells, symbols) = observed.one_hot, observed.one_hot.shape
        settings, clue_BNV = self.walk_settings, CLUE_LOGIT * observed.one_hot
        if settings.start == "zeros" or settings.noise_scale == 0:
            return clue_BNV
        if fixed:
            noise = keyed_normal(noise_key(torch.arange(cells)), symbols, seed).to(one_hot_BNV) * settings.noise_scale
        else:
            noise = parallel_normal((rows, cells, symbols), one_hot_BNV, settings.noise_scale)
        return torch.where(observed.blank, noise, clue_BNV)

    def context(self, observed: Clues, landscape: int) -> PuzzleContext:
        return self.network.context(observed)

    def energy(self, z: Tensor, context: PuzzleContext) -> Tensor:
        """[B, N, V] -> [B], without the entropy term"""
        return self.network.energy(z, context)

    def energy_and_gradient(self, z: Tensor, context: PuzzleContext, create_graph: bool) -> tuple[Tensor, Tensor]:
        return self.network.energy_and_gradient(z, context, create_graph)

    def prediction_energy(self, y: Tensor, context: PuzzleContext) -> Tensor:
        energy_B, own_B = self.energy(y.softmax(-1), context), self.space_of(context.clues).own_energy(y)
        return energy_B if own_B is None else energy_B + own_B

    def target_energy(self, target: Tensor, context: PuzzleContext) -> Tensor:
        """The energy of answers [B, N], which have no entropy; given cells are the context's. -> [B]"""
        symbols = torch.arange(self.network.shape.symbols, device=target.device)
        return self.energy((target[..., None] == symbols).to(context.x.dtype), context)

    def unit_move(self, observed: Clues, start: Tensor) -> float:
        """The standard deviation of the energy's gradient in blank cells; the entropy term has its own share."""
        _, gradient_BNV = self.energy_and_gradient(start.softmax(-1), self.context(observed, 0), False)
        return float(gradient_BNV[observed.blank.squeeze(-1)].std())

    def check(self) -> None:
        check_energy(self.network)

    def compile_blocks(self) -> None:
        torch._dynamo.config.suppress_errors = True  # what does not compile runs as it is, with a warning
        self.network.compile_energy()

    # Evaluation.

    def think(self, batch: Batch, steps: int, seed: int | None = None) -> Iterator[Thought]:
        """The start and each of so many steps, all with their energies."""
        with torch.no_grad():
            observed = self.observed(batch)
            contexts = self.contexts(observed)
            y = self.start(observed, fixed=True, seed=seed or 0)
            walk = self.walk(observed, y, self.think_steps(steps), False, contexts)
        for step in range(steps):
            walked = next(walk)  # its energy is that before the step
            yield Thought(step, with_clues(y, batch), walked.energy)
            y = walked.y
        with torch.no_grad():
            energy_B = self.prediction_energy(y, contexts(self.last_landscape))
        yield Thought(steps, with_clues(y, batch), energy_B)

    def think_steps(self, count: int) -> list[Step]:
        """The steps of an evaluation, and more of the last landscape up to `count`."""
        steps = self.evaluation_steps()
        return (steps + [steps[-1]] * count)[:count]

    def evaluate(self, batch: Batch) -> None:
        """Add a batch to the metrics: the loss after every step, and all of the last prediction."""
        target = trained_answer(batch)
        count = (target != IGNORED).sum()
        for thought in self.think(batch, self.walk_settings.steps):
            if thought.steps and count:
                self.step_losses[thought.steps - 1](self.loss(thought.logits, target).double(), count)
            self.evaluation.update_step(thought.steps, batch, thought.logits)
        self.evaluation.update(batch, thought.logits, thought.energy)

    @torch.no_grad()
    def answer_scores(self, batch: Batch, answer_BN: Tensor) -> Tensor:
        """The energy of answers, negated; their given cells are those of the batch. -> [B]"""
        return -self.target_energy(answer_BN, self.context(self.observed(batch), self.last_landscape))
