"""The language EBT in the form of published code, on our weights: what `benchmarks/energy.py` measures ours against.

Observed tokens and predictions are one sequence of 2S positions (a time token first, where there is one) that goes
through every block together, in every step of the walk. Observed positions attend causally to each other. A
prediction's scores are those of the observed keys, with its score of itself put into the superdiagonal, so that one
softmax covers both; its own value is mixed in apart. The energy is differentiated by the V-wide prediction.

Nothing is slower than it has to be for that: queries, keys and values are one product, masks are made once and
broadcast, the superdiagonal is a scatter, and the last norm sees predictions only. A truncated walk differentiates
only its last step twice, as there: an earlier one costs a forward and the gradient of its prediction. The prediction
itself requires a gradient in every step, so that the outer backward pass computes one for it too.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from models.energy_transformer import EnergyTransformer, gated, modulate
from models.language import EnergyLM
from models.layers.rope import rotate
from models.spaces import UpdateRule
from models.walk import Step


def rms_norm(layer: Any, x: Tensor) -> Tensor:
    """Plain torch, as all here: derivatives written out are our layers' own."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + layer.eps) * layer.scale


def feed_forward(layer: Any, x: Tensor) -> Tensor:
    gate, value = layer.gate_value(x).chunk(2, dim=-1)
    return layer.output(F.silu(gate) * value)


def attend(attention: Any, x_BND: Tensor, angles: Tensor, causal: Tensor, length: int) -> Tensor:
    """Attention of O = N - S observed positions and S predictions. causal: 0 or -inf, [O + 1, O + 1]"""
    qkv_3BHNK = attention.query_key_value(x_BND).unflatten(-1, (3, attention.heads, -1)).permute(2, 0, 3, 1, 4)
    q_BHNK, k_BHNK, v_BHNK = qkv_3BHNK.unbind(0)
    q_BHNK = rotate(q_BHNK, angles) / math.sqrt(q_BHNK.shape[-1])
    k_BHNK = rotate(k_BHNK, angles)
    observed = x_BND.shape[1] - length
    (q_o, q_p), (k_o, k_p), (v_o, v_p) = (x.split([observed, length], dim=2) for x in (q_BHNK, k_BHNK, v_BHNK))

    mixed_o = (q_o @ k_o.transpose(-1, -2) + causal[:-1, :-1]).softmax(-1) @ v_o

    itself = observed - length + 1  # the diagonal; one further where a time token stands before all
    scores = F.pad(q_p @ k_o.transpose(-1, -2), (0, 1))
    scores = torch.diagonal_scatter(scores, (q_p * k_p).sum(-1), itself, -2, -1)
    weights = (scores + causal[itself:]).softmax(-1)
    own_BHS1 = weights.diagonal(itself, -2, -1).unsqueeze(-1)
    mixed_p = weights.tril(itself - 1)[..., :-1] @ v_o + own_BHS1 * v_p
    return attention.output(torch.cat([mixed_o, mixed_p], dim=2).transpose(1, 2).flatten(-2))


def energy_of(network: EnergyTransformer, tokens_BS: Tensor, z_BSD: Tensor, landscape: int) -> Tensor:
    """The energy of each embedded prediction, both streams computed. [B, S], [B, S, D] -> [B, S]"""
    length = tokens_BS.shape[1]
    stream = [network.embedding(tokens_BS), z_BSD]
    if network.shape.conditioning == "time_embed":
        assert network.landscape is not None
        stream.insert(0, network.landscape.weight[landscape].expand(len(tokens_BS), 1, -1))
    x_BND = torch.cat(stream, dim=1)
    first = x_BND.shape[1] - 2 * length
    angles = torch.cat([network.rotations[: first + length], network.rotations[first + 1 : first + 1 + length]])
    side = first + length + 1
    causal = torch.full((side, side), -math.inf, dtype=z_BSD.dtype, device=z_BSD.device).triu(1)
    condition = network.condition(landscape)
    block: Any
    for block in network.blocks:
        shift, scale, gate, shift2, scale2, gate2 = block.modulations(condition)
        normed = modulate(rms_norm(block.attention_norm, x_BND), shift, scale)
        x_BND = x_BND + gated(attend(block.attention, normed, angles, causal, length), gate)
        normed = modulate(rms_norm(block.feed_forward_norm, x_BND), shift2, scale2)
        x_BND = x_BND + gated(feed_forward(block.feed_forward, normed), gate2)
    return network.head(rms_norm(network.norm, x_BND[:, -length:])).squeeze(-1)


def walk(
    network: EnergyTransformer,
    tokens_BS: Tensor,
    start_BSV: Tensor,
    steps: list[Step],
    rule: UpdateRule,
    create_graph: bool = True,
    detach: bool = False,
) -> list[Tensor]:
    """The predictions after each step, [B, S, V] each; create_graph: with what a loss needs to reach the parameters."""
    y_BSV, predictions = start_BSV, []
    for step in steps:
        y_BSV = y_BSV.detach() if detach or not create_graph else y_BSV
        y_BSV = y_BSV if y_BSV.requires_grad else y_BSV.requires_grad_()
        if not isinstance(step.noise, float) or step.noise > 0:
            y_BSV = y_BSV + step.noise * torch.randn_like(y_BSV)
        p_BSV = y_BSV.softmax(-1) if rule.normalize else y_BSV
        energy_BS = energy_of(network, tokens_BS, p_BSV @ network.prediction_embedding, step.landscape)
        graph = create_graph and step.create_graph
        (slope_BSV,) = torch.autograd.grad(energy_BS.sum(), p_BSV, create_graph=graph)
        y_BSV = (p_BSV if rule.from_probabilities else y_BSV) - step.size * slope_BSV
        predictions.append(y_BSV)
    return predictions


def training_loss(model: EnergyLM, rows_BS: Tensor) -> Tensor:
    """The loss of a batch [B, S+1], drawing what is random in the order of the model's own training step."""
    shape = model.network.shape
    assert (
        shape.form == "scalar"
        and shape.norm == "rms"
        and shape.activation == "silu"
        and shape.separator_id is None
        and model.replay is None
    )
    assert not model.walk_settings.contrastive_coefficient and model.walk_settings.start == "random_noise"
    tokens_BS, targets_BS = rows_BS[:, :-1], rows_BS[:, 1:]
    like = model.network.head.weight
    steps = model.training_steps(*tokens_BS.shape)
    start_BSV = torch.randn(*tokens_BS.shape, shape.vocab_size, dtype=like.dtype, device=like.device)
    start_BSV = start_BSV * model.walk_settings.noise_scale
    predictions = walk(model.network, tokens_BS, start_BSV, steps, model.space.rule, detach=model.walk_settings.detach)
    last_only = model.walk_settings.last_step_only or model.walk_settings.truncate
    judged = predictions[-1:] if last_only else predictions
    targets = targets_BS.flatten()
    losses = [F.cross_entropy(y_BSV.flatten(0, 1), targets, ignore_index=model.pad_id) for y_BSV in judged]
    return torch.stack(losses).mean()
