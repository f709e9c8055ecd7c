"""Three runs that a few steps of real training made, for commands that use a trained model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import TrainCommand

torch.set_num_threads(1)  # so little work takes ten times as long where threads wait for each other on a busy machine

SMALL = ("--num_transformer_blocks", "2", "--embedding_dim", "32", "--multiheaded_attention_heads", "2")


@pytest.fixture(scope="session")
def ebt_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an EBT that walks two steps from noise; its logs folder holds no other run."""
    train_command = TrainCommand(corpus, tmp_path_factory.mktemp("ebt") / "logs").ebt(*SMALL)
    train_command("--run_name", "tiny-ebt", "--recipe", "laptop")
    return train_command.run_folder


@pytest.fixture(scope="session")
def residual_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the EBT that is the default: one step from a Transformer++, nothing at random."""
    train_command = TrainCommand(corpus, tmp_path_factory.mktemp("residual") / "logs").ebt(*SMALL)
    train_command("--run_name", "tiny-residual")
    return train_command.run_folder


@pytest.fixture(scope="session")
def baseline_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a Transformer++; its logs folder holds no other run."""
    train_command = TrainCommand(corpus, tmp_path_factory.mktemp("baseline") / "logs")
    train_command(*SMALL, "--run_name", "tiny-transformer")
    return train_command.run_folder
