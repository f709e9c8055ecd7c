"""Formulas that `--compile_model` makes into single kernels.

Derivatives are written out in this folder's custom functions, so each formula is plain arithmetic that nobody
differentiates: torch.compile takes it as it is, once for all layers, steps and shapes. What fails goes on
uncompiled.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException

enabled = False


def fused(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula, compiled at its first call if `enabled`."""
    compiled: Callable[..., Any] | None = None

    @functools.wraps(formula)
    def run(*arguments: Any) -> Any:
        global enabled
        nonlocal compiled
        if not enabled:
            return formula(*arguments)
        if compiled is None:
            compiled = torch.compile(formula, dynamic=True)
        try:
            return compiled(*arguments)
        except TorchDynamoException as error:  # it did not compile; what fails while it runs is not hidden
            enabled = False
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(f"--compile_model: going on uncompiled, {formula.__name__} failed: {reason}", stacklevel=2)
            return formula(*arguments)

    return run
