"""The task of reasoning from the command line: it trains, resumes to the bit, shows what it solves; --match_flops."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from config import parse_command_line
from config.record import from_dict, to_dict, values_of
from config.settings import Blocks
from config.task import headline
from core.errors import UserError
from core.files import read_rows
from data.reasoning.build import find_puzzle
from data.reasoning.references import BLIND_GUESS, ELIMINATION, GUESS, SOLVER, allowed_symbols, puzzle_references
from runs.pictures import pictures_by_step
from tasks import find_task
from tasks.reasoning import PuzzleEnergy, Puzzles, Thinking
from tests.config.problems import problems
from tests.conftest import ROOT
from tests.support import warm
from training.match_flops import difference, match_flops, run_flops, step_flops

MODELS = ("ebt", "baseline_transformer", "looped_transformer")
SMALL = (
    *("--task", "reasoning", "--no_wandb", "--dataset_name", "sudoku:4", "--embedding_dim", "16"),
    *("--multiheaded_attention_heads", "2", "--batch_size_per_device", "8", "--evaluation_steps", "4"),
    *("--num_puzzles", "400", "--num_eval_puzzles", "12"),
)
WITHOUT_STEPS = tuple(word for word in SMALL if word not in ("--evaluation_steps", "4"))
TRAINED = (
    *("--max_steps", "60", "--log_every_n_steps", "3", "--checkpoint_every_n_steps", "7"),
    *("--langevin_dynamics_noise", "0.01", "--mcmc_replay_buffer", "--run_testing_after_training"),
    *("--val_check_interval", "20", "--resume_training_ckpt", "last_or_new"),
)
TIMED = ("seconds", "time", "puzzles_per_second", "loader_wait_share", "attempt")


def program(logs: Path, *words: str, status: int = 0, **variables: str) -> str:
    """What `python WORDS --logs_dir LOGS` prints; `status` is what it must exit with."""
    environment = {**os.environ, **variables}
    command = [sys.executable, *words, "--logs_dir", str(logs)]
    done = warm.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    assert done.returncode == status, f"exit status {done.returncode}, not {status}:\n{output}"
    return output


def train(logs: Path, *flags: str, status: int = 0, **variables: str) -> str:
    cache = ("--dataset_dir", str(logs.parent.parent / "puzzles"))
    base = WITHOUT_STEPS if "baseline_transformer" in flags else SMALL
    return program(logs, "train_model.py", *base, *cache, *flags, status=status, **variables)


def only_run(logs: Path) -> Path:
    (folder,) = (logs / "runs").glob("[!.]*")
    return folder


def settings_of(folder: Path) -> dict[str, Any]:
    return values_of(from_dict(json.loads((folder / "config.json").read_bytes())))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of an EBT that was trained and tested in one piece, and what it printed."""
    logs = tmp_path_factory.mktemp("reasoning") / "logs"
    output = train(logs, *TRAINED)
    return only_run(logs), output


# Flags


def test_the_defaults_are_those_of_a_laptop() -> None:
    config = parse_command_line(["--task", "reasoning"])
    shape, energy, thinking = config[Blocks], config[PuzzleEnergy], config[Thinking]
    assert (shape.num_transformer_blocks, shape.embedding_dim, shape.multiheaded_attention_heads) == (2, 64, 4)
    assert (energy.energy_head, energy.mcmc_num_steps, energy.randomize_mcmc_num_steps) == ("dot", 1, 1)
    assert (energy.denoising_initial_condition, energy.gaussian_random_noise_scaling) == ("random_noise", 1.0)
    assert energy.mcmc_step_size == "auto" and energy.mcmc_step_size_learnable and energy.no_mcmc_detach
    assert (thinking.evaluation_steps, thinking.loops_min, thinking.loops_max) == (16, 2, 4)
    assert (config.data.dataset_name, config[Puzzles].clues) == ("sudoku:6", None)
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    "flag",
    ["context_length", "tie_embeddings", "isolate_documents", "energy_form", "ebt_type", "tokenizer", "text_field",
     "update_from", "validation_split_pct", "gradient_checkpointing"],
)  # fmt: skip
def test_a_flag_that_only_language_uses_is_refused(flag: str) -> None:
    words = [] if flag in ("tie_embeddings", "isolate_documents", "gradient_checkpointing") else ["1"]
    assert problems("--task", "reasoning", f"--{flag}", *words) == [
        f"--{flag} is a flag of language: remove it, or choose --task."
    ]


def test_language_has_no_flag_of_puzzles() -> None:
    assert problems("--clues", "18-26") == ["--clues is a flag of reasoning: remove it, or choose --task."]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--model_name looped_transformer --loops_min 5",
         "--loops_min is 5, over --loops_max 4: give at most 4, or more --loops_max."),
        ("--loops_max 8", "--loops_max is not used by --model_name ebt: remove it, or choose --model_name "
         "looped_transformer."),
        ("--model_name baseline_transformer --evaluation_steps 4", "--evaluation_steps is not used by --model_name "
         "baseline_transformer: remove it, or choose --model_name ebt or looped_transformer."),
        ("--denoising_initial_condition prior",
         "--denoising_initial_condition is 'prior': choose random_noise or zeros."),
        ("--match_flops -3", "--match_flops is '-3': give a number of FLOPs above 0, such as 2.8e12, or the name of a "
         "run."),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_told(line: str, problem: str) -> None:
    assert problems("--task", "reasoning", *line.split()) == [problem]


