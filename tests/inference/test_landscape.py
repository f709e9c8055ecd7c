"""The picture of the energy shows the walk that the model takes and the energies that it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from config.settings import Inference
from data.language.tokenizers import ByteTokenizer
from inference.__main__ import main
from inference.language.decoder import EnergyDecoder
from inference.language.landscape import (
    context_end,
    label_positions,
    measure_landscape,
    plane_through,
    save_landscape,
    square_around,
    token_name,
    top_tokens,
    validation_example,
)
from inference.loading import ModelFlags, load
from inference.thinking import plan_from_flags
from models.language import EnergyLM
from tests.inference.small import SEPARATOR, energy_model, residual_model

TOKENS = [3, 1, 4, 1, 5]


@pytest.mark.parametrize("build", (energy_model, residual_model))
@pytest.mark.parametrize("conditioning", ("default", "time_embed", "adaln"))
def test_energies_are_those_of_the_model(build: Callable[..., EnergyLM], conditioning: str) -> None:
    model = build(conditioning)
    plan = plan_from_flags(model, Inference(infer_ebt_num_steps=3, infer_generated_samples=2))
    assert plan is not None
    data = measure_landscape(model, TOKENS, 7, plan, points=9)  # 81 points: more than attention takes at once
    decoder = EnergyDecoder(model, plan, [TOKENS], 0)
    prediction = decoder.predict()
    assert data.energies[0] == pytest.approx(float(prediction.of_selected("first_energy")))
    np.testing.assert_allclose([data.energies[-1], data.end_energy], float(prediction.of_selected("energy")))
    np.testing.assert_allclose(data.probabilities[-1], prediction.logits[0].softmax(-1))
    assert data.target_energy == pytest.approx(float(decoder.energy_of(torch.tensor([7]))))

    def uncached(z_D: torch.Tensor) -> float:
        context = model.network.context(torch.tensor([TOKENS]), plan.steps[-1].landscape)
        return float(model.network.energy(z_D.expand(1, len(TOKENS), -1), context)[0, -1])

    embedding_VD = model.network.prediction_embedding
    start_D, end_D = (torch.from_numpy(data.probabilities[step]) @ embedding_VD for step in (0, -1))
    origin_D, axes_2D = plane_through(start_D, end_D, embedding_VD[7])
    for row, column in ((0, 0), (3, 7), (7, 1), (8, 8)):
        point = torch.tensor([data.across[column], data.up[row]])
        assert data.heights[row, column] == pytest.approx(uncached(origin_D + point @ axes_2D), rel=1e-6)


def test_the_plane_goes_through_all_three() -> None:
    three_3D = torch.randn(3, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    origin_D, axes_2D = plane_through(*three_3D)
    torch.testing.assert_close(axes_2D @ axes_2D.T, torch.eye(2, dtype=torch.float64))
    places_32 = (three_3D - origin_D) @ axes_2D.T
    torch.testing.assert_close(origin_D + places_32 @ axes_2D, three_3D)
    assert places_32[0].abs().max() == 0 and places_32[1, 1].abs() < 1e-12 and places_32[2, 1] > 0


@pytest.mark.parametrize("end", (1.0, 0.0, 0.5))
def test_three_on_a_line_have_a_plane_too(end: float) -> None:
    start_D, target_D = torch.zeros(16), torch.ones(16)
    _, axes_2D = plane_through(start_D, end * target_D, target_D)
    torch.testing.assert_close(axes_2D @ axes_2D.T, torch.eye(2))


def test_the_square_holds_all_places() -> None:
    across, up = square_around(np.array([[0.0, 0.0], [4.0, 1.0], [2.0, -1.0]]), 5)
    assert across.tolist() == [-1, 0.5, 2, 3.5, 5] and up.tolist() == [-3, -1.5, 0, 1.5, 3]
    assert np.ptp(square_around(np.zeros((2, 2)), 3)[0]) == 2


def test_earlier_documents_are_not_seen() -> None:
    model = energy_model()
    assert model.network.shape.separator_id == SEPARATOR
    plan = plan_from_flags(model, Inference())
    assert plan is not None
    alone, after = (
        measure_landscape(model, tokens, 7, plan, 3) for tokens in ([SEPARATOR, 2, 5], [9, 9, SEPARATOR, 2, 5])
    )
    np.testing.assert_array_equal(alone.heights, after.heights)


def test_without_the_truth_the_likeliest_token_takes_its_place() -> None:
    model = energy_model()
    plan = plan_from_flags(model, Inference())
    assert plan is not None
    data = measure_landscape(model, TOKENS, None, plan, 3)
    assert not data.has_target and data.target == data.probabilities[-1].argmax()


def test_the_truth_is_always_among_the_tokens_shown() -> None:
    model = energy_model()
    plan = plan_from_flags(model, Inference())
    assert plan is not None
    for target in range(10):
        tokens = top_tokens(measure_landscape(model, TOKENS, target, plan, 3))
        assert target in tokens and len(tokens) == len(set(tokens)) == 5


def test_tokens_are_named_so_that_nothing_obeys_them() -> None:
    tokenizer = ByteTokenizer()
    names = [token_name(tokenizer, token, "ascii") for token in (97, 10, 27, 0xC3, tokenizer.separator_id)]
    assert names == ["'a'", r"'\n'", r"'\x1b'", "token 195", "end of text"]
    assert context_end(tokenizer.encode("é\x1b\n").tolist(), tokenizer, "ascii") == r"\xe9\x1b\n"
    assert context_end(tokenizer.encode("a" * 100).tolist(), tokenizer, "utf-8") == "..." + "a" * 48


def test_numbers_have_room() -> None:
    path = np.array([[0.0, 0.0], [5.0, 0.0], [5.1, 0.0], [5.2, 0.0]])
    assert label_positions(path, 1.0) == [3, 0]
    assert label_positions(path, 0.05) == [3, 0, 1, 2]


def command(run: Path, *flags: str) -> list[str]:
    return ["landscape", "--run", str(run), "--logs_dir", str(run.parent.parent), *flags]


@pytest.mark.parametrize("kind", ("ebt", "residual"))
def test_the_command(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Path = request.getfixturevalue(f"{kind}_run")
    flags = ("--prompt", "cost: $5 $6 the\nend", "--points", "9", "--infer_output_dir", str(tmp_path / "out"))
    assert main(command(run, *flags, "--infer_ebt_num_steps", "3")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == r"after      cost: $5 $6 the\nen" and lines[1].endswith("true 'd'")
    assert lines[2].startswith("energy     ") and "at the start" in lines[2] and "true token alone" in lines[3]
    assert [line.split()[0] for line in lines[5:9]] == ["0", "1", "2", "3"]
    assert (tmp_path / "out" / "landscape.png").read_bytes().startswith(b"\x89PNG")


def test_a_place_of_the_validation_split(ebt_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(ebt_run, "--points", "3")) == 0
    assert "predicted" in capsys.readouterr().out
    assert (ebt_run / "landscape.png").is_file()
    (ebt_run / "landscape.png").unlink()
    loaded = load(ModelFlags(run=str(ebt_run)))
    tokens, target = validation_example(loaded, 0)
    assert 1 <= len(tokens) <= 32 and target != loaded.processor.separator_id
    assert (tokens, target) == validation_example(loaded, 0) != validation_example(loaded, 1)


def test_drawing_for_another_command(ebt_run: Path, tmp_path: Path) -> None:
    loaded = load(ModelFlags(run=str(ebt_run)))
    plan = plan_from_flags(loaded.model, Inference())
    assert plan is not None
    tokens = loaded.processor.encode("x" * 100).tolist()  # longer than the context: its end is read
    save_landscape(loaded, tokens, None, plan, 3, tmp_path / "a.png")
    save_landscape(loaded, tokens, 97, plan, 3, tmp_path / "b.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000 < (tmp_path / "b.png").stat().st_size


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--prompt", ""),
            "--prompt is empty: give a text, or leave the flag out.",
        ),
        (("--prompt", "a"), "--prompt is 'a', a single token: its last token is predicted from those before it;"),
        (
            ("--prompt", "x" * 33),
            "--prompt is 33 tokens long: this model reads 32, the separator before the text included, and predicts the "
            "last one; give at most 32.",
        ),
        (("--prompt", "\udcff\udcff"), "--prompt is '\\udcff\\udcff': give a text in UTF-8."),
        (("--points", "2"), "--points is 2"),
        (("--infer_generated_samples", "2"), "--infer_generated_samples is unknown"),
    ],
)
def test_mistakes_are_told(
    ebt_run: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    assert main(command(ebt_run, *flags)) == 2
    assert words in capsys.readouterr().err


def test_a_model_without_energy_is_refused(baseline_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(baseline_run)) == 2
    words = f"--run is {baseline_run.name!r}: this model has no energy to draw; choose an EBT's run."
    assert words in capsys.readouterr().err
