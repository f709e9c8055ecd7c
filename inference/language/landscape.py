"""`python -m inference landscape`: the energy along the descent of one prediction, and around it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from config.settings import Inference, Text, Transformer
from core.errors import UserError
from core.files import write_atomically
from core.text import printable_lines
from data.language.store import open_store
from data.language.tokenizers import Tokenizer
from inference.language.decoder import EnergyDecoder
from inference.language.walk import token_walk
from inference.loading import Loaded, ModelFlags, load, output_folder
from inference.thinking import WalkPlan, candidate_score, plan_from_flags, require_energy
from models.energy_model import Contexts
from models.language import EnergyLM
from runs.pictures import FAINT, pyplot
from tasks.language_commands import LandscapeFlags

ENERGY_BATCH = 64  # predictions evaluated at once, as candidates of one row
MIN_CONTEXT = 32  # tokens of its document before a prediction in the validation split
MAX_TRIES = 100  # positions that are drawn until one has them
MAX_CHARACTERS, MAX_TOKENS = 48, 5
TARGET_COLOUR = "C1"


@dataclass(frozen=True)
class LandscapeData:
    """A walk and the energy around it.

    energies: [T+1] along the walk; probabilities: [T+1, V]. target: the true token (has_target) or the likeliest one.
    end_energy, target_energy: at the end of the walk, and of the target alone, on the last landscape. path: [T+1, 2],
    corners: start, end and target, [3, 2], both in the plane; distance_off_plane: of the path, at most. across, up:
    [points] each; heights: [points, points], the energies of the plane, without the entropy term where there is one
    (entropy).
    """

    energies: np.ndarray
    probabilities: np.ndarray
    target: int
    has_target: bool
    end_energy: float
    target_energy: float
    path: np.ndarray
    corners: np.ndarray
    distance_off_plane: float
    across: np.ndarray
    up: np.ndarray
    heights: np.ndarray
    landscapes: int
    entropy: bool = False


def main(model: ModelFlags, command: LandscapeFlags, inference: Inference) -> int:
    loaded = load(model)
    energy_model: EnergyLM = require_energy(loaded, " to draw")
    if command.prompt is None:
        tokens, target = validation_example(loaded, model.seed)
    else:
        tokens, target = split_prompt(loaded, command.prompt)
    plan = plan_from_flags(energy_model, inference, model.seed)
    assert plan is not None
    path = output_folder(loaded, inference) / "landscape.png"
    data = save_landscape(loaded, tokens, target, plan, command.points, path)
    print("\n".join(summary(data, tokens, loaded.processor, sys.stdout.encoding)))
    print(f"drawn in {path}")
    return 0


def save_landscape(
    loaded: Loaded, tokens: list[int], target: int | None, plan: WalkPlan, points: int, path: Path
) -> LandscapeData:
    """Measure and draw the landscape of the prediction after these tokens. target: the true token, if there is one."""
    assert isinstance(loaded.model, EnergyLM)
    data = measure_landscape(loaded.model, tokens, target, plan, points)
    write_atomically(path, lambda file: draw(data, tokens, loaded.processor, file))
    return data


def split_prompt(loaded: Loaded, prompt: str) -> tuple[list[int], int]:
    """The tokens before the last one of a prompt, after a separator, and that last token."""
    length = loaded.config[Transformer].context_length
    tokens = loaded.processor.encode(prompt).tolist()
    if len(tokens) < 2:
        raise UserError(
            f"--prompt is {prompt!r}, a single token: its last token is predicted from those before it; "
            "give at least 2 tokens."
        )
    if len(tokens) > length:
        raise UserError(
            f"--prompt is {len(tokens):,} tokens long: this model reads {length}, the separator before the text "
            f"included, and predicts the last one; give at most {length}."
        )
    return [loaded.processor.separator_id, *tokens[:-1]], tokens[-1]


def validation_example(loaded: Loaded, seed: int) -> tuple[list[int], int]:
    """Tokens of the validation split and the next one, at a position that has some context, drawn by the seed."""
    split = open_store(loaded.config[Text], loaded.processor).splits["valid"].tokens
    if len(split) < 2:
        raise UserError("--prompt is missing: this run has no validation split to take a text from; give a --prompt.")
    length, separator = loaded.config[Transformer].context_length, loaded.processor.separator_id
    rng = np.random.default_rng(seed)
    for _ in range(MAX_TRIES):
        position = int(rng.integers(1, len(split)))
        nearby = split[max(0, position - min(length, MIN_CONTEXT)) : position + 1]
        if separator not in nearby[1:]:
            break
    return split[max(0, position - length) : position].tolist(), int(split[position])


@torch.no_grad()
def measure_landscape(
    model: EnergyLM, tokens: list[int], target: int | None, plan: WalkPlan, points: int
) -> LandscapeData:
    """Walk to the prediction of what follows the tokens, and measure the energy around the selected candidate."""
    separator = model.network.shape.separator_id
    if separator is not None and separator in tokens:  # the model does not see earlier documents
        tokens = tokens[len(tokens) - 1 - tokens[::-1].index(separator) :]
    decoder = EnergyDecoder(model, plan, [tokens], max_new_tokens=0)
    contexts = Contexts(decoder.context)
    candidates_G = torch.arange(plan.candidates, device=model.device)
    positions_1G = (decoder.lengths - 1)[:, None].expand(-1, plan.candidates)
    states = list(token_walk(model, contexts, positions_1G, plan, candidates_G))
    end = states[-1]
    selection = int(candidate_score(end.first_energy, end.energy, plan.choice)[0].argmax())
    y_TV = torch.stack([state.y[0, selection] for state in states])
    energies_T = torch.stack([state.energy[0, selection] for state in states])
    z_TD = model.embed(y_TV[None])[0]
    has_target, target = target is not None, int(y_TV[-1].argmax()) if target is None else target
    context = contexts(plan.steps[-1].landscape)

    def energy(z_ND: Tensor) -> np.ndarray:
        parts = [model.energy(part[None], context)[0] for part in z_ND.split(ENERGY_BATCH)]
        return torch.cat(parts).double().cpu().numpy()

    target_D = model.space.target_embedding(torch.tensor(target, device=model.device))
    origin_D, axes_2D = plane_through(z_TD[0], z_TD[-1], target_D)
    moved_TD = z_TD - origin_D
    path_T2 = moved_TD @ axes_2D.T
    distance = (moved_TD - path_T2 @ axes_2D).norm(dim=-1).max()
    corners_32 = (torch.stack([z_TD[0], z_TD[-1], target_D]) - origin_D) @ axes_2D.T
    across, up = square_around(torch.cat([path_T2, corners_32]).double().cpu().numpy(), points)
    grid = np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)
    heights = energy(origin_D + torch.from_numpy(grid).to(axes_2D) @ axes_2D)
    target_energy = energy(target_D[None])[0]  # a single token has no entropy
    return LandscapeData(
        energies=energies_T.double().cpu().numpy(),
        probabilities=y_TV.double().softmax(-1).cpu().numpy(),
        target=target,
        has_target=has_target,
        end_energy=float(end.energy[0, selection]),
        target_energy=float(target_energy),
        path=path_T2.double().cpu().numpy(),
        corners=corners_32.double().cpu().numpy(),
        distance_off_plane=float(distance),
        across=across,
        up=up,
        heights=heights.reshape(points, points),
        landscapes=len({step.landscape for step in plan.steps}),
        entropy=model.space.rule.entropy,
    )


def plane_through(start_D: Tensor, end_D: Tensor, target_D: Tensor) -> tuple[Tensor, Tensor]:
    """The origin [D] and two unit axes [2, D] of the plane through three embeddings.

    The energy sees a prediction only through its embedding, so the plane lies in the space of embeddings. The first
    axis goes from start to end. Where the three are on a line, the second axis is an arbitrary orthogonal one.
    """
    width = len(start_D)
    first_D = end_D - start_D
    if first_D.norm() <= 1e-6 * (1 + target_D.norm()):
        first_D = target_D - start_D
    first_D = first_D / first_D.norm()
    second_D = (target_D - start_D) - ((target_D - start_D) @ first_D) * first_D
    if second_D.norm() <= 1e-3 * (target_D - start_D).norm():
        second_D = torch.randn(width, generator=torch.Generator().manual_seed(0)).to(start_D)
    second_D = second_D - (second_D @ first_D) * first_D
    return start_D, torch.stack([first_D, second_D / second_D.norm()])


def square_around(coordinates: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Both axes of a square that contains these coordinates, with a margin of a quarter on every side."""
    low, high = coordinates.min(0), coordinates.max(0)
    half = 0.75 * float((high - low).max()) or 1.0
    middle = (low + high) / 2
    return tuple(np.linspace(center - half, center + half, points) for center in middle)  # type: ignore[return-value]


