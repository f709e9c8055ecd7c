"""What the pages say of the code is true: files and methods they name exist, and the task of docs/tasks.md learns."""

from __future__ import annotations

import ast
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from config import parse_command_line
from config.record import values_of
from config.task import measure_of
from data.module import save_data
from data.stream import EMPTY_ROW
from tasks import Showing, find_task
from tests.conftest import ROOT
from tests.support.example_task import import_example

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FILES = re.compile(r"`((?:core|config|data|models|tasks|training|inference|runs|launch|tests)/[a-z0-9_/]+\.py)`")
METHODS = re.compile(r"`([A-Z][A-Za-z]+)\.([a-z_]+)`")


def test_the_example_of_a_task_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_example(tmp_path, monkeypatch)
    config = parse_command_line(["--task", "lab.mixture", "--no_wandb", "--mcmc_num_steps", "2"])
    task = find_task(config.run.task)
    data = task.data(config)
    save_data(data, tmp_path)
    model = task.model(config, task.spec(config, tmp_path))
    train = data.rows["train"].__getitems__(range(512))
    valid = data.rows["valid"].__getitems__([*range(512), EMPTY_ROW])
    model.calibrate(train)
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    for _ in range(150):
        optimizer.zero_grad()
        model.training_step(train, 0).backward()
        optimizer.step()
    model.evaluate(valid)
    results, (reference,) = model.compute_results(), task.references(data, "valid", 512).values()
    measures = task.measures(values_of(config))
    assert results["targets"] == reference["targets"] == 512
    assert results["loss"] < reference["loss"]
    assert all(measure_of(f"valid_{name}", measures) for name in results if name != "targets")
    assert all(measure_of(name, measures) for name in model.measured if not name.startswith("train_"))
    lines: list[str] = []
    task.show(Showing(config, data, model.eval(), tmp_path, 150, lines.append))
    assert "points of held-out data" in lines[0] and (tmp_path / "energy.png").exists()


def test_the_example_of_a_picture_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_example(tmp_path, monkeypatch)
    config = parse_command_line(["--task", "lab.mixture", "--no_wandb"])
    task = find_task(config.run.task)
    data = task.data(config)
    (method,) = re.findall(r"```python\n(    def show_step.*?)```", (ROOT / "docs" / "tasks.md").read_text(), re.S)
    namespace: dict[str, Any] = {}
    exec(textwrap.dedent(method), namespace)
    with torch.no_grad():
        model = task.model(config, data.spec).eval()
        namespace["show_step"](task, Showing(config, data, model, tmp_path, 200))
    assert (tmp_path / "pictures" / "plane_step_0000200.png").read_bytes().startswith(b"\x89PNG")


@cache
def methods() -> set[tuple[str, str]]:
    """(class, method) of the rooms that the pages speak of in detail."""
    files = [file for room in ("models", "data", "tasks") for file in (ROOT / room).rglob("*.py")]
    classes = [node for file in files for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    return {(one.name, part.name) for one in classes for part in one.body if isinstance(part, ast.FunctionDef)}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "log.md"], ids=lambda page: page.name)
def test_what_the_pages_name_of_the_code_exists(page: Path) -> None:
    text = page.read_text()
    assert [file for file in FILES.findall(text) if not (ROOT / file).exists()] == []
    assert [name for name in METHODS.findall(text) if name not in methods()] == []
