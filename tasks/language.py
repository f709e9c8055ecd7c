"""Language: the next token of a text, with an energy-based transformer or a Transformer++."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from config.checks import ResolvedFlags
from config.energy import ENERGY_CHECKS, RECIPES, Energy, energy_measures, energy_rule
from config.settings import Text, Transformer
from config.task import Measure, Results, SplitFacts
from tasks import Task

LOSS_UNIT = "nats per token"


def bits_per_byte(results: Results, facts: SplitFacts) -> float:
    return results["loss"] * facts["tokens_per_byte"] / math.log(2)


@energy_rule("denoising_initial_condition")
def check_start(s: ResolvedFlags) -> str | None:
    if s["denoising_initial_condition"] != "most_recent_embedding":
        return None
    return (
        f"{s.label('denoising_initial_condition')} is 'most_recent_embedding': a language prediction is a "
        "distribution over the vocabulary, and the most recent embedding is not one; choose random_noise or zeros."
    )


class Language(Task):
    name = "language"
    unit = "tokens"
    legacy = ("NLP", None)
    models: ClassVar = {"ebt": "EBT", "baseline_transformer": "Transformer++"}
    twin: ClassVar = {"model_name": "baseline_transformer"}
    groups = (Transformer, Energy, Text)
    recipes = RECIPES
    checks = (*ENERGY_CHECKS, check_start)

    def measures(self, values: Mapping[str, Any]) -> tuple[Measure, ...]:
        """Those of a split, and what an energy adds to them."""
        return (
            Measure("loss", "loss", LOSS_UNIT, "lower", scale=1.0),
            Measure("perplexity", "perplexity", "", "lower"),
            Measure("accuracy", "accuracy", "share of tokens", "higher"),
            Measure("top5", "top-5 accuracy", "share of tokens", "higher"),
            Measure("bits_per_byte", "bits per byte", "bits per byte", "lower", derive=bits_per_byte),
            Measure("spread", "spread of the predictions over positions", "standard deviation of a probability"),
            Measure("targets", "tokens evaluated", "tokens"),
            *energy_measures(values, LOSS_UNIT),
        )


TASK = Language()
