"""`python -m inference landscape`: the energy along the descent of one prediction, and around it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from config.settings import Inference
from core.errors import UserError
from core.files import write_atomically
from data.store import open_store
from data.tokenizers import Tokenizer
from inference.commands import Landscape, Model
from inference.decoder import EnergyDecoder
from inference.loading import Loaded, load, output_folder
from inference.thinking import Plan, believed, make_plan, think
from models.energy_language_model import Contexts, EnergyLanguageModel
from runs.pictures import FAINT, pyplot
from training.showing import readable

TOGETHER = 64  # predictions of a row that attention treats as ones that do not see each other
LEAST_CONTEXT, TRIES = 32, 100  # of a place in the validation split
SHOWN_CHARACTERS, SHOWN_TOKENS = 48, 5
TRUTH = "C1"  # its colour


@dataclass(frozen=True)
class Scene:
    """A prediction and what is around it.

    energies: [T+1] as the walk met them; probabilities: [T+1, V]. target: the true token, or the likeliest one where
    the truth is not known. end_energy, target_energy: where the walk ends, and of the target alone, on the last
    landscape. path: [T+1, 2] and corners: start, end and target, [3, 2], in the plane; off_plane: how far the path
    leaves it at most. across, up: [points] each; heights: [points, points], energies of the
    plane, of embeddings alone where the energy has an entropy term too (entropy).
    """

    energies: np.ndarray
    probabilities: np.ndarray
    target: int
    known: bool
    end_energy: float
    target_energy: float
    path: np.ndarray
    corners: np.ndarray
    off_plane: float
    across: np.ndarray
    up: np.ndarray
    heights: np.ndarray
    landscapes: int
    entropy: bool = False


def main(model: Model, command: Landscape, inference: Inference) -> int:
    loaded = load(model)
    if not isinstance(loaded.model, EnergyLanguageModel):
        name = loaded.folder.run_id if loaded.folder else str(loaded.checkpoint)
        raise UserError(f"--run is {name!r}: this model has no energy to draw; choose an EBT's run.")
    if command.prompt is None:
        tokens, target = place_in_validation(loaded, model.seed)
    else:
        tokens, target = split_prompt(loaded, command.prompt)
    plan = make_plan(loaded.model, inference, model.seed)
    assert plan is not None
    folder = output_folder(loaded, inference)
    scene = look(loaded.model, tokens, target, plan, command.points)
    print("\n".join(summary(scene, tokens, loaded.tokenizer, sys.stdout.encoding)))
    write_atomically(folder / "landscape.png", lambda file: draw(scene, tokens, loaded.tokenizer, file))
    print(f"drawn in {folder / 'landscape.png'}")
    return 0


def draw_for_text(loaded: Loaded, tokens: list[int], target: int | None, plan: Plan, points: int, path: Path) -> None:
    """Draw the prediction of what follows these tokens. target: the token that does, if it is known."""
    assert isinstance(loaded.model, EnergyLanguageModel)
    scene = look(loaded.model, tokens, target, plan, points)
    write_atomically(path, lambda file: draw(scene, tokens, loaded.tokenizer, file))


def split_prompt(loaded: Loaded, prompt: str) -> tuple[list[int], int]:
    """What stands before the last token of a prompt, read as a document from its beginning, and that token."""
    most = loaded.config.architecture.context_length
    tokens = loaded.tokenizer.encode(prompt).tolist()
    if len(tokens) < 2:
        raise UserError(
            f"--prompt is {prompt!r}, a single token: its last token is predicted from those before it; "
            "give at least 2 tokens."
        )
    if len(tokens) > most:
        raise UserError(
            f"--prompt is {len(tokens):,} tokens long: this model reads {most}, the separator before the text "
            f"included, and predicts the last one; give at most {most}."
        )
    return [loaded.tokenizer.separator_id, *tokens[:-1]], tokens[-1]


def place_in_validation(loaded: Loaded, seed: int) -> tuple[list[int], int]:
    """A place of the validation split, drawn by the seed, with some text of its document before it."""
    split = open_store(loaded.config.data, loaded.tokenizer).splits["valid"].tokens
    if len(split) < 2:
        raise UserError("--prompt is missing: this run has no validation split to take a text from; give a --prompt.")
    most, separator = loaded.config.architecture.context_length, loaded.tokenizer.separator_id
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        place = int(rng.integers(1, len(split)))
        near = split[max(0, place - min(most, LEAST_CONTEXT)) : place + 1]
        if separator not in near[1:]:
            break
    return split[max(0, place - most) : place].tolist(), int(split[place])


@torch.no_grad()
def look(model: EnergyLanguageModel, tokens: list[int], target: int | None, plan: Plan, points: int) -> Scene:
    """Think about what follows the tokens, and measure the energy around; of several candidates the believed one."""
    network = model.network
    separator = network.shape.separator_id
    if separator is not None and separator in tokens:  # earlier documents are not seen
        tokens = tokens[len(tokens) - 1 - tokens[::-1].index(separator) :]
    decoder = EnergyDecoder(model, plan, [tokens], room=0)
    contexts = Contexts(decoder.context)
    candidates_G = torch.arange(plan.candidates, device=model.device)
    positions_1G = (decoder.lengths - 1)[:, None].expand(-1, plan.candidates)
    logits: list[Tensor] = []
    energies: list[Tensor] = []

    def watch(step: int, y_1GV: Tensor, energy_1G: Tensor) -> None:
        logits.append(y_1GV[0])
        energies.append(energy_1G[0])

    thought = think(model, contexts, positions_1G, plan, candidates_G, watch)
    chosen = int(believed(thought.first_energy, thought.energy, plan.choice)[0].argmax())
    y_TV = torch.stack(logits)[:, chosen]
    embedding_VD = network.prediction_embedding
    z_TD = model.embed(y_TV[None])[0]
    known, target = target is not None, int(y_TV[-1].argmax()) if target is None else target
    context = contexts(plan.steps[-1].landscape)

    def energy(z_ND: Tensor) -> np.ndarray:
        parts = [network.energy(part[None], context)[0] for part in z_ND.split(TOGETHER)]
        return torch.cat(parts).double().cpu().numpy()

    origin_D, axes_2D = plane(z_TD[0], z_TD[-1], embedding_VD[target])
    moved_TD = z_TD - origin_D
    path_T2 = moved_TD @ axes_2D.T
    off = (moved_TD - path_T2 @ axes_2D).norm(dim=-1).max()
    corners_32 = (torch.stack([z_TD[0], z_TD[-1], embedding_VD[target]]) - origin_D) @ axes_2D.T
    across, up = sides(torch.cat([path_T2, corners_32]).double().cpu().numpy(), points)
    grid = np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)
    heights = energy(origin_D + torch.from_numpy(grid).to(axes_2D) @ axes_2D)
    target_energy = energy(embedding_VD[target][None])[0]  # a single token has no entropy
    return Scene(
        energies=torch.stack(energies)[:, chosen].double().cpu().numpy(),
        probabilities=y_TV.double().softmax(-1).cpu().numpy(),
        target=target,
        known=known,
        end_energy=float(thought.energy[0, chosen]),
        target_energy=float(target_energy),
        path=path_T2.double().cpu().numpy(),
        corners=corners_32.double().cpu().numpy(),
        off_plane=float(off),
        across=across,
        up=up,
        heights=heights.reshape(points, points),
        landscapes=len({step.landscape for step in plan.steps}),
        entropy=model.thinking.rule.entropy,
    )


def plane(start_D: Tensor, end_D: Tensor, target_D: Tensor) -> tuple[Tensor, Tensor]:
    """The origin [D] and two unit axes [2, D] of the plane through three embeddings.

    The energy sees a prediction only through its embedding: this plane is one of what it sees. The first axis goes
    from start to end. Where the three are on a line, the second axis is any that is across.
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


