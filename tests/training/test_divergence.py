"""The divergence guard: what counts as a divergence, and what each of off, warn and rollback makes of one."""

from __future__ import annotations

import math
import random
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from config import parse_command_line
from config.record import values_of
from config.task import find_task
from core.files import read_rows
from data.stream import exclude_batches, stream_position
from runs import RunFolder
from tests.config.problems import problems
from tests.conftest import TrainCommand
from tests.training.traces import final, same, trace
from training.checkpoints import Checkpoints
from training.divergence import MOST_NEGATIVE, WARM_UP, DivergenceGuard, RollbackRequested, RunningLoss, restore_before
from training.errors import RunStopped

FLAGS = ("--max_steps", "45", "--checkpoint_every_n_steps", "3", "--val_check_interval", "15", "--val_sanity", "0")
# The batches at these positions in the stream, whenever they come, have a hundredfold loss.
BAD_BATCHES = """
    import torch
    from models.language import EnergyLM, TransformerLM
    def spoil(kind):
        plain = kind.training_step
        def training_step(self, batch, batch_idx):
            loss, data = plain(self, batch, batch_idx), self.trainer.datamodule
            bad = (data.rows["train"].__getitems__(at)["input_ids"] for at in data.batch_stream({first}, {last} + 1))
            return loss * {factor} if any(torch.equal(batch["input_ids"], rows) for rows in bad) else loss
        kind.training_step = training_step
    spoil(TransformerLM)
    spoil(EnergyLM)
"""
MEASURES = {"energy_gap": torch.tensor(-0.5), "step_size": torch.tensor(3.0)}
ONE_BAD_BATCH = BAD_BATCHES.format(first=34, last=34, factor=100)

finite = st.floats(0.1, 10)
seeds = st.integers(0, 2**32)


def judged(losses: list[float]) -> list[float]:
    """How many deviations each loss stands over the mean of those before it."""
    usual, deviations = RunningLoss(), []
    for loss in losses:
        deviations.append(usual.deviations_over(loss))
        usual.losses.append(loss)
    return deviations


def noise(seed: int, deviation: float, count: int = 400) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(0, deviation) for _ in range(count)]


@given(seeds, finite, st.floats(0.02, 2), st.floats(-0.01, 0.01))
def test_noise_and_slow_drifts_are_no_spikes(seed: int, level: float, deviation: float, slope: float) -> None:
    losses = [level + slope * number + step for number, step in enumerate(noise(seed, deviation))]
    assert max(judged(losses)) < 8


@given(seeds, st.floats(2, 12), st.floats(1, 200), st.floats(0.02, 0.3))
def test_a_falling_curve_is_no_spike(seed: int, height: float, pace: float, deviation: float) -> None:
    losses = [1 + height * math.exp(-number / pace) + step for number, step in enumerate(noise(seed, deviation))]
    assert max(judged(losses)) < 8


@given(seeds, finite, st.floats(0.02, 2), st.integers(60, 399))
def test_a_spike_is_found_wherever_it_comes(seed: int, level: float, deviation: float, index: int) -> None:
    losses = [level + step for step in noise(seed, deviation)]
    losses[index] = level + 20 * deviation
    assert judged(losses)[index] > 8


@given(seeds, st.floats(100, 1e6))
def test_a_wild_start_is_forgotten(seed: int, height: float) -> None:
    losses = [2 + height * math.exp(-number / 3) + step for number, step in enumerate(noise(seed, 0.1, 150))]
    assert max(judged(losses)) < 8
    assert judged([*losses, 4.0])[-1] > 8


def test_the_first_batches_are_not_judged() -> None:
    assert judged([1.0] * (WARM_UP - 1) + [100.0])[-1] == 0
    assert judged([1.0] * WARM_UP + [100.0])[-1] > 8


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=6))
def test_skipped_batches_are_left_out_for_good(windows: list[tuple[int, int]]) -> None:
    left = list(range(200))
    skipped: list[tuple[int, int]] = []
    for first, length in windows:
        skipped = exclude_batches(skipped, first, first + length)
        del left[first : first + length + 1]
    assert [stream_position(batch, skipped) for batch in range(len(left))] == left


def guard(tmp_path: Path, *flags: str) -> tuple[DivergenceGuard, Any, list[str]]:
    """A guard with a run at its step 0, and what it says."""
    messages: list[str] = []
    config = parse_command_line(["--model_name", "ebt", *flags])
    optimizer = SimpleNamespace(param_groups=[{"name": "decay", "lr": 0.1}])
    trainer = SimpleNamespace(
        **{"global_step": 0, "global_rank": 0, "is_global_zero": True, "world_size": 1},
        **{"optimizers": [optimizer], "datamodule": SimpleNamespace(skipped=[])},
    )
    measures = find_task("language").measures(values_of(config))
    return DivergenceGuard(tmp_path, config, ("energy_gap",), measures, messages.append), trainer, messages


