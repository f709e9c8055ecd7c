"""The flags of `python -m inference COMMAND`; read before torch is loaded, so that help and mistakes answer at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from config.parser import parse_command
from config.settings import Inference, flag


@dataclass(frozen=True)
class Model:
    """which model"""

    run: str | None = flag(None, "run id, run name, run folder or last; default: the newest run", metavar="RUN")
    ckpt: str | None = flag(None, "checkpoint file instead; default: the run's best, else its last", metavar="PATH")
    logs_dir: str = flag("logs", "folder of all runs", metavar="PATH")
    device: str = flag("auto", "where it runs", choices=("auto", "cpu", "cuda"))
    seed: int = flag(0, "seed of all noise and all draws", low=0)


@dataclass(frozen=True)
class Generate:
    """what to go on from, and where to stop"""

    prompt: str | None = flag(None, "text to go on from; default: read from standard input", lines=True)
    prompts: str | None = flag(None, "file with a prompt a line, or .jsonl with the field prompt", metavar="FILE")
    interactive: bool = flag(False, "ask for prompts one after another")
    stop: tuple[str, ...] = flag((), "texts at which to stop; they are cut off", lines=True)
    out: str | None = flag(None, "JSONL file of every token that came; - prints it instead", metavar="FILE")
    batch_size: int = flag(16, "prompts at a time", low=1)
    long_prompt: str = flag(
        "refuse",
        "a prompt longer than the context: refuse it, or read a window of its end",
        choices=("refuse", "window"),
    )


@dataclass(frozen=True)
class Evaluate:
    """what to evaluate on"""

    split: str | None = flag(
        None,
        "which split; default: valid, or of another dataset the first it has of valid, test and all",
        choices=("train", "valid", "test", "all"),
    )
    dataset_name: str | None = flag(
        None, "another dataset than the run's; of gsm8k, squad, lambada, ai2arc, bigbench and planbench the questions"
    )
    as_text: bool = flag(False, "of a dataset of questions the loss on its text instead")
    dataset_dir: str | None = flag(None, "local file, folder or glob to read", metavar="PATH")
    text_field: str | None = flag(None, "field that holds the text in jsonl, csv, parquet and arrow files")
    limit: int = flag(0, "rows, or questions, at most; 0 is all", low=0)
    batch_size: int = flag(16, "rows, or questions, at a time", low=1)


@dataclass(frozen=True)
class Answering(Inference):
    __doc__ = Inference.__doc__

    infer_temp: float = flag(0.0, "temperature of answers; 0 takes the likeliest token", low=0)


@dataclass(frozen=True)
class ThinkCurve:
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
class Landscape:
    """what to draw"""

    prompt: str | None = flag(
        None, "text whose last token is predicted; default: one of the validation split", lines=True
    )
    points: int = flag(41, "points along a side of the plane", low=3, high=401)


DECODING = ("infer_max_gen_len", "infer_temp", "infer_topp", "infer_topk", "infer_logprobs", "infer_echo")
SHOWING = ("infer_debug_sample_distances", "infer_plot_energy_landscape")
CHOOSING = ("infer_generated_samples", "infer_energy_sampling_technique")


@dataclass(frozen=True)
class Command:
    """What stands behind a word. without: inference flags that have no meaning for it."""

    flags: type
    usage: str
    what: str
    without: tuple[str, ...] = ()
    inference: type[Inference] = Inference


COMMANDS = {
    "generate": Command(Generate, '--run RUN --prompt "..."', "go on from a prompt", ("infer_plot_energy_landscape",)),
    "evaluate": Command(
        Evaluate,
        "--run RUN",
        "loss and accuracy on a split, or answers to questions",
        ("infer_logprobs", "infer_echo", "infer_debug_sample_distances"),
        Answering,
    ),
    "think-curve": Command(
        ThinkCurve,
        "--run RUN",
        "loss against steps, candidates and compute",
        (
            *(*DECODING, *SHOWING, "infer_generated_samples", "infer_ebt_num_steps", "infer_ebt_stop_change"),
            "infer_steps_final_landscape",  # it always does: so one walk shows every number of steps
        ),
    ),
    "landscape": Command(
        Landscape,
        "--run RUN",
        "a picture of the energy around a prediction",
        (*DECODING, *SHOWING, *CHOOSING, "infer_ebt_stop_change"),
    ),
}


def overview() -> str:
    lines = ["python -m inference COMMAND --help lists the flags of a command", ""]
    return "\n".join([*lines, *(f"  {name:12} {command.what}" for name, command in COMMANDS.items())])


def parse(name: str, argv: list[str]) -> dict[str, Any]:
    """{"model": Model, "command": the command's flags, "inference": Inference} of a command line."""
    command = COMMANDS[name]
    sections = {"model": Model, "command": command.flags, "inference": command.inference}
    usage = f"python -m inference {name} {command.usage}    {command.what}"
    return parse_command(argv, sections, usage, command.without)
