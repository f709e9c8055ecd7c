"""The language EBT against its slow version, its derivatives against numbers, and what must not leak into what."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call
from torch.nn import functional as F

from models.energy_transformer import EnergyBlock, EnergyShape
from models.language import EnergyLM
from models.layers.attention import SelfAttention, document_mask
from models.layers.rope import rotations
from models.walk import Step
from tests.models.small import (
    CONDITIONINGS,
    PAD,
    ROWS,
    STILL,
    D,
    H,
    S,
    V,
    fresh,
    gradients,
    learned,
    model_of,
    train,
)
from tests.reference.ebt import contrast_of_batch, loss_of_batch, prior_of_row, walk_of_row


def compare_with_the_slow_version(model: EnergyLM) -> None:
    """Energies and predictions of every step, the loss, and the gradient of every parameter."""
    torch.manual_seed(3)
    buffer, rows, replayed = copy.deepcopy(model.replay), ROWS, None
    if model.replay is not None:
        batch, replayed = model.replay.append_to({"input_ids": rows})
        rows = batch["input_ids"]
        assert len(rows) == 3 and replayed is not None
    steps = model.training_steps(len(rows), S)
    start = model.start(rows[:, :-1])
    if replayed is not None:
        start = torch.cat([start[: len(ROWS)], replayed])
    before_noise = torch.get_rng_state()
    noises = [
        step.noise * torch.randn_like(start) if model.walk_settings.langevin_noise else start * 0 for step in steps
    ]
    torch.set_rng_state(before_noise)
    fast = list(model.walk(rows[:, :-1], start, steps, differentiable=True))
    landscapes, predictions, energies = [step.landscape for step in steps], [], []
    for r, row in enumerate(rows.tolist()):
        size = steps[0].size[r] if steps[0].size.dim() else steps[0].size
        begin = start[r].detach()
        if model.walk_settings.start == "prior":
            prior = prior_of_row(model.network, row[:-1], 0)
            begin = prior + (begin - prior.detach())
            torch.testing.assert_close(begin, start[r], atol=1e-9, rtol=0)
        row_steps, row_energies = walk_of_row(model, row[:-1], begin, landscapes, size, [noise[r] for noise in noises])
        for t in range(len(steps)):
            torch.testing.assert_close(fast[t].energy[r].detach(), row_energies[t].detach(), atol=1e-9, rtol=0)
            # an entropy term shifts all logits of a position alike, which nobody sees
            one, other = (y.log_softmax(-1) if model.rule.entropy else y for y in (fast[t].y[r], row_steps[t]))
            torch.testing.assert_close(one, other, atol=1e-9, rtol=0)
        predictions.append(row_steps)
        energies.append(row_energies)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    model.replay = buffer
    loss, slow_loss = train(model), loss_of_batch(model, rows, predictions)
    if model.walk_settings.contrastive_coefficient:
        slow_loss = 0.5 * slow_loss + 0.3 * contrast_of_batch(model, rows, energies)
    torch.testing.assert_close(loss, slow_loss, atol=1e-9, rtol=0)
    for name, a, b in zip(names, gradients(model, loss), gradients(model, slow_loss), strict=True):
        assert torch.allclose(a, b, atol=1e-9, rtol=1e-9), f"{name} differs by {(a - b).abs().max()}"
        if name == "step_size":  # also that of earlier steps, where they are constants but not detached
            assert a.abs() > 1e-6


TRUNCATIONS = (
    "--no-truncate_mcmc --no-mcmc_last_step_loss",
    "--truncate_mcmc --no-mcmc_last_step_loss",
    "--mcmc_last_step_loss",
)


@pytest.mark.parametrize("truncation", TRUNCATIONS)
@pytest.mark.parametrize("replay", ["", "--mcmc_replay_buffer"])
@pytest.mark.parametrize("detach", ["", "--no_mcmc_detach"])
@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_equals_the_slow_version_with_gradients(conditioning: str, detach: str, replay: str, truncation: str) -> None:
    plain = "--recipe s1 --randomize_mcmc_step_size_scale 2 --update_from logits"
    model = model_of(f"{plain} --ebt_type {conditioning} {detach} {replay} {truncation}")
    assert model.walk_settings.detach == (not detach)
    if replay:
        old = torch.tensor([[1, 2, 8, 3, 3, 4], [8, 6, 5, 4, 8, 7]])
        train(model, old, seed=1)
        assert model.replay is not None and model.replay.filled == 2
        batch, start = model.replay.append_to({"input_ids": ROWS})
        mixed = batch["input_ids"]
        assert torch.equal(mixed[:2], ROWS) and mixed[2].tolist() in old.tolist() and start is not None and start.any()
    compare_with_the_slow_version(model)


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@pytest.mark.parametrize("recipe", ["laptop", "public", "s1", "s2", "residual"])
def test_every_recipe_equals_the_slow_version(recipe: str, conditioning: str) -> None:
    """Over several batches, whose number and sizes of steps are drawn; s2 replays what it found before."""
    model = model_of(f"--recipe {recipe} --ebt_type {conditioning}")
    for seed in range(3 if recipe == "s2" else 1):
        if model.replay is not None:
            train(model, ROWS.flip(0), seed=seed + 10)
        compare_with_the_slow_version(model)


@pytest.mark.parametrize(
    "flags",
    [
        "--update_from probabilities",
        "--update_from probabilities --recipe s1 --ebt_type adaln --mcmc_num_steps 3",
        "--update_from probabilities --no-normalize_initial_condition",
        "--no-normalize_initial_condition --ebt_type time_embed",
        "--vocab_to_embed_uses_prob_dist --ebt_type adaln_zero",
        "--vocab_to_embed_uses_prob_dist --recipe s1 --no-normalize_initial_condition --update_from logits",
        "--no-isolate_documents --ebt_type time_embed",
        "--no-isolate_documents",
        f"{STILL} --mcmc_num_steps 1",
        "--ebt_type time_embed --randomize_mcmc_num_steps 2 --randomize_mcmc_num_steps_min 2",
        "--ebt_type adaln --randomize_mcmc_num_steps 2 --randomize_mcmc_num_steps_final_landscape",
        "--langevin_dynamics_noise 0.7 --langevin_dynamics_noise_learnable",
        "--recipe s2 --langevin_dynamics_noise 0.5 --langevin_dynamics_noise_learnable --mcmc_step_size_learnable",
        "--recipe s2 --mcmc_num_steps 2 --mcmc_step_size_learnable --no-normalize_initial_condition",
        "--contrastive_loss --contrastive_loss_coeff 0.3 --reconstruction_coeff 0.5 --ebt_type time_embed",
        "--recipe s2 --contrastive_loss --contrastive_loss_coeff 0.3 --reconstruction_coeff 0.5",
        "--ebt_norm layer --ebt_act_func gelu",
        "--ebt_norm dyt --ebt_act_func elu --ebt_type adaln",
        "--ebt_norm none --ebt_act_func relu",
        "--recipe residual --energy_blocks 1 --mcmc_num_steps 3 --gaussian_random_noise_scaling 0.3",
        "--recipe residual --energy_blocks 2 --randomize_mcmc_num_steps 2 --randomize_mcmc_step_size_scale 1.4",
        "--recipe residual --denoising_initial_condition zeros --mcmc_num_steps 2",
        "--recipe residual --mcmc_num_steps 2 --truncate_mcmc --no-mcmc_last_step_loss --ebt_norm layer",
        "--recipe residual --mcmc_num_steps 2 --ebt_type adaln",
    ],
)
def test_equals_the_slow_version_with_other_flags(flags: str) -> None:
    model = model_of(flags)
    if model.replay is not None:
        train(model, ROWS.flip(0), seed=10)
    compare_with_the_slow_version(model)


class Predict(nn.Module):
    """A part's `forward_prediction` as a function of its weights too."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.part.forward_prediction(*inputs)  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["attention", "default", "adaln"])
