"""Let a model think on puzzles: what is solved after each step, what the model believes, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.errors import UserError
from data.reasoning.puzzle import PuzzleSet
from inference.flops import flop_counter
from inference.reasoning.puzzle_runs import PuzzleRun, on_device
from models.model import Batch
from models.noise import mix_seed


@dataclass(frozen=True)
class Thinking:
    """What G candidates of R puzzles came to after 0, 1, ..., T steps; a model that does not start with an answer has
    none after 0.

    solved: bool [G, R, T + 1]. energy: [G, R, T + 1], None for a model without. confidence: the mean log of the largest
    probability over the blank cells, [G, R, T + 1]. answer: after the last step, int [G, R, N].
    """

    solved: np.ndarray
    energy: np.ndarray | None
    confidence: np.ndarray
    answer: np.ndarray

    @property
    def steps(self) -> int:
        return self.solved.shape[2] - 1

    @property
    def candidates(self) -> int:
        return len(self.solved)

    @property
    def doubt(self) -> np.ndarray:
        """The lower, the more is an answer believed: the energy, or minus the confidence. Infinite where not finite."""
        values = self.energy if self.energy is not None else -self.confidence
        return np.where(np.isfinite(values), values, np.inf)

    def best_of(self, candidates: int) -> np.ndarray:
        """Whether the candidate that is believed most among the first few is right, bool [R, T + 1]."""
        choice = self.doubt[:candidates].argmin(0)
        return np.asarray(np.take_along_axis(self.solved[:candidates], choice[None], 0)[0])

    def steps_until_it_stays(self, change: float, candidate: int = 0) -> np.ndarray:
        """How many steps each puzzle takes, [R]: until a step changes the energy by less than this share of its fall
        (of the change since the first step, for a model that has none); T where that never happens."""
        return steps_until_stays(self.doubt[candidate], change, first=0 if self.energy is not None else 1)


def steps_until_stays(values: np.ndarray, change: float, first: int) -> np.ndarray:
    """The number of the first step that changes a value by less than `change` of all change before it. values:
    [R, T + 1], of which those from `first` on count. -> [R]"""
    values = values[:, first:]
    with np.errstate(invalid="ignore"):
        moved = np.abs(np.diff(values, axis=1))
        stays = moved[:, 1:] <= change * np.abs(values[:, 1:-1] - values[:, :1])
    last = values.shape[1] - 1 + first
    if not stays.shape[1]:
        return np.full(len(values), last)
    return np.where(stays.any(1), stays.argmax(1) + 2 + first, last)


def candidate_seed(seed: int, candidate: int) -> int | None:
    """The seed of a start; None, the start of an evaluation, for the first candidate of seed 0."""
    return None if seed == candidate == 0 else mix_seed(candidate, seed)


def confidence_of(logits_BNV: Tensor, batch: Batch) -> Tensor:
    """The mean log of the largest probability over the blank cells, [B]; 0 for a puzzle without."""
    blank_BN = batch["real"] & (batch["given"] < 0)
    largest_BN = logits_BNV.float().log_softmax(-1).amax(-1)
    return largest_BN.where(blank_BN, 0).sum(1) / blank_BN.sum(1).clamp(min=1)


@torch.no_grad()
def measure_thinking(
    run: PuzzleRun,
    puzzles: PuzzleSet,
    steps: int,
    candidates: int,
    seed: int,
    batch_size: int,
    advance: Callable[[int], object],
    observe: Callable[[np.ndarray, int, int, np.ndarray], object] | None = None,
) -> Thinking:
    """Think on every puzzle with every candidate. advance: called with the number of steps done.

    observe: called with the rows (int [B]), the candidate, the number of steps and the answers [B, N] of each thought.
    """
    model: Any = run.model
    rows, cells = puzzles.given.shape
    last = steps if run.thinks else 1
    shape = (candidates, rows, last + 1)
    solved, confidence, energy = np.zeros(shape, bool), np.full(shape, np.nan), np.full(shape, np.nan)
    answers = np.zeros((candidates, rows, cells), np.int64)
    for start in range(0, rows, batch_size):
        indices = np.arange(start, min(start + batch_size, rows))
        part = puzzles.rows(indices)
        batch = on_device(run, part.batch())
        for candidate in range(candidates):
            with run.loaded.autocast():
                for thought in model.think(batch, last, candidate_seed(seed, candidate)):
                    number = thought.steps
                    answer = model.answer_of(thought.logits, batch).cpu().numpy()
                    solved[candidate, indices, number] = run.puzzle.solved(part, answer)
                    confidence[candidate, indices, number] = confidence_of(thought.logits, batch).cpu()
                    if thought.energy is not None:
                        energy[candidate, indices, number] = thought.energy.float().cpu()
                    if observe is not None:
                        observe(indices, candidate, number, answer)
                    advance(int(number > 0))
            answers[candidate, indices] = answer
    return Thinking(solved, energy if run.has_energy else None, confidence, answers)


@dataclass(frozen=True)
class ThinkingCost:
    """FLOPs of thinking on one puzzle. once: what is done once for all steps; step: of each; end: the energy at the
    end of a walk, needed to choose between candidates or to stop."""

    once: float
    step: float
    end: float

    def flops(self, steps: float, candidates: int = 1, with_end: bool = False) -> float:
        return candidates * (self.once + steps * self.step + (self.end if with_end or candidates > 1 else 0))


def thinking_cost(run: PuzzleRun, puzzles: PuzzleSet) -> ThinkingCost:
    """Counted on the model itself, on the meta device, where attention is made of products that the counter knows."""
    batch = on_device(run, puzzles.batch([0]))

    def count(steps: int) -> float:
        meta = run.model.meta_copy(batch)
        meta_batch = {name: tensor.to("meta") for name, tensor in batch.items()}
        with torch.no_grad(), flop_counter() as counter:
            for _ in meta.think(meta_batch, steps):
                pass
        return float(counter.get_total_flops())

    if not run.thinks:
        return ThinkingCost(0.0, count(1), 0.0)
    one, two = count(1), count(2)
    step, rest = two - one, 2 * one - two
    return ThinkingCost(0.0, step, rest) if run.has_energy else ThinkingCost(rest, step, 0.0)


def sparse_steps(last: int, *more: int) -> list[int]:
    """1, 2, 4, ... up to the last, with these besides: a table or a row of boards that is read at a glance."""
    doubled = [2**power for power in range(last.bit_length())]
    return sorted({step for step in (*doubled, last, *more) if 1 <= step <= last})


def parse_candidates(words: Sequence[str], most: int = 64) -> list[int]:
    """The numbers of --candidates, ascending."""
    numbers = [int(word) if word.isascii() and word.isdigit() else 0 for word in words]
    if not all(1 <= number <= most for number in numbers):
        wrong = next(word for word, number in zip(words, numbers, strict=True) if not 1 <= number <= most)
        raise UserError(f"--candidates is {wrong!r}: give whole numbers from 1 to {most}, such as --candidates 1 2 4.")
    return sorted({1, *numbers})
