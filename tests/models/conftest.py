"""Tests run side by side: threads of small models would wait for each other."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
