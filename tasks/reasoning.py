"""Reasoning: puzzles whose rules tell whether an answer is right, with models that may think longer on harder ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from config.energy import ENERGY_CHECKS, Walk, energy_measures
from config.flags import flag
from config.loops import check_loops, loop_measures
from config.settings import EBT, Blocks, Data, Loops, RunConfig
from config.task import Alarm, Measure
from tasks import Showing, Task
from tasks.energy import blocks_shape, replay_buffer, walk_settings
from tasks.reasoning_commands import COMMANDS

if TYPE_CHECKING:
    from data.module import DataModule, Rows
    from data.reasoning.build import PuzzleProcessor
    from data.reasoning.puzzle import PuzzleSpec
    from models.model import Model

LOSS_UNIT, SHARE = "nats per cell", "share of puzzles"
THINKING = {"model_name": ("ebt", "looped_transformer")}
CHANCE = Alarm(
    "no cell is learned",
    "accuracy",
    below=0.1,
    text="the model fills only {:.1%} of the blank cells as the answer does, which guessing does as well",
    advice="check the data (--debug_dataloader), lower --peak_learning_rate, and see whether it can learn at all: "
    "--overfit_batches 1",
)


@dataclass(frozen=True)
class Puzzles(Data):
    __doc__ = Data.__doc__

    num_puzzles: int = flag(50_000, "puzzles to train on", low=1)
    num_eval_puzzles: int = flag(512, "puzzles of each kind in validation and test", low=1, decides="data")
    clues: str | None = flag(
        None, "fewest and most clues in training; default: those of the puzzle", metavar="18-26", decides="data"
    )


@dataclass(frozen=True)
class PuzzleEnergy(Walk):
    __doc__ = Walk.__doc__

    energy_head: str = flag(
        "dot",
        "energy of a cell: the product of its prediction and its logits, or a number as published",
        choices=("dot", "linear"),
        needs=EBT,
        shown_first=2,
        of_shape=True,
    )


@dataclass(frozen=True)
class Thinking(Loops):
    """how long a model thinks"""

    section: ClassVar[str] = "thinking"

    evaluation_steps: int = flag(
        16, "steps down the energy, or loops, in an evaluation", low=1, needs=THINKING, shown_first=2
    )


def thinking_measures(values: Mapping[str, Any]) -> tuple[Measure, ...]:
    """What a model that thinks in steps or loops measures; nothing for one that does not."""
    if values["model_name"] not in THINKING["model_name"]:
        return ()
    shared = (
        Measure("solved_step_*", "solved after * steps", SHARE, "higher"),
        Measure("solved_shifted_step_*", "solved, shifted, after * steps", SHARE, "higher"),
    )
    if values["model_name"] == "ebt":
        return (
            *shared,
            Measure("energy_solved", "energy of solved puzzles at the end"),
            Measure("energy_unsolved", "energy of unsolved puzzles at the end"),
        )
    return (*shared, *loop_measures(values))


class Reasoning(Task):
    name = "reasoning"
    unit = "puzzles"
    spec_class = "data.reasoning.puzzle:PuzzleSpec"
    models: ClassVar = {
        "ebt": "EBT",
        "baseline_transformer": "feed-forward transformer",
        "looped_transformer": "looped transformer",
    }
    twin: ClassVar = {"model_name": "baseline_transformer"}
    groups = (Blocks, PuzzleEnergy, Thinking, Puzzles)
    defaults: ClassVar = {
        "dataset_name": "sudoku:6",
        "model_size": "5xs",
        "ffn_dim_multiplier": 1.5,
        "randomize_mcmc_num_steps": 1,
        "randomize_mcmc_step_size_scale": 2.0,
        "batch_size_per_device": 64,
        "max_steps": 800,
        "beta2": 0.98,
        "min_lr_scale": 20.0,
    }
    # Reachability is learned with longer walks than Sudoku (docs/log.md).
    recipes: ClassVar = {
        "short_walks": {},
        "long_walks": {"randomize_mcmc_num_steps": 7, "randomize_mcmc_num_steps_min": 4},
    }
    checks = (*ENERGY_CHECKS, check_loops)
    alarms = (CHANCE,)
    commands = COMMANDS

    def measures(self, values: Mapping[str, Any]) -> tuple[Measure, ...]:
        """Shares of puzzles whose answer breaks no rule, the loss, and what thinking adds to them."""
        return (
            Measure("solved", "solved", SHARE, "higher", line="solved {:.1%}"),
            Measure("solved_shifted", "solved, shifted", SHARE, "higher", line="shifted {:.1%}"),
            Measure("solved_several", "solved, several answers", SHARE, "higher"),
            Measure("loss", "loss", LOSS_UNIT, "lower", scale=1.0, line="loss {:.4f} nats"),
            Measure("accuracy", "accuracy", "share of cells", "higher"),
            Measure("targets", "puzzles evaluated", "puzzles"),
            *thinking_measures(values),
            *energy_measures(values, LOSS_UNIT),
        )

    def data(self, config: RunConfig, *runs: Path | None) -> DataModule:
        from data.reasoning.build import reasoning_data

        return reasoning_data(config, config[Puzzles], *runs)

    def model(self, config: RunConfig, spec: PuzzleSpec) -> Model:
        from data.reasoning.rules import PuzzleRules
        from models.puzzle_transformer import PuzzleShape, PuzzleTransformer
        from models.reasoning import EnergyPuzzleModel, FeedForwardPuzzleModel, LoopedPuzzleModel

        name, thinking, energy = config.run.model_name, config[Thinking], config[PuzzleEnergy]
        shape = PuzzleShape(
            cells=spec.cells,
            symbols=len(spec.symbols),
            fields=spec.fields,
            positions=spec.positions.tolist(),
            **blocks_shape(config[Blocks]),
        )
        rules = PuzzleRules(spec.dataset)
        if name == "baseline_transformer":
            return FeedForwardPuzzleModel(PuzzleTransformer(shape), rules)
        if name == "looped_transformer":
            loops = thinking.loops_min, thinking.loops_max, thinking.evaluation_steps
            return LoopedPuzzleModel(PuzzleTransformer(shape), rules, *loops)
        settings = replace(walk_settings(energy), evaluation_steps=thinking.evaluation_steps)
        network = PuzzleTransformer(shape, energy.energy_head)
        return EnergyPuzzleModel(network, rules, settings, replay_buffer(energy))

    def spec(self, config: RunConfig, folder: Path) -> PuzzleSpec:
        """That of the folder; the rules of a user's own puzzles are read from the copy there."""
        from data.module import read_spec
        from data.reasoning.own_file import COPY
        from data.reasoning.puzzle import PuzzleSpec

        spec = read_spec(folder, self.spec_class)
        assert isinstance(spec, PuzzleSpec)
        is_copied = spec.dataset.startswith("file:") and (folder / COPY).exists()
        return replace(spec, dataset=f"file:{folder / COPY}") if is_copied else spec

    def processor(self, config: RunConfig, folder: Path) -> PuzzleProcessor:
        from data.reasoning.build import PuzzleProcessor, find_puzzle

        return PuzzleProcessor(find_puzzle(config.data.dataset_name, config[Puzzles].clues or "", folder))

    def references(self, data: DataModule, split: str, units: int) -> dict[str, dict[str, float]]:
        """What guessing, and rules without search, reach."""
        from data.reasoning.references import puzzle_references

        rows = data.rows[split]
        return puzzle_references(rows.puzzle, rows.puzzles.rows(slice(0, units)))

    def floor(self, data: DataModule) -> tuple[str, float]:
        """The loss of a guess among all symbols."""
        return "guess among all symbols", math.log(len(data.spec.symbols))

    def shifted(self, data: DataModule) -> Rows:
        """The harder puzzles of the validation split."""
        from data.reasoning.build import PuzzleRows
        from data.reasoning.puzzle import SHIFTED

        rows = data.rows["valid"]
        return PuzzleRows(rows.puzzles.rows(rows.puzzles.kind == SHIFTED), rows.puzzle)

    def describe_data(self, config: RunConfig, data: DataModule) -> str:
        spec = data.spec
        return (
            f"{spec.dataset}: {data.rows['train'].num_units:,} puzzles of {spec.cells} cells and "
            f"{len(spec.symbols)} symbols to learn from"
        )

    def show(self, showing: Showing) -> None:
        from tasks.show.reasoning import show_reasoning

        show_reasoning(showing)

    def show_step(self, showing: Showing) -> None:
        from tasks.show.reasoning import show_boards

        show_boards(showing)


TASK = Reasoning()