def token_name(tokenizer: Tokenizer, token: int, encoding: str | None) -> str:
    """A token in quotes; what a terminal or a picture cannot show is escaped."""
    special = {tokenizer.separator_id: "end of text", tokenizer.pad_id: "pad"}
    if token in special:
        return special[token]
    text = tokenizer.decode([token])
    if "\ufffd" in text or not text:  # part of a character
        return f"token {token}"
    return f"'{inline(text, encoding)}'"


def inline(text: str, encoding: str | None) -> str:
    return r"\n".join(printable_lines(text, encoding))


def context_end(tokens: list[int], tokenizer: Tokenizer, encoding: str | None) -> str:
    """The end of the text that was read."""
    text = tokenizer.decode(tokens)
    short = inline(text[-MAX_CHARACTERS:], encoding)
    return f"...{short}" if len(text) > MAX_CHARACTERS else short


def top_tokens(data: LandscapeData) -> list[int]:
    """The likeliest tokens at the end, and the target."""
    top = np.argsort(-data.probabilities[-1], kind="stable")[:MAX_TOKENS].tolist()
    return top if data.target in top else [*top[:-1], data.target]


def outcome(data: LandscapeData, name: Callable[[int], str]) -> str:
    """The token that is predicted and, where there is one, the true one. name: of a token."""
    predicted = f"predicted {name(int(data.probabilities[-1].argmax()))}"
    return f"{predicted}, true {name(data.target)}" if data.has_target else predicted