def feed(watch: DivergenceGuard, trainer: Any, losses: list[float], gap: float = 1.0) -> None:
    for loss in losses:
        watch.step, watch.measures = trainer.global_step + 1, MEASURES
        watch.judge_loss(trainer, loss, gap)
        watch.batch_idx += 1
        trainer.global_step += 1


def test_one_trouble_is_told_once(tmp_path: Path) -> None:
    watch, trainer, messages = guard(tmp_path)
    feed(watch, trainer, [2.0] * 30 + [9.0] * 200 + [2.0] * 60 + [9.0])
    assert messages == [
        f"warning: step {step}: the loss is 9, 700 deviations over its mean of 2 ± 0.01; "
        "--divergence_guard rollback would roll back to before it."
        for step in (31, 291)
    ]
    assert watch.loss_window.mean == 2, "spikes do not move the mean"
    assert [row["action"] for row in read_rows(tmp_path / "divergence.jsonl")] == ["warn", "warn"]


def test_without_a_scale_the_first_loss_is_one(tmp_path: Path) -> None:
    watch, trainer, messages = guard(tmp_path)
    watch.scale = None
    watch.load_state_dict({"scale": 0.0})
    feed(watch, trainer, [0.002] * 30 + [0.003])
    assert len(messages) == 1 and "the loss is 0.003, 50 deviations over its mean of 0.002 ± 2e-05" in messages[0]
    again, _, _ = guard(tmp_path)
    again.scale = None
    again.load_state_dict(watch.state_dict())
    assert again.loss_window.scale == 0.002


def test_an_energy_that_rises_for_long_is_a_divergence(tmp_path: Path) -> None:
    watch, trainer, messages = guard(tmp_path)
    feed(watch, trainer, [2.0] * (MOST_NEGATIVE - 1), gap=-0.5)
    feed(watch, trainer, [2.0])
    assert not messages
    feed(watch, trainer, [2.0] * 3 * MOST_NEGATIVE, gap=-0.5)
    assert (
        len(messages) == 1 and "negative for 50 batches in a row: the energy drop along the walk is -0.5" in messages[0]
    )

    watch, trainer, _ = guard(tmp_path, "--divergence_guard", "rollback")
    feed(watch, trainer, [2.0] * 7)
    with pytest.raises(RollbackRequested) as caught:
        feed(watch, trainer, [2.0] * MOST_NEGATIVE, gap=-0.5)
    assert (caught.value.first, caught.value.last) == (7, 7 + MOST_NEGATIVE - 1), "all batches since it began"


def test_its_state_is_that_of_the_run(tmp_path: Path) -> None:
    whole, trainer, _ = guard(tmp_path)
    losses = [2 + step for step in noise(1, 0.1, 60)] + [9.0]
    feed(whole, trainer, losses, gap=-1.0)
    first, trainer, _ = guard(tmp_path)
    feed(first, trainer, losses[:33], gap=-1.0)
    second, _, _ = guard(tmp_path)
    second.load_state_dict(first.state_dict())
    second.batch_idx = first.batch_idx
    feed(second, trainer, losses[33:], gap=-1.0)
    assert whole.state_dict() == second.state_dict() and len(whole.events) == 2


def test_the_diagnosis_names_what_was_measured_and_what_to_try(tmp_path: Path) -> None:
    flags = ("--divergence_tries", "1", "--mcmc_step_size", "500", "--gradient_clip_val", "0", "--model_size", "4xs")
    watch, trainer, _ = guard(tmp_path, "--divergence_guard", "rollback", *flags)
    watch.norms.append(7.5)
    watch.events.append({"step": 20, "what": "the loss is nan", "learning_rate": 0.1, "back_to": 0})
    with pytest.raises(RunStopped) as stop:
        feed(watch, trainer, [2.0] * 30 + [9.0])
    lines = str(stop.value).splitlines()
    assert lines[:5] == [
        "it diverged again after rolling back 1 time (--divergence_tries).",
        "  step 20: the loss is nan",
        "    learning rate 0.1",
        "  step 31: the loss is 9, 700 deviations over its mean of 2 ± 0.01",
        "    energy gap -0.5, step size 3, gradient norm before it 7.5, learning rate 0.1",
    ]
    assert lines[-2:] == [
        "  resume before it:   --resume_training_ckpt last --divergence_tries 2 --divergence_step_size_factor 0.5",
        "  or a new run with:  --mcmc_step_size auto (now 500), --peak_learning_rate 0.0008 (now 0.0024), "
        "more --warm_up_steps, --gradient_clip_val 1 (now 0)",
    ]


