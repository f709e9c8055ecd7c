"""The record of a run: every row says where it was measured, a schema says what, and a resume goes on exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

from config import parse_command_line
from core.files import append_row, read_rows
from data.module import StreamLoader
from data.stream import BatchStream
from models.language import EnergyLM
from runs.metrics import LANGUAGE_TASK as TASK
from runs.run import Run
from tests.conftest import TrainCommand
from tests.support.builders import build_model, meta_rows
from training.cost import batch_costs, step_cost
from training.recorder import MetricsFile
from training.stopping import GOAL_UNMET

SLOW_LOADER = """
    import time
    from data.language.rows import PackedRows
    plain = PackedRows.__getitems__
    def slow(self, indices):
        time.sleep(0.2)
        return plain(self, indices)
    PackedRows.__getitems__ = slow
"""
SIZE = "--num_transformer_blocks 2 --embedding_dim 16 --multiheaded_attention_heads 2 --context_length 8"


@pytest.mark.parametrize("conditioning", ["default", "time_embed"])
def test_a_batch_costs_what_its_steps_cost(conditioning: str) -> None:
    flags = f"--recipe laptop {SIZE} --ebt_type {conditioning} --mcmc_num_steps 2 --randomize_mcmc_num_steps 1"
    model = build_model(parse_command_line(flags.split()), 11, 0, 10)
    assert isinstance(model, EnergyLM)
    drawn = model.walk_settings
    costs = batch_costs(model, meta_rows(4, 8))
    assert list(costs) == [2, 3, 4] and model.walk_settings == drawn
    assert costs[2].flops < costs[3].flops < costs[4].flops
    for repeats in (1, 2):
        model.walk_settings = replace(drawn, min_repeats=repeats, max_repeats=repeats)
        assert costs[2 * repeats] == step_cost(model, meta_rows(4, 8))


def test_replayed_rows_have_their_cost() -> None:
    flags = f"--recipe s2 {SIZE} --batch_size_per_device 4"
    with_replay, without = (
        build_model(parse_command_line(f"{flags} {more}".split()), 11, 0, 10)
        for more in ("", "--no-mcmc_replay_buffer")
    )
    replayed, fresh = batch_costs(with_replay, meta_rows(4, 8)), batch_costs(without, meta_rows(6, 8))
    for one, other in zip(replayed.values(), fresh.values(), strict=True):
        assert one.flops == other.flops


def test_a_model_without_an_energy_has_one_cost() -> None:
    flags = f"{SIZE} --model_name baseline_transformer"
    model = build_model(parse_command_line(flags.split()), 11, 0, 10)
    (cost,) = batch_costs(model, meta_rows(4, 8)).items()
    assert cost == (0, step_cost(model, meta_rows(4, 8))) and cost[1].flops > 0


class SlowRows(Dataset[Any]):
    def __getitems__(self, indices: list[int]) -> Any:
        import time

        import torch

        time.sleep(0.02)
        return torch.zeros(len(indices), 9, dtype=torch.int64)


def test_waiting_for_batches_is_measured() -> None:
    stream = BatchStream(40, 4, batches_per_epoch=10, start=0, stop=5, skipped=(), seed=0, shuffle=True)
    loader = StreamLoader(SlowRows(), stream)
    assert len(list(loader)) == 5 and 0.1 <= loader.wait_seconds < 2


def test_the_schema_names_every_column(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.log_metrics({"train_loss": 2.0}, 10)
    file.log_metrics({"valid_accuracy": 0.5, "made_up": 1.0}, 20)
    schema = json.loads((tmp_path / "metrics.schema.json").read_bytes())
    assert list(schema) == ["step", "train_loss", "valid_accuracy", "made_up"]
    assert schema["train_loss"] == {"title": "training loss", "unit": "nats per token", "better": "lower"}
    assert schema["valid_accuracy"]["better"] == "higher" and schema["made_up"]["better"] is None


def test_a_resume_cuts_metrics_and_alarms_alike(tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "alarms.jsonl"):
        for step in (10, 20, 30):
            append_row(tmp_path / name, {"step": step})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 15, "tr')
    MetricsFile.truncate_after(tmp_path / "metrics.jsonl", 20)
    for name in ("metrics.jsonl", "alarms.jsonl"):
        assert (tmp_path / name).read_text() == '{"step": 10}\n{"step": 20}\n'


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A run that reads in order, and what its two attempts said: the first ends early with a goal out of reach, after a
    slow loader; the second has loader processes, and a goal that it meets."""
    train_command = TrainCommand(corpus, tmp_path_factory.mktemp("trained") / "logs").ebt(
        "--randomize_mcmc_num_steps", "2"
    )
    flags = ("--no_shuffle", "--log_every_n_steps", "2", "--max_steps", "40", "--val_check_interval", "2")
    never_better = ("--checkpoint_monitor_mode", "max", "--early_stop", "1")  # of a loss, which falls
    unmet = ("--goal", "valid_loss<0.1")
    first = train_command.with_fault(SLOW_LOADER, *flags, *never_better, *unmet, status=GOAL_UNMET)
    again = ("--resume_training_ckpt", "last", "--goal", "valid_loss<50", "--early_stop", "0")
    return train_command.run_folder, first, train_command(*flags, *again, "--num_workers", "1")


