"""The think-curve: its losses are those of walks of each length alone, and its intervals are honest."""

from __future__ import annotations

import csv
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from config.settings import Inference
from data.language.tokenizers import ByteTokenizer
from inference.__main__ import main
from inference.intervals import Interval, bootstrap, interval
from inference.language.flops import WalkCost, forward_flops, walk_cost
from inference.language.think_curve import (
    Baseline,
    ThinkCurveResult,
    comparison_problem,
    find_transformer,
    measure_curve,
)
from inference.language.think_curve_report import (
    caption,
    describe_baseline,
    describe_candidates,
    draw,
)
from inference.language.think_curve_texts import (
    TextSample,
    library_code,
    tokenize_documents,
    validation_text,
    without_docstrings,
)
from inference.language.walk import token_walk, walk_rows
from inference.loading import ModelFlags, load
from inference.think_curve import Curve, describe_shift, describe_steps
from inference.thinking import last_state, plan_from_flags, with_steps
from models.language import EnergyLM
from models.transformer import Transformer
from tasks.language_commands import ThinkCurveFlags
from tests.inference.small import CONTEXT, PAD, VOCABULARY, energy_model, plain_model, residual_model

STEPS, CANDIDATES = 5, 3


def rows_of(count: int) -> torch.Tensor:
    """Random rows, the last of them not full."""
    rows_BS = torch.randint(0, VOCABULARY - 2, (count, CONTEXT + 1), generator=torch.Generator().manual_seed(1))
    rows_BS[-1, 5:] = PAD
    return rows_BS


def empty_result(model: EnergyLM, **changes: object) -> ThinkCurveResult:
    cost = WalkCost((0,) * STEPS, 10.0, 4.0, 1.0, 1)
    trained = model.walk_settings.steps
    result = ThinkCurveResult(
        [], cost, Baseline(None, 5.0, "none"), trained, (trained, trained), STEPS, CANDIDATES, [0, 1], "min"
    )
    return replace(result, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("build", (energy_model, residual_model))
@pytest.mark.parametrize(
    ("conditioning", "options", "choice"),
    [
        ("default", {}, "min"),
        ("time_embed", {"infer_langevin_dynamics_noise": 0.5}, "max_gap"),
        ("adaln", {"infer_accept_lower_energies": True, "infer_langevin_first_step": True}, "min"),
    ],
)
def test_one_walk_gives_the_losses_of_all_numbers_of_steps(
    build: Callable[..., EnergyLM], conditioning: str, options: dict, choice: str
) -> None:
    model, rows_BS = build(conditioning), rows_of(3)
    settings = Inference(infer_steps_final_landscape=True, infer_energy_sampling_technique=choice, **options)

    def plan_of(steps: int, candidates: int, seed: int):
        once = 0 if conditioning == "default" else 1  # a step on the first landscape, and the others on the last
        inference = replace(settings, infer_ebt_num_steps=steps - once, infer_generated_samples=candidates)
        plan = plan_from_flags(model, inference, seed)
        assert plan is not None and [step.landscape for step in plan.steps] == [0, *[once] * (steps - 1)]
        return plan

    plans = [plan_of(STEPS, 1, seed) for seed in (0, 1)]
    done: list[int] = []
    curve = measure_curve(empty_result(model), model, plans, TextSample("shifted", "", rows_BS), 2, done.append)
    assert sum(done) == 2 * 2 * CANDIDATES * STEPS  # batches, seeds
    points = [(steps, 1) for steps in range(1, STEPS + 1)]
    points += [(steps, candidates) for steps in (2, STEPS) for candidates in (2, 3)]
    assert {(0, 1), *points} == curve.columns.keys()
    tokens_BS, targets_BS = rows_BS[:, :-1], rows_BS[:, 1:]
    for point in points:
        for seed in (0, 1):
            logits_BSV = walk_rows(model, tokens_BS, plan_of(*point, seed)).y
            expected = F.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten(), ignore_index=PAD)
            assert curve.by_seed[seed, curve.columns[point]] == pytest.approx(float(expected), rel=1e-5)