def test_first_and_second_derivatives_of_the_prediction_stream(kind: str) -> None:
    torch.manual_seed(0)
    shape = EnergyShape(V, 3, 1, 4, 2, 3, conditioning=kind, landscapes=2)
    part = Predict(SelfAttention(4, 2) if kind == "attention" else EnergyBlock(shape)).double()
    names, weights = zip(*part.named_parameters(), strict=True)
    mask = document_mask(torch.tensor([[1, 8, 2]]), 8)
    bias = F.pad(torch.zeros(mask.shape).double().masked_fill(~mask, float("-inf")), (0, 1))
    angles = rotations(4, 2)[1:]
    x, condition = torch.randn(1, 3, 4).double(), torch.randn(4).double()
    keys, values = torch.randn(2, 1, 2, 3, 2).double().unbind(0)

    def predict(x: Tensor, condition: Tensor, keys: Tensor, values: Tensor, *weights: Tensor) -> Tensor:
        inputs = (x, angles) if kind == "attention" else (x, condition, angles)
        observed = (F.pad(keys, (0, 0, 0, 1)), F.pad(values, (0, 0, 0, 1)))
        return functional_call(part, dict(zip(names, weights, strict=True)), (*inputs, *observed, bias))

    inputs = [x, condition, keys, values, *(torch.randn_like(weight) * 0.5 for weight in weights)]
    for tensor in inputs[:1] + inputs[2:] if kind != "adaln" else inputs:
        tensor.requires_grad_()
    assert gradcheck(predict, inputs)
    assert gradgradcheck(predict, inputs)


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_the_gradient_of_training_is_the_slope_of_its_loss(conditioning: str) -> None:
    model = model_of(f"--ebt_type {conditioning} --langevin_dynamics_noise 0.3 --langevin_dynamics_noise_learnable")
    parameters = learned(model)
    for parameter, gradient in zip(parameters, gradients(model, train(model)), strict=True):
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)).double()
        losses = []
        for shift in (1e-6, -2e-6, 1e-6):  # up, down and back to where it was
            parameter.data.add_(shift * direction)
            losses.append(train(model).detach())
        slope = (losses[0] - losses[1]) / 2e-6
        torch.testing.assert_close((gradient * direction).sum(), slope, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_a_row_does_not_depend_on_the_others(conditioning: str) -> None:
    model = model_of(f"--ebt_type {conditioning} {STILL}")
    whole = model(ROWS[:, :-1])
    other = torch.stack([ROWS[0], ROWS[0].flip(0)])
    assert torch.equal(model(other[:, :-1])[0], whole[0])
    for r in range(2):
        torch.testing.assert_close(model(ROWS[r : r + 1, :-1])[0], whole[r], atol=1e-12, rtol=0)
    counts = (ROWS[:, 1:] != PAD).sum(1) / (ROWS[:, 1:] != PAD).sum()
    alone = [gradients(model, counts[r] * train(model, ROWS[r : r + 1])) for r in range(2)]
    for together, first, second in zip(gradients(model, train(model)), *alone, strict=True):
        torch.testing.assert_close(together, first + second, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_nothing_leaks(conditioning: str) -> None:
    network = model_of(f"--ebt_type {conditioning}").network
    tokens, z = torch.tensor([[8, 1, 8, 2, 3]]), torch.randn(1, S, D).double()

    def energies(tokens: Tensor, z: Tensor) -> Tensor:
        return network.energy(z, network.context(tokens, 1 if network.has_landscapes else 0))[0]

    before = energies(tokens, z)
    for i, j in product(range(S), range(S)):
        other_z, other_tokens = z.clone(), tokens.clone()
        other_z[0, j] += 1
        assert torch.equal(energies(tokens, other_z)[i], before[i]) == (i != j), "a prediction sees itself only"
        other_tokens[0, j] = 5 if j != 2 else 8  # the separator stays, or the documents would be one
        seen = j <= i and (i < 2) == (j < 2) and j != 2
        assert torch.equal(energies(other_tokens, z)[i], before[i]) == (not seen), f"{i} and token {j}"


@pytest.mark.parametrize("start", ["zeros", "random_noise"])
def test_evaluation_does_not_see_later_tokens_or_other_documents(start: str) -> None:
    model, tokens = model_of(f"--denoising_initial_condition {start} --ebt_type time_embed"), ROWS[:1, :-1]
    before, other = model(tokens), tokens.clone()
    other[0, 4] = 6
    assert torch.equal(model(other)[0, :4], before[0, :4])
    assert not torch.equal(model(other)[0, 4], before[0, 4])
    other = tokens.clone()
    other[0, 1] = 6
    assert torch.equal(model(other)[0, 3:], before[0, 3:])


def test_padding_gives_no_loss_and_no_gradient() -> None:
    model = model_of(f"{STILL} --contrastive_loss")
    padded = torch.cat([ROWS, torch.full((1, S + 1), PAD)])
    for a, b in zip(gradients(model, train(model)), gradients(model, train(model, padded)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)
    start = torch.zeros(2, S, V).double().requires_grad_()
    walked = list(model.walk(ROWS[:, :-1], start, [Step(0, model.step_size)] * 2, differentiable=True))
    (slope,) = torch.autograd.grad(model.loss(walked[-1].y, ROWS[:, 1:]), start)
    assert torch.equal(slope.abs().sum(-1) > 0, ROWS[:, 1:] != PAD)


def test_adaln_zero_begins_as_the_unconditioned_model() -> None:
    plain, zero = fresh(f"{STILL} --mcmc_step_size 2.0"), fresh(f"{STILL} --mcmc_step_size 2.0 --ebt_type adaln_zero")
    missing, unexpected = zero.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected and all("modulation" in name or "landscape" in name for name in missing)
    assert torch.equal(plain(ROWS[:, :-1]), zero(ROWS[:, :-1]))
    assert torch.equal(train(plain), train(zero))
    train(zero).backward()
    slope = zero.get_parameter("network.blocks.0.modulation.weight").grad
    assert slope is not None and slope.any(), "it can leave its beginning"


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_precisions_agree(conditioning: str) -> None:
    """float32 to 1e-6 in the loss and 1e-5 in the gradient, bfloat16 autocast to 1% and 5%."""
    single = fresh(f"--ebt_type {conditioning} {STILL}")
    single.calibrate({"input_ids": ROWS})
    double = copy.deepcopy(single).double()
    double.network.rotations = rotations(S + 2, D // H)

    def measure(model: EnergyLM) -> tuple[float, Tensor]:
        loss = train(model)
        return loss.item(), torch.cat([gradient.flatten().double() for gradient in gradients(model, loss)])

    exact_loss, exact = measure(double)
    loss, slope = measure(single)
    assert loss == pytest.approx(exact_loss, rel=1e-6)
    assert (slope - exact).norm() < 1e-5 * exact.norm()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half_loss, half_slope = measure(single)
    assert half_loss != loss
    assert half_loss == pytest.approx(loss, rel=0.01)
    assert (half_slope - slope).norm() < 0.05 * slope.norm()
