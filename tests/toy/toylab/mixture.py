"""A task from outside: points of the plane are moved back to the corners of a polygon that noise drove them from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from config.energy import ENERGY_CHECKS, RECIPES, Energy, energy_measures
from config.flags import flag
from config.settings import RunConfig
from config.task import Measure
from tasks import Showing, Task

if TYPE_CHECKING:
    from data.module import DataModule
    from models.model import Model


@dataclass(frozen=True)
class Mixture:
    """the corners and the noise"""

    num_modes: int = flag(3, "corners of the polygon", low=2)
    noise_level: float = flag(0.3, "standard deviation of the noise that is to be taken away", above=0)


class MixtureTask(Task):
    name = "toylab.mixture"
    unit = "points"
    models: ClassVar = {"ebt": "energy of the plane"}
    groups = (Energy, Mixture)
    defaults: ClassVar = {
        "dataset_name": "corners",
        "energy_form": "scalar",
        "denoising_initial_condition": "random_noise",
    }
    recipes = RECIPES
    checks = ENERGY_CHECKS

    def measures(self, values: Mapping[str, Any]) -> tuple[Measure, ...]:
        return (
            Measure("loss", "squared distance", "square units", "lower"),
            Measure("near", "near its corner", "share of points", "higher"),
            *energy_measures(values, "square units"),
        )

    def data(self, config: RunConfig, *runs: Path | None) -> DataModule:
        from toylab.mixture_model import mixture_data

        return mixture_data(config, config[Mixture])

    def model(self, config: RunConfig, spec: Any) -> Model:
        from tasks.energy import walk_settings
        from toylab.mixture_model import PlaneModel

        return PlaneModel(walk_settings(config[Energy]))

    def references(self, data: DataModule, split: str, units: int) -> dict[str, dict[str, float]]:
        batch = data.rows[split].__getitems__(range(units))
        distance = (batch["noisy"] - batch["point"]).double().square().sum(-1)
        near = (distance < 0.04).double().mean().item()
        return {"left as it is": {"loss": distance.mean().item(), "near": near, "targets": units}}

    def show(self, showing: Showing) -> None:
        showing.say("shown: a point")

    def show_step(self, showing: Showing) -> None:
        from toylab.mixture_model import draw_plane

        draw_plane(showing)


TASK = MixtureTask()