def test_resampling_is_paired_and_knows_the_uncertainty_of_a_mean() -> None:
    rng = np.random.default_rng(3)
    targets = np.full(400, 10)
    hard = rng.normal(20, 4, (1, 400, 1))
    samples = bootstrap(np.concatenate([hard, hard + 5], 2), targets)
    np.testing.assert_allclose(samples[:, 1] - samples[:, 0], 0.5)
    middle = interval(2.0, samples[:, 0])
    assert middle.half == pytest.approx(1.96 * 0.4 / math.sqrt(400), rel=0.1)
    assert interval(2.0, samples[:, 0], comparisons=10).half > 1.3 * middle.half


def test_resampling_draws_seeds_too_and_weighs_rows_by_their_tokens() -> None:
    sums = np.array([[[1.0], [100.0]], [[3.0], [300.0]]])  # seeds, rows
    samples = bootstrap(sums, np.array([1, 100]))
    assert set(samples[:, 0].round(9)) == {1.0, 2.0, 3.0}  # both seeds once, or one of them twice; rows are alike


def test_a_loss_that_is_not_finite_has_no_interval() -> None:
    sums = np.array([[[1.0, np.inf], [2.0, 1.0]]])
    samples = bootstrap(sums, np.array([1, 1]))
    assert np.isnan(interval(np.inf, samples[:, 1]).low)
    assert np.isfinite(interval(1.5, samples[:, 0]).low)


def test_flops_of_a_norm_without_a_formula_are_counted_too() -> None:
    model = energy_model("default", "--ebt_norm layer")  # functorch differentiates it
    plan = plan_from_flags(model, Inference())
    assert plan is not None
    cost, rms = walk_cost(model, plan, CONTEXT), walk_cost(energy_model(), plan, CONTEXT)
    assert (cost.observed, cost.step, cost.end) == (rms.observed, rms.step, rms.end)  # norms are no matrix products


@pytest.mark.parametrize("made", (energy_model, residual_model))
@pytest.mark.parametrize("conditioning", ("default", "time_embed"))
@pytest.mark.parametrize("accept", (False, True))
def test_flops_are_those_of_the_walk_itself(made: Callable[..., EnergyLM], conditioning: str, accept: bool) -> None:
    model = made(conditioning)
    settings = Inference(infer_ebt_num_steps=4, infer_steps_final_landscape=True, infer_accept_lower_energies=accept)
    plan = plan_from_flags(model, settings)
    assert plan is not None
    cost = walk_cost(model, plan, CONTEXT)
    tokens_1S = torch.zeros(1, CONTEXT, dtype=torch.int64)
    contexts = model.contexts(tokens_1S)
    [contexts(step.landscape) for step in plan.steps]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        result = last_state(token_walk(model, contexts, torch.arange(CONTEXT)[None], with_steps(plan, 4)))
        assert result.energy.shape == (1, CONTEXT)
    landscapes = 1 if conditioning == "default" else 2
    walked = counter.get_total_flops() / CONTEXT
    assert landscapes * cost.observed + walked == pytest.approx(cost.flops(4, 1) + cost.end)
    assert cost.passes(4, 1) == result.passes == 4 * (1 + accept)
    assert cost.passes(4, 3) == 3 * (result.passes + 1)
    read = landscapes * cost.observed + cost.start
    assert cost.flops(4, 3) == pytest.approx(read + 3 * (4 * cost.step + cost.end))
    if made is residual_model:  # it starts from a Transformer++'s logits, and so no step is one forward pass of that
        assert cost.start == 2 * model.network.shape.width * VOCABULARY
        assert cost.flops(0, 1) == cost.observed + cost.start
    else:
        assert cost.start == cost.flops(0, 1) == 0


def test_flops_of_a_transformer_are_those_of_its_products() -> None:
    network = plain_model().network
    assert isinstance(network, Transformer)
    shape = network.shape
    blocks = shape.layers * (4 * shape.width**2 + 3 * shape.width * shape.hidden + 2 * CONTEXT * shape.width)
    assert forward_flops(network, CONTEXT) == 2 * (blocks + shape.width * VOCABULARY)


