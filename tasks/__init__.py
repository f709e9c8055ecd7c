"""What can be learned: one module per task, which says all that the other rooms have to know of it.

A module here imports no torch; what needs it is imported inside the methods. `find_task` gives the TASK of a module.
May import: core, config, data, models, runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

from config import RunConfig
from config import task as facts
from core.errors import UserError

if TYPE_CHECKING:
    from data.module import DataModule, Processor, Rows, Spec
    from models.model import Model


@dataclass(frozen=True)
class Showing:
    """What `Task.show` and `Task.show_step` have to work with. Lines go to `say`, files into `folder`; the model is in
    eval mode."""

    config: RunConfig
    data: DataModule
    model: Model
    folder: Path
    step: int
    say: Callable[[str], None] = print

    def save_picture(self, name: str, write: Callable[[IO[bytes]], object]) -> Path:
        """Write a PNG by `write(file)`, such as `figure.savefig`, and return its path: pictures/NAME_step_STEP.png of
        the run folder. The pages show those of one name by training step."""
        from core.files import write_atomically
        from runs.pictures import picture_path

        path = picture_path(self.folder, name, self.step)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, write, sync=False)
        return path


class Task(facts.TaskFacts):
    """The facts of a task, and what needs torch: its data, its model, and what they are compared with."""

    spec_class: ClassVar[str] = "data.module:Spec"  # module:class of what its model is built from

    def data(self, config: RunConfig, *runs: Path | None) -> DataModule:
        """Splits, spec and processor. runs: folders of earlier runs, whose processor is used again where it fits."""
        raise NotImplementedError

    def model(self, config: RunConfig, spec: Any) -> Model:
        """The model of --model_name, built from frozen facts alone."""
        raise NotImplementedError

    def processor(self, config: RunConfig, folder: Path) -> Processor:
        """What turns raw input into a batch and a prediction into what a person reads; from a run folder alone."""
        from data.module import NoProcessor

        return NoProcessor()

    def spec(self, config: RunConfig, folder: Path) -> Spec:
        """What the model of a run was built from, from its folder alone."""
        from data.module import read_spec

        return read_spec(folder, self.spec_class)

    def references(self, data: DataModule, split: str, units: int) -> dict[str, dict[str, float]]:
        """Measures that are reached without learning, on the first `units` units of a split, by the reference's name:
        {"bigram counts": {"loss": 2.27}}. The first reference is what a model must beat."""
        return {}

    def floor(self, data: DataModule) -> tuple[str, float] | None:
        """Name and validation loss of a reference that a model must beat to have learned anything; None: there is none.
        It has to be cheap to compute."""
        return None

    def shifted(self, data: DataModule) -> Rows | None:
        """Rows of another distribution, for think-curve; None where there are none."""
        return None

    def describe_data(self, config: RunConfig, data: DataModule) -> str:
        """The data in the first line of a run."""
        return f"{data.rows['train'].num_units:,} {self.unit} to learn from"

    def check(self, config: RunConfig, data: DataModule) -> None:
        """Raise a UserError where settings and data do not go together."""

    def show(self, showing: Showing) -> None:
        """Print and draw what the model does: at the end of a run."""

    def show_step(self, showing: Showing) -> None:
        """Draw what the model does by now (`showing.save_picture`): after about a dozen validations of a run, in the
        first process alone. It may draw random numbers, which training does not see, but must not call
        `model.evaluate`, whose results belong to the validation."""


def find_task(name: str) -> Task:
    """The task of a run, ready to build its data and its model."""
    task = facts.find_task(name)
    if not isinstance(task, Task):
        raise UserError(f"--task is {name!r}: its TASK has no data and no model; make it a tasks.Task.")
    return task
