"""Looped transformers: what is checked of their flags (group `Loops` of settings.py), and what they measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .checks import ResolvedFlags, rule
from .task import Measure


@rule("model_name", "loops_min", "loops_max")
def check_loops(s: ResolvedFlags) -> str | None:
    fewest, most = s["loops_min"], s["loops_max"]
    if s["model_name"] != "looped_transformer" or fewest <= most:
        return None
    return f"{s.label('loops_min')} is {fewest}, over --loops_max {most}: give at most {most}, or more --loops_max."


def loop_measures(values: Mapping[str, Any]) -> tuple[Measure, ...]:
    """What a looped transformer measures in training; nothing for another model."""
    if values["model_name"] != "looped_transformer":
        return ()
    return (Measure("steps", "loops", "loops", split=False),)
