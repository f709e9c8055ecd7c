"""Shows a trained language model: the descent of its energy, how it ranks tokens, and a sample of its text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from config import RunConfig
from config.settings import Transformer
from core.files import append_row, write_atomically
from core.text import printable_lines
from data.module import DataModule
from models.energy_model import WalkCurve, WalkSettings, walk_curve
from models.language import EnergyLM, ranking, sample
from models.model import Model
from runs import RunFolder
from runs.pictures import GREY, SHADE, pyplot
from training.devices import device_of
from training.trainer import Training

FEWEST_STEPS = 50  # of training: there is little to see before, and showing must cost little beside the training
POSITIONS = 1024  # of held-out text
PROMPT_BYTES, SAMPLE_TOKENS, TEMPERATURE = 64, 160, 0.8
SEARCHED = 1_000_000  # tokens in which a document for the sample is searched
PLOT_LINES, PLOT_COLUMNS = 8, 60


def is_debug_run(config: RunConfig) -> bool:
    debugging = config.debugging
    return debugging.fast_dev_run or debugging.debug_mode or debugging.overfit_batches > 0


def worth_showing(config: RunConfig, training: Training) -> bool:
    """Whether a model was really trained."""
    trained = not is_debug_run(config) and not config.testing.only_test
    return trained and training.trainer.global_step >= FEWEST_STEPS


def show_model(config: RunConfig, folder: RunFolder, data: DataModule, model: Model, step: int) -> None:
    """Print and draw what the model does with held-out text."""
    if not len(data.rows["valid"]):
        return
    model = model.to(device_of(config)).eval()
    rows = -(-POSITIONS // config[Transformer].context_length)
    rows_BS = held_out_rows(data, min(rows, config.trainer.batch_size_per_device)).to(model.device)
    with torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
        if isinstance(model, EnergyLM):
            energy_model = model
            or_report("the descent of the energy", lambda: show_descent(energy_model, rows_BS, folder.path))
            or_report("the ranking of tokens", lambda: show_ranking(energy_model, rows_BS, data))
        or_report("a sample", lambda: show_sample(config, folder.path, data, model, step))


def or_report(what: str, show: Callable[[], None]) -> None:
    """Show it, or print in one line why not."""
    try:
        show()
    except Exception as error:  # the run is trained and saved: showing it must not fail it
        print(f"could not show {what}: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)


def held_out_rows(data: DataModule, count: int) -> Tensor:
    """Rows from all over the validation split, [B, S+1]."""
    rows = data.rows["valid"]
    return rows.__getitems__(np.unique(np.linspace(0, len(rows) - 1, count + 1).astype(int)[:-1]).tolist())["input_ids"]


def show_descent(model: EnergyLM, rows_BS: Tensor, folder: Path) -> None:
    thinking = model.walk_settings
    curve_of_walk = walk_curve(model, {"input_ids": rows_BS}, max(8, 2 * thinking.step_counts[-1]))
    curve = Curve.of(curve_of_walk)
    print(f"\nenergy by steps taken, {curve_of_walk.truth.numel():,} positions of held-out text")
    print("\n".join(energy_plot(curve, thinking.steps, glyphs(sys.stdout.encoding))))
    write_atomically(folder / "energy.png", lambda file: draw_descent(curve, thinking, file))
    print(f"  drawn in {folder / 'energy.png'}")


def show_ranking(model: EnergyLM, rows_BS: Tensor, data: DataModule) -> None:
    text = data.rows["train"].tokens
    places = torch.randint(len(text), rows_BS[:, 1:].shape, generator=torch.Generator().manual_seed(0))
    others_BS = torch.from_numpy(text[places.numpy()].astype(np.int64)).to(rows_BS.device)
    share, count = ranking(model, rows_BS, others_BS)
    print(f"\nthe true token has the lower energy at {share:.0%} of {count:,} held-out positions")
    print("  (against another token, drawn from the training text as often as it occurs there)")


def show_sample(config: RunConfig, folder: Path, data: DataModule, model: Model, step: int) -> None:
    rows, tokenizer = data.rows["valid"], data.processor
    per_byte = rows.num_units / max(1, rows.num_bytes)
    prompt = beginning(rows.tokens[:SEARCHED], tokenizer.separator_id, max(1, round(PROMPT_BYTES * per_byte)))
    drawn = sample(
        model,
        torch.from_numpy(prompt.astype(np.int64)).to(model.device),
        SAMPLE_TOKENS,
        config[Transformer].context_length,
        never=(tokenizer.separator_id, tokenizer.pad_id),
        temperature=TEMPERATURE,
    )
    print(f"\na sample: the beginning of a held-out document, continued at temperature {TEMPERATURE}")
    texts = {"given": tokenizer.decode(prompt), "sample": tokenizer.decode(drawn.cpu().numpy())}
    for name, text in texts.items():
        print("\n".join(f"  {name:6} | {line}" for line in printable_lines(text, sys.stdout.encoding)))
    append_row(folder / "samples.jsonl", {"step": step, "prompt": texts["given"], "text": texts["sample"]})


def beginning(tokens: np.ndarray, separator_id: int, length: int) -> np.ndarray:
    """The separator and first tokens of the first document longer than that, or of the longest one."""
    starts = np.flatnonzero(tokens == separator_id)
    lengths = np.diff(np.append(starts, len(tokens))) - 1
    long_enough = np.flatnonzero(lengths > length)
    document = long_enough[0] if len(long_enough) else lengths.argmax()
    return tokens[starts[document] : starts[document] + 1 + min(length, lengths[document])]


class Curve(NamedTuple):
    """By the number of steps taken: quartiles and mean of the energy over positions, and the mean loss."""

    low: np.ndarray
    mean: np.ndarray
    high: np.ndarray
    loss: np.ndarray
    truth: float  # mean energy of the true next token

    @classmethod
    def of(cls, walk_curve: WalkCurve) -> Curve:
        energies = walk_curve.energies.cpu().numpy()
        low, high = np.percentile(energies, (25, 75), axis=1)
        return cls(low, energies.mean(axis=1), high, walk_curve.losses.cpu().numpy(), float(walk_curve.truth.mean()))

    def limits(self, steps: int) -> tuple[float, float]:
        """Limits of a plot: all values up to `steps`, and later ones as far as they are near."""
        values = np.array([self.low, self.mean, self.high])
        inner = [*values[:, : steps + 1].ravel(), self.truth]
        inner = [value for value in inner if np.isfinite(value)] or [0.0]
        bottom, top = min(inner), max(inner)
        span = top - bottom or 1.0
        outer = np.clip(values[np.isfinite(values)], bottom - span, top + span)
        return float(min([bottom, *outer])), float(max([top, *outer]))


class Glyphs(NamedTuple):
    """Characters of a text plot."""

    mean: str
    bar: str
    truth: str
    axis: str
    tick: str
    above: str
    below: str


def glyphs(encoding: str | None) -> Glyphs:
    """Characters that this encoding has."""
    fine = Glyphs("●", "│", "┈", "│", "┤", "▲", "▼")
    try:
        "".join(fine).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return Glyphs("o", "|", "-", "|", "+", "^", "v")
    return fine


def energy_plot(curve: Curve, evaluated: int, signs: Glyphs) -> list[str]:
    """The energy by steps taken as lines of text: mean and middle half, the true token's energy, and the losses."""
    last = len(curve.mean) - 1
    width = 6
    places = PLOT_COLUMNS // width
    steps = sorted({0, evaluated, *np.linspace(0, last, min(places, last + 1)).round().astype(int).tolist()})
    bottom, top = curve.limits(evaluated)
    grid = [[" "] * (width * len(steps)) for _ in range(PLOT_LINES)]

    def line_of(value: float) -> int:
        return int(np.clip(round((top - value) / ((top - bottom) or 1.0) * (PLOT_LINES - 1)), 0, PLOT_LINES - 1))

    if np.isfinite(curve.truth):
        grid[line_of(curve.truth)] = [signs.truth] * (width * len(steps))
    for place, step in enumerate(steps):
        column = place * width + (width - 1) // 2
        low, mean, high = curve.low[step], curve.mean[step], curve.high[step]
        if not np.isfinite([low, mean, high]).all():
            continue
        for line in range(line_of(high), line_of(low) + 1):
            grid[line][column] = signs.bar
        grid[line_of(mean)][column] = signs.above if mean > top else signs.below if mean < bottom else signs.mean
    labels = {0: f"{top:.2f}", PLOT_LINES - 1: f"{bottom:.2f}"}
    lines = []
    for line, row in enumerate(grid):
        label = labels.get(line, "")
        lines.append(f"{label:>9} {signs.tick if label else signs.axis}{''.join(row)}".rstrip())
    names = [f"{step}{'*' if step == evaluated else ''}" for step in steps]
    lines.append(f"{'steps':>9}  {''.join(f'{name:^{width}}' for name in names)}".rstrip())
    losses = [f"{curve.loss[step]:.2f}" if curve.loss[step] < 100 else "large" for step in steps]
    lines.append(f"{'loss':>9}  {''.join(f'{loss:^{width}}' for loss in losses)}".rstrip())
    lines.append(
        f"  {signs.mean} mean, {signs.bar} middle half of the positions, {signs.truth * 3} mean of the true next token;"
    )
    lines.append("  loss in nats per token; * is the number of steps that validation takes")
    return lines


