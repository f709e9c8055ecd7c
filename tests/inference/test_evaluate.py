"""The numbers of an evaluation: those of the training, by step and with more thinking, of any text; and its record."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import train_model
from config.settings import Text
from core.files import read_rows
from data.language.sources import find_source
from data.language.tokenizers import ByteTokenizer
from inference.__main__ import main
from inference.evaluate import finite
from inference.language.text_loss import LossByDocument, read_split, text_of_run
from inference.loading import ModelFlags, load
from models.language import EnergyLM
from tests.data.reading import write_lines

LIMIT = ("--limit", "8", "--batch_size", "4")  # what a validation of the fixtures' runs reads


def evaluate(run: Path, out: Path, *flags: str) -> dict[str, Any]:
    """The row that `python -m inference evaluate` adds to its record."""
    assert main(["evaluate", "--run", str(run), "--infer_output_dir", str(out), *flags]) == 0
    return read_rows(out / "evaluation.jsonl")[-1]


def error_of(capsys: pytest.CaptureFixture[str], run: Path, *flags: str) -> str:
    """The message of a mistake."""
    capsys.readouterr()
    assert main(["evaluate", "--run", str(run), *flags]) == 2
    return capsys.readouterr().err.strip()


def error_line(capsys: pytest.CaptureFixture[str], run: Path, *flags: str) -> str:
    text = error_of(capsys, run, *flags)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("kind", ["ebt", "residual", "baseline"])
def test_the_validation_of_the_training_again(
    kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Path = request.getfixturevalue(f"{kind}_run")
    assert main(["evaluate", "--run", run.name, "--logs_dir", str(run.parent.parent), *LIMIT]) == 0
    row = read_rows(run / "evaluation.jsonl")[-1]
    (trained,) = (old for old in read_rows(run / "metrics.jsonl") if "valid_loss" in old and old["step"] == row["step"])
    measured = {name.removeprefix("valid_"): value for name, value in trained.items() if name.startswith("valid_")}
    assert {"loss", "perplexity", "accuracy", "top5", "targets", "bits_per_byte"} <= measured.keys()
    steps = {"ebt": (1, 2), "residual": (0, 1), "baseline": ()}[kind]  # where a residual walk begins is a prediction
    assert {f"loss_step_{step}" for step in steps} == {name for name in measured if name.startswith("loss_step_")}
    assert {name: row["results"][name] for name in measured} == pytest.approx(measured, abs=1e-6)
    assert row["run_id"] == run.name and row["dataset"] == "text" and row["split"] == "valid"
    assert row["settings"] == {"limit": 8, "batch_size": 4}
    out = capsys.readouterr().out
    assert f"text, valid split, the first {int(measured['targets'])} of " in out
    assert re.search(rf"nats per token +{measured['loss']:.4f} ", out)
    by_step = ", ".join(f"{step}: {measured[f'loss_step_{step}']:.4f}" for step in steps)
    gains = f"loss after steps {by_step}; thinking gains {measured['thinking_gain']:.4f}" if steps else "thinking gains"
    assert (gains in out) == (kind != "baseline")


def test_the_loss_by_step_is_that_of_fewer_steps(ebt_run: Path, tmp_path: Path) -> None:
    long = evaluate(ebt_run, tmp_path, *LIMIT, "--infer_ebt_num_steps", "3")["results"]
    for steps in (1, 2):
        short = evaluate(ebt_run, tmp_path, *LIMIT, "--infer_ebt_num_steps", str(steps))["results"]
        assert long[f"loss_step_{steps}"] == pytest.approx(short["loss"], abs=1e-6)
    assert long["loss_step_3"] == pytest.approx(long["loss"], abs=1e-6)
    assert long["thinking_gain"] == pytest.approx(long["loss_step_1"] - long["loss"], abs=1e-6)
    assert len({round(long[f"loss_step_{step}"], 4) for step in (1, 2, 3)}) == 3


def test_a_residual_energy_starts_from_its_transformer(residual_run: Path, tmp_path: Path) -> None:
    long = evaluate(residual_run, tmp_path, *LIMIT, "--infer_ebt_num_steps", "3")["results"]
    short = evaluate(residual_run, tmp_path, *LIMIT)["results"]
    assert [name for name in long if name.startswith("loss_step_")] == [f"loss_step_{step}" for step in range(4)]
    for name in ("loss_step_0", "loss_step_1"):
        assert long[name] == pytest.approx(short[name], abs=1e-6)
    assert long["loss_step_3"] == pytest.approx(long["loss"], abs=1e-6)
    assert long["thinking_gain"] == pytest.approx(long["loss_step_0"] - long["loss"], abs=1e-6)
    still = evaluate(residual_run, tmp_path, *LIMIT, "--infer_ebt_num_steps", "3", "--infer_ebt_override_alpha", "1e-9")
    assert still["results"]["loss"] == pytest.approx(long["loss_step_0"], abs=1e-5)
    model = load(ModelFlags(run=str(residual_run))).model
    assert isinstance(model, EnergyLM)
    rows_BS = own_rows(residual_run)
    prior_BSD = model.network.context(rows_BS[:, :-1]).prior
    assert prior_BSD is not None
    logits_BSV = prior_BSD @ model.network.embedding.weight.T  # those of a Transformer++ with tied embeddings
    loss = F.cross_entropy(logits_BSV.flatten(0, 1), rows_BS[:, 1:].flatten(), ignore_index=model.pad_id)
    assert long["loss_step_0"] == pytest.approx(float(loss), abs=1e-5)


def own_rows(run: Path) -> torch.Tensor:
    """The rows [8, S+1] that LIMIT leaves of the validation split."""
    loaded = load(ModelFlags(run=str(run)))
    return text_of_run(loaded, loaded.config[Text], "valid", 8, 1.0).rows.__getitems__(range(8))["input_ids"]


def test_positions_that_stop_early(ebt_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = (*LIMIT, "--infer_ebt_num_steps", "3", "--infer_ebt_stop_change", "1e9")
    result = evaluate(ebt_run, tmp_path, *flags)["results"]
    assert result["steps"] == {"1": 256} and result["mean_steps"] == 1
    assert result["loss_step_3"] == result["loss_step_1"] == pytest.approx(result["loss"])
    assert "steps taken 1.00 on average (1: 100.0% of the tokens)" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["ebt", "residual"])
def test_candidates_are_chosen_by_energy(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run: Path = request.getfixturevalue(f"{kind}_run")
    noise = ("--infer_langevin_dynamics_noise", "0.5") if kind == "residual" else ()
    flags = (*LIMIT, *noise, "--infer_generated_samples", "3")
    least = evaluate(run, tmp_path, *flags)["results"]
    most = evaluate(run, tmp_path, *flags, "--infer_energy_sampling_technique", "max")["results"]
    one = evaluate(run, tmp_path, *LIMIT, *noise)["results"]
    assert least["energy_last"] < one["energy_last"] < most["energy_last"]
    assert least["loss_step_1"] == most["loss_step_1"] and least["loss"] != most["loss"]


def test_another_text(ebt_run: Path, baseline_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"number {number} é" * 9 for number in range(40)]
    file = write_lines(tmp_path / "other.jsonl", *({"body": text} for text in [*texts, texts[0], " "]))
    data = ("--dataset_name", "jsonl", "--dataset_dir", str(file), "--text_field", "body")
    size = sum(len(text.encode()) for text in texts)
    for run in (ebt_run, baseline_run):
        row = evaluate(run, tmp_path, *data)
        result = row["results"]
        assert row["split"] == "all" and row["dataset_dir"] == str(file) and result["interval_over"] == "documents"
        assert result["documents"] == len(texts) and result["targets"] == size + len(texts) - 1
        assert result["bits_per_byte"] == pytest.approx(result["loss"] * result["targets"] / size / math.log(2))
        assert result["loss_low"] < result["loss"] < result["loss_high"]
    out = capsys.readouterr().out
    assert f"jsonl, all, {size + 39:,} tokens" in out and "95% interval: bootstrap over 40 documents" in out
    shares = [evaluate(baseline_run, tmp_path, *data, "--split", split)["results"] for split in ("train", "all")]
    assert shares[0]["documents"] < shares[1]["documents"] == len(texts)
    assert evaluate(baseline_run, tmp_path, *data, "--limit", "2")["results"]["targets"] == 64
    assert "jsonl, all, the first 64 tokens" in capsys.readouterr().out


def test_a_text_of_questions(baseline_run: Path, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "q.jsonl", {"question": "1+1?", "answer": "#### 2"})
    row = evaluate(baseline_run, tmp_path, "--dataset_name", "gsm8k", "--dataset_dir", str(file), "--as_text")
    assert row["results"]["targets"] == len("Question: 1+1?\nAnswer: #### 2")
    assert row["results"]["documents"] == 1 and "loss_low" not in row["results"]  # one row says nothing of its like


def test_reading_stops_when_there_is_enough() -> None:
    settings = Text(dataset_name="synthetic", max_documents=30, validation_split_pct=0.5)
    splits = {}
    for name in ("train", "valid", "all"):
        splits[name], whole = read_split(find_source(settings), settings, name, ByteTokenizer(), None)
        assert whole
    assert splits["all"].num_documents == 30 > splits["train"].num_documents > 0 < splits["valid"].num_documents
    part, whole = read_split(find_source(settings), settings, "valid", ByteTokenizer(), 5)
    assert not whole and part.num_documents == 1 and part.num_bytes == len(part.tokens) - 1
    assert np.array_equal(part.tokens, splits["valid"].tokens[: len(part.tokens)])


def test_losses_by_document_and_by_row() -> None:
    separator, pad = 9, 8
    targets = torch.tensor([[1, 2, 9], [1, 9, 9], [1, 1, 1], [9, 8, 8]])
    losses = torch.where(targets == pad, 0.0, torch.arange(1.0, 13.0).view(4, 3)).double()
    pieces = LossByDocument(separator, pad)
    for start in (0, 2):
        pieces.update(losses[start : start + 2], targets[start : start + 2])
    assert pieces.sums.tolist() == [3, 7, 5, 6 + 7 + 8 + 9, 10] and pieces.targets.tolist() == [2, 2, 1, 4, 1]
    assert pieces.row_sums == [6, 15, 24, 10] and pieces.row_targets == [3, 3, 3, 1]
    result = pieces.result()
    assert result["interval_over"] == "rows" and result["documents"] == 5
    assert result["loss_low"] < 55 / 10 < result["loss_high"]


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    generator, hits = np.random.default_rng(0), 0
    for _ in range(40):
        pieces = LossByDocument(9, 8)
        of_document = 3 + generator.normal(size=30)[:, None]  # tokens of a document are alike
        targets = torch.ones(30, 20, dtype=torch.int64)
        targets[:, 0] = 9
        pieces.update(torch.from_numpy(of_document + 0.1 * generator.normal(size=(30, 20))), targets)
        result = pieces.result()
        hits += result["loss_low"] < 3 < result["loss_high"]
    assert 34 <= hits <= 40


def test_a_walk_beyond_all_numbers(ebt_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = evaluate(ebt_run, tmp_path, *LIMIT, "--infer_ebt_override_alpha", "1e38")
    assert row["results"]["loss"] is None and row["results"]["loss_low"] is None
    assert "the loss is not finite: the walk or the training diverged; take shorter steps" in capsys.readouterr().out


def test_numbers_that_json_lacks() -> None:
    assert finite({"loss": math.inf, "gain": math.nan, "rows": 3, "steps": {"1": 2}}) == {
        **{"loss": None, "gain": None},
        **{"rows": 3, "steps": {"1": 2}},
    }


def test_the_landscape_is_drawn(ebt_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(ebt_run, tmp_path, *LIMIT, "--infer_plot_energy_landscape")
    assert (tmp_path / "landscape.png").read_bytes().startswith(b"\x89PNG")
    assert f"landscape   {tmp_path / 'landscape.png'}" in capsys.readouterr().out


def test_from_the_door_of_the_training(ebt_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = ["--only_test", "--only_test_model_ckpt", str(ebt_run / "checkpoints" / "best.ckpt")]
    test += ["--execution_mode", "inference", "--infer_output_dir", str(tmp_path), "--batch_size_per_device", "4"]
    assert train_model.main([*test, "--limit_test_batches", "2", "--infer_ebt_num_steps", "3"]) == 0
    row = read_rows(tmp_path / "evaluation.jsonl")[-1]
    assert row["split"] == "test" and row["settings"] == {"limit": 8, "batch_size": 4, "infer_ebt_num_steps": 3}
    same = evaluate(ebt_run, tmp_path, *LIMIT, "--split", "test", "--infer_ebt_num_steps", "3")
    assert row["results"]["loss"] == same["results"]["loss"]
    assert train_model.main([*test, "--limit_test_batches", "0.5"]) == 0
    row = read_rows(tmp_path / "evaluation.jsonl")[-1]
    rows = evaluate(ebt_run, tmp_path, "--split", "test")["results"]["rows"]
    assert row["results"]["rows"] == rows // 2 and row["settings"]["limit_test_batches"] == 0.5
    file = write_lines(tmp_path / "q.jsonl", {"question": "1+1?", "answer": "#### 2"})
    questions = ["--dataset_name", "gsm8k", "--dataset_dir", str(file), "--infer_max_gen_len", "2"]
    assert train_model.main([*test, *questions]) == 0
    assert read_rows(tmp_path / "evaluation.jsonl")[-1]["results"]["questions"] == 1
    idle = "has no effect with --execution_mode inference: remove it; the checkpoint's run determines it."
    capsys.readouterr()
    for flags, message in [
        (["--max_steps", "3"], f"--max_steps {idle}"),
        (["--infer_echo"], f"--infer_echo {idle}"),
        (
            ["--limit_test_batches", "0"],
            "--limit_test_batches is 0: there is nothing to evaluate; give a number of batches or a share.",
        ),
        (
            ["--only_test_model_ckpt", "no.ckpt"],
            "--only_test_model_ckpt is 'no.ckpt': there is no such file; give a .ckpt file, or last.",
        ),
    ]:
        assert train_model.main([*test, *flags]) == 2
        assert capsys.readouterr().err.strip() == message


def test_last_names_the_newest_checkpoint_of_a_run(ebt_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = ["--logs_dir", str(ebt_run.parent.parent), "--run_name", "tiny-ebt", "--only_test_model_ckpt", "last"]
    flags = [
        "--only_test",
        "--execution_mode",
        "inference",
        "--batch_size_per_device",
        "4",
        "--limit_test_batches",
        "2",
    ]
    assert train_model.main([*named, *flags]) == 0
    out = capsys.readouterr().out
    assert "ebt at step 6 (" in out and "text, test split, the first 256 of " in out
    assert [path.name for path in ebt_run.parent.iterdir()] == [ebt_run.name]  # it is no run of its own


def test_candidates_without_noise_are_refused(residual_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_line(capsys, residual_run, "--infer_generated_samples", "2") == (
        "--infer_generated_samples is 2: without noise all candidates of this model are the same; "
        "add --infer_langevin_dynamics_noise, or ask for 1."
    )


def test_mistakes(ebt_run: Path, baseline_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = "ai2arc, bigbench, gsm8k, lambada, planbench, squad"
    assert error_line(capsys, ebt_run, "--dataset_name", "pydoc") == (
        "--dataset_name is 'pydoc': choose pydocs, synthetic, text, jsonl, csv, parquet, arrow, ai2arc, "
        "bigbench, fineweb, gsm8k, lambada, pajama, planbench, squad. Did you mean pydocs?"
    )
    assert error_of(capsys, ebt_run, "--infer_temp", "1", "--infer_topk", "3").splitlines() == [
        f"--{name} has no effect where nothing is generated: remove it, or ask with --dataset_name {sets}."
        for name in ("infer_temp", "infer_topk")
    ]
    assert error_line(capsys, ebt_run, "--as_text") == (
        f"--as_text has no effect without a dataset of questions: remove it, or choose --dataset_name {sets}."
    )
    assert error_line(capsys, ebt_run, "--text_field", "body") == (
        "--text_field has no effect with --dataset_name text: remove it, or choose jsonl, csv, parquet, arrow."
    )
    file = write_lines(tmp_path / "one.jsonl", {"text": "a"})
    data = ("--dataset_name", "jsonl", "--dataset_dir", str(file))
    assert error_line(capsys, ebt_run, *data, "--split", "valid") == (
        "The valid split of jsonl is empty: choose another with python -m inference evaluate --split, or all."
    )
    assert error_line(capsys, baseline_run, "--infer_generated_samples", "2") == (
        "--infer_generated_samples: this model has no energy to walk down; leave it out, or choose an EBT's run."
    )
    assert error_line(capsys, baseline_run, "--infer_plot_energy_landscape") == (
        "--infer_plot_energy_landscape: this model has no energy to draw; choose an EBT's run."
    )
    assert error_line(capsys, ebt_run, "--infer_energy_sampling_technique", "max") == (
        "--infer_energy_sampling_technique has no effect with --infer_generated_samples 1: remove it, or ask for more."
    )
    (tmp_path / "evaluation.jsonl").mkdir()
    assert error_line(capsys, baseline_run, *LIMIT, "--infer_output_dir", str(tmp_path)) == (
        f"{tmp_path / 'evaluation.jsonl'}: cannot write there (Is a directory): "
        "choose another folder with --infer_output_dir."
    )
