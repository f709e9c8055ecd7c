"""Cached equals uncached, whatever the conditioning, the plan, the batch and the lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from config.settings import Inference
from inference.language.decoder import EnergyDecoder, make_decoder
from inference.language.walk import token_walk, walk_rows
from inference.thinking import WalkPlan, candidate_score, last_state, plan_from_flags
from models.language import EnergyLM, LanguageModel
from models.layers import prediction_attention
from tests.inference.small import (
    CONTEXT,
    SEPARATOR,
    VOCABULARY,
    built,
    energy_model,
    looped_model,
    plain_model,
    residual_model,
)

CONDITIONINGS = ("default", "time_embed", "adaln", "adaln_zero")
ENERGIES = (*CONDITIONINGS, *(f"residual {conditioning}" for conditioning in CONDITIONINGS), "as trained by default")
KINDS = (*ENERGIES, "transformer", "looped")
SOME = ("default", "time_embed", "residual time_embed", "as trained by default", "transformer", "looped")


def model_of(kind: str) -> LanguageModel:
    """An energy as published by its conditioning, a residual one, that of the default flags, a Transformer++, or a
    looped one."""
    if kind == "transformer":
        return plain_model()
    if kind == "looped":
        return looped_model()
    if kind == "as trained by default":
        return energy_model(flags="--recipe residual --mcmc_step_size 0.9")
    form, _, conditioning = kind.rpartition(" ")
    return residual_model(conditioning) if form else energy_model(kind)


def energy_model_of(kind: str) -> EnergyLM:
    model = model_of(kind)
    assert isinstance(model, EnergyLM)
    return model


def uncached(model: LanguageModel, plan: WalkPlan | None, text: list[int]) -> Tensor:
    """The next token's logits [V], from the whole text."""
    tokens_1S = torch.tensor([text])
    if plan is None:
        return model(tokens_1S)[0, -1]
    assert isinstance(model, EnergyLM)
    return walk_rows(model, tokens_1S, plan).y[0, -1]