def draw_descent(curve: Curve, thinking: WalkSettings, file: object) -> None:
    """The same as a picture of two panels."""
    from matplotlib.ticker import MaxNLocator

    plots = pyplot()
    figure, panels = plots.subplots(1, 2, figsize=(10, 4))
    steps, (fewest, *_, most) = np.arange(len(curve.mean)), (*thinking.step_counts, thinking.step_counts[-1])
    for panel in panels:
        if most > fewest:
            panel.axvspan(fewest, most, **SHADE, label=f"trained with {fewest} to {most}")
        panel.axvline(thinking.steps, color=GREY, linestyle=":", label=f"evaluated with {thinking.steps}")
        panel.set_xlabel("steps taken")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    bottom, top = curve.limits(thinking.steps)
    margin = 0.05 * (top - bottom)
    panels[0].fill_between(steps, curve.low, curve.high, color="C0", alpha=0.2, label="middle half of positions")
    panels[0].plot(steps, curve.mean, color="C0", marker="o", label="mean")
    panels[0].axhline(curve.truth, color="C2", linestyle="--", label="true next token, mean")
    panels[0].set_ylim(bottom - margin, top + margin)
    panels[0].set_ylabel("energy (the model's own unit)")
    panels[0].set_title("energy of the prediction")
    panels[1].plot(steps, curve.loss, color="C1", marker="o", label="mean")
    panels[1].set_ylim(bottom=0)
    panels[1].set_ylabel("loss, nats per token")
    panels[1].set_title("loss of the prediction")
    for panel in panels:
        panel.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file, dpi=120, format="png")
    plots.close(figure)
