"""Two runs that a few steps of real training made, for commands that use a trained model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Door

SMALL = ("--num_transformer_blocks", "2", "--embedding_dim", "32", "--multiheaded_attention_heads", "2")


@pytest.fixture(scope="session")
def ebt_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an EBT; its logs folder holds no other run."""
    door = Door(corpus, tmp_path_factory.mktemp("ebt") / "logs").ebt(*SMALL)
    door("--run_name", "tiny-ebt")
    return door.run_folder


@pytest.fixture(scope="session")
def baseline_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a Transformer++; its logs folder holds no other run."""
    door = Door(corpus, tmp_path_factory.mktemp("baseline") / "logs")
    door(*SMALL, "--run_name", "tiny-transformer")
    return door.run_folder
