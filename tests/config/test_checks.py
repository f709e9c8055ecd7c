"""Values that are fine alone and wrong together, each with the sentence that a person reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from config import parse_command_line
from config.checks import ResolvedFlags, no_effect_message
from config.flags import flag, flags_of
from tests.config.problems import problems


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--embedding_dim 100 --multiheaded_attention_heads 7",
         "--multiheaded_attention_heads is 7, with --embedding_dim 100: heads must divide the width; "
         "choose 5 or 10 heads."),
        ("--embedding_dim 12 --multiheaded_attention_heads 4",
         "--multiheaded_attention_heads is 4, with --embedding_dim 12: the width of a head must be even; "
         "choose 3 or 6 heads."),
        ("--embedding_dim 128 --multiheaded_attention_heads 1000",
         "--multiheaded_attention_heads is 1000, with --embedding_dim 128: heads must divide the width; "
         "choose 64 heads."),
        ("--embedding_dim 13", "--embedding_dim is 13: give an even width, since rotary positions turn pairs."),
        ("--warm_up_steps 700 --max_steps 300",
         "--warm_up_steps is 700, over --max_steps 300: give --warm_up_steps of at most 300, or more steps."),
        ("--warm_up_steps 50 --max_scheduling_steps 40",
         "--warm_up_steps is 50, over --max_scheduling_steps 40: give --warm_up_steps of at most 40, or more steps."),
        ("--warm_up_steps 50 --max_steps 20 --debug_mode",
         "--warm_up_steps is 50, over --max_steps 20: give --warm_up_steps of at most 20, or more steps."),
        ("--warm_up_steps 700 --overfit_batches 2 --max_steps 300",
         "--warm_up_steps is 700, over --max_steps 300: give --warm_up_steps of at most 300, or more steps."),
        ("--validation_split_pct 0.6 --test_split_pct 0.4",
         "--validation_split_pct is 0.6 and --test_split_pct 0.4: nothing is left to train on; "
         "give shares that sum to less than 1."),
        ("--execution_mode finetune",
         "--execution_mode is 'finetune' without a checkpoint to start from: add --finetuning_model_ckpt PATH."),
        ("--execution_mode finetune --finetuning_model_ckpt a --resume_training_ckpt last",
         "--resume_training_ckpt and --finetuning_model_ckpt are both given: "
         "a resumed run has its own weights; remove one of them."),
        ("--only_test",
         "--only_test is given without a checkpoint to evaluate: add --only_test_model_ckpt PATH, or last."),
        ("--only_test --resume_training_ckpt last",
         "--resume_training_ckpt has no effect with --only_test: use --only_test_model_ckpt instead."),
        ("--find_lr --debug_dataloader",
         "--debug_dataloader and --find_lr are given together: each does its own work instead of training; keep one."),
        ("--check_val_every_n_epoch 1 --val_check_interval 0.5",
         "--val_check_interval has no effect with --check_val_every_n_epoch: remove one of them."),
        ("--prefetch_factor 4",
         "--prefetch_factor has no effect with --num_workers 0: remove it, or give --num_workers."),
        ("--seed 3 --is_random_seed", "--seed has no effect with --is_random_seed: remove one of them."),
        ("--seed 4294967296", "--seed is 4294967296: give a whole number from 0 to 4294967295."),
        ("--run_name a/b",
         "--run_name is 'a/b': it becomes part of a file's name; leave out '/', and do not use '.' or '..'."),
        ("--run_name ..",
         "--run_name is '..': it becomes part of a file's name; leave out '/', and do not use '.' or '..'."),
        ("--run_name " + 101 * "a",
         f"--run_name is '{101 * 'a'}': it becomes part of a file's name; use 1 to 100 characters (200 bytes)."),
        ("--run_name " + 67 * "語",
         f"--run_name is '{67 * '語'}': it becomes part of a file's name; use 1 to 100 characters (200 bytes)."),
        ("--console_log_filename logs/x",
         "--console_log_filename is 'logs/x': it becomes part of a file's name; leave out '/', "
         "and do not use '.' or '..'."),
        ("--tokenizer bpe:299",
         "--tokenizer is 'bpe:299': write bpe:SIZE with a whole number of at least 300, such as bpe:4096."),
        ("--tokenizer bpe",
         "--tokenizer is 'bpe': write bpe:SIZE with a whole number of at least 300, such as bpe:4096."),
        ("--gpus 0",
         "--gpus is '0': choose none to train without a GPU, or a number of GPUs from 1 on."),
        ("--gpus -2", "--gpus is '-2': choose auto, none, -1 (all), a number of GPUs, or a list of them such as 0,2."),
        ("--gpus 01", "--gpus is '01': choose auto, none, -1 (all), a number of GPUs, or a list of them such as 0,2."),
        ("--gpus 1,", "--gpus is '1,': choose auto, none, -1 (all), a number of GPUs, or a list of them such as 0,2."),
        ("--gpus 1,1", "--gpus is '1,1': name each GPU once."),
        # flags that another one makes idle
        ("--only_test_model_ckpt last",
         "--only_test_model_ckpt has no effect without --only_test: remove it, or add --only_test."),
        ("--beta1 0.8 --optimizer sgd",
         "--beta1 is not used by --optimizer sgd: remove it, or choose --optimizer adamw."),
        ("--beta2 0.999 --optimizer adafactor",
         "--beta2 is not used by --optimizer adafactor: remove it, or choose --optimizer adamw."),
        ("--min_lr_scale 5 --lr_schedule constant",
         "--min_lr_scale is not used by --lr_schedule constant: remove it, or choose --lr_schedule cosine, linear or "
         "one_cycle."),
        ("--finetuning_model_ckpt a",
         "--finetuning_model_ckpt is not used by --execution_mode pretrain: remove it, or choose --execution_mode "
         "finetune."),
        ("--cpu_processes 2 --gpus 2",
         "--cpu_processes is not used by --gpus 2: remove it, or choose --gpus auto or none."),
    ],
)  # fmt: skip
def test_a_wrong_combination_is_told(line: str, problem: str) -> None:
    assert problems(*line.split()) == [problem]


@pytest.mark.parametrize(
    "name", ["val_check_interval", "overfit_batches", "limit_train_batches", "limit_val_batches", "limit_test_batches"]
)
def test_a_count_of_batches_is_whole(name: str) -> None:
    assert problems(f"--{name}", "2.5") == [
        f"--{name} is 2.5: above 1 it is a number of batches; give a whole number, or a share of at most 1."
    ]
    parse_command_line([f"--{name}", "0.5"])
    parse_command_line([f"--{name}", "3"])


@pytest.mark.parametrize(
    "line",
    [
        "--embedding_dim 130 --multiheaded_attention_heads 5",
        "--max_steps 20",
        "--max_scheduling_steps 1",
        "--warm_up_steps 50 --max_steps 50",
        "--warm_up_steps 50 --max_steps 20 --max_scheduling_steps 100",
        "--warm_up_steps 50 --debug_mode",
        "--warm_up_steps 50 --fast_dev_run",
        "--execution_mode finetune --finetuning_model_ckpt a",
        "--execution_mode finetune --resume_training_ckpt last",
        "--only_test --only_test_model_ckpt last",
        "--find_lr --print_config --plan",
        "--check_val_every_n_epoch 1",
        "--prefetch_factor 4 --num_workers 2",
        "--prefetch_factor 4 --debug_dataloader",
        "--seed 4294967295",
        "--is_random_seed",
        "--gpus 0,2",
        "--find_lr --find_batch_size",
        "--gpus 8",
        "--gpus none --cpu_processes 2",
        "--tokenizer bpe:300",
        "--tokenizer org/name",
        "--no_wandb --wandb_entity me --wandb_project mine --wandb_tags a b --wandb_offline",
        "--debug_mode --wandb_project mine",
        "--run_name " + 100 * "a",
        "--debug_dataloader --no_wandb",
    ],
)
def test_what_is_right_is_not_refused(line: str) -> None:
    parse_command_line(line.split())


def test_a_huge_width_is_judged_at_once() -> None:
    assert "heads must divide" in problems("--embedding_dim", str(2**62), "--multiheaded_attention_heads", "7")[0]


def test_a_file_may_restate_defaults_but_not_ask_for_idle_flags(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("lr_schedule: constant\nmin_lr_scale: 10\nprefetch_factor: 2\nbeta1: 0.9\noptimizer: sgd\n")
    parse_command_line(["--config", str(file)])
    file.write_text("only_test_model_ckpt: last\nbeta1: 0.8\n")
    assert problems("--config", str(file), "--optimizer", "sgd") == [
        f"beta1 in {file} is not used by --optimizer sgd: remove it, or choose --optimizer adamw.",
        f"only_test_model_ckpt in {file} has no effect without --only_test: remove it, or add --only_test.",
    ]


def test_a_drawn_seed_on_record_is_no_contradiction(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text('{"trainer": {"is_random_seed": true, "seed": 77}}')
    assert parse_command_line(["--config", str(file)]).trainer.seed == 77


def test_a_size_that_the_file_overrules_is_told(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "embedding_dim: 256\nnum_transformer_blocks: 4\nmultiheaded_attention_heads: 4\npeak_learning_rate: 0.0018\n"
    )
    assert problems("--config", str(file), "--model_size", "large", "--peak_learning_rate", "1e-3") == [
        f"--model_size large has no effect with {file}, which sets num_transformer_blocks, "
        "multiheaded_attention_heads and embedding_dim: remove one of them."
    ]
    parse_command_line(["--config", str(file), "--model_size", "3xs"])


@dataclass(frozen=True)
class Models:
    """flags of models that are not here yet"""

    model_name: str = flag("baseline_transformer", "which", choices=("baseline_transformer", "ebt", "dit"))
    cached: bool = flag(True, "keep the cache")
    steps: int = flag(2, "steps", needs={"model_name": ("ebt",)})
    noisy: bool = flag(False, "noise", needs={"model_name": ("ebt", "dit")})
    length: int = flag(3, "of the cache", needs={"cached": (True,), "model_name": ("ebt",)})


MODELS = flags_of("models", Models)


@pytest.mark.parametrize(
    ("name", "changes", "line"),
    [
        ("steps", {"steps": 3},
         "--steps is not used by --model_name baseline_transformer: remove it, or choose --model_name ebt."),
        ("steps", {"steps": 3, "model_name": "ebt"}, None),
        ("steps", {}, None),
        ("noisy", {"noisy": True},
         "--noisy is not used by --model_name baseline_transformer: remove it, or choose --model_name ebt or dit."),
        ("noisy", {"noisy": False},
         "--no-noisy is not used by --model_name baseline_transformer: "
          "remove it, or choose --model_name ebt or dit."),
        ("length", {"length": 4, "cached": False},
         "--length has no effect with --no-cached: remove one of them."),
        ("length", {"length": 4},
         "--length is not used by --model_name baseline_transformer: remove it, or choose --model_name ebt."),
    ],
)  # fmt: skip
def test_needs_are_generic(name: str, changes: dict[str, Any], line: str | None) -> None:
    defaults = {flag_.name: flag_.default for flag_ in MODELS.values()}
    sources = dict.fromkeys(defaults, "default") | dict.fromkeys(changes, "command line")
    assert no_effect_message(MODELS[name], MODELS, ResolvedFlags(defaults | changes, sources, defaults), set()) == line
    assert (
        no_effect_message(
            MODELS[name], MODELS, ResolvedFlags(defaults | changes, sources, defaults), {"model_name", "cached"}
        )
        is None
    )
