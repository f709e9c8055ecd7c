"""Models of puzzles against their slow versions, and what must not change a prediction."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial, partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models.layers.bidirectional_attention as attention
from core.errors import UserError
from models.energy_check import EnergyMismatch
from models.energy_model import WalkSettings, walk_curve
from models.layers.analytic import Saved, autograd_gradient
from models.model import Batch
from models.puzzle_transformer import PuzzleBlock, PuzzleContext, PuzzleShape, PuzzleTransformer
from models.reasoning import EnergyPuzzleModel, FeedForwardPuzzleModel, LoopedPuzzleModel, answer_of
from models.replay import ReplayBuffer
from tests.reference.puzzle import energy_of_row, logits_of_row, loss_of_batch, walk_of_row
from training.cost import batch_costs

N, V = 6, 3
SHAPE = PuzzleShape(
    cells=N,
    symbols=V,
    fields=(V + 1, 2),
    positions=((0, 0, 0, 1, 1, 1), (0, 1, 2, 0, 1, 2)),
    layers=2,
    width=8,
    heads=2,
    hidden=6,
)
SETTINGS = WalkSettings(landscapes=1, max_repeats=2, step_size=0.3, step_size_scale=2.0, evaluation_steps=4)
HEADS = ("dot", "linear")
Any_ = EnergyPuzzleModel | FeedForwardPuzzleModel | LoopedPuzzleModel
KINDS = (*HEADS, "feed-forward", "looped")


def rules(batch: Batch, answer_BN: Tensor) -> Tensor:
    """Cells have the right answer, of which a puzzle without one has none."""
    return ((answer_BN == batch["answer"]) | ~batch["real"]).all(-1)


def new_model(
    kind: str, shape: PuzzleShape = SHAPE, settings: WalkSettings = SETTINGS, replay: ReplayBuffer | None = None
) -> Any_:
    torch.manual_seed(0)
    network = PuzzleTransformer(shape, kind if kind in HEADS else None)
    if kind == "feed-forward":
        return FeedForwardPuzzleModel(network, rules)
    if kind == "looped":
        return LoopedPuzzleModel(network, rules, 1, 3, 4)
    return EnergyPuzzleModel(network, rules, settings, replay)


def model_of(kind: str, settings: WalkSettings = SETTINGS, replay: ReplayBuffer | None = None) -> Any_:
    model = new_model(kind, SHAPE, settings, replay)
    for name, parameter in model.named_parameters():
        if name.startswith(("network.", "state_norm.")):
            nn.init.normal_(parameter, std=0.4)  # every weight at work, also those that begin at 1
    return model.double()


def energy_model(kind: str, **changes: Any) -> EnergyPuzzleModel:
    model = model_of(kind, replace(SETTINGS, **changes))
    assert isinstance(model, EnergyPuzzleModel)
    return model


def batch_of(rows: int = 4, padded: bool = True) -> Batch:
    """Random puzzles; the second has two cells of padding, the third no clue and the fourth no blank."""
    random = torch.Generator().manual_seed(rows)
    answer = torch.randint(V, (rows, N), generator=random)
    given = answer.masked_fill(torch.rand(rows, N, generator=random) < 0.5, -1)
    real = torch.ones(rows, N, dtype=torch.bool)
    given[2:3], given[3:4] = -1, answer[3:4]
    if padded:
        real[1:2, -2:] = False
        given[1:2, -2:], answer[1:2, -2:] = -1, -1
    other = torch.randint(2, (rows, N), generator=random)
    inputs = torch.stack([given + 1, other], -1)
    return {"inputs": inputs, "given": given, "answer": answer, "real": real, "kind": torch.arange(rows) % 3}


def rows_of(batch: Batch, rows: slice) -> Batch:
    return {name: tensor[rows] for name, tensor in batch.items()}


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    grads = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    return dict(zip(named, grads, strict=True))


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, gradient in actual.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-10, msg=name)
        assert gradient.any() or "langevin" in name, name


@pytest.mark.parametrize("kind", ["feed-forward", "looped"])
def test_logits_loss_and_gradients_are_those_of_the_slow_version(kind: str) -> None:
    model, batch = model_of(kind), batch_of()
    torch.manual_seed(5)
    loss = model.training_step(batch, 0)
    loops = int(model.measured["steps"]) if kind == "looped" else 1
    state_scale: Any = model.state_norm.scale if isinstance(model, LoopedPuzzleModel) else None
    slow = [logits_of_row(model.network, batch, row, loops, state_scale) for row in range(4)]
    expected = loss_of_batch(batch, slow)
    assert kind == "feed-forward" or loops > 1
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert_same(gradients(model, loss), gradients(model, expected))
    logits = list(model.think(batch, loops))[-1].logits
    for row, cells in enumerate(slow):
        for i, values in cells.items():
            if batch["given"][row, i] < 0:
                torch.testing.assert_close(logits[row, i], values.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("head", HEADS)
def test_walk_loss_and_gradients_are_those_of_the_slow_version(head: str) -> None:
    model, batch = energy_model(head), batch_of()
    torch.manual_seed(7)
    loss = model.training_step(batch, 0)
    torch.manual_seed(7)
    observed = model.observed(batch)
    steps = model.training_steps(4)
    start = model.start(observed)
    assert len(steps) == 2 and steps[0].size.shape == (4, 1, 1)
    tau = model.tau if model.tau is not None else torch.zeros(())
    walks = [
        walk_of_row(model.network, batch, row, start, [step.size[row, 0] for step in steps], tau) for row in (0, 1, 2)
    ]
    expected = torch.stack([loss_of_batch(batch, [walk[t] for walk, _ in walks]) for t in range(2)]).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert_same(gradients(model, loss), gradients(model, expected))
    walked = list(model.walk(observed, start, steps, differentiable=False))
    for row, (_, energies) in enumerate(walks):
        for step, energy in zip(walked, energies, strict=True):
            torch.testing.assert_close(step.energy[row], energy.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("head", HEADS)
def test_the_gradient_is_that_of_autograd_and_of_differences(head: str) -> None:
    model, batch = energy_model(head), batch_of()
    context = model.context(model.observed(batch), 0)
    p = torch.rand(4, N, V, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    energy, gradient = model.network.energy_and_gradient(p, context, True)
    slow_energy, slow_gradient = autograd_gradient(model.network.energy, p, context, True)
    torch.testing.assert_close((energy, gradient), (slow_energy, slow_gradient), rtol=1e-12, atol=1e-12)
    given = (batch["given"] >= 0) | ~batch["real"]
    assert not gradient[given].any() and gradient[~given].all()
    torch.autograd.gradcheck(lambda p: model.energy(p, context), p, fast_mode=True)
    torch.autograd.gradcheck(lambda p: model.network.energy_and_gradient(p, context, True)[1], p, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_written_out_derivatives_of_attention_are_those_of_autograd(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a whole training step: plain functions, which autograd differentiates, against those with formulas."""
    model, batch = model_of(kind), batch_of()
    torch.manual_seed(1)
    fast = gradients(model, model.training_step(batch, 0))

    def saving(x: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Saved]:
        mixed, *saved = attention.attention(x, bias, heads)
        return mixed, tuple(saved)

    monkeypatch.setattr(attention, "attend_saving", saving)

    def gradient(g: Tensor, saved: Saved, heads: int) -> Tensor:
        qkv, o, weight = saved
        return attention.attention_grad(g, qkv, o, weight, heads)

    monkeypatch.setattr(attention, "attend_input_gradient", gradient)
    torch.manual_seed(1)
    assert_same(fast, gradients(model, model.training_step(batch, 0)))


