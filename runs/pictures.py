"""Pictures that are read on a white page and on a dark one: they have no background, and letters of a middle grey."""

from __future__ import annotations

from typing import Any

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
