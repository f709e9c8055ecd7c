"""Pictures of a run: their colours, and where those of each training step are.

They are read on a white page and on a dark one: they have no background, and letters of a middle grey.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.text import printable_lines

FOLDER = "pictures"  # of a run folder
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,80}")
OF_STEP = re.compile(rf"({NAME.pattern})_step_([0-9]{{1,15}})\.png")

GREY = "#78808a"  # a contrast of 4 to white, and to the dark pages
SHADE = {"color": GREY, "alpha": 0.15, "linewidth": 0}  # of a range
FAINT = {"color": GREY, "alpha": 0.2}  # of a grid
COLOURS = (
    *("#1f86c9", "#dd6b20", "#1f9d6b", "#d6494f", "#8f6bd8"),
    *("#9c6f4e", "#cc6aa8", "#808890", "#a39a1d", "#1aa5b8"),
)


def pyplot() -> Any:
    """matplotlib.pyplot for files, in these colours. Imported when something is drawn, since that takes a second."""
    import matplotlib
    from cycler import cycler

    matplotlib.use("Agg")
    from matplotlib import pyplot

    letters = (
        "text.color",
        "axes.labelcolor",
        "axes.edgecolor",
        "xtick.color",
        "ytick.color",
        "legend.labelcolor",
        "legend.edgecolor",
    )
    clear = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
    style: dict[Any, Any] = {**dict.fromkeys(letters, GREY), **dict.fromkeys(clear, "none")}
    pyplot.rcParams.update(style | {"axes.prop_cycle": cycler(color=COLOURS)})
    return pyplot


def picture_text(text: str) -> str:
    """A text for matplotlib: ASCII, which every font has, and no formulas."""
    return " ".join(printable_lines(text, "ascii")).replace("$", r"\$")


def picture_path(run_folder: Path, name: str, step: int) -> Path:
    """pictures/NAME_step_STEP.png of a run folder."""
    if not NAME.fullmatch(name):
        raise ValueError(f"the name of a picture is {name!r}: use letters, digits, _ and -, at most 81")
    return run_folder / FOLDER / f"{name}_step_{step:07d}.png"


def pictures_by_step(run_folder: Path) -> dict[str, dict[int, Path]]:
    """The pictures that were drawn during training: {name: {step: file}}, names and steps in their order."""
    pictures: dict[str, dict[int, Path]] = {}
    with suppress(OSError):
        for file in (run_folder / FOLDER).iterdir():
            if match := OF_STEP.fullmatch(file.name):
                pictures.setdefault(match[1], {})[int(match[2])] = file
    return {name: dict(sorted(pictures[name].items())) for name in sorted(pictures)}


def remove_pictures_after(run_folder: Path, step: int) -> None:
    """Remove the pictures of later steps, which a resumed run draws again, and what killed writes left."""
    for files in pictures_by_step(run_folder).values():
        for number, file in files.items():
            if number > step:
                file.unlink(missing_ok=True)
    for temporary in (run_folder / FOLDER).glob(".*.tmp"):
        temporary.unlink(missing_ok=True)