@pytest.mark.parametrize("kind", ["dot", "looped"])
def test_compiled_blocks_give_the_same_gradients(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and differentiated as for a compiler."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))
    model, batch = model_of(kind), batch_of()
    torch.manual_seed(1)
    eager = gradients(model, model.training_step(batch, 0))
    model.compile_blocks()
    monkeypatch.setattr(torch._dynamo.config, "suppress_errors", False)
    torch.manual_seed(1)
    assert_same(eager, gradients(model, model.training_step(batch, 0)))


class TanhEnergy(PuzzleTransformer):
    """An energy without a formula for its gradient."""

    def energy(self, p_BNV: Tensor, context: PuzzleContext) -> Tensor:
        return super().energy(p_BNV, context).tanh()


class DoubledBlock(PuzzleBlock):
    """A block whose formula for the gradient is that of another function."""

    def forward_saving(self, x_BND: Tensor, bias: Tensor) -> tuple[Tensor, Saved]:
        y_BND, saved = super().forward_saving(x_BND, bias)
        return 2 * y_BND, saved

    def input_gradient(self, g_BND: Tensor, saved: Saved) -> Tensor:
        return super().input_gradient(g_BND, saved)


def test_an_energy_without_a_formula_is_differentiated_and_a_wrong_formula_is_refused() -> None:
    model, batch = energy_model("dot"), batch_of()
    model.check()
    assert model.network.is_analytic
    model.network.__class__ = TanhEnergy
    assert not model.network.is_analytic
    model.check()
    assert all(gradient.isfinite().all() for gradient in gradients(model, model.training_step(batch, 0)).values())
    model.network.__class__ = PuzzleTransformer
    model.network.blocks[1].__class__ = DoubledBlock
    with pytest.raises(EnergyMismatch, match=r"blocks\.1 \(DoubledBlock\)"):
        model.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_its_batch(kind: str) -> None:
    model, batch = model_of(kind), batch_of(7)
    together = list(model.think(batch, 3))
    for rows in (slice(0, 1), slice(1, 2), slice(2, 5), slice(6, 7)):
        alone = list(model.think(rows_of(batch, rows), 3))
        assert [thought.steps for thought in alone] == [thought.steps for thought in together]
        for one, many in zip(alone, together, strict=True):
            torch.testing.assert_close(one.logits, many.logits[rows], rtol=1e-10, atol=1e-10)
            assert (one.energy is None) == (kind not in HEADS)
            if one.energy is not None and many.energy is not None:
                torch.testing.assert_close(one.energy, many.energy[rows], rtol=1e-10, atol=1e-10)
    scores = model.answer_scores(batch, batch["answer"])
    torch.testing.assert_close(model.answer_scores(rows_of(batch, slice(4, 6)), batch["answer"][4:6]), scores[4:6])


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_padding_changes_nothing(kind: str) -> None:
    model, batch = model_of(kind), batch_of()
    other = {name: tensor.clone() for name, tensor in batch.items()}
    other["inputs"][1, -2:] = 1
    real = batch["real"][1]
    for one, two in zip(model.think(batch, 3), model.think(other, 3), strict=True):
        assert torch.equal(one.logits[1, real], two.logits[1, real])
        assert one.energy is None or two.energy is None or torch.equal(one.energy, two.energy)
    losses = []
    for some in (batch, other):
        torch.manual_seed(2)
        losses.append(model.training_step(some, 0))
    assert torch.equal(*losses)


@pytest.mark.parametrize("head", HEADS)
def test_a_smaller_puzzle_is_itself_without_its_padding(head: str) -> None:
    """A network of four cells, with the same weights, walks as the one of six does with two of padding."""
    model, batch = energy_model(head), rows_of(batch_of(), slice(1, 2))
    small = copy.deepcopy(model)
    small.network.positions = model.network.positions[:, :4]
    cut = {name: tensor if name == "kind" else tensor[:, :4] for name, tensor in batch.items()}
    for one, two in zip(model.think(batch, 3), small.think(cut, 3), strict=True):
        torch.testing.assert_close(one.logits[:, :4], two.logits, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(one.energy, two.energy, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_clues_never_change_and_every_thought_is_the_same_again(kind: str) -> None:
    settings = replace(SETTINGS, langevin_noise=5.0, langevin_in_evaluation=False)
    model, batch = model_of(kind, settings), batch_of()
    given = batch["given"] >= 0
    thoughts = list(model.think(batch, 40))
    assert [thought.steps for thought in thoughts] == {"feed-forward": [1], "looped": [*range(1, 41)]}.get(
        kind, [*range(41)]
    )
    for thought, again in zip(thoughts, model.think(batch, 40), strict=True):
        assert torch.equal(thought.logits, again.logits) and not thought.logits.requires_grad
        assert torch.equal(answer_of(thought.logits, batch)[given], batch["given"][given])
        probability = thought.logits.softmax(-1)[given].gather(-1, batch["given"][given][:, None])
        assert (probability == 1).all()
    if kind in HEADS:
        other = list(model.think(batch, 1, seed=1))
        assert not torch.equal(other[0].logits, thoughts[0].logits)


@pytest.mark.parametrize("head", HEADS)
def test_the_first_calibrated_step_moves_logits_by_one(head: str) -> None:
    model, batch = energy_model(head, step_size=None), batch_of(64, padded=False)
    size = model.calibrate(batch)["step_size"]
    assert size == model.step_size.item()
    observed = model.observed(batch)
    context = model.context(observed, 0)
    _, gradient = model.energy_and_gradient(model.start(observed, fixed=True).softmax(-1), context, False)
    moves = size * gradient[batch["given"] < 0]
    assert moves.std().item() == pytest.approx(1, abs=1e-6)
    if model.tau is not None:
        assert (model.step_size * model.tau).item() == pytest.approx(0.1)
        model.step_size.data.mul_(3)
        assert (model.step_size * model.tau).item() == pytest.approx(0.1)  # the share stays


def test_an_evaluation_counts_by_kind_and_step() -> None:
    model, batch = energy_model("dot"), batch_of(9)
    batch["kind"][8] = -1
    for rows in (slice(0, 4), slice(4, 9)):
        model.validation_step(rows_of(batch, rows), 0)
    model.on_validation_epoch_end()
    results, thoughts = model.results, list(model.think(batch, 4))
    end = thoughts[-1]
    assert end.energy is not None
    solved = {thought.steps: rules(batch, answer_of(thought.logits, batch)) for thought in thoughts}
    for kind, name in enumerate(("solved", "solved_shifted", "solved_several")):
        assert results[name] == pytest.approx(solved[4][batch["kind"] == kind].double().mean().item())
    for step in (1, 2, 4):
        assert results[f"solved_step_{step}"] == pytest.approx(solved[step][batch["kind"] == 0].double().mean().item())
    counted = batch["kind"] >= 0
    for name, those in (("energy_solved", solved[4] & counted), ("energy_unsolved", ~solved[4] & counted)):
        assert those.any() and results[name] == pytest.approx(end.energy[those].mean().item())
    first = {name: tensor[batch["kind"] == 0] for name, tensor in batch.items()}
    curve = walk_curve(model, first, 4)
    assert [results[f"loss_step_{step}"] for step in range(1, 5)] == pytest.approx(curve.losses[1:].tolist())
    assert results["loss"] == pytest.approx(results["loss_step_2"])  # training takes 1 or 2
    assert results["targets"] == 8
    assert "solved_step_8" not in results


def test_a_kind_without_puzzles_is_not_measured() -> None:
    model, batch = model_of("looped"), batch_of()
    batch["kind"][:] = 0
    model.evaluate(batch)
    results = model.compute_results()
    assert {"solved", "solved_step_1", "solved_step_4"} < set(results)
    assert "solved_shifted" not in results and "solved_several" not in results


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_step_is_counted_without_memory(kind: str) -> None:
    model = model_of(kind).float()
    costs = batch_costs(model, {name: tensor.to("meta") for name, tensor in batch_of(8).items()})
    assert set(costs) == {"feed-forward": {0}, "looped": {1, 2, 3}}.get(kind, {1, 2})
    counts = [cost.flops for cost in costs.values()]
    assert counts[0] > 1e5
    if kind == "looped":
        assert counts[2] - counts[1] == counts[1] - counts[0] > 0.9 * counts[0]  # the readout is of the last loop alone
    if kind in HEADS:  # a forward and a gradient, each of them differentiated: six forwards, against three of one pass
        forward = batch_costs(model_of("feed-forward").float(), {k: x.to("meta") for k, x in batch_of(8).items()})
        assert 1.8 < counts[0] / forward[0].flops < 2.4 and 1.9 < counts[1] / counts[0] < 2.1


@pytest.mark.parametrize("head", HEADS)
def test_replay_and_the_contrastive_loss_work_in_this_space(head: str) -> None:
    settings = replace(SETTINGS, contrastive_coefficient=0.5, max_repeats=1)
    model, batch = model_of(head, settings, ReplayBuffer(6, 0.5)), batch_of(6)
    assert isinstance(model, EnergyPuzzleModel) and model.replay is not None
    model.training_step(batch, 0)
    replayed, start = model.replay.append_to(batch)
    assert start is not None and start.shape == (3, N, V) and len(replayed["given"]) == 9
    model.training_step(batch, 1)
    truth = model.target_energy(batch["answer"], model.context(model.observed(batch), 0))
    expected = [
        energy_of_row(model.network, batch, row, one_hot(batch, row), torch.zeros(())).item() for row in range(6)
    ]
    torch.testing.assert_close(truth, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(model.answer_scores(batch, batch["answer"]), -truth.detach())
    assert "contrastive" in model.terms and gradients(model, model.terms["contrastive"])["network.head.weight"].any()


def one_hot(batch: Batch, row: int) -> dict[int, Tensor]:
    """The answers of blank cells, with probabilities that are not quite 0: the slow entropy has a logarithm."""
    return {
        i: torch.full((V,), 1e-300, dtype=torch.float64).index_fill_(0, batch["answer"][row, i], 1.0)
        for i in range(N)
        if batch["real"][row, i] and batch["given"][row, i] < 0
    }


@pytest.mark.parametrize("kind", KINDS)
def test_weights_make_the_model_again(kind: str) -> None:
    model, other, batch = model_of(kind), model_of(kind), batch_of()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert not torch.equal(list(model.think(batch, 2))[-1].logits, list(other.think(batch, 2))[-1].logits)
    other.load_weights(model.state_dict())
    assert torch.equal(list(model.think(batch, 2))[-1].logits, list(other.think(batch, 2))[-1].logits)


def test_a_row_of_padding_alone_is_finite_and_has_no_loss() -> None:
    batch = batch_of(2)
    batch["real"][:], batch["given"][:], batch["answer"][:], batch["kind"][:] = False, -1, -1, -1
    for kind in KINDS:
        model = model_of(kind)
        loss = model.training_step(batch, 0)
        assert loss == 0 and all(gradient.isfinite().all() for gradient in gradients(model, loss).values())
        model.evaluate(batch)


def test_a_start_that_puzzles_do_not_have_is_refused() -> None:
    with pytest.raises(UserError, match=r"--denoising_initial_condition is 'prior'.*choose random_noise or zeros"):
        energy_model("dot", start="prior")


@pytest.mark.parametrize("kind", ["dot", "feed-forward", "looped"])
def test_it_learns(kind: str) -> None:
    """Cells whose answer is that of two cells before: a guess is right in one of 81 puzzles."""
    model = new_model(kind, replace(SHAPE, width=16, hidden=16), replace(SETTINGS, step_size=None))

    def rows(count: int, seed: int) -> Batch:
        batch = batch_of(count, padded=False)
        random = torch.Generator().manual_seed(seed)
        batch["answer"] = torch.randint(V, (count, 2), generator=random).repeat(1, 3)
        batch["given"] = batch["answer"].clone()
        batch["given"][:, 2:] = -1
        batch["inputs"] = torch.stack([batch["given"] + 1, torch.zeros_like(batch["given"])], -1)
        return batch | {"kind": torch.zeros(count, dtype=torch.long)}

    model.calibrate(rows(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(100):
        optimizer.zero_grad()
        model.training_step(rows(32, 100 + step), step).backward()
        optimizer.step()
    model.evaluate(rows(64, 2))
    assert model.compute_results()["solved"] > 0.9