def test_a_run_ends_early_and_its_status_tells_of_the_goal(trained: tuple[Path, str, str]) -> None:
    folder, first, second = trained
    assert "--early_stop 1: valid_loss did not get better than" in first
    assert "--goal valid_loss<0.1 was not met: the nearest was" in first
    assert "resuming from step 4" in second and "--goal valid_loss<50 was met at step 6." in second
    run = Run(folder)
    assert run.state == "finished"
    causes = [attempt["cause"] for attempt in run.attempts]
    assert causes == ["finished: no longer getting better", "finished: goal met"]
    steps = [row["step"] for row in run.metrics() if "valid_loss" in row]
    assert steps == [0, 2, 4, 6], "and it does not validate twice where it ends"


def test_every_row_says_where_it_was_measured(trained: tuple[Path, str, str]) -> None:
    folder, _, _ = trained
    rows = read_rows(folder / "metrics.jsonl")
    assert all(TASK.axes.keys() <= row.keys() for row in rows)
    for name in ("step", "epoch", "tokens", "flops", "seconds", "time", "attempt"):
        values = [row[name] for row in rows]
        assert values == sorted(values), f"{name} goes on where the first attempt ended"
    assert rows[0]["flops"] == 0 and rows[-1]["tokens"] == 6 * 4 * 32 and rows[-1]["attempt"] == 2
    schema = json.loads((folder / "metrics.schema.json").read_bytes())
    assert {name for row in rows for name in row} <= schema.keys()
    assert all(TASK.measure(name).title != name.replace("_", " ") for name in schema if name not in TASK.axes)


def test_flops_are_those_of_the_steps_that_were_taken(trained: tuple[Path, str, str]) -> None:
    folder, _, _ = trained
    config = parse_command_line(["--config", str(folder / "config.json")])
    costs = batch_costs(build_model(config, 258, 256, 257), meta_rows(4, 32))
    rows = read_rows(folder / "metrics.jsonl")
    sums = {one.flops + other.flops for one in costs.values() for other in costs.values()}
    totals = [0, *(row["flops"] for row in rows if "train_loss" in row)]
    grown = [after - before for before, after in pairwise(totals)]
    assert len(grown) == 3 and set(grown) <= sums


def test_usage_and_alarms_of_a_run(trained: tuple[Path, str, str]) -> None:
    folder, output, _ = trained
    samples = read_rows(folder / "usage.jsonl")
    assert {sample["attempt"] for sample in samples} == {1, 2} and samples[-1]["step"] == 6
    assert "stats       about " in output and "memory has room" not in output, "only what is not well is told"
    assert "!!          starved by the loader:" in output and "try --num_workers 1 (now 0)" in output
    assert "alarm, step 0: not shuffled: the settings have the training rows read in order." in output
    assert [alarm["kind"] for alarm in read_rows(folder / "alarms.jsonl")] == ["not shuffled"]
