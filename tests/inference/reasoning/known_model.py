"""A stand-in for a trained model: after so many steps as a row's difficulty says it has the right answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from data.reasoning.build import find_puzzle
from inference.reasoning.puzzle_runs import PuzzleRun
from models.model import Batch
from models.reasoning import Thought, answer_of


class KnownModel:
    """Row r is right from step difficulty[r] on; before, its first blank cell is wrong. The energy falls by 1/2^step.

    Rows are found by their clues, so that batches of any size give the same.
    """

    device = torch.device("cpu")

    def __init__(self, difficulty: dict[bytes, int], symbols: int) -> None:
        self.difficulty, self.symbols = difficulty, symbols

    def think(self, batch: Batch, steps: int, seed: int | None = None) -> Iterator[Thought]:
        late = 0 if seed is None else 1
        difficulty = [self.difficulty[row.numpy().tobytes()] + late for row in batch["given"]]
        for step in range(steps + 1):
            answer = batch["answer"].clone()
            for row, least in enumerate(difficulty):
                if step < least:
                    cell = int((batch["given"][row] < 0).nonzero()[0])
                    answer[row, cell] = (answer[row, cell] + 1) % self.symbols
            energy = torch.tensor([2.0**-step + least for least in difficulty])
            yield Thought(step, 5 * F.one_hot(answer, self.symbols).float(), energy)

    def answer_of(self, logits: Tensor, batch: Batch) -> Tensor:
        return answer_of(logits, batch)

    def answer_scores(self, batch: Batch, answer_BN: Tensor) -> Tensor:
        """Minus the number of cells that differ from the answer."""
        return -(answer_BN != batch["answer"]).sum(1).float()


class KnownRun(PuzzleRun):
    has_energy = True
    thinks = True


def known_run(difficulty: dict[bytes, int], evaluation_steps: int = 4) -> Any:
    puzzle = find_puzzle("sudoku:4")
    loaded = SimpleNamespace(
        model=KnownModel(difficulty, 4),
        processor=SimpleNamespace(puzzle=puzzle),
        name="known",
        step=7,
        task=SimpleNamespace(models={"ebt": "EBT"}),
        config=SimpleNamespace(run=SimpleNamespace(model_name="ebt")),
        autocast=nullcontext,
    )
    run = KnownRun(loaded)  # type: ignore[arg-type]
    run.__dict__["values"] = {"evaluation_steps": evaluation_steps}
    return run