def test_a_rehearsal_has_nothing_to_go_back_to(tmp_path: Path) -> None:
    watch, _, _ = guard(tmp_path, "--divergence_guard", "rollback")
    assert watch.rollback
    config = replace(watch.config, debugging=replace(watch.config.debugging, fast_dev_run=True))
    assert not DivergenceGuard(tmp_path, config, (), watch.declared, print).rollback


def test_nothing_to_go_back_to_is_said(tmp_path: Path) -> None:
    divergence = RollbackRequested(3, 7, [{"step": 8, "what": "the loss is nan"}], [])
    with pytest.raises(RunStopped, match=r"the loss is nan, and there is no checkpoint in .* to go back to"):
        restore_before(RunFolder(tmp_path), divergence, parse_command_line([]).checkpoint)


@pytest.mark.parametrize("every", [1, 7, 50, 60])
def test_a_checkpoint_from_before_a_long_trouble_is_kept(tmp_path: Path, every: int) -> None:
    settings = parse_command_line(["--divergence_guard", "rollback"]).checkpoint
    checkpoints = Checkpoints(tmp_path, settings, {}, Any)  # type: ignore[arg-type]
    for step in range(0, 400, every):
        checkpoints.path(step).touch()
        checkpoints.prune()
        steps = [int(file.stem[5:]) for file in tmp_path.glob("step_*.ckpt")]
        assert (
            any(max(0, step - MOST_NEGATIVE - 100) <= old <= max(0, step - MOST_NEGATIVE) for old in steps)
            and len(steps) <= 5
        )


def test_warn_says_it_and_off_is_silent(corpus: Path, tmp_path: Path) -> None:
    warned, silent = TrainCommand(corpus, tmp_path / "warn"), TrainCommand(corpus, tmp_path / "off")
    output = warned.with_fault(ONE_BAD_BATCH, *FLAGS)
    assert output.count("warning: step 35: the loss is") == 1
    rows = {row["step"]: row for row in read_rows(warned.run_folder / "metrics.jsonl") if "train_loss" in row}
    assert [rows[step]["divergences"] for step in (34, 35, 45)] == [0, 1, 1]
    assert (warned.run_folder / "batch_of_step_00000035.pt").exists()
    output = silent.with_fault(ONE_BAD_BATCH, *FLAGS, "--divergence_guard", "off")
    assert "warning" not in output and not (silent.run_folder / "divergence.jsonl").exists()
    assert "divergences" not in read_rows(silent.run_folder / "metrics.jsonl")[-2]
    assert same(final(warned.run_folder)["state_dict"], final(silent.run_folder)["state_dict"]), "looking on changes it"


WHILE_GOING_BACK = """
    import signal
    import training.divergence
    training.divergence.replace_symlink = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
"""
AFTER_A_STEP = """
    import signal
    import training.progress
    plain_end = training.progress.Progress.on_train_batch_end
    def die(self, trainer, *args):
        plain_end(self, trainer, *args)
        if trainer.global_step == {step} and trainer.datamodule.skipped:
            os.kill(os.getpid(), signal.SIGKILL)
    training.progress.Progress.on_train_batch_end = die
"""


