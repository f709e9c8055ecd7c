"""What a run is trained for: a metric of its validations and the value it has to reach (--goal valid_loss<1.4)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MEASURED = ("valid_loss", "valid_perplexity", "valid_accuracy", "valid_top5", "valid_bits_per_byte", "valid_spread")
MEASURED_OF_ENERGY = ("valid_thinking_gain", "valid_loss_step_1")
BETTER_WHEN_LARGER = ("valid_accuracy", "valid_top5", "valid_thinking_gain")
FORM = re.compile(r"\s*([a-z0-9_]+)\s*(<=|>=|<|>)\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*", re.I)
LARGEST_TEXT = 100


@dataclass(frozen=True)
class Goal:
    """sign: one of < <= > >=."""

    metric: str
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Goal:
        """The goal that a text stands for; a ValueError says what is allowed."""
        found = FORM.fullmatch(text[:LARGEST_TEXT]) if len(text) <= LARGEST_TEXT else None
        if not found or not math.isfinite(float(found[3])):
            raise ValueError("write a metric, one of < <= > >= and a number, in quotes: 'valid_loss<1.4'")
        if not is_measured(found[1]):
            known = ", ".join((*MEASURED, *MEASURED_OF_ENERGY))
            raise ValueError(f"{found[1]} is not measured by a validation; choose {known}")
        return cls(found[1], found[2], float(found[3]))

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.value:g}"

    def is_met(self, value: float) -> bool:
        if self.sign.startswith("<"):
            return value < self.value or (self.sign == "<=" and value == self.value)
        return value > self.value or (self.sign == ">=" and value == self.value)

    def is_nearer(self, value: float, other: float) -> bool:
        return value < other if self.sign.startswith("<") else value > other


def is_measured(metric: str, steps: range | None = None) -> bool:
    """Whether a validation measures it; steps: down the energy after which it does, where they are known."""
    number = re.fullmatch(r"valid_loss_step_(0|[1-9][0-9]{0,5})", metric)
    if metric in MEASURED:
        return True
    if number:
        return steps is None or int(number[1]) in steps
    return metric == "valid_thinking_gain" and (steps is None or len(steps) > 0)
