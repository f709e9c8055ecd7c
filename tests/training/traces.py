"""What a run leaves that does not depend on the clock, to compare two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from core.files import read_rows

TIMED = ("seconds", "time", "tokens_per_second", "loader_wait_share", "attempt")


def trace(folder: Path) -> list[dict[str, Any]]:
    """Every logged number that does not depend on the clock."""
    return [{k: v for k, v in row.items() if k not in TIMED} for row in read_rows(folder / "metrics.jsonl")]


def final(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
