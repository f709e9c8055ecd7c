"""The points and the energy of toylab.mixture: all of it that needs torch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchmetrics import MeanMetric, SumMetric

from config.settings import RunConfig
from data.module import DataModule, NoProcessor, Rows, Spec
from data.stream import EMPTY_ROW
from models.energy_model import Contexts, EnergyModel, WalkSettings
from models.model import Batch, Evaluation

if TYPE_CHECKING:
    from tasks import Showing
    from toylab.mixture import Mixture

PIXELS = 96  # sides of a picture of the plane, which shows -1.5 to 1.5


class Points(Rows):
    """Corners of a polygon, each with noise; a row is found from its index alone."""

    unit = "points"

    def __init__(self, settings: Mixture, seed: int, count: int) -> None:
        self.settings, self.seed, self.num_units = settings, seed, count
        self.identity = {"num_modes": (settings.num_modes, "--num_modes")}

    def __len__(self) -> int:
        return self.num_units

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        generator = torch.Generator().manual_seed(self.seed)
        angle = torch.randint(self.settings.num_modes, (len(self) + 1,), generator=generator)
        angle = angle * (2 * torch.pi / self.settings.num_modes)
        points = torch.stack([angle.cos(), angle.sin()], -1)
        noisy = points + self.settings.noise_level * torch.randn(points.shape, generator=generator)
        rows = torch.tensor([len(self) if index == EMPTY_ROW else index for index in indices], dtype=torch.int64)
        counted = torch.tensor([index != EMPTY_ROW for index in indices])
        return {"point": points[rows], "noisy": noisy[rows], "counted": counted}


def mixture_data(config: RunConfig, settings: Mixture) -> DataModule:
    splits = {split: Points(settings, seed, 512) for seed, split in enumerate(("train", "valid", "test"))}
    return DataModule(config, splits, Spec(), NoProcessor(), f"mixture {settings}")


class PointEvaluation(Evaluation):
    """Squared distance, and the share of points nearer to their corner than 0.2; NaN marks rows not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = MeanMetric().set_dtype(torch.float64)
        self.near = MeanMetric().set_dtype(torch.float64)
        self.targets = SumMetric().set_dtype(torch.float64)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        counted = target.isfinite().all(-1)
        distance = (prediction - target)[counted].double().square().sum(-1)
        self.loss.update(distance)
        self.near.update((distance < 0.04).double())
        self.targets.update(counted.sum())

    def result(self) -> dict[str, float]:
        metrics = {"loss": self.loss, "near": self.near, "targets": self.targets}
        results = {name: metric.compute().item() for name, metric in metrics.items()}
        for metric in metrics.values():
            metric.reset()
        return results


class PlaneModel(EnergyModel):
    """An energy of the plane, by a small network; a walk starts at the noisy point."""

    def __init__(self, settings: WalkSettings) -> None:
        network = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1, bias=False))
        super().__init__(network, PointEvaluation(), settings)

    def observed(self, batch: Batch) -> Tensor:
        return batch["noisy"]

    def target(self, batch: Batch) -> Tensor:
        return torch.where(batch["counted"][:, None], batch["point"], torch.nan)

    def counted(self, target: Tensor) -> Tensor:
        return target.isfinite().all(-1)

    def start(self, observed: Tensor, fixed: bool = False, contexts: Contexts | None = None) -> Tensor:
        return observed

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        counted = self.counted(target)
        distance = torch.where(counted[..., None], y - target, 0).square().sum(-1)
        return distance.sum() / counted.sum()  # no shape depends on the data, so that costs can be counted

    def energy(self, z: Tensor, context: Any) -> Tensor:
        return self.network(z).squeeze(-1)


def draw_plane(showing: Showing) -> None:
    """A picture of where random points move, careless of generators, modes and gradients: training must not see it."""
    model = showing.model
    model.train()
    torch.set_grad_enabled(True)
    start = torch.randn(256, 2, device=model.device) + random.random() + np.random.rand()
    model.network(start).sum().backward()
    model.measured = {"steps": torch.tensor(7.0)}
    end = model(start).detach().cpu()
    pixels = np.full((PIXELS, PIXELS), 255, np.uint8)
    column, row = ((end.nan_to_num() + 1.5) / 3 * PIXELS).clamp(0, PIXELS - 1).long().T.numpy()
    pixels[row, column] = 0
    showing.save_picture("plane", lambda file: Image.fromarray(pixels).save(file, "png"))