def test_the_headline_is_the_share_of_solved_puzzles() -> None:
    task = find_task("reasoning")
    for model in MODELS:
        measures = task.measures(values_of(parse_command_line(["--task", "reasoning", "--model_name", model])))
        assert headline(measures) == "valid_solved" and measures[0].unit == "share of puzzles"
        by_steps = [measure.name for measure in measures if measure.name.startswith("solved_shifted_step")]
        assert bool(by_steps) == (model != "baseline_transformer")
    assert problems("--task", "reasoning", "--goal", "valid_loss_step_17<1")[0].startswith("--goal is"), "16 steps"


# What it prints and leaves


def test_it_trains_in_its_own_words(trained: tuple[Path, str]) -> None:
    folder, output = trained
    assert "sudoku:4: 400 puzzles of 16 cells and 4 symbols to learn from" in output
    assert "FLOPs are not counted" not in output
    assert re.search(r"step +60  test solved [\d.]+%, shifted [\d.]+%, loss [\d.]+ nats, of \d+ puzzles", output)
    for words in (GUESS, ELIMINATION, "exact solver", "step by step", "solved by steps", "in distribution", "energy"):
        assert words.split()[0] in output
    assert "token" not in output and "could not show" not in output
    assert (folder / "puzzle.png").exists() and (folder / "energy.png").exists()
    assert list(pictures_by_step(folder)["boards"]) == [0, 20, 40, 60]


def test_its_folder_says_what_it_is(trained: tuple[Path, str]) -> None:
    folder = trained[0]
    rows = read_rows(folder / "metrics.jsonl")
    last = {name: value for row in rows for name, value in row.items()}
    assert last["puzzles"] == 60 * 8 and last["flops"] > 0
    assert {"test_solved", "valid_solved_step_4", "valid_solved_shifted_step_1", "valid_energy_unsolved"} <= last.keys()
    assert last["valid_solved"] == last["valid_solved_step_4"], "evaluation takes 4 steps"
    task = json.loads((folder / "task.json").read_bytes())
    assert (task["headline"], task["unit"]) == ("valid_solved", "puzzles")


def test_its_model_is_built_from_its_folder_alone(trained: tuple[Path, str]) -> None:
    folder = trained[0]
    config = from_dict(json.loads((folder / "config.json").read_bytes()))
    task = find_task("reasoning")
    model = task.model(config, task.spec(config, folder))
    model.load_weights(torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"])
    assert task.processor(config, folder).puzzle.spec.dataset == "sudoku:4"  # type: ignore[attr-defined]


def test_killed_and_resumed_it_is_the_same_to_the_bit(trained: tuple[Path, str], tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    train(logs, *TRAINED, status=-signal.SIGKILL, EBT_DRILL="save:28")
    assert "resuming from step 21" in train(logs, *TRAINED)
    whole, pieces = trained[0], only_run(logs)

    def trace(folder: Path) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k not in TIMED} for row in read_rows(folder / "metrics.jsonl")]

    assert trace(pieces) == trace(whole)
    one, other = (torch.load(each / "checkpoints" / "last.ckpt", weights_only=True) for each in (whole, pieces))
    assert one["state_dict"].keys() == other["state_dict"].keys()
    assert all(torch.equal(one["state_dict"][name], other["state_dict"][name]) for name in one["state_dict"])


def test_the_data_is_looked_through(tmp_path: Path) -> None:
    assert "0 problem(s) found" in train(tmp_path / "logs", "--debug_dataloader")


@pytest.mark.parametrize("model", MODELS[1:])
def test_the_rivals_train_as_well(tmp_path: Path, model: str) -> None:
    output = train(tmp_path / "logs", "--model_name", model, "--max_steps", "50", "--log_every_n_steps", "10")
    assert "step by step" in output and "could not show" not in output
    assert ("solved by steps" in output) == (model == "looped_transformer")


# --match_flops


@pytest.mark.parametrize("more", [(), ("--max_steps", "200")])
def test_models_get_the_flops_of_another_run(trained: tuple[Path, str], tmp_path: Path, more: tuple[str, ...]) -> None:
    budget = 40 * run_flops_of(trained[0])
    for model in MODELS:
        base = WITHOUT_STEPS if model == "baseline_transformer" else SMALL
        words = [*base, "--model_name", model, "--match_flops", str(budget), *more, "--dataset_dir", str(tmp_path)]
        config = parse_command_line(words)
        task = find_task("reasoning")
        data = task.data(config)
        state = torch.random.get_rng_state()
        matched = match_flops(task, config, data)
        assert torch.equal(torch.random.get_rng_state(), state), "weights start as they would without the flag"
        assert data.config is matched
        flops = matched.trainer.max_steps * step_flops(task, matched, data)
        changed = "num_transformer_blocks" if more else "max_steps"
        assert {name for name, value in values_of(matched).items() if value != values_of(config)[name]} == {changed}
        assert flops == pytest.approx(budget, rel=0.02 if not more else 0.2), model