def test_shifted_text_is_code_without_docstrings() -> None:
    source = '"""About."""\nimport re\n\n\ndef f():\n    """Two\n    lines."""\n    return "text"  # why\n'
    assert without_docstrings(source) == '\nimport re\n\n\ndef f():\n    return "text"  # why\n'.removeprefix("\n")
    texts = library_code()
    assert texts == library_code() and sum(map(len, texts)) > 300_000
    assert any("def __init__(" in text for text in texts)


def test_documents_begin_with_a_separator(ebt_run: Path) -> None:
    words = load(ModelFlags(run=str(ebt_run))).processor
    split = tokenize_documents(words, ["ab", "c"])
    assert split.tokens.tolist() == [words.separator_id, 97, 98, words.separator_id, 99]


def curve_of(losses: dict[tuple[int, int], float], spread: float = 0.0, baseline: float | None = None) -> Curve:
    """Losses with an uncertainty that differs from column to column."""
    means = np.array([*losses.values(), *([] if baseline is None else [baseline])])
    samples = means + spread * np.random.default_rng(0).normal(size=(1000, len(means)))
    columns = {point: number for number, point in enumerate(losses)}
    return Curve(
        TextSample("shifted", "x", rows_of(2)), columns, means[None], samples, None if baseline is None else len(losses)
    )


def losses(*steps: float, two: tuple[float, ...] = (1.0, 1.0, 1.0)) -> dict[tuple[int, int], float]:
    walk = {(number, 1): loss for number, loss in enumerate((9.0, *steps))}
    return walk | {(2, 2): two[1], (2, 3): two[2]} | {(STEPS, 2): 3.0, (STEPS, 3): 3.0}


@pytest.mark.parametrize(
    ("steps", "spread", "words"),
    [
        ((2.0, 1.0, 0.8, 0.9, 1.0), 0.001, "after 3 of 5. That gains 1.2000"),
        ((2.0, 1.0, 0.8, 0.9, 1.0), 0.001, "over 1 step: more steps help here. Over the 2 of this model's evaluation"),
        ((2.0, 1.0, 0.8, 0.9, 1.0), 0.001, "going on beyond them helps here."),
        ((2.0, 1.0, 0.99, 1.1, 1.2), 0.1, "going on beyond them does not help here (the interval holds 0)."),
        (
            (2.0, 1.0, 1.1, 1.2, 1.3),
            0.001,
            "It is the 2 of this model's evaluation: going on beyond them does not help",
        ),
        ((2.0, 1.0, 1.1, 1.2, 1.3), 0.001, "5 lose 0.3000"),
        (
            (1.0, 1.5, 1.1, 1.2, 1.3),
            0.001,
            "More steps do not help here. Over the 2 of this model's evaluation it gains",
        ),
        ((1.0, 1.5, 1.1, 1.2, 1.3), 0.001, "stopping earlier helps here."),
        ((math.nan,) * 5, 0.001, "no number of steps gives a finite loss here."),
        ((2.0, 1.0, 0.9, math.inf, math.nan), 0.001, "after 3 of 5"),
    ],
)
def test_the_verdict_on_steps(steps: tuple[float, ...], spread: float, words: str) -> None:
    result = empty_result(energy_model())
    assert words in describe_steps(curve_of(losses(*steps), spread), result.steps, result.evaluation_steps)


@pytest.mark.parametrize(
    ("two", "spread", "words"),
    [
        ((1.0, 0.9, 0.8), 0.001, "with 3 of 3. That gains 0.2"),
        ((1.0, 0.9, 0.8), 0.001, "more of them help here."),
        ((1.0, 0.99, 0.98), 0.1, "more of them do not help here (the interval holds 0)."),
        ((1.0, 1.01, 1.0), 0.1, "with 1 of 3. 3 lose"),
        ((1.0, 1.1, 1.2), 0.001, "more of them do harm here."),
    ],
)
def test_the_verdict_on_candidates(two: tuple[float, ...], spread: float, words: str) -> None:
    curve = curve_of(losses(2.0, two[0], 3.0, 3.0, 3.0, two=two), spread)
    assert words in describe_candidates(empty_result(energy_model()), curve, 2)


