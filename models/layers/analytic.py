"""Layers of the prediction stream: a forward that saves what its input gradient needs, and that gradient as a formula.

    y, saved = forward_saving(layer, x)          one definition of the layer, for training, validation and inference
    dx       = input_gradient(layer, g, saved)   from the gradient of y to that of x

Training differentiates both once more by autograd, so that no step needs a double backward: the first derivative is a
formula that can be compiled, and that costs no bookkeeping where nothing is differentiated (a cached token is
thousands of operations on a few numbers each). A layer without these methods is differentiated by autograd, which is
slower. `models/energy_check.py` compares the two methods at the start of every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

Saved = tuple[Any, ...]  # tensors, or tuples of them


def forward_saving(layer: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Saved]:
    """layer(x) and the tensors that its input gradient needs. A layer without an analytic gradient saves x."""
    analytic = getattr(layer, "forward_saving", None)
    return (layer(x), (x,)) if analytic is None else analytic(x)


def input_gradient(layer: Callable[[Tensor], Tensor], g: Tensor, saved: Saved) -> Tensor:
    """From the gradient of layer(x) to that of x: by the layer's formula, else by autograd."""
    analytic = getattr(layer, "input_gradient", None)
    if analytic is not None:
        return analytic(g, saved)
    y, pull, *_ = torch.func.vjp(layer, saved[0])
    return pull(g.to(y.dtype))[0]


def defines_gradient(part: type[Any], forward: str) -> bool:
    """Whether the class that defines the method `forward` of a part, or one below it, also defines its gradient.

    A subclass that changes `forward` alone has no formula for its gradient any more: the one it inherits is of
    another function.
    """
    if (part, forward) not in _DEFINED:
        names = (forward, "forward_saving", "input_gradient")
        definitions = [[name in vars(kind) for kind in part.__mro__] for name in names]  # the subclass first
        depth = [row.index(True) if True in row else len(row) for row in definitions]
        _DEFINED[part, forward] = max(depth[1:]) <= depth[0] < len(part.__mro__)
    return _DEFINED[part, forward]


_DEFINED: dict[tuple[type[Any], str], bool] = {}


def autograd_gradient(
    energy: Callable[[Tensor, Any], Tensor], z: Tensor, context: Any, create_graph: bool
) -> tuple[Tensor, Tensor]:
    """The energy and dE/dz of any energy that autograd can differentiate, also in inference mode."""
    with torch.inference_mode(False), torch.enable_grad():
        z, context = tree_map(outside_inference, (z, context))
        z = z if create_graph and z.requires_grad else z.detach().requires_grad_()
        value = energy(z, context)
        (gradient,) = torch.autograd.grad(value.sum(), z, create_graph=create_graph)
    return (value, gradient) if create_graph else (value.detach(), gradient)


def outside_inference(value: Any) -> Any:
    """A copy that autograd may save, of a tensor that was made in inference mode."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value
