"""What the switches of a rehearsal set, unless it is given too."""

from __future__ import annotations

from typing import Any

REHEARSALS: dict[str, dict[str, Any]] = {
    "debug_mode": {
        "max_steps": 20,
        "limit_val_batches": 5.0,
        "val_sanity": 2,
        "log_every_n_steps": 1,
        "checkpoint_every_n_steps": 10,
        "num_workers": 0,
        "no_wandb": True,
        "detect_anomaly": True,
        "debug_unused_parameters": True,
    },
    "fast_dev_run": {
        "max_steps": 1,
        "val_sanity": 0,
        "log_every_n_steps": 1,
        "no_wandb": True,
        "run_testing_after_training": True,
    },
    "overfit_batches": {"val_sanity": 0},
}