def test_the_verdict_on_the_transformer() -> None:
    result, values = empty_result(energy_model()), losses(2.0, 1.0, 1.2, 1.2, 1.2, two=(1.0, 1.1, 1.1))
    for baseline, side in ((0.5, "is above it, by 0.5000 [0.4"), (1.5, "is below it, by 0.5000 [0.4")):
        sentence = describe_baseline(result, curve_of(values, 0.001, baseline))
        assert side in sentence and "(2 steps, 1 candidate, 3.6 times the FLOPs)" in sentence
    assert "not distinguishable from it" in describe_baseline(result, curve_of(values, 0.1, 1.0))


def test_the_verdict_on_shifted_text() -> None:
    result, (small, large) = empty_result(energy_model()), ((2.0, 1.9, 2.0, 2.0, 2.0), (2.0, 1.0, 2.0, 2.0, 2.0))

    def sentence(here: tuple[float, ...], there: tuple[float, ...], spread: float) -> str:
        curves = [curve_of(losses(*steps), spread) for steps in (here, there)]
        curves[1].samples[:] = curves[1].samples[::-1]  # draws of its own
        return describe_shift(curves, result.steps, "text")

    assert "gains 0.1000 in distribution and 1.0000 on the shifted text" in sentence(small, large, 0.001)
    assert sentence(small, large, 0.001).endswith("as the paper has it, holds here.")
    assert sentence(large, small, 0.001).endswith("does not hold here: it is the other way.")
    assert "on the shifted text, which is 0.9000 [0.8" in sentence(large, small, 0.001) and "] less." in sentence(
        large, small, 0.001
    )
    assert sentence(small, small, 0.1).endswith("cannot be confirmed here: the interval holds 0.")
    assert "not every loss is finite" in sentence(small, (math.nan,) * 5, 0.1)


def test_a_walk_that_leaves_all_bounds_can_be_drawn(tmp_path: Path) -> None:
    curve = curve_of(losses(2.0, 1.0, 50.0, math.inf, math.nan), 0.01, 0.7)
    result = replace(empty_result(energy_model()), curves=[curve, curve], training_steps=(2, 4))
    with open(tmp_path / "x.png", "wb") as file:
        draw(result, "a $name$", file)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_the_caption_says_what_the_intervals_are() -> None:
    result = empty_result(energy_model())
    text = " ".join(caption(result))
    assert "4,000 draws of rows of text and 2 seeds of noise" in text and "Gains are paired" in text
    assert "No loss of a Transformer++: none." in text and "landscape" not in text
    cost = replace(result.cost, landscapes=(0, 1, 1, 1, 1))
    text = " ".join(caption(replace(result, seeds=[0], cost=cost)))
    assert "draws of rows of the text alone, as there is one seed" in text
    assert "Steps beyond 2 are all on the last of this model's 2 landscapes." in text


def command(run: Path, *flags: str) -> list[str]:
    return ["think-curve", "--run", str(run), "--logs_dir", str(run.parent.parent), *flags]


SHORT = ("--tokens", "192", "--steps", "3", "--candidates", "2", "--seeds", "2")