def sides(places: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of a square that holds all places and a quarter more on every side."""
    low, high = places.min(0), places.max(0)
    half = 0.75 * float((high - low).max()) or 1.0
    middle = (low + high) / 2
    return tuple(np.linspace(center - half, center + half, points) for center in middle)  # type: ignore[return-value]


def named(tokenizer: Tokenizer, token: int, encoding: str | None) -> str:
    """A token in quotes, with whatever a terminal or a picture cannot show as an escape."""
    special = {tokenizer.separator_id: "end of text", tokenizer.pad_id: "pad"}
    if token in special:
        return special[token]
    text = tokenizer.decode([token])
    if "\ufffd" in text or not text:  # part of a character
        return f"token {token}"
    return f"'{inline(text, encoding)}'"


def inline(text: str, encoding: str | None) -> str:
    return r"\n".join(readable(text, encoding))


def shown_context(tokens: list[int], tokenizer: Tokenizer, encoding: str | None) -> str:
    """The end of the text that was read."""
    text = tokenizer.decode(tokens)
    short = inline(text[-SHOWN_CHARACTERS:], encoding)
    return f"...{short}" if len(text) > SHOWN_CHARACTERS else short


def top_tokens(scene: Scene) -> list[int]:
    """The likeliest tokens at the end, and the target."""
    top = np.argsort(-scene.probabilities[-1], kind="stable")[:SHOWN_TOKENS].tolist()
    return top if scene.target in top else [*top[:-1], scene.target]


def summary(scene: Scene, tokens: list[int], tokenizer: Tokenizer, encoding: str | None) -> list[str]:
    def name(token: int) -> str:
        return named(tokenizer, token, encoding)

    predicted = int(scene.probabilities[-1].argmax())
    told = f"predicted {name(predicted)}, true {name(scene.target)}" if scene.known else f"predicted {name(predicted)}"
    lines = [f"after      {shown_context(tokens, tokenizer, encoding)}", f"           {told}"]
    whose = "the true token alone" if scene.known else "the likeliest token alone"
    lines += [f"energy     {scene.energies[0]:.4f} at the start, {scene.end_energy:.4f} at the end"]
    lines += [f"           {scene.target_energy:.4f} of {whose}"]
    chosen = top_tokens(scene)
    lines += [f"{'steps':>5} {'energy':>10}  probability of " + ", ".join(name(token) for token in chosen)]
    for step, energy in enumerate(scene.energies):
        shares = " ".join(f"{scene.probabilities[step, token]:6.3f}" for token in chosen)
        lines.append(f"{step:5} {energy:10.4f}  {shares}")
    return lines


def draw(scene: Scene, tokens: list[int], tokenizer: Tokenizer, file: object) -> None:
    """Energy and probabilities by step on the left, the plane on the right."""
    from matplotlib.ticker import MaxNLocator

    def safe(text: str) -> str:
        return text.replace("$", r"\$")  # else it would begin a formula

    def name(token: int) -> str:
        return safe(named(tokenizer, token, "ascii"))

    plots = pyplot()
    figure = plots.figure(figsize=(13, 6.6), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.35))
    by_step, shares, around = (figure.add_subplot(grid[place]) for place in ((0, 0), (1, 0), (slice(None), 1)))
    steps = np.arange(len(scene.energies))
    whose = "true token alone" if scene.known else "likeliest token alone"
    by_step.plot(steps, scene.energies, color="C0", marker="o", label="prediction")
    by_step.axhline(scene.target_energy, color=TRUTH, linestyle="--", label=whose)
    by_step.set_ylabel("energy (the model's own unit)")
    for token, color in zip(top_tokens(scene), ("C0", "C4", "C5", "C7", "C8"), strict=False):
        true = scene.known and token == scene.target
        style: dict[str, Any] = {"color": TRUTH, "linewidth": 2.5, "zorder": 3} if true else {"color": color}
        label = f"{name(token)}, true" if true else name(token)
        shares.plot(steps, scene.probabilities[:, token], marker="o", markersize=4, label=label, **style)
    shares.set_ylabel("probability")
    shares.set_ylim(-0.03, 1.03)
    shares.set_xlabel("steps taken")
    for panel in (by_step, shares):
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(**FAINT)
        panel.legend(fontsize="small", framealpha=0.9)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    draw_plane(scene, around, whose)
    predicted = f"predicted {name(int(scene.probabilities[-1].argmax()))}"
    told = f"{predicted}, true {name(scene.target)}" if scene.known else predicted
    context = safe(shown_context(tokens, tokenizer, "ascii"))
    figure.suptitle(f"after  {context}\n{told}", x=0.01, ha="left", family="monospace", fontsize="medium")
    figure.savefig(file, dpi=120, format="png")
    plots.close(figure)


def draw_plane(scene: Scene, panel: Any, whose: str) -> None:
    """Filled contours of the energy with the path, and the triangle within which a point is a mixture of the three."""
    filled = panel.contourf(scene.across, scene.up, scene.heights, levels=24, cmap="viridis")
    panel.contour(scene.across, scene.up, scene.heights, levels=24, colors="white", linewidths=0.3, alpha=0.5)
    panel.figure.colorbar(filled, ax=panel, label="energy (the model's own unit)", shrink=0.85)
    corners = np.concatenate([scene.corners, scene.corners[:1]])
    panel.plot(*corners.T, color="white", linestyle=":", linewidth=1.2, label="mixtures of the three")
    panel.plot(*scene.path.T, color="white", linewidth=3.5, zorder=3)
    panel.plot(*scene.path.T, color="C3", marker="o", markersize=5, linewidth=1.6, zorder=4, label="the walk")
    for step in apart(scene.path, 0.04 * float(np.ptp(scene.across))):
        offset: dict[str, Any] = {"xytext": (4, -13), "textcoords": "offset points", "zorder": 6}
        panel.annotate(str(step), scene.path[step], color="white", fontsize="small", **offset)
    marks = (("o", "start", "white"), ("s", "end", "C3"), ("*", whose, TRUTH))
    for (mark, label, color), place in zip(marks, scene.corners, strict=True):
        size = 17 if mark == "*" else 9
        panel.plot(
            *place,
            marker=mark,
            color=color,
            markersize=size,
            markeredgecolor="black",
            linestyle="none",
            label=label,
            zorder=5,
        )
    panel.set_aspect("equal")
    panel.set_xlabel("from start to end, distance of embeddings")
    panel.set_ylabel(f"across, towards the {whose.removesuffix(' alone')}")
    last = "; the last landscape" if scene.landscapes > 1 else ""
    last += ", without entropy" if scene.entropy else ""
    panel.set_title(f"energy in the plane of start, end and {whose}{last}", fontsize="medium")
    panel.legend(
        fontsize="small",
        facecolor="0.6",
        labelcolor="black",
        ncols=5,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.1),
        columnspacing=1.2,
    )
    if scene.off_plane > 0.01 * float(np.ptp(scene.across)):
        note = f"between its ends the walk leaves the plane by up to {scene.off_plane:.2g}; drawn is its shadow"
        panel.text(0.01, 0.01, note, transform=panel.transAxes, fontsize="x-small", color="white")


def apart(path: np.ndarray, least: float) -> list[int]:
    """The steps whose numbers have room: each so far from all that were named before, the last one first."""
    kept: list[int] = []
    for step in (len(path) - 1, *range(len(path) - 1)):
        if all(np.linalg.norm(path[step] - path[other]) >= least for other in kept):
            kept.append(step)
    return kept