def run_flops_of(folder: Path) -> float:
    from runs.run import Run

    return run_flops(Run(folder))


def test_a_finished_run_counts_what_it_took(trained: tuple[Path, str]) -> None:
    rows = [row for row in read_rows(trained[0] / "metrics.jsonl") if "flops" in row]
    assert run_flops_of(trained[0]) == rows[-1]["flops"]


def test_matched_steps_are_recorded_and_not_computed_again(trained: tuple[Path, str], tmp_path: Path) -> None:
    flags = ("--match_flops", str(trained[0]), "--model_name", "baseline_transformer", "--log_every_n_steps", "10")
    logs = tmp_path / "logs"
    output = train(logs, *flags, "--plan")
    (line,) = re.findall(r"--match_flops: --max_steps (\d+) for .* those of .*", output)
    assert re.search(rf"steps +{int(line):,}\n", output) and not (logs / "runs").exists()
    output = train(logs, *flags, "--checkpoint_every_n_steps", "20")
    folder = only_run(logs)
    settings = settings_of(folder)
    assert settings["max_steps"] == int(line) and settings["match_flops"] == str(trained[0])
    assert run_flops_of(folder) == pytest.approx(run_flops_of(trained[0]), rel=0.02)
    resumed = train(logs, *flags, "--resume_training_ckpt", "last")
    assert "--match_flops:" not in resumed and settings_of(folder)["max_steps"] == int(line)
    again = program(logs, "-m", "runs", "rerun", folder.name, "--dry_run")
    assert f"--max_steps {line}" in again and "--match_flops" not in again


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--match_flops", "nobody"), "--match_flops is nobody: "),
        (("--match_flops", "10"), "--match_flops is 10: one step of this model takes"),
        (("--match_flops", "10", "--max_steps", "5"), "--match_flops is 10: with --max_steps 5 and one block"),
    ],
)
def test_what_cannot_be_matched_is_told(tmp_path: Path, flags: tuple[str, ...], sentence: str) -> None:
    config = parse_command_line([*SMALL, *flags, "--dataset_dir", str(tmp_path), "--logs_dir", str(tmp_path / "logs")])
    task = find_task("reasoning")
    with pytest.raises(UserError) as caught:
        match_flops(task, config, task.data(config))
    assert str(caught.value).startswith(sentence) and "\n" not in str(caught.value)


def test_a_warm_up_longer_than_the_matched_steps_is_told(tmp_path: Path) -> None:
    words = [*SMALL, "--match_flops", "5e9", "--warm_up_steps", "700", "--dataset_dir", str(tmp_path)]
    config, task = parse_command_line(words), find_task("reasoning")
    with pytest.raises(UserError, match=r"--warm_up_steps is 700, over the \d+ steps that --match_flops 5e9 gives"):
        match_flops(task, config, task.data(config))


def test_the_difference_is_in_words() -> None:
    assert [difference(ratio) for ratio in (1.0, 1.02, 0.9)] == ["as many as", "2.0% more than", "10.0% less than"]


# References


def test_references_know_the_rules() -> None:
    puzzle = find_puzzle("sudoku:4")
    puzzles = puzzle.generate("valid", 0, 24, seed=0)
    allowed = allowed_symbols(puzzle, puzzles, puzzles.given)
    rows, cells = np.nonzero(puzzles.real)
    assert allowed[rows, cells, puzzles.answer[rows, cells]].all(), "the answer is never excluded"
    clue = puzzles.given >= 0
    assert (allowed[clue].sum(axis=-1) == 1).all()
    for row in range(3):
        for cell in np.flatnonzero(~clue[row]):
            line, column = divmod(cell, 4)
            seen = {
                int(puzzles.given[row, other])
                for other in range(16)
                if other // 4 == line
                or other % 4 == column
                or (other // 8 == line // 2 and other % 4 // 2 == column // 2)
            }
            assert {int(symbol) for symbol in np.flatnonzero(allowed[row, cell])} == set(range(4)) - seen
    found = puzzle_references(puzzle, puzzles)
    assert found[GUESS]["solved"] <= found[ELIMINATION]["solved"] <= found["exact solver"]["solved"] == 1.0
    assert 0 < found[GUESS]["loss"] < np.log(4)


@pytest.mark.parametrize("name", ["reachability:12", "addition:3", "sorting:6"])
def test_rules_that_tell_each_cell_are_no_reference(name: str) -> None:
    puzzle = find_puzzle(name)
    references = puzzle_references(puzzle, puzzle.generate("valid", 0, 20, seed=1))
    assert list(references) == [BLIND_GUESS, SOLVER] and references[BLIND_GUESS]["solved"] < 0.2
    assert references[BLIND_GUESS]["loss"] == pytest.approx(math.log(len(puzzle.spec.symbols)))