def test_the_command(ebt_run: Path, baseline_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "folder"
    assert main(command(ebt_run, *SHORT, "--baseline", str(baseline_run), "--infer_output_dir", str(out))) == 0
    output = capsys.readouterr().out
    assert "IN-DISTRIBUTION  validation split of text, 6 rows of 32 tokens" in output
    assert "SHIFTED  Python code of the standard library, 6 rows of 32 tokens" in output
    assert f"Transformer++: {baseline_run.name}, training step 6." in " ".join(output.split())
    for words in (
        "Steps: the loss is least",
        "Candidates after 2 steps",
        "Candidates after 3 steps",
        "Shift: from 1 step",
    ):
        assert words in output
    assert (out / "think_curve.png").read_bytes().startswith(b"\x89PNG")
    with open(out / "think_curve.csv") as file:
        rows = list(csv.DictReader(file))
    ebt = [row for row in rows if row["model"] == "ebt"]
    assert len(ebt) == 2 * (4 + 2) * 3  # texts; 0 to 3 steps and 2 candidates after 2 and 3; seeds and their mean
    assert {row["seed"] for row in rows} == {"0", "1", "mean"}
    passes = {(row["steps"], row["candidates"]): row["passes"] for row in ebt}
    assert passes["3", "1"] == "3" and passes["3", "2"] == "8"
    loaded = load(ModelFlags(run=str(ebt_run)))
    plain = load(ModelFlags(run=str(baseline_run))).model
    rows_BS = validation_text(loaded, 192).rows
    for model, fields in (
        (loaded.model, {"steps": "2", "candidates": "1", "seed": "0"}),  # an evaluation starts from the noise of seed 0
        (plain, {"model": "Transformer++", "candidates": ""}),
    ):
        fields |= {"text": "in-distribution"}
        (row,) = [row for row in rows if fields.items() <= row.items()]
        logits, targets = model(rows_BS[:, :-1]).flatten(0, 1), rows_BS[:, 1:].flatten()
        assert float(row["loss"]) == pytest.approx(
            float(F.cross_entropy(logits, targets, ignore_index=model.pad_id)), abs=1e-4
        )


def test_other_text_and_no_transformer(ebt_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "odd\u200b.txt"
    file.write_text("1 + 1 = 2\n" * 20)
    flags = ("--shifted", str(file), "--infer_output_dir", str(tmp_path), "--device", "cpu")
    assert main(command(ebt_run, *SHORT, *flags)) == 0
    output = capsys.readouterr().out
    assert r"SHIFTED  odd\u200b.txt, 6 rows of 32 tokens" in output
    assert "there is no trained run tiny-ebt-transformer++ (--compare_baseline trains it)" in " ".join(output.split())
    assert "\n    T++" not in output


def test_the_transformer_beside_the_run_is_found(ebt_run: Path, baseline_run: Path, tmp_path: Path) -> None:
    runs = [shutil.copytree(run, tmp_path / "runs" / run.name) for run in (ebt_run, baseline_run)]
    loaded = load(ModelFlags(run=str(runs[0])))
    assert find_transformer(ModelFlags(), ThinkCurveFlags(), loaded).loaded is None
    settings = (runs[1] / "config.json").read_text()
    (runs[1] / "config.json").write_text(settings.replace('"tiny-transformer"', '"tiny-ebt-transformer++"'))
    baseline = find_transformer(ModelFlags(), ThinkCurveFlags(), loaded)
    assert baseline.loaded is not None and baseline.name == baseline_run.name
    longer = loaded.config.with_values({"context_length": 64})
    other = find_transformer(ModelFlags(), ThinkCurveFlags(), replace(loaded, config=longer))
    assert other.loaded is None and other.flops > baseline.flops
    assert other.missing_reason == (
        f"the run {baseline_run.name} does not serve: its context is 32 tokens, and the EBT's is 64; "
        "choose a run with at least as many"
    )


def test_losses_of_different_tokens_are_not_compared(ebt_run: Path, baseline_run: Path) -> None:
    ebt, plain = (load(ModelFlags(run=str(run))) for run in (ebt_run, baseline_run))
    assert comparison_problem(plain, ebt) is None
    words = ByteTokenizer()
    words.name, words.fingerprint = "bpe:300", "other"
    assert comparison_problem(replace(plain, processor=words), ebt) == (
        "its tokenizer is bpe:300, and the EBT's is bytes, so losses per token do not compare; "
        "choose a run with the same"
    )


@pytest.mark.parametrize("start", ("zeros", "prior"))
def test_a_walk_without_chance_has_one_seed_and_one_candidate(
    start: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run: Path = request.getfixturevalue("residual_run" if start == "prior" else "ebt_run")
    loaded = load(ModelFlags(run=str(run)))
    assert isinstance(loaded.model, EnergyLM)
    if start == "zeros":
        loaded.model.walk_settings = replace(loaded.model.walk_settings, start="zeros")
    assert loaded.model.walk_settings.start == start
    monkeypatch.setattr("inference.language.think_curve.load", lambda _: loaded)
    assert main(command(run, *SHORT, "--infer_output_dir", str(tmp_path))) == 0
    output = capsys.readouterr().out
    assert "Nothing is drawn at random here (the walk starts without noise): one seed, one candidate." in output
    assert "andidates after" not in output
    with open(tmp_path / "think_curve.csv") as file:
        assert {(row["seed"], row["candidates"]) for row in csv.DictReader(file)} == {("0", "1"), ("mean", "1")}


def test_noise_that_is_asked_for_is_drawn(
    residual_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--infer_langevin_dynamics_noise", "0.5", "--infer_output_dir", str(tmp_path))
    assert main(command(residual_run, *SHORT, *flags)) == 0
    output = capsys.readouterr().out
    assert "Nothing is drawn at random" not in output and "Candidates after 1 step:" in output
    with open(tmp_path / "think_curve.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["text"] == "in-distribution" and row["model"] == "ebt"]
    assert {row["candidates"] for row in rows} == {"1", "2"} and {row["seed"] for row in rows} == {"0", "1", "mean"}
    losses = {(row["steps"], row["seed"]): row["loss"] for row in rows if row["candidates"] == "1"}
    assert losses["0", "0"] == losses["0", "1"]  # the start is without noise
    assert losses["1", "0"] != losses["1", "1"]


def test_a_single_step_can_be_looked_at(residual_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(residual_run, "--tokens", "192", "--steps", "1", "--infer_output_dir", str(tmp_path))) == 0
    output = capsys.readouterr().out
    assert "after 1 of 1.\n" in output and "ore steps" not in output and (tmp_path / "think_curve.png").is_file()


def short_file(folder: Path) -> Path:
    (folder / "short.txt").write_text("x" * 63)
    return folder / "short.txt"


def binary_file(folder: Path) -> Path:
    (folder / "binary").write_bytes(b"\xff\xfe\x00")
    return folder / "binary"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (lambda _: ("--steps", "1"), "--steps is 1: this model's evaluation takes 2; choose 2 or more."),
        (
            lambda _: ("--tokens", "63"),
            "--tokens is 63: an interval needs 2 rows of this model's 32 tokens at least; choose 64 or more.",
        ),
        (
            lambda folder: ("--shifted", str(folder / "gone")),
            "gone': cannot read it (No such file or directory); give a text file.",
        ),
        (lambda folder: ("--shifted", str(binary_file(folder))), "binary': it is not text in UTF-8; give a text file."),
        (
            lambda folder: ("--shifted", str(short_file(folder))),
            "short.txt': it has 63 tokens to predict: an interval needs 2 rows of this model's 32 tokens, 64 in all; "
            "give a longer file.",
        ),
        (lambda _: ("--baseline", "nobody"), "--baseline is 'nobody': there is no such run."),
        (
            lambda folder: ("--infer_output_dir", str(short_file(folder) / "sub")),
            "sub': cannot make that folder (Not a directory): choose one you can write to.",
        ),
        (lambda _: ("--candidates", "65"), "--candidates is 65"),
        (
            lambda _: ("--candidates", "1", "--infer_energy_sampling_technique", "max_gap"),
            "--infer_energy_sampling_technique is 'max_gap': with --candidates 1 there is nothing to choose from; "
            "remove it, or ask for more.",
        ),
        (lambda _: ("--infer_steps_final_landscape",), "--infer_steps_final_landscape is unknown"),
    ],
)
def test_mistakes_are_told(
    ebt_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: Callable[[Path], tuple[str, ...]],
    words: str,
) -> None:
    assert main(command(ebt_run, *flags(tmp_path))) == 2
    output = capsys.readouterr().err
    assert words in output and "Traceback" not in output


def test_models_that_do_not_fit_are_refused(
    ebt_run: Path, baseline_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(baseline_run)) == 2
    words = "this model has no energy, so it cannot think for longer; choose an EBT's run."
    assert f"--run is {baseline_run.name!r}: {words}" in capsys.readouterr().err
    assert main(command(ebt_run, "--baseline", str(ebt_run))) == 2
    assert "it is an EBT; choose a run of --model_name baseline_transformer." in capsys.readouterr().err


def test_an_interval_reads_well() -> None:
    assert str(Interval(0.5, 0.25, 0.75)) == "0.5000 [0.2500, 0.7500]"
    assert Interval(0.5, 0.25, 0.75).half == 0.25