def text_of(length: int, seed: int) -> list[int]:
    return torch.randint(1, SEPARATOR, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(
    steps=st.integers(1, 5),
    candidates=st.integers(1, 3),
    lengths=st.lists(st.integers(1, CONTEXT - 3), min_size=1, max_size=4),
    options=st.fixed_dictionaries(
        {},
        optional={
            "infer_accept_lower_energies": st.booleans(),
            "infer_steps_final_landscape": st.booleans(),
            "infer_langevin_dynamics_noise": st.sampled_from([0.3]),
            "infer_ebt_stop_change": st.sampled_from([0.01, 0.3]),
            "infer_ebt_override_alpha": st.sampled_from([0.5, 1.2]),
            "infer_energy_sampling_technique": st.sampled_from(["min", "max_gap", "max"]),
        },
    ),
    seed=st.integers(0, 3),
)
def test_cached_is_uncached(
    kind: str, steps: int, candidates: int, lengths: list[int], options: dict[str, Any], seed: int
) -> None:
    model, plan = model_of(kind), None
    if kind in ENERGIES:
        if kind == "as trained by default" and "infer_langevin_dynamics_noise" not in options:
            candidates = 1
        inference = Inference(infer_ebt_num_steps=steps, infer_generated_samples=candidates, **options)
        plan = plan_from_flags(model, inference, seed)
    texts = [text_of(length, number) for number, length in enumerate(lengths)]
    decoder = make_decoder(model, plan, texts, max_new_tokens=3)
    for round_ in range(3):
        logits_BV = decoder.predict().logits
        for row, text in enumerate(decoder.texts):
            torch.testing.assert_close(logits_BV[row], uncached(model, plan, text), rtol=1e-9, atol=1e-9)
        decoder.append(torch.tensor([1 + (7 * round_ + row) % (VOCABULARY - 1) for row in range(len(texts))]))


@pytest.mark.parametrize("kind", ENERGIES)
def test_candidates_share_a_text_and_see_nothing_of_each_other(kind: str) -> None:
    """Each is the walk that it is alone; that of the lowest energy is selected."""
    model = energy_model_of(kind)
    inference = Inference(infer_ebt_num_steps=3, infer_generated_samples=4, infer_langevin_dynamics_noise=0.5)
    plan = plan_from_flags(model, inference, seed=2)
    assert plan is not None
    texts = [text_of(length, length) for length in (3, 8)]
    decoder = make_decoder(model, plan, texts, 1)
    assert isinstance(decoder, EnergyDecoder)
    prediction = decoder.predict()
    result = prediction.candidates
    assert result is not None and prediction.selection is not None and result.y.shape == (2, 4, VOCABULARY)
    for row, text in enumerate(texts):
        tokens_1S = torch.tensor([text])
        contexts, places_1S = model.contexts(tokens_1S), torch.arange(len(text))[None]
        for candidate in range(4):
            alone = last_state(token_walk(model, contexts, places_1S, plan, candidate))
            for name in ("y", "first_energy", "energy"):
                actual, expected = getattr(result, name)[row, candidate], getattr(alone, name)[0, -1]
                torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    assert torch.cdist(result.y, result.y)[:, *torch.triu_indices(4, 4, 1)].min() > 1e-3
    assert torch.equal(prediction.selection, result.energy.argmin(1))
    assert torch.equal(prediction.logits, result.y[torch.arange(2), prediction.selection])
    for choice in ("max", "max_gap"):
        other = make_decoder(model, replace(plan, choice=choice), texts, 1).predict()
        assert other.selection is not None
        assert torch.equal(other.selection, candidate_score(result.first_energy, result.energy, choice).argmax(1))


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_batch_invariant(kind: str) -> None:
    model = model_of(kind)
    texts, longer = [text_of(length, length) for length in (5, 2, 9)], text_of(CONTEXT, 4)
    plan = plan_from_flags(model, Inference(infer_langevin_dynamics_noise=0.5) if kind in ENERGIES else Inference())
    one, three, four = (make_decoder(model, plan, some, 4) for some in (texts[:1], texts, [longer, *texts]))
    for round_ in range(4):
        alone = one.predict().logits[0]
        torch.testing.assert_close(three.predict().logits[0], alone, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(four.predict().logits[1], alone, rtol=1e-9, atol=1e-9)
        one.append(torch.tensor([round_ + 1]))
        three.append(torch.tensor([round_ + 1, 3, 4]))
        four.append(torch.tensor([2, round_ + 1, 5, 6]))


@pytest.mark.parametrize("kind", ENERGIES)
def test_an_evaluation_predicts_the_same(kind: str) -> None:
    model = energy_model_of(kind)
    text = text_of(CONTEXT, 1)
    logits_SV = model(torch.tensor([text]))[0]
    for length in (1, 5, CONTEXT):
        actual = make_decoder(model, plan_from_flags(model, Inference()), [text[:length]], 0).predict().logits[0]
        torch.testing.assert_close(actual, logits_SV[length - 1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_context_goes_on_with_its_newer_half(kind: str) -> None:
    model = model_of(kind)
    plan = plan_from_flags(model, Inference())
    decoder = make_decoder(model, plan, [text_of(CONTEXT - 1, 0), text_of(3, 1)], max_new_tokens=100)
    for number in range(2 * CONTEXT):
        actual = decoder.predict().logits
        for row, text in enumerate(decoder.texts):
            window = text[-int(decoder.lengths[row]) :]
            assert CONTEXT // 2 <= len(window) <= CONTEXT or len(text) == len(window)
            torch.testing.assert_close(actual[row], uncached(model, plan, window), rtol=1e-9, atol=1e-9)
        decoder.append(torch.tensor([1 + number % 5, 1 + number % 7]))


@pytest.mark.parametrize("kind", SOME)
def test_a_text_longer_than_the_context_is_read_from_its_end(kind: str) -> None:
    model = model_of(kind)
    plan, text = plan_from_flags(model, Inference()), text_of(3 * CONTEXT, 0)
    actual = make_decoder(model, plan, [text], 5).predict().logits[0]
    torch.testing.assert_close(actual, uncached(model, plan, text[-CONTEXT:]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", SOME)
def test_texts_that_are_done_leave(kind: str) -> None:
    model = model_of(kind)
    plan, texts = plan_from_flags(model, Inference()), [text_of(length, length) for length in (2, 9, 5)]
    decoder = make_decoder(model, plan, texts, 4)
    decoder.append(torch.tensor([3, 4, 5]))
    decoder.select_rows([2, 0])
    decoder.append(torch.tensor([6, 7]))
    assert decoder.texts == [[*texts[2], 5, 6], [*texts[0], 3, 7]]
    for row, text in enumerate(decoder.texts):
        actual = decoder.predict().logits[row]
        torch.testing.assert_close(actual, uncached(model, plan, text), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("recipe", ("laptop", "residual"))
@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_no_graph_is_kept(conditioning: str, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(f"--ebt_type {conditioning} --recipe {recipe}").requires_grad_(True)
    # its backward is the second derivative; at inference nothing may prepare for one
    monkeypatch.setattr(prediction_attention, "_AttendGrad", None)
    inference = Inference(
        infer_generated_samples=2, infer_accept_lower_energies=True, infer_langevin_dynamics_noise=0.3
    )
    plan = plan_from_flags(model, inference)
    assert plan is not None
    decoder = make_decoder(model, plan, [text_of(4, 0)], 2)
    with torch.enable_grad():
        prediction = decoder.predict()
        decoder.append(torch.tensor([1]))
    assert prediction.candidates is not None
    result = prediction.candidates
    held = [result.y, result.first_energy, result.energy, *(cache.keys for cache in decoder.caches())]
    assert all(tensor.grad_fn is None and not tensor.requires_grad for tensor in held)


def test_each_landscape_has_a_cache_of_known_size() -> None:
    texts = [text_of(4, 0), text_of(6, 1)]
    for kind, landscapes, before in (
        *(("default", 1, 0), ("adaln", 2, 0), ("time_embed", 2, 1), ("as trained by default", 1, 0)),
        *(("residual default", 1, 0), ("residual adaln", 2, 0), ("residual time_embed", 2, 1)),
    ):
        model = energy_model_of(kind)
        decoder = make_decoder(model, plan_from_flags(model, Inference()), texts, max_new_tokens=3)
        assert len(decoder.caches()) == landscapes
        shape, columns = model.network.shape, 9 + before + 1  # one column for the prediction's own score
        expected = 2 * shape.layers * 2 * columns * shape.width * 8  # keys and values of 2 texts in float64
        assert decoder.cache_bytes == landscapes * expected
    assert make_decoder(model, plan_from_flags(model, Inference()), texts, max_new_tokens=10_000).capacity == CONTEXT


@pytest.mark.parametrize("kind", ("time_embed", "residual time_embed", "as trained by default"))
def test_the_energy_of_a_token_is_that_of_the_whole_text(kind: str) -> None:
    model = energy_model_of(kind)
    plan = plan_from_flags(model, Inference())
    texts = [text_of(4, 0), text_of(7, 1)]
    decoder = make_decoder(model, plan, texts, 1)
    assert isinstance(decoder, EnergyDecoder)
    actual = decoder.energy_of(torch.tensor([3, 5]))
    for row, token in enumerate((3, 5)):
        context = model.network.context(torch.tensor([texts[row]]), model.last_landscape)
        z = model.network.prediction_embedding[torch.tensor([[token] * len(texts[row])])]
        torch.testing.assert_close(actual[row], model.network.energy(z, context)[0, -1])
