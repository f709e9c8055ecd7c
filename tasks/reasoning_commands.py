"""The commands of `python -m inference` for reasoning, and their flags. No torch: help answers at once."""

from __future__ import annotations

from dataclasses import dataclass, fields

from config.flags import flag
from config.settings import Inference
from config.task import Command


@dataclass(frozen=True)
class ThinkCurveFlags:
    """what to draw"""

    steps: int = flag(32, "steps, or loops, 1 to this", low=1)
    candidates: tuple[str, ...] = flag(
        ("1", "2", "4"), "numbers of starts, of which the one of lowest energy is taken", metavar="N ..."
    )
    stop_change: float = flag(
        1e-4, "stop a puzzle when a step changes the energy by less than this share of its fall so far", above=0
    )
    split: str = flag("valid", "which split", choices=("valid", "test"))
    rows: int = flag(256, "puzzles of each kind, spread evenly over it", low=2)
    compare: tuple[str, ...] = flag(
        (), "runs to draw beside it; default: other models of its sweep, and those named NAME-...", metavar="RUN ..."
    )
    batch_size: int = flag(64, "puzzles at a time", low=1)


@dataclass(frozen=True)
class SolveFlags:
    """what to solve, and how long to think"""

    puzzle: str | None = flag(
        None, "the puzzle, line after line, . for a blank cell; default: one of the validation split", lines=True
    )
    puzzle_file: str | None = flag(None, "file with a puzzle a line", metavar="FILE")
    steps: int = flag(32, "steps, or loops", low=1)
    candidates: int = flag(4, "starts, of which the one of lowest energy is taken", low=1, high=64)
    boards: int = flag(6, "boards to print of a puzzle, the last included; 0 is every step", low=0)
    pictures: int = flag(4, "puzzles to draw; 0 draws none", low=0)


@dataclass(frozen=True)
class VerifyFlags:
    """what to verify on"""

    split: str = flag("valid", "which split", choices=("valid", "test"))
    rows: int = flag(256, "puzzles of each kind, spread evenly over it", low=2)
    answers: int = flag(8, "wrong answers of each sort for a puzzle", low=1, high=256)
    steps: int | None = flag(None, "steps, or loops; default: those of an evaluation", low=1)
    compare: tuple[str, ...] = flag(
        (), "runs to show beside it; default: other models of its sweep, and those named NAME-...", metavar="RUN ..."
    )
    batch_size: int = flag(64, "puzzles at a time", low=1)


WITHOUT = tuple(field.name for field in fields(Inference) if field.name != "infer_output_dir")

COMMANDS = {
    "think-curve": Command(
        "inference.reasoning.think_curve:main",
        ThinkCurveFlags,
        "puzzles solved against steps, candidates and compute, beside other models",
        without=WITHOUT,
    ),
    "solve": Command(
        "inference.reasoning.solve:main",
        SolveFlags,
        "solve a puzzle, step by step",
        '--run RUN --puzzle "..."',
        without=WITHOUT,
    ),
    "verify": Command(
        "inference.reasoning.verify:main",
        VerifyFlags,
        "whether the energy tells right answers from wrong ones",
        without=WITHOUT,
    ),
}
