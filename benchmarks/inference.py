"""Generation with a cache against recomputing the whole prefix for each token, as published code does; same weights.

The forms take turns, so that a busy moment hits all alike; the best of each counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks import concatenated
from benchmarks.measure import Sheet, seconds
from config import parse_command_line
from config.settings import Inference
from core.progress import print_note
from data.language.build import TextSpec
from inference.language.decoder import Decoder, make_decoder
from inference.thinking import plan_from_flags
from models.language import EnergyLM, LanguageModel
from tasks.language import TASK

ROWS, STEPS = 4, 2
TARGETS = {256: 40, 1024: 150}  # times faster than recomputing
ROUNDS, TOKENS = 3, 4  # tokens in a round
NEW_TOKENS = 100  # at most, after the context


@dataclass(frozen=True)
class Scale:
    """Sizes of model and data. lengths: of the context, in tokens; the growth is measured at the second."""

    size: str = "xxs"
    vocabulary: int = 8192
    lengths: tuple[int, ...] = (64, 256, 1024)

    def model(self, length: int, name: str, flags: str = "") -> LanguageModel:
        torch.manual_seed(0)
        size = f"--model_size {self.size} --context_length {length + NEW_TOKENS} --no-isolate_documents"
        config = parse_command_line(f"{size} --model_name {name} {flags}".split())
        return TASK.model(config, TextSpec(self.vocabulary, 0, -1)).eval().requires_grad_(False)

    def ebt(self, length: int) -> EnergyLM:
        model = self.model(length, "ebt", f"--recipe laptop --mcmc_num_steps {STEPS} --mcmc_step_size 0.1")
        assert isinstance(model, EnergyLM)
        return model

    def texts(self, length: int) -> Tensor:
        """Random tokens. -> [B, length]"""
        return torch.randint(self.vocabulary, (ROWS, length), generator=torch.Generator().manual_seed(0))

    def decoder(self, model: LanguageModel, length: int, settings: Inference) -> Decoder:
        """A decoder that has read `length` tokens of each text."""
        return make_decoder(model, plan_from_flags(model, settings), self.texts(length).tolist(), NEW_TOKENS)


SCALE = Scale()


def run(scale: Scale = SCALE) -> list[Sheet]:
    torch.set_flush_denormal(True)
    return [against_recomputing(scale), growth(scale)]


def next_token(decoder: Decoder) -> None:
    decoder.append(decoder.predict().logits.argmax(-1))


def recompute(model: EnergyLM, tokens_BS: Tensor) -> Tensor:
    """The next token as published code finds it: both streams of the whole prefix, at every step. -> [B]"""
    start_BSV = model.start(tokens_BS, fixed=True)
    steps = model.evaluation_steps()
    last = concatenated.walk(model.network, tokens_BS, start_BSV, steps, model.space.rule, create_graph=False)[-1]
    return last[:, -1].argmax(-1)


def mean_seconds(form: Callable[[], object], calls: int) -> float:
    """Seconds of one of so many calls."""
    return seconds(lambda: [form() for _ in range(calls)]) / calls


def best(forms: dict[str, tuple[Callable[[], object], int]], rounds: int = ROUNDS) -> dict[str, float]:
    """The best time of each form: {name: (form, calls in a round)}"""
    for form, _ in forms.values():
        form()
    times = [{name: mean_seconds(*form) for name, form in forms.items()} for _ in range(rounds)]
    return {name: min(one[name] for one in times) for name in forms}


def against_recomputing(scale: Scale) -> Sheet:
    """Per token, at several lengths: recomputed, cached, and the Transformer++ with a cache of its own."""
    rows = []
    for length in scale.lengths:
        print_note(f"inference: {length} tokens of context")
        model, transformer = scale.ebt(length), scale.model(length, "baseline_transformer")
        cached, other = (scale.decoder(one, length, Inference()) for one in (model, transformer))
        times = best(
            {
                "recomputed": (partial(recompute, model, scale.texts(length)), 1),
                "cached": (partial(next_token, cached), TOKENS),
                "transformer": (partial(next_token, other), TOKENS),
                "prefill": (partial(scale.decoder, model, length, Inference()), 1),
            }
        )
        ratio, target = times["recomputed"] / times["cached"], TARGETS.get(length)
        missed = " !" if target and ratio < target else ""
        rows.append(
            (
                f"{length:,}",
                f"{times['recomputed'] * 1e3:,.0f}",
                f"{times['cached'] * 1e3:.1f}",
                f"{ratio:.0f}{missed}",
                f"{times['prefill'] * 1e3:,.0f}",
                f"{times['transformer'] * 1e3:.1f}",
                f"{times['cached'] / times['transformer'] / STEPS:.2f}",
                f"{cached.cache_bytes / 1e6:.0f}",
            )
        )
    headings = ("context", "recomputed", "cached", "times faster", "prefill", "T++ cached", "T++ a step", "cache, MB")
    title = (
        f"inference: ms per token of {ROWS} texts, V {scale.vocabulary:,}, {scale.size}, {STEPS} steps; "
        "times faster: at least 40 at 256 and 150 at 1,024; T++ a step: cached over Transformer++, per step"
    )
    return Sheet(title, headings, rows)


def growth(scale: Scale) -> Sheet:
    """Per token by steps and by candidates, against one step and one candidate."""
    print_note("inference: growth with steps and candidates")
    length = scale.lengths[1]
    model = scale.ebt(length)
    settings_by_name = {f"{steps} steps": Inference(infer_ebt_num_steps=steps) for steps in (1, 2, 4, 8, 16)} | {
        f"{number} candidates": Inference(infer_generated_samples=number) for number in (1, 2, 4, 8, 16)
    }
    decoders = {name: scale.decoder(model, length, settings) for name, settings in settings_by_name.items()}
    times = best({name: (partial(next_token, decoder), TOKENS) for name, decoder in decoders.items()})
    rows = []
    for name, spent in times.items():
        one = times["1 steps" if "steps" in name else "1 candidates"]
        number = int(name.split()[0])
        rows.append((name, f"{spent * 1e3:.1f}", f"{spent / one:.2f}", f"{spent / one / number:.2f}"))
    headings = ("steps or candidates", "ms per token", "of one", "of so many times one")
    return Sheet(f"inference: growth, {length} tokens of context", headings, rows, frozenset({"steps or candidates"}))
