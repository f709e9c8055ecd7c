"""Every debug flag finds the fault that is planted for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from core.files import read_rows
from runs.process import ATTEMPT_MARK
from tests.conftest import TrainCommand
from tests.training.faults import INFINITE_WEIGHT, LABELS_OF_ANOTHER_ROW, NAN_AT_STEP_3, UNUSED_LAYER


def test_a_loss_that_is_not_finite_stops_the_run_with_its_story(train_command: TrainCommand) -> None:
    output = train_command.with_fault(NAN_AT_STEP_3, "--val_sanity", "0", status=1)
    assert "the run stopped: the loss of step 3 is nan." in output
    assert re.search(r"last finite losses:  \d+\.\d+, \d+\.\d+\n", output)
    assert re.search(r"last gradient norms: \d+(\.\d+)?, \d+(\.\d+)?\n", output)
    assert "--detect_anomaly names the module" in output and "Traceback" not in output
    batch = torch.load(train_command.run_folder / "batch_of_step_00000003.pt", weights_only=True)
    assert batch["input_ids"].shape == (4, 33)
    assert read_rows(train_command.run_folder / "attempts.jsonl")[-1]["cause"] == "diverged"


def test_detect_anomaly_names_the_module_and_step(train_command: TrainCommand) -> None:
    output = train_command.with_fault(INFINITE_WEIGHT, "--detect_anomaly", "--val_sanity", "0", status=1)
    assert (
        "--detect_anomaly: at step 1, the output of network.blocks.1.attention.output (Linear) is not finite" in output
    )
    assert "its parameter weight is not finite" in output
    assert list(train_command.run_folder.glob("batch_of_step_*.pt"))


def test_debug_unused_parameters(train_command: TrainCommand) -> None:
    output = train_command.with_fault(UNUSED_LAYER, "--debug_unused_parameters")
    assert "2 trainable parameter(s) got no gradient:\n  forgotten.weight\n  forgotten.bias\n" in output
    assert "They never learn" in output
    clean = TrainCommand(train_command.corpus, train_command.logs / "clean")("--debug_unused_parameters")
    assert "every trainable parameter got a gradient" in clean


def test_overfit_batches_learns_by_heart_and_says_so(train_command: TrainCommand) -> None:
    flags = ("--overfit_batches", "2", "--max_steps", "150", "--context_length", "16", "--log_every_n_steps", "10")
    output = train_command(*flags, "--peak_learning_rate", "0.005")
    assert re.search(r"the loss went from 5\.\d+ to 0\.[012]\d*: the model memorises these batches", output)


def test_overfit_batches_finds_labels_that_cannot_be_learnt(train_command: TrainCommand) -> None:
    flags = ("--overfit_batches", "2", "--max_steps", "40", "--context_length", "16")
    output = train_command.with_fault(LABELS_OF_ANOTHER_ROW, *flags, status=1)
    assert "it does not learn even these few batches; look at the loss, the learning rate and the labels." in output


@pytest.mark.parametrize(("limit", "targets"), [("2", 2 * 4 * 32), ("0.5", None)])
def test_limit_val_batches_is_a_count_or_a_share(train_command: TrainCommand, limit: str, targets: int | None) -> None:
    train_command("--limit_val_batches", limit, "--val_sanity", "0", "--max_steps", "2")
    counted = [
        row["valid_targets"] for row in read_rows(train_command.run_folder / "metrics.jsonl") if "valid_targets" in row
    ]
    if targets is None:
        everything = TrainCommand(train_command.corpus, train_command.logs / "all")
        everything("--limit_val_batches", "1.0", "--val_sanity", "0", "--max_steps", "2")
        rows = read_rows(everything.run_folder / "metrics.jsonl")
        targets_of_all = next(row["valid_targets"] for row in rows if "valid_targets" in row)
        assert 0.4 * targets_of_all < counted[0] < 0.6 * targets_of_all
    else:
        assert counted == [targets]


def test_fast_dev_run_goes_once_through_everything(train_command: TrainCommand) -> None:
    output = train_command.without("--max_steps", "--warm_up_steps", "--limit_val_batches")("--fast_dev_run")
    rows = read_rows(train_command.run_folder / "metrics.jsonl")
    assert [row["step"] for row in rows if "train_loss" in row] == [1]
    assert [row["valid_targets"] for row in rows if "valid_loss" in row] == [4 * 32]
    assert any("test_loss" in row for row in rows) and "test loss" in output
    assert not list((train_command.run_folder / "checkpoints").iterdir())


def test_debug_mode_rehearses_with_all_checks_on(train_command: TrainCommand) -> None:
    train_command.without("--max_steps", "--limit_val_batches", "--log_every_n_steps", "--warm_up_steps")(
        "--debug_mode"
    )
    rows = read_rows(train_command.run_folder / "metrics.jsonl")
    assert [row["step"] for row in rows if "train_loss" in row] == list(range(1, 21))


@pytest.mark.parametrize("kind", ["simple", "advanced", "pytorch"])
def test_profiler_writes_into_the_run_folder_and_prints_the_top(train_command: TrainCommand, kind: str) -> None:
    output = train_command("--profiler", kind, "--max_steps", "8")
    assert list(train_command.run_folder.glob("*profile*"))
    assert {"simple": "run_training_epoch", "advanced": "cumulative time", "pytorch": "Self CPU"}[kind] in output


def test_garbage_collection_by_step(train_command: TrainCommand) -> None:
    count = """
    import gc
    plain = gc.collect
    def collect(*args):
        print("collected by", sys._getframe(1).f_code.co_name)
        return plain(*args)
    gc.collect = collect
    """
    output = train_command.with_fault(count, "--manual_gc_collect_every_n_steps", "2")
    assert output.count("collected by on_train_batch_end") == 3


def test_no_shuffle_warns(train_command: TrainCommand) -> None:
    assert "--no_shuffle: training reads the rows in order, which is for debugging only." in train_command(
        "--no_shuffle"
    )


def test_deterministic_runs_are_equal(corpus: Path, tmp_path: Path) -> None:
    losses = []
    for name in ("a", "b"):
        train_command = TrainCommand(corpus, tmp_path / name)
        train_command("--deterministic")
        losses.append(
            [row["train_loss"] for row in read_rows(train_command.run_folder / "metrics.jsonl") if "train_loss" in row]
        )
    assert losses[0] == losses[1] and len(losses[0]) == 6


def test_console_log_has_all_lines_and_no_bars(train_command: TrainCommand) -> None:
    output = train_command()
    copied = (train_command.logs / "console.log").read_text()
    assert not any(words in output for words in ("GPU available", "TPU", "Trainer.fit")), "no news to a run"
    assert "valid loss" in copied and "run folder" in copied
    assert "\x1b" not in copied and "\r" not in copied
    assert (train_command.logs / "console.log").resolve() == (train_command.run_folder / "console.log").resolve()
    mark, *lines = copied.splitlines()
    assert ATTEMPT_MARK.fullmatch(mark) and all(line.rstrip() in output for line in lines)


def test_two_processes_never_write_one_run(train_command: TrainCommand) -> None:
    from config import parse_command_line
    from runs import RunFolder

    train_command()
    holder = RunFolder(train_command.run_folder)
    holder.lock()
    output = train_command("--resume_training_ckpt", "last", status=2)
    assert (
        f"another process is writing run {holder.run_id}: wait for it, stop it, or choose another --run_name." in output
    )
    assert parse_command_line([]).run.run_name == "default"


def test_logs_that_cannot_be_written(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = TrainCommand(corpus, tmp_path / "file" / "logs")(status=2)
    assert "cannot write there (Not a directory): choose a folder you can write to, or free some space." in output


def test_ctrl_c_says_how_to_go_on(train_command: TrainCommand) -> None:
    interrupt = """
    import signal
    import training.progress
    plain = training.progress.Progress.on_train_batch_end
    def press(self, trainer, *args):
        if trainer.global_step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        plain(self, trainer, *args)
    training.progress.Progress.on_train_batch_end = press
    """
    output = train_command.with_fault(interrupt, "--checkpoint_every_n_steps", "2", status=130)
    assert "it was stopped by hand (Ctrl-C); step 4 is saved. Resume with:\n" in output and "Traceback" not in output
    assert read_rows(train_command.run_folder / "attempts.jsonl")[-1]["cause"] == "stopped by hand"
    assert "resuming from step 4" in train_command("--resume_training_ckpt", "last")


def test_a_run_that_never_began_is_not_resumed(train_command: TrainCommand) -> None:
    train_command("--max_steps", "3")
    train_command("--dataset_name", "wikitext", status=2)
    assert "resuming from step 3" in train_command("--resume_training_ckpt", "last")
