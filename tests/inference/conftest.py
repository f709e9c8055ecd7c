"""Three runs that a few steps of real training made, for commands that use a trained model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import Door

torch.set_num_threads(1)  # so little work takes ten times as long where threads wait for each other on a busy machine

SMALL = ("--num_transformer_blocks", "2", "--embedding_dim", "32", "--multiheaded_attention_heads", "2")


@pytest.fixture(scope="session")
def ebt_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an EBT that walks two steps from noise; its logs folder holds no other run."""
    door = Door(corpus, tmp_path_factory.mktemp("ebt") / "logs").ebt(*SMALL)
    door("--run_name", "tiny-ebt", "--recipe", "laptop")
    return door.run_folder


@pytest.fixture(scope="session")
def residual_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the EBT that is the default: one step from a Transformer++, nothing at random."""
    door = Door(corpus, tmp_path_factory.mktemp("residual") / "logs").ebt(*SMALL)
    door("--run_name", "tiny-residual")
    return door.run_folder


@pytest.fixture(scope="session")
def baseline_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a Transformer++; its logs folder holds no other run."""
    door = Door(corpus, tmp_path_factory.mktemp("baseline") / "logs")
    door(*SMALL, "--run_name", "tiny-transformer")
    return door.run_folder
