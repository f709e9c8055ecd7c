"""Generation with a cache against recomputing the whole prefix for each token, as published code does; same weights.

The forms take turns, so that a busy moment hits all alike; the best of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks import concatenated
from benchmarks.sheet import Sheet
from config import parse_command_line
from config.settings import Inference
from core.progress import print_note
from data.language.build import TextSpec
from inference.language.decoder import Decoder, make_decoder
from inference.thinking import plan_from_flags
from models.language import EnergyLM, LanguageModel
from tasks.language import TASK

ROWS, VOCABULARY, SIZE, STEPS = 4, 8192, "xxs", 2
LENGTHS = (64, 256, 1024)
TARGETS = {256: 40, 1024: 150}  # times faster than recomputing
ROUNDS, TOKENS = 3, 4  # tokens in a round


def run() -> list[Sheet]:
    torch.set_flush_denormal(True)
    return [against_recomputing(), growth()]


def built(length: int, name: str, flags: str = "") -> LanguageModel:
    torch.manual_seed(0)
    size = f"--model_size {SIZE} --context_length {length + 100} --no-isolate_documents --model_name {name} {flags}"
    return TASK.model(parse_command_line(size.split()), TextSpec(VOCABULARY, 0, -1)).eval().requires_grad_(False)


def ebt(length: int) -> EnergyLM:
    model = built(length, "ebt", f"--recipe laptop --mcmc_num_steps {STEPS} --mcmc_step_size 0.1")
    assert isinstance(model, EnergyLM)
    return model


def texts(length: int) -> Tensor:
    return torch.randint(VOCABULARY, (ROWS, length), generator=torch.Generator().manual_seed(0))


def decoder_of(model: LanguageModel, length: int, settings: Inference) -> Decoder:
    return make_decoder(model, plan_from_flags(model, settings), texts(length).tolist(), 100)


def next_token(decoder: Decoder) -> None:
    decoder.append(decoder.predict().logits.argmax(-1))


def recompute(model: EnergyLM, tokens_BS: Tensor) -> Tensor:
    """The next token as published code finds it: both streams of the whole prefix, at every step. -> [B]"""
    start_BSV = model.start(tokens_BS, fixed=True)
    steps = model.evaluation_steps()
    last = concatenated.walk(model.network, tokens_BS, start_BSV, steps, model.space.rule, create_graph=False)[-1]
    return last[:, -1].argmax(-1)


def seconds(form: Callable[[], object], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        form()
    return (time.perf_counter() - begin) / times


def best(forms: dict[str, tuple[Callable[[], object], int]], rounds: int = ROUNDS) -> dict[str, float]:
    """The best time of each form: {name: (form, calls in a round)}"""
    for form, _ in forms.values():
        form()
    return {
        name: min(times)
        for name, times in zip(
            forms,
            zip(*([seconds(*form) for form in forms.values()] for _ in range(rounds)), strict=True),
            strict=True,
        )
    }


def against_recomputing() -> Sheet:
    """Per token, at several lengths: recomputed, cached, and the Transformer++ with a cache of its own."""
    rows = []
    for length in LENGTHS:
        print_note(f"inference: {length} tokens of context")
        model, plain = ebt(length), built(length, "baseline_transformer")
        cached, other = decoder_of(model, length, Inference()), decoder_of(plain, length, Inference())
        found = best(
            {
                "recomputed": (partial(recompute, model, texts(length)), 1),
                "cached": (partial(next_token, cached), TOKENS),
                "plain": (partial(next_token, other), TOKENS),
                "prefill": (partial(decoder_of, model, length, Inference()), 1),
            }
        )
        ratio, target = found["recomputed"] / found["cached"], TARGETS.get(length)
        missed = " !" if target and ratio < target else ""
        rows.append(
            (
                f"{length:,}",
                f"{found['recomputed'] * 1e3:,.0f}",
                f"{found['cached'] * 1e3:.1f}",
                f"{ratio:.0f}{missed}",
                f"{found['prefill'] * 1e3:,.0f}",
                f"{found['plain'] * 1e3:.1f}",
                f"{found['cached'] / found['plain'] / STEPS:.2f}",
                f"{cached.cache_bytes / 1e6:.0f}",
            )
        )
    headings = ("context", "recomputed", "cached", "times faster", "prefill", "T++ cached", "T++ a step", "cache, MB")
    title = (
        f"inference: ms per token of {ROWS} texts, V {VOCABULARY:,}, {SIZE}, {STEPS} steps; times faster: at least 40 "
        "at 256 and 150 at 1,024; T++ a step: cached over Transformer++, per step"
    )
    return Sheet(title, headings, rows)


def growth() -> Sheet:
    """Per token by steps and by candidates, against one step and one candidate."""
    print_note("inference: growth with steps and candidates")
    length = LENGTHS[1]
    model = ebt(length)
    asked = {f"{steps} steps": Inference(infer_ebt_num_steps=steps) for steps in (1, 2, 4, 8, 16)} | {
        f"{number} candidates": Inference(infer_generated_samples=number) for number in (1, 2, 4, 8, 16)
    }
    decoders = {name: decoder_of(model, length, settings) for name, settings in asked.items()}
    found = best({name: (partial(next_token, decoder), TOKENS) for name, decoder in decoders.items()})
    rows = []
    for name, spent in found.items():
        one = found["1 steps" if "steps" in name else "1 candidates"]
        number = int(name.split()[0])
        rows.append((name, f"{spent * 1e3:.1f}", f"{spent / one:.2f}", f"{spent / one / number:.2f}"))
    headings = ("asked for", "ms per token", "of one", "of so many times one")
    return Sheet(f"inference: growth, {length} tokens of context", headings, rows, frozenset({"asked for"}))
