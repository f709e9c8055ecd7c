"""The published form computes the same as ours; benchmarks measure and print what they say."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmarks import concatenated, energy, inference, puzzles, thinking
from benchmarks.__main__ import PARTS, main
from config import parse_command_line
from models.language import EnergyLM
from models.layers.rope import rotations
from tests.conftest import ROOT
from tests.support.builders import build_model

V, S, D, H, PAD = 11, 6, 8, 2, 10
SIZE = f"--num_transformer_blocks 2 --embedding_dim {D} --multiheaded_attention_heads {H} --context_length {S}"
ROWS = torch.tensor([[3, 1, 2, 0, 3, 9, 4], [4, 5, 8, 6, 7, 10, 10]])


@pytest.mark.parametrize("recipe", ["s1", "s1 --no_mcmc_detach", "s2 --no-mcmc_replay_buffer", "laptop"])
@pytest.mark.parametrize("conditioning", ["default", "time_embed", "adaln"])
def test_the_concatenated_form_has_the_same_loss_and_gradients(conditioning: str, recipe: str) -> None:
    flags = f"--model_name ebt {SIZE} --no-isolate_documents --ebt_type {conditioning} --recipe {recipe}"
    model = build_model(parse_command_line([*flags.split(), "--mcmc_step_size", "2.0"]), V, 0, PAD).double()
    assert isinstance(model, EnergyLM)
    model.network.rotations = rotations(S + 2, D // H)
    torch.manual_seed(0)
    for parameter in model.network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    losses_and_gradients = []
    for loss_of in (
        lambda: model.training_step({"input_ids": ROWS}, 0),
        lambda: concatenated.training_loss(model, ROWS),
    ):
        torch.manual_seed(3)
        loss = loss_of()
        losses_and_gradients.append((loss.detach(), *torch.autograd.grad(loss, learned)))
    for ours, theirs in zip(*losses_and_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


TINY = energy.Point(vocabulary=16, context=8, size="4xs", recipe="S2", tokens=16)


def test_a_point_is_measured_in_time_and_flops() -> None:
    result = energy.work({"task": "times", "point": asdict(TINY), "budget": 0.0, "forms": "abd"})
    assert result["times"].keys() == set("abd") and all(0 < spent < 60 for spent in result["times"].values())
    assert result["flops"]["a"] > result["flops"]["b"] > result["flops"]["d"] > 0
    assert result["compile"] == {}


def test_memory_is_what_a_step_takes() -> None:
    """In a process of its own, as the benchmark does: memory that earlier tests freed would serve."""
    code = "import torch; from benchmarks import energy; print(energy.peak_memory(lambda: torch.ones(25_000_000)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 99e6 < float(done.stdout) < 110e6


def test_the_observed_stream_runs_once_however_many_steps_are_taken() -> None:
    growth = energy.growth_times(TINY, budget=0.0)
    assert growth["runs"] == {"1": 1, "2": 1, "4": 1, "8": 1}
    assert [row[0] for row in energy.growth_sheet(growth).rows] == ["1", "2", "4", "8"]


def test_tables_mark_what_misses_its_target_and_leave_out_what_was_not_measured() -> None:
    points = (replace(TINY, vocabulary=512), replace(TINY, recipe="S1", steps=3), TINY)
    times = {"a": 3.0, "b": 2.0, "c": 1.0, "d": 0.5}
    results = [
        {"times": times, "memory": {"a": 10e6, "b": 7e6}, "flops": dict(a=4e9, b=2e9, d=1e9)},
        {"times": times},
        {},
    ]
    rows = energy.times_sheet(points, results).rows
    assert rows[0] == (
        *("512", "2 x 8", "4xs", "S2, T = 2", "3,000", "2,000", "1,000", "500", "-"),
        *("1.50 !", "3.00", "2.00", "4.00 !", "2.00", "-"),
    )
    assert rows[1][3] == "S1, T = 3" and rows[1][9:12] == ("1.50 !", "3.00", "-") and set(rows[2][4:]) == {"-"}
    sheet = energy.cost_sheet(points, results)
    assert sheet.rows[0][4:] == ("10", "7", "-", "0.70 !", "-", "4", "2", "1", "2.00", "2.00", "-")
    assert "| 512 | 2 x 8 | 4xs | S2, T = 2 | 10 | 7 | - | 0.70 ! |" in sheet.markdown()
    assert sheet.table().row_count == 3


def test_a_measurement_that_fails_is_reported_and_has_no_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    assert energy.worker({"task": "times", "point": asdict(replace(TINY, recipe="S3"))}) == {}
    assert "no times: exit status 1: KeyError: 'S3'" in capfd.readouterr().err


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["energies"]) == 2
    assert capsys.readouterr().err == f"energies: choose {', '.join(PARTS)}, or nothing for all.\n"


def test_generation_is_measured_against_the_same_predictions() -> None:
    scale = inference.Scale(size="4xs", vocabulary=50, lengths=(6, 12))
    model, tokens_BS = scale.ebt(6), scale.texts(6)
    cached = scale.decoder(model, 6, inference.Inference())
    for _ in range(3):
        token_B = cached.predict().logits.argmax(-1)
        torch.testing.assert_close(token_B, inference.recompute(model, tokens_BS))
        cached.append(token_B)
        tokens_BS = torch.cat([tokens_BS, token_B[:, None]], dim=1)
    against, growth = inference.run(scale)
    assert [row[0] for row in against.rows] == ["6", "12"] and all(float(cell) > 0 for cell in against.rows[0][1:4])
    assert [row[0] for row in growth.rows][:2] == ["1 steps", "2 steps"] and growth.rows[0][2:] == ("1.00", "1.00")


def test_a_model_is_trained_to_think_and_its_curve_drawn(tmp_path: Path) -> None:
    size = "--num_transformer_blocks 2 --embedding_dim 32 --multiheaded_attention_heads 2 --context_length 16"
    recipe = f"--max_steps 3 --limit_val_batches 2 --batch_size_per_device 4 {size} --recipe laptop"
    recipe += " --mcmc_num_steps 1 --randomize_mcmc_num_steps 1"
    curve = "--steps 3 --candidates 2 --tokens 64"
    (sheet,) = thinking.run(tuple(recipe.split()), tuple(curve.split()), tmp_path / "think_curve.png")
    assert {(row[0], row[1], row[2]) for row in sheet.rows} >= {
        ("ebt", "3", "1"),
        ("ebt", "2", "2"),
        ("Transformer++", "", ""),
    }
    assert all("+-" in row[4] and "+-" in row[5] for row in sheet.rows)
    assert (tmp_path / "think_curve.png").stat().st_size > 10_000


def test_models_of_puzzles_are_trained_and_held_against_their_bars() -> None:
    short = {"match_flops": "1e10", "num_puzzles": 128, "num_eval_puzzles": 8}
    (sheet,) = puzzles.run((0,), short, rows=4)
    assert [row[:2] for row in sheet.rows] == [bar[:2] for bar in puzzles.BARS]
    assert all(0 <= float(row[3]) <= 1 and row[3] == row[5] for row in sheet.rows)  # one seed is its own mean
    assert "NO" in sheet.rows[0][-1] and sheet.rows[-1][-1].endswith("yes")  # nothing is solved so soon