def summary(data: LandscapeData, tokens: list[int], tokenizer: Tokenizer, encoding: str | None) -> list[str]:
    def name(token: int) -> str:
        return token_name(tokenizer, token, encoding)

    lines = [f"after      {context_end(tokens, tokenizer, encoding)}", f"           {outcome(data, name)}"]
    target_label = "the true token alone" if data.has_target else "the likeliest token alone"
    lines += [f"energy     {data.energies[0]:.4f} at the start, {data.end_energy:.4f} at the end"]
    lines += [f"           {data.target_energy:.4f} of {target_label}"]
    top = top_tokens(data)
    lines += [f"{'steps':>5} {'energy':>10}  probability of " + ", ".join(name(token) for token in top)]
    for step, energy in enumerate(data.energies):
        shares = " ".join(f"{data.probabilities[step, token]:6.3f}" for token in top)
        lines.append(f"{step:5} {energy:10.4f}  {shares}")
    return lines


def draw(data: LandscapeData, tokens: list[int], tokenizer: Tokenizer, file: object) -> None:
    """Energy and probabilities by step on the left, the plane on the right."""
    from matplotlib.ticker import MaxNLocator

    def safe(text: str) -> str:
        return text.replace("$", r"\$")  # else it would begin a formula

    def name(token: int) -> str:
        return safe(token_name(tokenizer, token, "ascii"))

    plots = pyplot()
    figure = plots.figure(figsize=(13, 6.6), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.35))
    by_step, shares, around = (figure.add_subplot(grid[cell]) for cell in ((0, 0), (1, 0), (slice(None), 1)))
    steps = np.arange(len(data.energies))
    target_label = "true token alone" if data.has_target else "likeliest token alone"
    by_step.plot(steps, data.energies, color="C0", marker="o", label="prediction")
    by_step.axhline(data.target_energy, color=TARGET_COLOUR, linestyle="--", label=target_label)
    by_step.set_ylabel("energy (the model's own unit)")
    for token, color in zip(top_tokens(data), ("C0", "C4", "C5", "C7", "C8"), strict=False):
        true = data.has_target and token == data.target
        style: dict[str, Any] = {"color": TARGET_COLOUR, "linewidth": 2.5, "zorder": 3} if true else {"color": color}
        label = f"{name(token)}, true" if true else name(token)
        shares.plot(steps, data.probabilities[:, token], marker="o", markersize=4, label=label, **style)
    shares.set_ylabel("probability")
    shares.set_ylim(-0.03, 1.03)
    shares.set_xlabel("steps taken")
    for panel in (by_step, shares):
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(**FAINT)
        panel.legend(fontsize="small", framealpha=0.9)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    draw_plane(data, around, target_label)
    context = safe(context_end(tokens, tokenizer, "ascii"))
    figure.suptitle(
        f"after  {context}\n{outcome(data, name)}", x=0.01, ha="left", family="monospace", fontsize="medium"
    )
    figure.savefig(file, dpi=120, format="png")
    plots.close(figure)


