"""A program that prints the number of threads with which a run computes."""

from __future__ import annotations

THREADS = """
import torch
from config import parse_command_line
from training.trainer import prepare_process
prepare_process(parse_command_line([]))
print(torch.get_num_threads())
"""
