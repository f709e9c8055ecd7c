"""The rules of a dataset of puzzles as models ask them: a batch and answers to whether each is solved."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from data.module import Batch
from data.reasoning.build import find_puzzle
from data.reasoning.puzzle import Puzzle, PuzzleSet


class PuzzleRules:
    """Whether answers keep the rules; any valid answer counts. The puzzle is found when it is asked first."""

    def __init__(self, dataset: str, folder: Path | None = None) -> None:
        """folder: of a run, whose copy of a user's file is preferred."""
        self.dataset, self.folder = dataset, folder

    @cached_property
    def puzzle(self) -> Puzzle:
        return find_puzzle(self.dataset, folder=self.folder)

    def __call__(self, batch: Batch, answer_BN: Tensor) -> Tensor:
        """-> bool [B], on the CPU"""
        return torch.from_numpy(self.puzzle.solved(PuzzleSet.of_batch(batch), answer_BN.cpu().numpy()))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # it has no state that a copy of a model could change