def draw_plane(data: LandscapeData, panel: Any, target_label: str) -> None:
    """Filled contours of the energy with the path, and the triangle within which a point is a mixture of the three."""
    filled = panel.contourf(data.across, data.up, data.heights, levels=24, cmap="viridis")
    panel.contour(data.across, data.up, data.heights, levels=24, colors="white", linewidths=0.3, alpha=0.5)
    panel.figure.colorbar(filled, ax=panel, label="energy (the model's own unit)", shrink=0.85)
    corners = np.concatenate([data.corners, data.corners[:1]])
    panel.plot(*corners.T, color="white", linestyle=":", linewidth=1.2, label="mixtures of the three")
    panel.plot(*data.path.T, color="white", linewidth=3.5, zorder=3)
    panel.plot(*data.path.T, color="C3", marker="o", markersize=5, linewidth=1.6, zorder=4, label="the walk")
    for step in label_positions(data.path, 0.04 * float(np.ptp(data.across))):
        offset: dict[str, Any] = {"xytext": (4, -13), "textcoords": "offset points", "zorder": 6}
        panel.annotate(str(step), data.path[step], color="white", fontsize="small", **offset)
    marks = (("o", "start", "white"), ("s", "end", "C3"), ("*", target_label, TARGET_COLOUR))
    for (mark, label, color), corner in zip(marks, data.corners, strict=True):
        size = 17 if mark == "*" else 9
        style = {"marker": mark, "color": color, "markersize": size, "markeredgecolor": "black", "linestyle": "none"}
        panel.plot(*corner, label=label, zorder=5, **style)
    panel.set_aspect("equal")
    panel.set_xlabel("from start to end, distance of embeddings")
    panel.set_ylabel(f"across, towards the {target_label.removesuffix(' alone')}")
    last = "; the last landscape" if data.landscapes > 1 else ""
    last += ", without entropy" if data.entropy else ""
    panel.set_title(f"energy in the plane of start, end and {target_label}{last}", fontsize="medium")
    panel.legend(
        fontsize="small",
        facecolor="0.6",
        labelcolor="black",
        ncols=5,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.1),
        columnspacing=1.2,
    )
    if data.distance_off_plane > 0.01 * float(np.ptp(data.across)):
        distance = f"{data.distance_off_plane:.2g}"
        note = f"between its ends the walk leaves the plane by up to {distance}; its projection is drawn"
        panel.text(0.01, 0.01, note, transform=panel.transAxes, fontsize="x-small", color="white")


def label_positions(path: np.ndarray, least: float) -> list[int]:
    """The steps to label: the last one, then each that is at least so far from all before."""
    steps: list[int] = []
    for step in (len(path) - 1, *range(len(path) - 1)):
        if all(np.linalg.norm(path[step] - path[other]) >= least for other in steps):
            steps.append(step)
    return steps