@pytest.mark.parametrize(("recipe", "halved"), [("residual", "0.4"), ("laptop", "0.0")])
def test_a_run_that_went_back_is_resumed_exactly(corpus: Path, tmp_path: Path, recipe: str, halved: str) -> None:
    whole, pieces = (TrainCommand(corpus, tmp_path / name).ebt("--recipe", recipe) for name in ("whole", "pieces"))
    flags = (*FLAGS, "--divergence_guard", "rollback", "--divergence_step_size_factor", "0.5")
    output = whole.with_fault(ONE_BAD_BATCH, *flags)
    lines = output[output.index("step 35: the loss is") :].splitlines()
    assert lines[1].startswith("    energy gap ") and "learning rate" in lines[1]
    assert f"back to step 30 (1 of 3 times); batches 31 to 35 are skipped; the step size is now {halved}" in lines[2]

    again = (*flags, "--resume_training_ckpt", "last")
    pieces.with_fault(ONE_BAD_BATCH + WHILE_GOING_BACK, *flags, status=-signal.SIGKILL)
    for step in (32, 40):
        fault = ONE_BAD_BATCH + AFTER_A_STEP.format(step=step)
        pieces.with_fault(fault, *again, status=-signal.SIGKILL)
    pieces.with_fault(ONE_BAD_BATCH, *again)

    assert trace(whole.run_folder) == trace(pieces.run_folder)
    one, other = final(whole.run_folder), final(pieces.run_folder)
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "rng", "DataModule"):
        assert same(one[part], other[part]), part
    assert same(one["callbacks"]["DivergenceGuard"], other["callbacks"]["DivergenceGuard"])

    assert one["DataModule"]["skipped"] == [(30, 35)] and one["DataModule"]["batches"] == 45
    rows = [row for row in trace(whole.run_folder) if "train_loss" in row]
    assert [row["step"] for row in rows] == list(range(1, 46)) and max(row["train_loss"] for row in rows) < 20
    assert rows[30]["step_size"] == pytest.approx(rows[29]["step_size"] / 2, rel=0.05)
    (event,) = read_rows(whole.run_folder / "divergence.jsonl")
    assert (event["action"], event["step"], event["back_to"], event["left_out"]) == ("rollback", 35, 30, [31, 35])


# Stands for a GPU: numbers wait until a row is logged or a checkpoint is saved.
DEFERRED = """
    import training.trainer
    training.trainer.on_gpu = lambda config: True
"""


def test_numbers_that_wait_on_a_device_are_judged_before_a_save(corpus: Path, tmp_path: Path) -> None:
    at_once, deferred = TrainCommand(corpus, tmp_path / "at_once"), TrainCommand(corpus, tmp_path / "deferred")
    fault = BAD_BATCHES.format(first=34, last=34, factor='float("nan")')
    flags = (*FLAGS, "--divergence_guard", "rollback", "--log_every_n_steps", "10")
    for train_command, code in ((at_once, fault), (deferred, fault + DEFERRED)):
        output = train_command.with_fault(code, *flags)
        assert "step 35: the loss is nan\n" in output
        assert "back to step 30 (1 of 3 times); batches 31 to 35 are skipped" in output
    assert trace(at_once.run_folder) == trace(deferred.run_folder)
    one, other = final(at_once.run_folder), final(deferred.run_folder)
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "rng", "DataModule"):
        assert same(one[part], other[part]), part
    assert all(tensor.isfinite().all() for tensor in other["state_dict"].values())


def test_too_many_tries_stop_the_run(train_command: TrainCommand) -> None:
    fault = BAD_BATCHES.format(first=34, last=70, factor=100)
    output = train_command.with_fault(
        fault, *FLAGS, "--divergence_guard", "rollback", "--divergence_tries", "2", status=1
    )
    assert "the run stopped: it diverged again after rolling back 2 times (--divergence_tries)." in output
    assert [row["action"] for row in read_rows(train_command.run_folder / "divergence.jsonl")] == [
        "rollback",
        "rollback",
        "stop",
    ]
    assert (
        read_rows(train_command.run_folder / "attempts.jsonl")[-1]["cause"] == "diverged" and "Traceback" not in output
    )


def test_all_processes_go_back_when_one_of_them_sees_nan(train_command: TrainCommand) -> None:
    fault = BAD_BATCHES.format(first=27, last=27, factor='(float("nan") if data.rank else 1)')
    flags = ("--cpu_processes", "2", "--accumulate_grad_batches", "2", "--max_steps", "16")
    output = train_command.with_fault(
        fault, *flags, "--checkpoint_every_n_steps", "5", "--divergence_guard", "rollback"
    )
    assert "step 14: the loss is nan\n" in output
    assert "back to step 10 (1 of 3 times); batches 24 to 28 are skipped" in output
    end = final(train_command.run_folder)
    assert end["global_step"] == 16 and end["DataModule"]["skipped"] == [(23, 28)]
    assert all(tensor.isfinite().all() for tensor in end["state_dict"].values())


def test_settings_that_mean_nothing_are_refused() -> None:
    baseline = ("--model_name", "baseline_transformer")
    assert problems(*baseline, "--divergence_tries", "2", "--divergence_step_size_factor", "0.5") == [
        "--divergence_tries is not used by --divergence_guard warn: remove it, or choose --divergence_guard rollback.",
        "--divergence_step_size_factor is not used by --model_name baseline_transformer: "
        "remove it, or choose --model_name ebt.",
    ]
    assert problems("--divergence_guard", "off", "--divergence_deviations", "5") == [
        "--divergence_deviations is not used by --divergence_guard off: "
        "remove it, or choose --divergence_guard warn or rollback."
    ]
