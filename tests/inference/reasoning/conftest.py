"""Runs of every model of puzzles that a few steps of real training made, and a model whose thoughts are known."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support import warm

STEPS = 40
FLAGS = (
    *("--task", "reasoning", "--dataset_name", "sudoku:4", "--no_wandb", "--num_puzzles", "400"),
    *("--num_eval_puzzles", "24", "--num_transformer_blocks", "1", "--embedding_dim", "32"),
    *("--multiheaded_attention_heads", "2", "--batch_size_per_device", "32", "--evaluation_steps", "4"),
    *("--peak_learning_rate", "0.005", "--warm_up_steps", "5", "--max_steps", str(STEPS)),
    *("--val_check_interval", str(STEPS)),
)


@pytest.fixture(scope="session")
def puzzle_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs folder of three runs: tiny, tiny-looped and tiny-feed-forward-transformer."""
    folder = tmp_path_factory.mktemp("puzzles")
    models = {
        "tiny": "ebt",
        "tiny-looped": "looped_transformer",
        "tiny-feed-forward-transformer": "baseline_transformer",
    }
    for name, model in models.items():
        flags = [flag for flag in FLAGS if model != "baseline_transformer" or flag not in ("--evaluation_steps", "4")]
        words = ["train_model.py", *flags, "--run_name", name, "--model_name", model]
        words += ["--logs_dir", str(folder / "logs"), "--dataset_dir", str(folder / "cache")]
        done = warm.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "logs"
