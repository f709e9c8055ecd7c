"""The commands of `python -m inference` for language, and their flags. No torch: help answers at once."""

from __future__ import annotations

from dataclasses import dataclass

from config.flags import flag
from config.settings import Inference
from config.task import Command

DECODING_FLAGS = ("infer_max_gen_len", "infer_temp", "infer_topp", "infer_topk", "infer_logprobs", "infer_echo")
REPORT_FLAGS = ("infer_debug_sample_distances", "infer_plot_energy_landscape")
CANDIDATE_FLAGS = ("infer_generated_samples", "infer_energy_sampling_technique")


@dataclass(frozen=True)
class GenerateFlags:
    """what to continue, and where to stop"""

    prompt: str | None = flag(None, "text to continue; default: read from standard input", lines=True)
    prompts: str | None = flag(None, "file with a prompt a line, or .jsonl with the field prompt", metavar="FILE")
    interactive: bool = flag(False, "ask for prompts one after another")
    stop: tuple[str, ...] = flag((), "texts at which to stop; they are cut off", lines=True)
    out: str | None = flag(None, "JSONL file with every token; - prints it instead", metavar="FILE")
    batch_size: int = flag(16, "prompts at a time", low=1)
    long_prompt: str = flag(
        "refuse",
        "a prompt longer than the context: refuse it, or read a window of its end",
        choices=("refuse", "window"),
    )


@dataclass(frozen=True)
class EvaluateFlags:
    """what to evaluate on"""

    split: str | None = flag(
        None,
        "which split; default: valid; of another dataset, the first of valid, test and all that it has",
        choices=("train", "valid", "test", "all"),
    )
    dataset_name: str | None = flag(
        None, "another dataset than the run's; gsm8k, squad, lambada, ai2arc, bigbench, planbench: their questions"
    )
    as_text: bool = flag(False, "with a dataset of questions: the loss on its text")
    dataset_dir: str | None = flag(None, "local file, folder or glob to read", metavar="PATH")
    text_field: str | None = flag(None, "field that holds the text in jsonl, csv, parquet and arrow files")
    limit: int = flag(0, "rows, or questions, at most; 0 is all", low=0)
    batch_size: int = flag(16, "rows, or questions, at a time", low=1)


@dataclass(frozen=True)
class GreedyInference(Inference):
    __doc__ = Inference.__doc__

    infer_temp: float = flag(0.0, "temperature of answers; 0 takes the likeliest token", low=0)


@dataclass(frozen=True)
class ThinkCurveFlags:
    """what to draw"""

    steps: int = flag(8, "steps, 1 to this", low=1)
    candidates: int = flag(4, "candidates, 1 to this", low=1, high=64)
    seeds: int = flag(3, "seeds of noise, for the confidence intervals", low=1)
    tokens: int = flag(4096, "tokens of each text", low=1)
    baseline: str | None = flag(None, "run of a Transformer++; default: the twin of --compare_baseline", metavar="RUN")
    shifted: str | None = flag(
        None, "file of another kind of text; default: Python code of the standard library", metavar="FILE"
    )
    batch_size: int = flag(16, "rows at a time", low=1)


@dataclass(frozen=True)
class LandscapeFlags:
    """what to draw"""

    prompt: str | None = flag(
        None, "text whose last token is predicted; default: one of the validation split", lines=True
    )
    points: int = flag(41, "points along a side of the plane", low=3, high=401)


COMMANDS = {
    "generate": Command(
        "inference.language.generate:main",
        GenerateFlags,
        "continue a prompt",
        '--run RUN --prompt "..."',
        ("infer_plot_energy_landscape",),
    ),
    "evaluate": Command(
        "inference.language.evaluate:main",
        EvaluateFlags,
        "loss and accuracy on a split, or answers to questions",
        without=("infer_logprobs", "infer_echo", "infer_debug_sample_distances"),
        inference=GreedyInference,
    ),
    "think-curve": Command(
        "inference.language.think_curve:main",
        ThinkCurveFlags,
        "loss against steps, candidates and compute",
        without=(
            *(*DECODING_FLAGS, *REPORT_FLAGS),
            *("infer_generated_samples", "infer_ebt_num_steps", "infer_ebt_stop_change"),
            "infer_steps_final_landscape",  # always set, so that one walk gives every number of steps
        ),
    ),
    "landscape": Command(
        "inference.language.landscape:main",
        LandscapeFlags,
        "a picture of the energy around a prediction",
        without=(*DECODING_FLAGS, *REPORT_FLAGS, *CANDIDATE_FLAGS, "infer_ebt_stop_change"),
    ),
}
